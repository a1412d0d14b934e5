"""Without a name server, users give the brokers' addresses, and the client asks the brokers for everything else."""

from collections.abc import Callable

import pytest

from rocketsim_client import Admin, Message, Producer, PullConsumer, SendStatus
from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import InvalidParameter, NoPermission
from testbed.polling import wait_until
from testbed.processes import ServerProcess
from tests.client.conftest import RealPair
from tests.support.fake_broker import FakeCluster


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name_server": "h:1", "brokers": {"a": {0: "h:2"}}}, "give only one of them"),
        ({"brokers": {"a": {0: "nowhere"}}}, "broker 'a': the address 'nowhere' is not host:port"),
        ({"brokers": {"a": {}}}, "broker 'a' has no address"),
        ({}, "no name server is given"),
    ],
)
def test_what_does_not_say_where_the_cluster_is_is_refused(given: dict, says: str) -> None:
    with pytest.raises(InvalidParameter, match=says):
        Cluster(**{"name_server": ""} | given)


def test_what_only_a_name_server_knows_is_refused(cluster: FakeCluster) -> None:
    with Cluster("", brokers=cluster.addresses()) as client:
        assert {data.broker_name for data in client.members()} == {"broker-a", "broker-b"}
        with pytest.raises(NoPermission, match="no list of topics"):
            client.topics()


@pytest.mark.cluster
def test_a_producer_and_a_consumer_without_a_name_server_follow_a_promotion(
    real_pair: Callable[[str], RealPair],
) -> None:
    """The brokers know a name server, the clients do not."""
    _, master, slave = real_pair("T")
    brokers = {"broker-a": {0: master.address, 1: slave.address}}
    with Producer(brokers=brokers) as producer, PullConsumer(brokers=brokers, group="g") as consumer:
        queue = producer.publish_queues("T")[0]
        for body in (b"one", b"two"):
            assert producer.send(Message("T", body), queue=queue).send_status == SendStatus.SEND_OK
        assert [message.body for message in consumer.pull(queue, 0).messages] == [b"one", b"two"]
        assert consumer.commit_all({queue: 1}).broker_ids == {"broker-a": 0}

        master.kill()
        assert [message.body for message in consumer.pull(queue, 1).messages] == [b"two"]
        with Admin("127.0.0.1:1") as admin:
            wait_until(lambda: promoted(admin, slave), "the slave is promoted")
        sent = producer.send(Message("T", b"three"), queue=queue, timeout_s=10)
        assert sent.queue_offset == 2
        assert [message.body for message in consumer.pull(queue, 1).messages] == [b"two", b"three"]
        assert consumer.cluster.route("T", fresh=True).addresses("broker-a")[0] == slave.address
        assert consumer.commit_all({queue: 3}).broker_ids == {"broker-a": 0}


def promoted(admin: Admin, slave: ServerProcess) -> bool:
    try:
        return admin.promote_slave(slave.address, broker_name="broker-a").epoch > 0
    except InvalidParameter as refusal:  # the master's death has not been noticed yet
        assert "stop it first" in str(refusal) or "does not answer" in str(refusal), refusal
        return False
