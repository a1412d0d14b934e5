"""Zero and an empty text are valid values, and are not treated as values that were not given."""

import time
from collections.abc import Iterator

import pytest
from rocketsim_proto import admin_pb2, broker_pb2

from rocketsim_client import Admin, Message, Producer, PullConsumer
from rocketsim_client.connection import Connection
from rocketsim_client.errors import InvalidParameter, RocketSimError
from rocketsim_client.model import MessageQueue
from rocketsim_client.transport.own.admin import GrpcAdmin
from rocketsim_client.transport.own.answers import queue_bounds
from tests.support.broker_thread import BrokerThread, broker_thread

Q = MessageQueue("Drain", "broker-a", 1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with broker_thread(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def admin(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.setattr(Admin, "masters", lambda *_: [broker.node.address])
    with Admin(Connection.of("", brokers=broker.brokers), timeout_s=60) as made:
        yield made


def test_a_topic_is_drained_with_no_queue_to_write_to(broker: BrokerThread, admin: Admin) -> None:
    admin.update_topic("Drain", read_queue_nums=2, write_queue_nums=2)
    with Producer(brokers=broker.brokers) as producer, PullConsumer(brokers=broker.brokers, group="g") as consumer:
        producer.send(Message("Drain", b"before"), queue=Q)
        (drained,) = admin.update_topic("Drain", read_queue_nums=2, write_queue_nums=0).values()
        assert (drained.read_queue_nums, drained.write_queue_nums) == (2, 0)
        with pytest.raises(RocketSimError, match="no write queue"):
            producer.send(Message("Drain", b"after"), queue=Q)
        with Producer(brokers=broker.brokers) as new, pytest.raises(RocketSimError, match="no write queue"):
            new.send(Message("Drain", b"after"))
        (read,) = consumer.pull(Q, 0).messages
        assert read.body == b"before"
        assert [bounds.writable for bounds in consumer.bounds("Drain").values()] == [False, False]
        (closed,) = admin.update_topic("Drain", read_queue_nums=0, write_queue_nums=0).values()
        assert (closed.read_queue_nums, closed.write_queue_nums) == (0, 0)
        assert admin.update_topic("Drain", read_queue_nums=2, write_queue_nums=2)
        producer.send(Message("Drain", b"again"), queue=Q)
        assert [message.body for message in consumer.pull(Q, 0).messages] == [b"before", b"again"]


@pytest.mark.parametrize("wrong", [{"write_queue_nums": -1}, {"read_queue_nums": 65_537}, {"perm": 0}, {"perm": 1}])
def test_what_a_topic_cannot_have_is_refused(admin: Admin, wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidParameter, match=r"0 to 65536|perm=[01] must be 2"):
        admin.update_topic("Wrong", **wrong)


def test_an_older_broker_that_took_zero_for_the_default_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions before this one read 0 as "not given"."""

    def made_eight(_: GrpcAdmin, __: str, request: admin_pb2.UpdateTopicRequest, ___: float) -> object:
        answer = admin_pb2.UpdateTopicResponse(topic=request.topic)
        answer.topic.write_queue_nums = 8
        return answer

    monkeypatch.setattr(GrpcAdmin, "command", made_eight)
    with (
        Admin("old:1") as admin,
        pytest.raises(
            InvalidParameter, match=r"broker old:1 has set write_queue_nums=8, because .*; upgrade the broker"
        ),
    ):
        admin.update_topic("T", write_queue_nums=0, broker_addr="old:1")


def test_bounds_of_a_broker_that_says_no_queue_counts_leave_all_queues_open() -> None:
    entry = broker_pb2.QueueBoundsResponse.Entry(queue_id=1)
    silent = broker_pb2.QueueBoundsResponse(entries=[entry])
    (bounds,) = queue_bounds(silent, "here").values()
    assert bounds.readable and bounds.writable
    told = broker_pb2.QueueBoundsResponse(entries=[entry], read_queue_nums=2, write_queue_nums=0)
    (bounds,) = queue_bounds(told, "here").values()
    assert bounds.readable and not bounds.writable


def test_a_search_by_key_until_1970_finds_nothing(broker: BrokerThread, admin: Admin) -> None:
    broker.make_topic("Keys")
    with Producer(brokers=broker.brokers) as producer:
        producer.send(Message("Keys", b"x", keys="k"))
    assert len(admin.query_msg_by_key("Keys", "k")) == 1
    assert admin.query_msg_by_key("Keys", "k", end_timestamp=0) == []
    assert len(admin.query_msg_by_key("Keys", "k", end_timestamp=time.time_ns())) == 1


def test_empty_settings_of_a_user_are_refused(admin: Admin) -> None:
    for what in ("password", "user_type", "user_status"):
        with pytest.raises(InvalidParameter, match=f"{what} of User:u is empty; pass None to keep the present one"):
            admin.update_user("u", **{what: ""})


def test_sizes_that_mean_nothing_are_refused(broker: BrokerThread) -> None:
    with pytest.raises(InvalidParameter, match="default_topic_queue_nums 0: it must be at least 1"):
        Producer(brokers=broker.brokers, default_topic_queue_nums=0)
    with (
        PullConsumer(brokers=broker.brokers, group="g") as consumer,
        pytest.raises(InvalidParameter, match="-1 are given"),
    ):
        consumer.pull(Q, 0, max_msg_bytes=-1)
