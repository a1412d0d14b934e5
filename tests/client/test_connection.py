"""A connection as a value: how it is made, what it shows, and that every client accepts it."""

import pickle

import pytest
from rocketsim_proto.signature import Credentials

from rocketsim_client import Admin, Cluster, Connection, Consumer, InvalidParameter, Message, Producer, PullConsumer
from rocketsim_client.errors import ClientClosed
from rocketsim_client.tls import Tls
from rocketsim_client.transport import opening
from tests.support.fake_broker import FakeCluster

KEYS = {"access_key": "reader", "secret_key": "hidden"}
TLS = {"tls": True, "tls_ca": "ca.pem", "tls_cert": "own.pem", "tls_key": "own.key"}


def test_a_connection_is_a_value_that_travels_and_hides_its_secret() -> None:
    one = Connection.of("a:1; b:2", timeout_s=2.0, channel_options={"grpc.x": 1}, **KEYS, **TLS)
    assert one == pickle.loads(pickle.dumps(one)) == Connection.of(["a:1", "b:2"], **vars_of(one))
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert one.credentials == Credentials("reader", "hidden") and one.tls == Tls("ca.pem", "own.pem", "own.key")
    assert "hidden" not in repr(one) and "ca.pem" in repr(one)


def vars_of(one: Connection) -> dict:
    return {"timeout_s": one.timeout_s, "channel_options": dict(one.channel_options), **KEYS, **TLS}


def test_addresses_of_brokers_stand_for_name_servers() -> None:
    brokers = {"broker-b": {1: "h:2", 0: "h:1"}, "broker-a": {0: "h:3"}}
    one = Connection.of(brokers=brokers)
    assert (one.name_servers, one.members, one.first_address) == ((), brokers, "h:1")
    assert Connection.of("n:1").first_address == "n:1"


def test_every_client_takes_a_connection(cluster: FakeCluster) -> None:
    connection = Connection.of(cluster.address, timeout_s=2.5, poll_interval_s=7.0)
    with (
        Cluster(connection) as reader,
        Producer(connection) as producer,
        PullConsumer(connection) as puller,
        Consumer(connection, "g", "T") as member,
        Admin(connection) as admin,
    ):
        assert producer.send(Message("T", b"x")).msg_id
        assert {client.cluster.connection for client in (producer, puller, member, admin)} == {connection}
        assert reader.topics() == admin.topic_list()
        assert puller.cluster.timeout_s == admin.cluster.timeout_s == 2.5


def test_a_clients_own_times_go_before_those_of_the_connection() -> None:
    connection = Connection.of("a:1", timeout_s=2.5)
    with Admin(connection, timeout_s=9.0) as admin, PullConsumer(connection, poll_interval_s=1.0) as puller:
        assert (admin.cluster.timeout_s, admin.cluster.connection.poll_interval_s) == (9.0, 30.0)
        assert (puller.cluster.timeout_s, puller.cluster.connection.poll_interval_s) == (2.5, 1.0)
    with Admin("a:1") as admin:
        assert admin.cluster.timeout_s == 5.0


@pytest.mark.parametrize(
    "twice", [KEYS, TLS, {"brokers": {"broker-a": {0: "h:1"}}}, {"range_streams": False}, {"channel_options": {"a": 1}}]
)
def test_what_the_connection_says_is_not_said_again(twice: dict) -> None:
    with pytest.raises(InvalidParameter, match=f"{next(iter(twice))}.*the Connection has this already; leave"):
        Cluster(Connection.of("a:1"), **twice)


def test_a_transport_is_made_by_the_first_call(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = opening.open_transport
    monkeypatch.setattr(opening, "open_transport", lambda one, *seen: made.append(one) or real(one, *seen))
    connection = Connection.of(cluster.address, protocol="grpc")
    with Cluster(connection) as reader:
        assert made == []
        reader.topics()
        reader.topics()
        assert made == [connection]
    with Producer(connection), PullConsumer(connection):
        pass
    closed = Cluster(connection)
    closed.close()
    with pytest.raises(ClientClosed):
        closed.topics()
    assert made == [connection]
