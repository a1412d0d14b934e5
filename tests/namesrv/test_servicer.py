"""The name server over gRPC, as brokers and clients use it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rocketsim_proto import namesrv_pb2 as pb
from rocketsim_proto.metadata_pb2 import DataVersion, TopicConfig
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.errors import ConfigError
from broker_service.namesrv.server import run_namesrv
from testbed.polling import until

EVIL = "x\n2026-01-01 00:00:00 ERROR forged line\x1b[2J\x1b]0;title\x07"


@contextlib.asynccontextmanager
async def name_server(tmp_path, **config) -> AsyncIterator[grpc.aio.Channel]:
    shutdown = asyncio.Event()
    address_file = tmp_path / "address"
    running = asyncio.create_task(
        run_namesrv(NamesrvConfig(listen_port=0, address_file=address_file, **config), shutdown)
    )
    await until(lambda: address_file.exists() or running.done(), "the name server to listen")
    try:
        async with grpc.aio.insecure_channel(address_file.read_text().strip()) as channel:
            yield channel
    finally:
        shutdown.set()
        await running


def registration(broker_id=0, address="127.0.0.1:1", epoch=1, topics=("orders",), **more):
    more.setdefault("broker_name", "broker-a")
    more.setdefault("cluster_name", "c")
    more.setdefault("topics_version", DataVersion(timestamp=1, counter=len(topics)))
    return pb.BrokerRegistration(
        broker_id=broker_id,
        address=address,
        epoch=epoch,
        topics=[TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=3, perm=6) for topic in topics],
        broker_permission=6,
        writable=True,
        **more,
    )


async def register(stream, message):
    await stream.write(message)
    return await stream.read()


async def test_a_registration_is_answered_with_all_brokers_of_its_name(tmp_path):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        master, slave = stub.RegisterBroker(), stub.RegisterBroker()
        await register(master, registration(end_offset=100))
        reply = await register(slave, registration(1, "127.0.0.1:2", end_offset=80, topics=()))
        assert [(m.broker_id, m.address, m.end_offset) for m in reply.members] == [
            (0, "127.0.0.1:1", 100),
            (1, "127.0.0.1:2", 80),
        ]
        assert (reply.refused, reply.newest_epoch) == ("", 1)


async def test_a_route_has_queues_and_addresses(tmp_path):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        master = stub.RegisterBroker()
        await register(master, registration())
        route = await stub.TopicRoute(pb.TopicRouteRequest(topic="orders"))
        assert list(route.queue_datas) == [
            pb.QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=3, perm=6)
        ]
        assert list(route.broker_datas) == [
            pb.BrokerData(cluster_name="c", broker_name="broker-a", broker_addrs={0: "127.0.0.1:1"}, epoch=1)
        ]
        assert (await stub.TopicList(pb.TopicListRequest())).topics == ["orders"]
        assert (await stub.ClusterList(pb.ClusterListRequest())).brokers == route.broker_datas


async def test_an_unknown_topic_is_not_found_with_rocketmqs_code(tmp_path):
    async with name_server(tmp_path) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await NameServerStub(channel).TopicRoute(pb.TopicRouteRequest(topic="nowhere"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "'nowhere'" in refused.value.details()
        assert refused.value.trailing_metadata()["rocketsim-code"] == "17"


@pytest.mark.parametrize("how", ["half-closed", "cancelled"])
async def test_a_broker_is_gone_as_soon_as_its_stream_ends(tmp_path, how):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        master = stub.RegisterBroker()
        await register(master, registration())
        if how == "cancelled":
            master.cancel()
        else:
            await master.done_writing()

        while (await stub.ClusterList(pb.ClusterListRequest())).brokers:
            pass


async def test_a_silent_broker_is_removed_although_its_stream_is_open(tmp_path):
    async with name_server(tmp_path, broker_expire_time_ms=200, scan_not_active_broker_interval=10) as channel:
        stub = NameServerStub(channel)
        master = stub.RegisterBroker()
        await register(master, registration())
        while (await stub.ClusterList(pb.ClusterListRequest())).brokers:
            pass
        assert len((await register(master, registration())).members) == 1


async def test_a_topic_that_was_added_is_routed_from_the_next_registration_on(tmp_path):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        master = stub.RegisterBroker()
        await register(master, registration())
        await register(master, registration(topics=("orders", "bills")))
        assert (await stub.TopicList(pb.TopicListRequest())).topics == ["bills", "orders"]


async def test_a_master_of_an_older_epoch_is_told_why_it_is_refused_and_by_whom(tmp_path):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        newer, older = stub.RegisterBroker(), stub.RegisterBroker()
        await register(newer, registration(address="127.0.0.1:2", epoch=5))
        reply = await register(older, registration(epoch=4))
        assert "epoch 5" in reply.refused
        assert reply.newest_epoch == 5
        assert [member.address for member in reply.members] == ["127.0.0.1:2"]


async def test_a_newer_epoch_is_told_at_once_to_every_broker_of_its_name(tmp_path):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        replaced, slave, other, promoted = (stub.RegisterBroker() for _ in range(4))
        await register(replaced, registration())
        await register(slave, registration(1, "127.0.0.1:2"))
        await register(other, registration(address="127.0.0.1:9", broker_name="broker-b"))
        await register(promoted, registration(address="127.0.0.1:3", epoch=5))
        for told in (replaced, slave):
            reply = await told.read()
            assert (reply.newest_epoch, reply.refused) == (5, "")
            assert [member.address for member in reply.members] == ["127.0.0.1:3", "127.0.0.1:2"]
        # The next answer belongs to the next registration: no broker was told twice, and none of another name was told.
        assert "epoch 5" in (await register(replaced, registration())).refused
        assert (await register(other, registration(address="127.0.0.1:9", broker_name="broker-b"))).newest_epoch == 1
        # A broker that was refused is told so again, and not that it is registered now.
        await register(slave, registration(1, "127.0.0.1:2", epoch=6))
        again = await replaced.read()
        assert again.newest_epoch == 6 and "epoch 5" in again.refused


async def test_unregistering_leaves_the_stream_open(tmp_path):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        master = stub.RegisterBroker()
        await register(master, registration())
        reply = await register(master, pb.BrokerRegistration(broker_name="broker-a", unregister=True))
        assert list(reply.members) == []
        assert len((await register(master, registration())).members) == 1


async def test_write_permission_is_wiped_and_added_and_the_topics_counted(tmp_path):
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        master = stub.RegisterBroker()
        await register(master, registration(topics=("orders", "bills")))
        request = pb.WritePermRequest(broker_name="broker-a")
        assert (await stub.WipeWritePerm(request)).topic_count == 2
        assert (await stub.TopicRoute(pb.TopicRouteRequest(topic="orders"))).queue_datas[0].perm == 4
        assert (await stub.AddWritePerm(request)).topic_count == 2
        assert (await stub.TopicRoute(pb.TopicRouteRequest(topic="orders"))).queue_datas[0].perm == 6


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"broker_name": ""}, "without broker_name"),
        ({"address": "nowhere"}, "not host:port"),
        ({"address": "host:٣"}, "not host:port"),
        ({"broker_id": -1}, "broker id -1"),
        ({"epoch": -1}, "epoch -1"),
        ({"broker_name": EVIL}, r"broker_name 'x\\n2026.*are allowed"),
        ({"broker_name": EVIL, "unregister": True}, "broker_name"),
        ({"broker_name": EVIL, "wire_version": 99}, "letters, digits"),
        ({"broker_name": "b" * 128}, "1 to 127 letters"),
        ({"cluster_name": EVIL}, "registers with cluster 'x"),
        ({"address": f"{EVIL}:12"}, "not host:port"),
        ({"address": "host:70000"}, "not host:port"),
        ({"v2_address": f"{EVIL}:12"}, "not host:port"),
        ({"broker_role": EVIL}, "registers with broker_role 'x"),
    ],
)
async def test_a_registration_that_makes_no_sense_is_refused(tmp_path, broken, says):
    async with name_server(tmp_path) as channel:
        stream = NameServerStub(channel).RegisterBroker()
        await stream.write(registration(**broken))
        with pytest.raises(grpc.aio.AioRpcError, match=says) as refused:
            await stream.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", [EVIL, "../../etc", "t" * 128, ""])
async def test_topics_with_names_that_no_broker_takes_get_no_route(tmp_path, caplog, name):
    """The broker's other topics get a route.  RocketMQ's own store may have a topic with a name that our brokers
    refuse.
    """
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        stream = stub.RegisterBroker()
        await stream.write(registration(topics=(name, "orders")))
        assert (await stream.read()).refused == ""
        assert list((await stub.TopicList(pb.TopicListRequest())).topics) == ["orders"]
        stream.cancel()
    assert "broker-a has 1 topics that no client can use" in caplog.text


async def test_topics_with_more_queues_than_a_broker_makes_get_no_route(tmp_path, caplog):
    """A client would create an object for each queue."""
    huge = TopicConfig(topic_name="t", read_queue_nums=2**31 - 1, write_queue_nums=2**31 - 1)
    async with name_server(tmp_path) as channel:
        stub = NameServerStub(channel)
        stream = stub.RegisterBroker()
        message = registration()
        message.topics.append(huge)
        await stream.write(message)
        await stream.read()
        assert list((await stub.TopicList(pb.TopicListRequest())).topics) == ["orders"]
        stream.cancel()
    assert "topic t has 2147483647 queues; 0 to 65536" in caplog.text


async def test_reflection_and_health_know_the_service(tmp_path):
    async with name_server(tmp_path) as channel:
        for service in ("", "rocketsim.NameServer"):
            request = health_pb2.HealthCheckRequest(service=service)
            reply = await health_pb2_grpc.HealthStub(channel).Check(request)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await stream.read()
        assert "rocketsim.NameServer" in [service.name for service in listed.list_services_response.service]
        await stream.done_writing()


async def test_a_second_name_server_on_one_port_is_refused(tmp_path):
    async with name_server(tmp_path):
        port = int((tmp_path / "address").read_text().rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"listenPort={port}: cannot listen on 127.0.0.1:{port}"):
            await run_namesrv(NamesrvConfig(listen_port=port), asyncio.Event())
