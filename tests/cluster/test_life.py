"""A broker's stop, its deletions, and its answers to plain gRPC."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rocketsim_client import PullConsumer
from rocketsim_client.model import PullStatus
from testbed.polling import wait_until

pytestmark = pytest.mark.cluster


def test_sigterm_closes_cleanly_and_leaves_no_abort(processes, namesrv, alone):
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER")
    alone(master).update_topic("T")
    alone(master).wait_for_slaves()
    alone(master).put("T", *(b"%d" % number for number in range(100)))
    for broker in (slave, master):
        assert (broker.store / "abort").exists()
        assert broker.stop() == 0
        assert not (broker.store / "abort").exists()
        assert "Traceback" not in broker.log()
    assert namesrv.stop() == 0
    namesrv.start()
    master.start()
    assert len(alone(master).bodies("T")) == 100


def test_deletion_by_time_moves_the_smallest_offset_under_a_consumer(processes, namesrv, alone):
    keys = {"mappedFileSizeCommitLog": 64 << 10, "fileReservedTime": 72}
    broker = processes.start_broker("broker-a", 0, namesrv, **keys)
    alone(broker).update_topic("T", queues=1)
    for number in range(200):
        alone(broker).put("T", b"%04d" % number + b"x" * 2_000)
    with PullConsumer(name_server=namesrv.address, group="g") as consumer:
        (queue,) = wait_until(lambda: consumer.message_queues("T"), "the topic's route")
        assert consumer.pull(queue, 0).status == PullStatus.FOUND
        every_hour = ";".join(f"{hour:02}" for hour in range(24))
        broker.stop()
        broker.start(fileReservedTime=0, deleteWhen=every_hour)
        wait_until(lambda: alone(broker).bounds("T")[0][0] > 0, "files are deleted", 60.0)
        smallest, end = alone(broker).bounds("T")[0]
        assert end == 200
        result = wait_until(lambda: pulled(consumer, queue), "an answer")
        assert (result.status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, smallest)
        assert consumer.pull(queue, smallest).status == PullStatus.FOUND
    assert alone(broker).bodies("T")[0].startswith(b"%04d" % smallest)


def pulled(consumer, queue):
    result = consumer.pull(queue, 0)
    return result if result.status != PullStatus.FOUND else None


@pytest.mark.parametrize("kind", ["namesrv", "broker"])
def test_reflection_and_health_answer(processes, namesrv, kind):
    server = namesrv if kind == "namesrv" else processes.start_broker("broker-a", 0, namesrv)
    own = {
        "namesrv": {"rocketsim.NameServer"},
        "broker": {"rocketsim.Broker", "rocketsim.Admin", "rocketsim.Replication"},
    }
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = list(stub.ServerReflectionInfo(iter([request]), timeout=60))
        listed = {service.name for service in answer.list_services_response.service}
        assert own[kind] | {"grpc.health.v1.Health"} <= listed
        for name in own[kind]:
            request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            (answer,) = list(stub.ServerReflectionInfo(iter([request]), timeout=60))
            assert answer.file_descriptor_response.file_descriptor_proto, f"{name} is not described"
