"""Consumer against a real broker in this process."""

import asyncio
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from typing import Any

import pytest
from rocketsim_proto import consumption_pb2

from broker_service.admin.operations import Operations
from broker_service.errors import ServiceNotAvailable
from broker_service.modes import BrokerRole
from rocketsim_client import (
    Admin,
    ClientClosed,
    CommitStatus,
    Consumer,
    GroupNotExist,
    InvalidParameter,
    InvalidReceiptHandle,
    Message,
    NoPermission,
    NoRoute,
    Producer,
    ReceivedMessage,
    RocketSimError,
    SqlExpression,
    SubscriptionGroupConfig,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client import errors as client_errors
from rocketsim_client.consuming.renewal import Renewal
from rocketsim_client.errors import CallTimeout
from rocketsim_client.transport.consumption import Change, PopAnswer, PopCall, Settled
from testbed.polling import PATIENCE_S, wait_until
from tests.client.conftest import RealPair
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import goes_by
from tests.support.held_memory import held_bytes

SOON_S = PATIENCE_S  # how long to wait for things that happen at once
ALONE = {"broker_role": BrokerRole.SYNC_MASTER, "slave_wait_time_ms": 0}


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[Renewal]:
    """Collects the renewals that the test's consumers have begun."""
    begun: list[Renewal] = []
    start = Renewal.start

    def noted(renewal: Renewal) -> None:
        begun.append(renewal)
        start(renewal)

    monkeypatch.setattr(Renewal, "start", noted)
    return begun


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with broker_thread(tmp_path, enable_property_filter=True) as started:
        started.make_topic("T")
        started.make_topic("U")
        yield started


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[tuple[BrokerThread, BrokerThread]]:
    """Starts broker-a and broker-b, each with a message in T."""
    with broker_thread(tmp_path / "a") as one, broker_thread(tmp_path / "b", broker_name="broker-b") as other:
        for broker, name in ((one, "broker-a"), (other, "broker-b")):
            broker.make_topic("T")
            with Producer(brokers={name: {0: broker.node.address}}, timeout_s=PATIENCE_S) as producer:
                producer.send(Message("T", name.encode()))
        yield one, other


def consumer_of(broker: BrokerThread, group: str = "g", topics: Any = "T", **options: Any) -> Consumer:
    return Consumer("", group, topics, **{"cluster": broker.cluster, "timeout_s": PATIENCE_S} | options)


def addresses(brokers: tuple[BrokerThread, BrokerThread]) -> dict[str, dict[int, str]]:
    return {name: {0: one.node.address} for name, one in zip(("broker-a", "broker-b"), brokers, strict=True)}


def one_of_each(consumer: Consumer) -> list[ReceivedMessage]:
    """Receives one message of each of `two_brokers`, which the consumer then holds."""
    held: list[ReceivedMessage] = []
    while len(held) < 2:
        held += consumer.receive(timeout_s=SOON_S)
    return held


def send(
    broker: BrokerThread, *bodies: bytes, topic: str = "T", message_group: str | None = None, **fields: Any
) -> None:
    with Producer(cluster=broker.cluster, timeout_s=PATIENCE_S) as producer:
        for body in bodies:
            producer.send(Message(topic, body, **fields), message_group=message_group)


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def nothing_is_left(broker: BrokerThread, group: str = "g", topics: Any = "T") -> bool:
    with consumer_of(broker, group, topics) as other:
        return not other.receive(timeout_s=0) and not broker.do(lambda: broker.node.consumption.state.under_way_count)


def test_a_message_that_is_acknowledged_is_done(broker: BrokerThread) -> None:
    send(broker, b"1", b"2", b"3", tags="A", keys="k")
    seen = []
    with consumer_of(broker) as consumer:
        for message in consumer:
            assert (message.topic, message.tags, message.keys, message.delivery_attempt) == ("T", "A", "k", 1)
            seen.append(message.body)
            consumer.ack(message)
            if len(seen) == 3:
                break
        assert consumer.in_flight == 0
    assert seen == [b"1", b"2", b"3"] and nothing_is_left(broker)


def test_a_poll_gives_one_message_and_receives_others_in_advance(broker: BrokerThread) -> None:
    with consumer_of(broker) as consumer:
        assert consumer.poll(timeout_s=0) is None
        send(broker, b"1", b"2")
        found = [consumer.poll(SOON_S), consumer.poll(SOON_S)]
        assert [message.body for message in found if message] == [b"1", b"2"]
        assert broker.node.consumption.counts.pops == 1 and consumer.in_flight == 2


def test_a_batch_is_acknowledged_with_one_call(broker: BrokerThread) -> None:
    send(broker, *(b"%d" % number for number in range(40)))
    with consumer_of(broker) as consumer:
        first = consumer.receive(100, SOON_S)
        assert len(first) == 32
        second = consumer.receive(100, SOON_S)
        assert len(second) == 8
        consumer.ack(first + second)
        consumer.ack(first)  # acknowledging twice is no error
        assert consumer.receive(timeout_s=0) == []
    assert nothing_is_left(broker)


def test_what_is_not_acknowledged_comes_again_at_once_after_close(broker: BrokerThread) -> None:
    send(broker, b"handed out", b"waits here")
    with consumer_of(broker) as consumer:
        assert next(consumer).body == b"handed out"
        assert consumer.in_flight == 2
        consumer.close(PATIENCE_S)
    with consumer_of(broker) as other:
        attempts: dict[bytes, int] = {}
        while len(attempts) < 2:
            attempts |= {message.body: message.delivery_attempt for message in other.receive(timeout_s=SOON_S)}
    assert attempts == {b"handed out": 2, b"waits here": 1}


def test_a_message_that_failed_comes_again_and_is_a_dead_letter_in_the_end(broker: BrokerThread) -> None:
    broker.make_group("g", retry_max_times=1)
    send(broker, b"poison", keys="k")
    with consumer_of(broker, "undertaker", "%DLQ%g") as consumer, pytest.raises(NoRoute, match="%DLQ%g"):
        consumer.receive()  # the topic does not exist before the first dead letter
    with consumer_of(broker) as consumer:
        for attempt in (1, 2):
            (message,) = consumer.receive(timeout_s=SOON_S)
            assert (message.delivery_attempt, message.topic, message.keys) == (attempt, "T", "k")
            consumer.nack(message, delay_s=0)
        wait_until(lambda: broker.do(lambda: broker.node.topics.get("%DLQ%g")), "the topic of dead letters")
        assert consumer.receive(timeout_s=0) == []
    with consumer_of(broker, "undertaker", "%DLQ%g") as consumer:
        assert bodies(consumer.receive(timeout_s=SOON_S)) == [b"poison"]


def test_a_delay_is_the_callers_or_the_groups(broker: BrokerThread) -> None:
    send(broker, b"1", b"2")
    now_ms = broker.node.broker.now_ms()
    broker.do(lambda: goes_by(broker.node.broker, lambda: now_ms))
    with consumer_of(broker) as consumer:
        first, second = consumer.receive(timeout_s=SOON_S)
        consumer.nack(first, delay_s=500)
        consumer.nack(second)  # comes again after 1 s, the delay after a first attempt
        state = broker.node.consumption.state
        assert broker.do(state.next_deadline_ms) == now_ms + 1000
        assert consumer.in_flight == 0
        with pytest.raises(InvalidParameter, match="delay_s -1"):
            consumer.nack(first, delay_s=-1)


def test_no_more_than_max_in_flight_are_received(broker: BrokerThread) -> None:
    send(broker, b"1", b"2", b"3")
    with consumer_of(broker, max_in_flight=2) as consumer:
        held = consumer.receive(10, SOON_S)
        assert bodies(held) == [b"1", b"2"]
        assert consumer.receive(10, timeout_s=0) == []
        consumer.ack(held[0])
        assert bodies(consumer.receive(10, SOON_S)) == [b"3"]
    with consumer_of(broker, "other", max_in_flight=1) as consumer:
        for body in (b"1", b"2", b"3"):
            message = next(consumer)
            assert message.body == body and consumer.in_flight == 1
            consumer.ack(message)


def test_no_more_is_received_while_max_in_flight_bytes_are_held_and_a_larger_message_comes(
    broker: BrokerThread,
) -> None:
    send(broker, bytes(1000), bytes(3000), bytes(1000))
    with consumer_of(broker, max_in_flight_bytes=2000) as consumer:
        (first,) = consumer.receive(1, SOON_S)
        assert first.store_size == consumer.in_flight_bytes
        (second,) = consumer.receive(1, SOON_S)
        assert consumer.in_flight_bytes == first.store_size + second.store_size > 4000
        assert consumer.receive(1, timeout_s=0) == []
        consumer.ack(second)
        (third,) = consumer.receive(1, SOON_S)
        assert third.body == bytes(1000)
        consumer.ack([first, third])
        assert consumer.in_flight_bytes == 0
    assert nothing_is_left(broker)


def test_large_messages_that_are_due_at_once_are_received_a_few_at_a_time(tmp_path: Path) -> None:
    size, most_bytes, answer_bytes = 2 << 20, 3 << 20, 4 << 20
    large = {f"max_transfer_bytes_on_message_in_{where}": 8 << 20 for where in ("memory", "disk")}
    with broker_thread(tmp_path, mapped_file_size_commit_log=16 << 20, **large) as broker:
        broker.make_topic("T", 2)
        send(broker, *(bytes([number]) * size for number in range(6)))
        with consumer_of(broker, max_in_flight_bytes=20 << 20) as consumer:
            held: list[ReceivedMessage] = []
            while len(held) < 6:
                held += consumer.receive(timeout_s=SOON_S)
            consumer.nack(held, delay_s=0)
            assert consumer.in_flight_bytes == 0
        with consumer_of(broker, max_in_flight_bytes=most_bytes) as consumer:
            seen = []
            while len(seen) < 6:
                found = consumer.receive(timeout_s=SOON_S)
                assert sum(one.store_size for one in found) == consumer.in_flight_bytes
                assert consumer.in_flight_bytes < most_bytes + answer_bytes + found[0].store_size
                assert consumer.in_flight_bytes < most_bytes or consumer.receive(timeout_s=0) == []
                seen += [(one.body[0], one.delivery_attempt) for one in found]
                consumer.ack(found)
        assert sorted(seen) == [(number, 2) for number in range(6)]


def test_a_message_does_not_keep_those_in_memory_that_came_with_it(broker: BrokerThread) -> None:
    send(broker, b"small", bytes(100_000))
    with consumer_of(broker) as consumer:
        small, large = consumer.receive(timeout_s=SOON_S)
        assert (small.body, large.body) == (b"small", bytes(100_000))
        assert small.store_size < 1000 and held_bytes(small) < 10_000
        consumer.ack([small, large])


def test_in_order_a_message_waits_for_those_before_it_in_its_message_group(broker: BrokerThread) -> None:
    broker.make_group("g", consume_message_orderly=True)
    for body in (b"a1", b"b1", b"a2", b"b2"):
        send(broker, body, message_group=body[:1].decode())
    with consumer_of(broker) as consumer:
        a1, b1 = consumer.receive(10, SOON_S)
        assert bodies([a1, b1]) == [b"a1", b"b1"]
        consumer.ack(b1)
        (b2,) = consumer.receive(10, SOON_S)
        assert b2.body == b"b2"
        consumer.nack(a1, delay_s=0)  # the consumer holds a2 behind a1, and gives it back together with a1
        (again,) = consumer.receive(10, SOON_S)
        assert (again.body, again.delivery_attempt) == (b"a1", 2)
        consumer.ack([again, b2])
        (a2,) = consumer.receive(10, SOON_S)
        assert a2.body == b"a2"
        consumer.ack(a2)
    assert nothing_is_left(broker)


def test_in_order_what_waits_behind_a_message_is_kept_until_it_is_given_back_with_it(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.make_group("g", consume_message_orderly=True)
    send(broker, b"1", b"2", b"3", message_group="a")
    with consumer_of(broker) as consumer:
        (first,) = consumer.receive(timeout_s=SOON_S)
        assert consumer.in_flight == 3

        def lost(*_: Any) -> Any:
            raise CallTimeout("the question was lost")

        with monkeypatch.context() as patched:
            patched.setattr(consumer.cluster.transport.consumption, "change_invisible", lost)
            with pytest.raises(CallTimeout):
                consumer.nack(first, delay_s=0, timeout_s=0)
        assert consumer.in_flight == 3 and consumer.receive(timeout_s=0) == []
        consumer.ack(first)
        (second,) = consumer.receive(timeout_s=SOON_S)
        assert (second.body, second.delivery_attempt) == (b"2", 1)
        consumer.nack(second, delay_s=0)
        seen = []
        while len(seen) < 2:
            (message,) = consumer.receive(timeout_s=SOON_S)
            seen.append((message.body, message.delivery_attempt))
            consumer.ack(message)
        assert seen == [(b"2", 2), (b"3", 1)]
    assert nothing_is_left(broker)


def test_in_order_a_message_that_comes_again_before_its_nack_is_answered_is_kept(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of the consumer polls the broker meanwhile and receives the message."""
    broker.make_group("g", consume_message_orderly=True)
    send(broker, b"1", b"2", message_group="a")
    with consumer_of(broker) as consumer:
        (first,) = consumer.receive(timeout_s=SOON_S)
        change = consumer.cluster.transport.consumption.change_invisible

        def answered_late(*arguments: Any) -> Any:
            answer = change(*arguments)
            wait_until(lambda: consumer.receive(timeout_s=0) == [] and consumer.in_flight > 2, "it has come again")
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(consumer.cluster.transport.consumption, "change_invisible", answered_late)
            consumer.nack(first, delay_s=0)
        for body, attempt in ((b"1", 2), (b"2", 1)):
            (message,) = consumer.receive(timeout_s=SOON_S)
            assert (message.body, message.delivery_attempt) == (body, attempt)
            consumer.ack(message)
    assert nothing_is_left(broker)


def test_what_a_slave_has_not_taken_in_time_is_given_back_all_the_same(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, b"1")
    with consumer_of(broker) as consumer:
        (message,) = consumer.receive(timeout_s=SOON_S)
        change, calls = consumer.cluster.transport.consumption.change_invisible, []

        def late_at_first(*arguments: Any) -> Any:
            answer = change(*arguments)
            calls.append(answer.valid)
            if len(calls) > 1:
                return answer
            wait_until(lambda: broker.node.consumption.counts.retried.messages, "the retry")
            return Settled(answer.valid, again=True)

        with monkeypatch.context() as patched:
            patched.setattr(consumer.cluster.transport.consumption, "change_invisible", late_at_first)
            # the second call has not waited for the slave
            assert consumer.nack(message, delay_s=0) is CommitStatus.UNSAID
        assert calls == [[True], [False]]
        consumer.ack(consumer.receive(timeout_s=SOON_S))
    assert nothing_is_left(broker)


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        pytest.param({}, CommitStatus.COMMIT_OK, id="ASYNC_MASTER"),
        pytest.param(ALONE, CommitStatus.SLAVE_NOT_AVAILABLE, id="SYNC_MASTER without a slave"),
    ],
)
def test_what_is_settled_says_who_has_it(tmp_path: Path, keys: dict[str, Any], status: CommitStatus) -> None:
    with broker_thread(tmp_path, **keys) as broker:
        broker.make_topic("T")
        send(broker, b"1", b"2")
        with consumer_of(broker) as consumer:
            first, second = consumer.receive(timeout_s=SOON_S)
            assert consumer.extend([first, second], 60) is status
            assert consumer.nack(first, delay_s=60) is status
            assert consumer.ack(second) is status
            assert consumer.ack(second) is status  # again
            assert consumer.ack([]) is CommitStatus.COMMIT_OK


def test_of_several_brokers_the_status_is_the_one_that_promises_least(tmp_path: Path) -> None:
    with broker_thread(tmp_path / "a") as one, broker_thread(tmp_path / "b", broker_name="broker-b", **ALONE) as other:
        for broker, name in ((one, "broker-a"), (other, "broker-b")):
            broker.make_topic("T")
            with Producer(brokers={name: {0: broker.node.address}}, timeout_s=PATIENCE_S) as producer:
                producer.send(Message("T", name.encode()))
        with Consumer("", "g", "T", brokers=addresses((one, other)), timeout_s=PATIENCE_S) as consumer:
            by_name = {message.broker_name: message for message in one_of_each(consumer)}
            assert consumer.extend(by_name["broker-a"], 60) is CommitStatus.COMMIT_OK
            assert consumer.ack(by_name.values()) is CommitStatus.SLAVE_NOT_AVAILABLE


def test_an_ack_that_a_slave_does_not_take_says_so(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    send(broker, b"1")
    with consumer_of(broker) as consumer:
        message = consumer.poll(SOON_S)
        assert message is not None
        with monkeypatch.context() as patched:
            late = Settled([True], again=True, status=CommitStatus.FLUSH_SLAVE_TIMEOUT)
            patched.setattr(consumer.cluster.transport.consumption, "ack", lambda *_: late)
            with pytest.raises(client_errors.ServiceNotAvailable, match="FLUSH_SLAVE_TIMEOUT"):
                consumer.ack(message, timeout_s=0.1)
        assert consumer.in_flight == 1  # the message can be acknowledged again
        assert consumer.ack(message) is CommitStatus.COMMIT_OK


def test_an_older_broker_does_not_say_who_has_an_ack(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    send(broker, b"1")
    with consumer_of(broker) as consumer:
        message = consumer.poll(SOON_S)
        assert message is not None
        old = consumption_pb2.SettleResponse(valid=[True])
        transport: Any = consumer.cluster.transport
        monkeypatch.setattr(transport.reads.channels, "call", lambda *_: old)
        assert consumer.ack(message) is CommitStatus.UNSAID


def test_filters_by_tags_and_by_a_condition(broker: BrokerThread) -> None:
    for number, tag in enumerate("ABC"):
        send(broker, tag.encode(), tags=tag, properties={"number": str(number)})
    send(broker, b"u", topic="U")
    with consumer_of(broker, "tags", {"T": "A || C", "U": "*"}) as consumer:
        found: list[bytes] = []
        while len(found) < 3:
            found += bodies(consumer.receive(timeout_s=SOON_S))
    assert sorted(found) == [b"A", b"C", b"u"]
    with consumer_of(broker, "sql", {"T": SqlExpression("number >= 1 AND TAGS <> 'C'")}) as consumer:
        assert bodies(consumer.receive(timeout_s=SOON_S)) == [b"B"]


def test_a_condition_that_the_broker_does_not_evaluate_is_refused_at_once(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as broker:
        broker.make_topic("T")
        with consumer_of(broker, topics={"T": SqlExpression("number > 1")}) as consumer:
            for receive in (lambda: consumer.receive(timeout_s=0), lambda: next(consumer)):
                with pytest.raises(InvalidParameter, match="enablePropertyFilter"):
                    receive()


def test_a_group_that_nobody_has_made_is_refused_where_consumers_make_none(tmp_path: Path) -> None:
    with broker_thread(tmp_path, auto_create_subscription_group=False) as broker:
        broker.make_topic("T")
        with consumer_of(broker) as consumer, pytest.raises(GroupNotExist, match="'g' does not exist"):
            next(consumer)


def test_the_messages_of_a_topic_that_is_deleted_are_not_held_any_more(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, b"1", b"2", b"3", b"4")
    send(broker, b"u", topic="U")
    with consumer_of(broker, topics=["T", "U"]) as consumer:
        held: dict[bytes, ReceivedMessage] = {}
        while len(held) < 5:
            held |= {message.body: message for message in consumer.receive(timeout_s=SOON_S)}
        broker.run(Operations(broker.node.broker, broker.node.leadership).delete_topic("T"))
        with pytest.raises(TopicNotExist, match="'T'"):
            consumer.ack([held[b"1"], held[b"u"]])
        assert consumer.in_flight == 3  # only the message of U is acknowledged
        with pytest.raises(TopicNotExist, match="'T'"):
            consumer.nack(held[b"2"])
        with pytest.raises(TopicNotExist, match="'T'"):
            consumer.extend(held[b"3"], 60)
        assert consumer.in_flight == 1
        with pytest.raises(TopicNotExist):
            while True:
                assert consumer.receive(timeout_s=0) == []
        send(broker, b"goes on", topic="U")
        found: list[ReceivedMessage] = []
        while not found:
            try:
                found = consumer.receive(timeout_s=0)
            except TopicNotExist:
                pass
        assert bodies(found) == [b"goes on"]
        consumer.ack(found)
    assert "invisible time only" not in caplog.text


def test_what_cannot_be_acknowledged_is_not_the_error_if_something_else_may_be(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is told of the missing topic would not acknowledge the other messages again."""
    send(broker, b"t")
    send(broker, b"u", topic="U")
    with consumer_of(broker, topics=["T", "U"]) as consumer:
        held: list[ReceivedMessage] = []
        while len(held) < 2:
            held += consumer.receive(timeout_s=SOON_S)
        broker.run(Operations(broker.node.broker, broker.node.leadership).delete_topic("T"))
        ack = consumer.cluster.transport.consumption.ack

        def lossy(address: str, group: str, topic: str, *others: Any) -> Any:
            if topic == "U":
                raise CallTimeout("the answer was lost")
            return ack(address, group, topic, *others)

        with monkeypatch.context() as lost:
            lost.setattr(consumer.cluster.transport.consumption, "ack", lossy)
            for some in (held, held[::-1]):
                with pytest.raises(CallTimeout):
                    consumer.ack(some, timeout_s=0)
        assert consumer.in_flight == 1
        consumer.ack([message for message in held if message.topic == "U"])


def test_several_topics_are_all_read(broker: BrokerThread) -> None:
    with consumer_of(broker, topics=["T", "U"]) as consumer:
        assert consumer.receive(timeout_s=0) == []
        for topic in ("T", "U", "U", "T"):
            send(broker, topic.encode(), topic=topic)
            (message,) = consumer.receive(timeout_s=SOON_S)
            assert message.topic == message.body.decode() == topic
            consumer.ack(message)
    assert nothing_is_left(broker, topics=["T", "U"])


def test_of_several_topics_each_is_looked_at_before_one_is_waited_for(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"T{number}" for number in range(12)]
    for name in names:
        broker.make_topic(name)
    passed_s = 0.0
    for topics, longest_s in ((names[:1], 15.0), (names[:3], 0.3), (names, 1.0)):
        with consumer_of(broker, topics=topics, clock=lambda: passed_s) as consumer:
            calls: list[tuple[str, float]] = []

            def noted(address: str, call: PopCall, *others: Any, calls: list[tuple[str, float]] = calls) -> PopAnswer:
                nonlocal passed_s
                calls.append((call.topic, call.poll_s))
                passed_s += 100.0 if call.poll_s else 0.0
                return PopAnswer()

            monkeypatch.setattr(consumer.cluster.transport.consumption, "pop", noted)
            assert consumer.receive(timeout_s=0) == []
            assert {topic for topic, _ in calls} == set(topics)
            calls.clear()
            assert consumer.receive(timeout_s=100.0) == []
            looks, (waits,) = calls[:-1], calls[-1:]
            assert looks == [(topic, 0) for topic, _ in looks] and len(looks) == (len(topics) if len(topics) > 1 else 0)
            assert waits[1] == pytest.approx(longest_s)


@pytest.mark.parametrize("silent", [{"T"}, {"T", "U"}], ids=["one", "all"])
def test_a_broker_that_has_just_been_silent_is_not_waited_for(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, silent: set[str]
) -> None:
    with consumer_of(broker, topics=["T", "U"]) as consumer:
        calls = []

        def pop(address: str, call: PopCall, *others: Any) -> PopAnswer:
            calls.append(call.topic)
            if call.topic in silent:
                raise CallTimeout("no answer")
            return PopAnswer()

        monkeypatch.setattr(consumer.cluster.transport.consumption, "pop", pop)
        if silent == {"T", "U"}:
            with pytest.raises(CallTimeout):
                consumer.receive(timeout_s=0)
            assert sorted(calls) == ["T", "U"]
        else:
            assert consumer.receive(timeout_s=0) == []
            assert sorted(calls) == ["T", "U", "U"] and calls[-1] == "U"


def test_a_stale_route_to_another_broker_is_asked_for_again(
    two_brokers: tuple[BrokerThread, BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two_brokers
    with Consumer("", "g", "T", brokers=one.brokers, timeout_s=PATIENCE_S) as consumer:
        router, wrong = consumer.cluster, {0: other.node.address}
        addresses, refresh = router.addresses, router.refresh_after_failure

        def refreshed(topic: str) -> Any:
            monkeypatch.setattr(router, "addresses", addresses)
            return refresh(topic)

        monkeypatch.setattr(router, "refresh_after_failure", refreshed)
        assert router.queues("T")
        monkeypatch.setattr(router, "addresses", lambda topic, broker_name: wrong)
        (message,) = consumer.receive(timeout_s=SOON_S)
        monkeypatch.setattr(router, "addresses", lambda topic, broker_name: wrong)
        consumer.ack(message)
    with Producer(brokers=one.brokers, timeout_s=PATIENCE_S) as producer:
        router = producer.cluster
        addresses, refresh = router.addresses, router.refresh_after_failure
        monkeypatch.setattr(router, "refresh_after_failure", refreshed)
        with producer.transaction() as transaction:
            transaction.send(Message("T", b"committed"))
            monkeypatch.setattr(router, "addresses", lambda topic, broker_name: wrong)
    assert nothing_but(one, b"committed")


def nothing_but(broker: BrokerThread, body: bytes) -> bool:
    with consumer_of(broker) as consumer:
        return bodies(consumer.receive(timeout_s=SOON_S)) == [body]


def test_a_message_that_is_worked_on_is_renewed_for_a_time(broker: BrokerThread, renewals: list[Renewal]) -> None:
    send(broker, b"long work")
    passed_s = 0.0
    started_ms = broker.node.broker.now_ms()

    def passes(more_s: float) -> None:
        nonlocal passed_s
        passed_s += more_s
        broker.do(lambda: goes_by(broker.node.broker, lambda: started_ms + int(passed_s * 1000)))

    passes(0)
    with consumer_of(broker, invisible_s=60, renew_for_s=100, clock=lambda: passed_s) as consumer:
        (message,) = consumer.receive(timeout_s=SOON_S)
        for _ in range(3):
            passes(40)
            renewals[-1].renew()
        assert consumer.in_flight == 1
        consumer.extend(message, 300)
        passes(200)
        renewals[-1].renew()
        passes(200)
        with pytest.raises(InvalidReceiptHandle, match=f"not acknowledged, .*: {message.msg_id} of T"):
            consumer.ack(message)
        assert consumer.in_flight == 0


def test_a_thread_renews_while_the_consumer_lives(broker: BrokerThread, renewals: list[Renewal]) -> None:
    send(broker, b"long work")
    passed_s = 0.0
    renewed: list[str] = []
    consumer = consumer_of(broker, invisible_s=6, clock=lambda: passed_s)
    change = consumer.cluster.transport.consumption.change_invisible

    def seen(address: str, group: str, topic: str, broker_name: str, changes: Any, left_s: float) -> Any:
        renewed.extend(one.receipt_handle for one in changes)
        return change(address, group, topic, broker_name, changes, left_s)

    consumer.cluster.transport.consumption.change_invisible = seen  # type: ignore[method-assign]
    (message,) = consumer.receive(timeout_s=SOON_S)
    passed_s = 4.0  # more than half of the invisible time is over
    wait_until(lambda: renewed, "the renewal")
    assert renewed[0] == message.receipt_handle
    renewing = renewals[-1].thread
    assert renewing is not None and renewing.is_alive()
    renewals.clear()
    del consumer  # nobody closes it
    wait_until(lambda: not renewing.is_alive(), "the end of its thread")


def test_more_time_is_asked_for_after_half_of_a_short_extension(broker: BrokerThread, renewals: list[Renewal]) -> None:
    send(broker, b"1")
    now_ms = broker.node.broker.now_ms()
    broker.do(lambda: goes_by(broker.node.broker, lambda: now_ms))  # no deadline passes at the broker
    passed_s = 0.0
    with consumer_of(broker, invisible_s=3600, clock=lambda: passed_s) as consumer:
        (message,) = consumer.receive(timeout_s=SOON_S)
        state = broker.node.consumption.state
        consumer.extend(message, 600)
        extended_to_ms = broker.do(state.next_deadline_ms)
        passed_s = 299
        renewals[-1].sooner.set()
        wait_until(lambda: not renewals[-1].sooner.is_set(), "a look at what is due")
        assert broker.do(state.next_deadline_ms) == extended_to_ms
        passed_s = 0
        consumer.extend(message, 2)  # the renewal thread checks again after one second of this clock
        passed_s = 1.5
        wait_until(lambda: broker.do(state.next_deadline_ms) > extended_to_ms, "the renewal, for an hour")
        consumer.ack(message)


def test_a_renewal_does_not_complain_of_what_is_acknowledged_meanwhile(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, renewals: list[Renewal]
) -> None:
    send(broker, b"1", b"2")
    passed_s = 0.0
    with consumer_of(broker, clock=lambda: passed_s) as consumer:
        done, under_way = consumer.receive(timeout_s=SOON_S)
        change = consumer.cluster.transport.consumption.change_invisible

        def after_the_ack(*arguments: Any) -> Any:
            consumer.ack(done)
            return change(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(consumer.cluster.transport.consumption, "change_invisible", after_the_ack)
            passed_s = 31.0
            assert renewals[-1].renew() == 30
        assert "were not extended" not in caplog.text and consumer.in_flight == 1
        with pytest.raises(InvalidReceiptHandle, match=f"not extended, .*: {done.msg_id} of T"):
            consumer.extend(done, 60)
        consumer.nack(under_way, delay_s=0)


def test_a_renewal_that_fails_is_not_tried_again_once_the_consumer_is_closed(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, renewals: list[Renewal]
) -> None:
    send(broker, b"1")
    passed_s = 0.0
    consumer = consumer_of(broker, clock=lambda: passed_s, timeout_s=10)
    consumer.receive(timeout_s=SOON_S)
    calls = 0

    def silent(address: str, group: str, topic: str, broker_name: str, changes: list[Change], timeout_s: float) -> Any:
        nonlocal passed_s, calls
        passed_s += 1
        if changes[0].invisible_s:  # without an invisible time the call gives messages back
            calls += 1
            if calls == 2:
                consumer.close(timeout_s=0)
        raise CallTimeout("no answer")

    passed_s = 31.0
    with monkeypatch.context() as patched:
        patched.setattr(consumer.cluster.transport.consumption, "change_invisible", silent)
        renewals[-1].renew()
    assert calls == 2


def test_a_renewal_at_a_silent_broker_holds_up_nothing_at_another(
    two_brokers: tuple[BrokerThread, BrokerThread], monkeypatch: pytest.MonkeyPatch, renewals: list[Renewal]
) -> None:
    passed_s, brokers = 0.0, addresses(two_brokers)
    with Consumer("", "g", "T", brokers=brokers, timeout_s=3600, clock=lambda: passed_s) as consumer:
        held = one_of_each(consumer)
        change, calls = consumer.cluster.transport.consumption.change_invisible, []

        def call(address: str, *arguments: Any) -> Any:
            nonlocal passed_s
            name = next(name for name, members in brokers.items() if members[0] == address)
            calls.append((name, arguments[-1]))
            if len(calls) == 1:  # meanwhile another thread gives back a message of the other broker
                (message,) = (one for one in held if one.broker_name != name)
                giving_back = threading.Thread(target=consumer.nack, args=(message, 0))
                giving_back.start()
                giving_back.join(SOON_S)
                assert consumer.in_flight == 1
            if name == calls[0][0]:
                passed_s += arguments[-1]
                raise CallTimeout("no answer")
            return change(address, *(*arguments[:-1], PATIENCE_S))

        with monkeypatch.context() as patched:
            patched.setattr(consumer.cluster.transport.consumption, "change_invisible", call)
            passed_s = 31.0
            renewals[-1].renew()
        silent, answering = calls[0][0], calls[1][0]
        assert silent != answering and calls[0][1] == 5  # half of the ten seconds until the next renewals
        assert {name for name, _ in calls[2:]} <= {silent} and passed_s <= 41.1


def test_an_ack_of_several_names_those_that_come_again(broker: BrokerThread) -> None:
    send(broker, b"1", b"2")
    with consumer_of(broker) as consumer:
        over, good = consumer.receive(timeout_s=SOON_S)
        consumer.nack(over, delay_s=0)
        wait_until(lambda: broker.node.consumption.counts.retried.messages, "the retry")
        with pytest.raises(InvalidReceiptHandle) as caught:
            consumer.ack([over, good])
        assert over.msg_id in str(caught.value) and good.msg_id not in str(caught.value)
        assert caught.value.code == 40013
        (again,) = consumer.receive(timeout_s=SOON_S)
        assert again.body == b"1"
        consumer.ack(again)
    assert nothing_is_left(broker)


def test_an_ack_that_a_broker_refuses_for_a_moment_is_tried_again(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, b"1")
    real, calls = broker.node.consumption.ack, []

    async def refuses_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise ServiceNotAvailable("a moment, please")
        return await real(*arguments)

    monkeypatch.setattr(broker.node.consumption, "ack", refuses_once)
    with consumer_of(broker) as consumer:
        consumer.ack(consumer.receive(timeout_s=SOON_S))
    assert len(calls) == 2 and nothing_is_left(broker)


def test_threads_share_the_messages_of_a_consumer(broker: BrokerThread) -> None:
    broker.make_topic("M", 4)
    expected = [b"%d" % number for number in range(100)]
    send(broker, *expected, topic="M")
    seen: list[bytes] = []
    with consumer_of(broker, topics="M") as consumer:

        def work() -> None:
            for message in consumer:
                consumer.ack(message)
                seen.append(message.body)
                if len(seen) == len(expected):
                    consumer.close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert sorted(seen) == sorted(expected)


def test_a_thread_acknowledges_what_another_one_has_received(broker: BrokerThread) -> None:
    send(broker, *(b"%d" % number for number in range(10)))
    handed_over: queue.Queue[ReceivedMessage] = queue.Queue()
    with consumer_of(broker, max_in_flight=3) as consumer:

        def acknowledge() -> None:
            for _ in range(10):
                consumer.ack(handed_over.get())

        other = threading.Thread(target=acknowledge)
        other.start()
        # more messages than may be in flight: a receive goes on when the other thread has acknowledged some
        for number in range(10):
            message = next(consumer)
            assert message.body == b"%d" % number
            handed_over.put(message)
        other.join(PATIENCE_S)
        assert consumer.in_flight == 0
    assert nothing_is_left(broker)


def test_groups_of_their_own_get_everything_each_and_go_on_where_they_were(broker: BrokerThread) -> None:
    """Several groups with one member each work as the broadcast of docs/client.md."""

    def seen(group: str) -> list[bytes]:
        with consumer_of(broker, group) as consumer:
            found = consumer.receive(timeout_s=0)
            consumer.ack(found)
            return bodies(found)

    send(broker, b"1", b"2")
    broker.make_group("late")
    operations = Operations(broker.node.broker, broker.node.leadership)
    broker.run(operations.reset_offset_by_time("late", "T", -1, [], force=True))
    assert seen("one") == seen("other") == [b"1", b"2"]
    send(broker, b"3")
    assert [seen(group) for group in ("one", "other", "late")] == [[b"3"]] * 3
    assert [seen(group) for group in ("one", "other", "late")] == [[]] * 3


def test_iterating_goes_on_when_a_broker_is_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with broker_thread(tmp_path) as broker:
        broker.make_topic("T")
        send(broker, b"1", b"2")
        brokers, port = broker.brokers, int(broker.node.address.rpartition(":")[2])
        consumer = Consumer("", "g", "T", brokers=brokers, timeout_s=PATIENCE_S)
        first, second = consumer.receive(timeout_s=SOON_S)
    iterated: queue.Queue[ReceivedMessage] = queue.Queue()

    def iterate() -> None:
        for message in consumer:
            iterated.put(message)

    kept = socket()  # keeps the port from others, but not from the broker, since it does not listen
    kept.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", port))
    iterating = threading.Thread(target=iterate)
    iterating.start()
    wait_until(lambda: "is asked again later" in caplog.text, "that its broker is missed")
    with kept, broker_thread(tmp_path, listen_port=port) as broker:
        consumer.ack(first)  # the handles of these messages are from before the restart
        consumer.nack(second, delay_s=0)
        again = iterated.get(timeout=SOON_S)
        assert (again.body, again.delivery_attempt) == (b"2", 2)
        consumer.ack(again)
        consumer.close(SOON_S)
        iterating.join(SOON_S)
        assert nothing_is_left(broker)


@pytest.mark.parametrize("answers", [True, False], ids=["a broker that answers", "a broker that is silent"])
def test_close_ends_a_wait_of_another_thread(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    consumer = consumer_of(broker)

    def silent(*_: Any) -> None:
        raise CallTimeout("no answer")

    if not answers:
        monkeypatch.setattr(consumer.cluster.transport.consumption, "end_polls", silent)
    ended = threading.Thread(target=lambda: list(consumer))
    ended.start()
    wait_until(lambda: broker.node.consumption.polls_held, "the call that the broker holds")
    consumer.close()
    ended.join(PATIENCE_S)
    assert not ended.is_alive()
    wait_until(lambda: not broker.node.consumption.polls_held, "its end at the broker")
    with pytest.raises(ClientClosed):
        consumer.receive()
    consumer.close()


def test_a_broker_that_does_not_answer_takes_no_time_from_what_is_given_back_to_another(
    two_brokers: tuple[BrokerThread, BrokerThread], monkeypatch: pytest.MonkeyPatch, renewals: list[Renewal]
) -> None:
    passed_s, brokers = 0.0, addresses(two_brokers)
    consumer = Consumer("", "g", "T", brokers=brokers, timeout_s=PATIENCE_S, clock=lambda: passed_s)
    held = one_of_each(consumer)
    silent = brokers[held[0].broker_name][0]
    change = consumer.cluster.transport.consumption.change_invisible
    others: list[float] = []

    def call(address: str, *arguments: Any) -> Any:
        nonlocal passed_s
        if address == silent:
            passed_s += arguments[-1]
            raise CallTimeout("no answer")
        others.append(arguments[-1])
        return change(address, *(*arguments[:-1], PATIENCE_S))

    monkeypatch.setattr(consumer.cluster.transport.consumption, "change_invisible", call)
    joined: list[float] = []
    monkeypatch.setattr(renewals[-1].thread, "join", joined.append)
    consumer.close(timeout_s=8)
    assert passed_s <= 8.1 and others == [4]
    assert joined == [4]  # the wait for the renewal thread also gets half of the close's time
    answering = held[1].broker_name
    with Consumer("", "g", "T", brokers={answering: brokers[answering]}, timeout_s=SOON_S) as next_:
        (again,) = next_.receive(timeout_s=SOON_S)
        assert (again.body, again.delivery_attempt) == (held[1].body, 2)


def test_a_signal_handler_may_close_the_consumer_that_its_thread_waits_in(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = consumer_of(broker, clock=lambda: 0.0)  # a close that waits for its own thread never ends
    calls = consumer.cluster.transport.consumption
    end_polls, change_invisible, made = calls.end_polls, calls.change_invisible, []
    monkeypatch.setattr(calls, "end_polls", lambda *given: (made.append("end of the poll"), end_polls(*given)))
    monkeypatch.setattr(calls, "change_invisible", lambda *given: made.append("return") or change_invisible(*given))
    send(broker, b"1")
    main = threading.main_thread()
    assert threading.current_thread() is main and main.ident is not None

    def send_signal() -> None:
        wait_until(lambda: broker.node.consumption.polls_held, "the call that the broker holds")
        signal.pthread_kill(main.ident, signal.SIGUSR1)  # type: ignore[arg-type]

    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close(PATIENCE_S))
    try:
        sends = threading.Thread(target=send_signal)
        sends.start()
        assert bodies(list(consumer)) == [b"1"]
        sends.join(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert made == ["end of the poll", "return"]  # a poll that is still open could take the message that is given back
    with consumer_of(broker) as other:
        (message,) = other.receive(timeout_s=SOON_S)
        assert message.delivery_attempt == 2  # it was given back
        other.ack(message)


def test_what_is_on_its_way_when_a_consumer_is_closed_is_given_back_at_once(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumption = broker.node.consumption
    pop, is_delivered, is_ended = consumption.pop, threading.Event(), asyncio.Event()

    async def answers_late(asked: Any) -> Any:
        popped = await pop(asked)
        is_delivered.set()
        await is_ended.wait()
        return popped

    send(broker, b"1")
    with monkeypatch.context() as patched:
        patched.setattr(consumption, "pop", answers_late)
        patched.setattr(consumption, "end_polls", lambda *_: is_ended.set())
        consumer = consumer_of(broker)
        iterating = threading.Thread(target=lambda: list(consumer))
        iterating.start()
        assert is_delivered.wait(PATIENCE_S)
        consumer.close(PATIENCE_S)
        iterating.join(PATIENCE_S)
    with consumer_of(broker) as other:
        (message,) = other.receive(timeout_s=SOON_S)
        assert (message.body, message.delivery_attempt) == (b"1", 1)
        other.ack(message)


def test_a_child_has_nothing_of_what_its_parent_has_received(broker: BrokerThread) -> None:
    send(broker, b"1")
    child = consumer_of(broker)
    (message,) = child.receive(timeout_s=SOON_S)
    child.forget_parent()  # a consumer does this itself after a fork
    assert child.in_flight == child.in_flight_bytes == 0
    child.close()
    with consumer_of(broker) as parent:
        assert parent.receive(timeout_s=0) == []  # nothing was given back
        parent.ack(message)
    assert nothing_is_left(broker)


def test_a_message_whose_time_is_over_makes_room_for_its_next_delivery(broker: BrokerThread) -> None:
    send(broker, b"1")
    with consumer_of(broker, max_in_flight=1, invisible_s=0.2, renew_for_s=0) as consumer:
        consumer.receive(timeout_s=SOON_S)
        (again,) = consumer.receive(timeout_s=SOON_S)
        assert (again.body, again.delivery_attempt, consumer.in_flight) == (b"1", 2, 1)


def test_in_order_an_answer_that_was_lost_is_asked_for_again(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost messages would block their message group for their invisible time, and count as an attempt."""
    broker.make_group("g", consume_message_orderly=True)
    send(broker, b"1", message_group="a")
    lost = []
    with consumer_of(broker, invisible_s=10) as consumer:
        pop = consumer.cluster.transport.consumption.pop

        def lossy(*call: Any) -> Any:
            answer = pop(*call)
            if answer.messages and not lost:
                lost.append(answer)
                raise CallTimeout("the answer was lost")
            return answer

        monkeypatch.setattr(consumer.cluster.transport.consumption, "pop", lossy)
        found: list[ReceivedMessage] = []
        while not found:
            found = consumer.receive(timeout_s=1)
        assert lost and found[0].delivery_attempt == 1
        consumer.ack(found)
    assert nothing_is_left(broker)


def test_a_receive_that_waits_for_acks_says_so(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    send(broker, b"1", b"2")
    with consumer_of(broker, max_in_flight=1) as consumer:
        consumer.receive(timeout_s=SOON_S)
        assert consumer.receive(timeout_s=0.01) == []
    said = [line for line in caplog.text.splitlines() if "the next receive waits for acks" in line]
    assert len(said) == 1 and "group g: 1 messages in flight" in said[0]


def test_what_cannot_be_asked_is_refused_with_its_reason(broker: BrokerThread) -> None:
    with consumer_of(broker, topics="missing") as consumer, pytest.raises(NoRoute, match="missing"):
        consumer.receive()
    for topics in ([], {}):
        with pytest.raises(InvalidParameter, match="no topic"):
            consumer_of(broker, topics=topics)
    refused: list[dict[str, Any]] = [{"invisible_s": one} for one in (0, 0.0009, 50_000, float("nan"))]
    for options in (*refused, {"max_in_flight": 0}, {"max_in_flight_bytes": 0}):
        with pytest.raises(InvalidParameter, match=next(iter(options))):
            consumer_of(broker, **options)
    with consumer_of(broker) as consumer, pytest.raises(InvalidParameter, match="receive of 0"):
        consumer.receive(0)


def test_a_group_or_topic_of_the_brokers_own_is_refused_at_once(broker: BrokerThread) -> None:
    with consumer_of(broker, "CID_RMQ_SYS_x") as consumer, pytest.raises(NoPermission, match="the broker's own"):
        consumer.receive()


def test_a_broker_that_is_away_is_an_error_when_the_time_is_over(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as broker:
        broker.make_topic("T")
        send(broker, b"1")
        consumer = Consumer("", "g", "T", brokers=broker.brokers, timeout_s=PATIENCE_S)
        (message,) = consumer.receive(timeout_s=SOON_S)
        port = int(broker.node.address.rpartition(":")[2])
    with socket() as nobody:
        # A server of another test may not take the port, because the socket has it without listening.
        nobody.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        nobody.bind(("127.0.0.1", port))
        try:
            with pytest.raises(Unreachable):
                consumer.receive(timeout_s=0.2)
            with pytest.raises(Unreachable):
                consumer.ack(message, timeout_s=0.2)
            assert consumer.in_flight == 1
        finally:
            consumer.close(timeout_s=0.2)


def test_who_waits_while_another_thread_asks_is_told_that_no_broker_answers(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as broker:
        broker.make_topic("T")
        consumer = Consumer("", "g", "T", brokers=broker.brokers, timeout_s=PATIENCE_S)
        assert consumer.receive(timeout_s=0) == []
    other = threading.Thread(target=lambda: list(consumer))
    try:
        with pytest.raises(Unreachable):
            consumer.receive(timeout_s=0)
        other.start()
        for _ in range(20):  # the other thread polls most of the time
            with pytest.raises(Unreachable):
                consumer.receive(timeout_s=0)
    finally:
        consumer.close(timeout_s=0.2)
        other.join()


def is_promoted(admin: Admin, pair: RealPair) -> bool:
    try:
        return admin.promote_slave(pair.slave.address, broker_name="broker-a").epoch > 0
    except RocketSimError:  # the slave has not noticed yet that its master is gone
        return False


@pytest.mark.cluster
def test_after_the_masters_death_the_promoted_slave_takes_acks_and_delivers_the_rest_only(
    real_pair: Callable[[str], RealPair],
) -> None:
    pair = real_pair("T")
    expected = {b"%d" % number for number in range(60)}
    with Producer(pair.name_server, timeout_s=PATIENCE_S) as producer:
        producer.send_batch([Message("T", body) for body in sorted(expected)])
    with Consumer(pair.name_server, "g", "T", timeout_s=PATIENCE_S) as consumer, Admin(pair.name_server) as admin:
        held = consumer.receive(timeout_s=SOON_S)
        done, rest = held[::2], held[1::2]
        consumer.ack(done)
        pair.master.kill()
        wait_until(lambda: is_promoted(admin, pair), "the slave is the master")
        consumer.ack(rest, timeout_s=SOON_S)
        seen = bodies(done) + bodies(rest)
        while len(seen) < len(expected):
            more = consumer.receive(timeout_s=SOON_S)
            assert more and {message.delivery_attempt for message in more} == {1}
            consumer.ack(more)
            seen += bodies(more)
        assert sorted(seen) == sorted(expected)
        assert consumer.receive(timeout_s=0) == []


@pytest.mark.cluster
def test_after_a_promotion_nothing_overtakes_a_message_that_is_given_back(
    real_pair: Callable[[str], RealPair],
) -> None:
    pair = real_pair("T")
    with Admin(pair.name_server) as admin, Producer(pair.name_server, timeout_s=PATIENCE_S) as producer:
        admin.update_sub_group(SubscriptionGroupConfig(group_name="g", consume_message_orderly=True))
        wait_until(
            lambda: any(one.group_name == "g" for one in admin.sub_groups(pair.slave.address)), "the group at the slave"
        )
        for body in (b"1", b"2", b"3", b"4"):
            producer.send(Message("T", body), message_group="a")
    with Consumer(pair.name_server, "g", "T", timeout_s=PATIENCE_S) as consumer, Admin(pair.name_server) as admin:
        (first,) = consumer.receive(timeout_s=SOON_S)
        consumer.ack(first)
        (second,) = consumer.receive(timeout_s=SOON_S)
        pair.master.kill()
        wait_until(lambda: is_promoted(admin, pair), "the slave is the master")
        consumer.nack(second, delay_s=0, timeout_s=SOON_S)
        seen = []
        while len(seen) < 3:
            (message,) = consumer.receive(timeout_s=SOON_S)
            seen.append((message.body, message.delivery_attempt))
            consumer.ack(message)
        assert seen == [(b"2", 2), (b"3", 1), (b"4", 1)]
        assert consumer.receive(timeout_s=0) == []
