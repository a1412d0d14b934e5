"""Name servers share no state, and the loss of one affects nobody."""

import pytest

from rocketsim_client import Message, Producer, PullConsumer
from rocketsim_client.connection import Connection
from rocketsim_client.errors import NameServerUnavailable
from rocketsim_client.model import SendStatus
from rocketsim_client.transport.own.transport import GrpcTransport
from testbed.polling import wait_until

pytestmark = pytest.mark.cluster


def knows_both(name_server) -> bool:
    transport = GrpcTransport(Connection.of(name_server.address))
    try:
        return any(len(broker.addresses) == 2 for broker in transport.routes.cluster_list(5.0))
    finally:
        transport.close()


def test_one_dead_name_server_changes_nothing(processes, alone):
    first, second = (processes.start_namesrv(name) for name in ("namesrv-1", "namesrv-2"))
    master, _ = processes.start_pair("broker-a", first, second, brokerRole="SYNC_MASTER")
    alone(master).update_topic("T")
    alone(master).wait_for_slaves()
    for name_server in (first, second):
        wait_until(lambda name_server=name_server: knows_both(name_server), f"{name_server.name} knows the pair")
    both = f"{first.address};{second.address}"
    with Producer(name_server=both, group="p") as producer, PullConsumer(name_server=both, group="c") as consumer:
        assert producer.send(Message("T", b"1")).send_status == SendStatus.SEND_OK
        first.kill()
        assert producer.send(Message("T", b"2")).send_status == SendStatus.SEND_OK
        assert sum(consumer.max_offset(queue) for queue in consumer.message_queues("T")) == 2
        # A producer that starts only now finds the brokers, too.
        with Producer(name_server=both, group="late") as late:
            assert late.send(Message("T", b"3")).send_status == SendStatus.SEND_OK
    first.start()
    wait_until(lambda: knows_both(first), "the pair registers with it again when it is back")


def test_no_name_server_at_all_is_said_so(processes):
    name_server = processes.start_namesrv()
    name_server.kill()
    with Producer(name_server=name_server.address, group="p") as producer, pytest.raises(NameServerUnavailable):
        producer.send(Message("T", b"1"))


def test_routes_known_already_outlive_the_name_server(processes, namesrv, alone):
    master = processes.start_broker("broker-a", 0, namesrv)
    alone(master).update_topic("T")
    with Producer(name_server=namesrv.address, group="p") as producer:
        wait_until(lambda: producer.send(Message("T", b"1")).send_status == SendStatus.SEND_OK, "a first send")
        namesrv.kill()
        assert producer.send(Message("T", b"2")).send_status == SendStatus.SEND_OK
