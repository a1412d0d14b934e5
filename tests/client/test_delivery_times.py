"""Producer.send(deliver_at=) against a real broker in this process, whose clock the test sets."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rocketsim_client import Consumer, Message, MessageIllegal, Producer
from testbed.polling import PATIENCE_S
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import goes_by

NOW = datetime(2026, 12, 24, 18, tzinfo=UTC)
LONGEST = timedelta(days=3)


def set_clock(broker: BrokerThread, now: datetime) -> None:
    now_ms = int(now.timestamp() * 1000)
    broker.do(lambda: goes_by(broker.node.broker, lambda: now_ms))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with broker_thread(tmp_path) as started:
        started.make_topic("T")
        set_clock(started, NOW)
        yield started


@pytest.fixture
def producer(broker: BrokerThread) -> Iterator[Producer]:
    with Producer(cluster=broker.cluster, timeout_s=PATIENCE_S) as made:
        yield made


def received(broker: BrokerThread, count: int) -> list[bytes]:
    """Returns the next `count` messages, and checks that there are no others."""
    with Consumer("", "g", "T", cluster=broker.cluster, timeout_s=PATIENCE_S) as consumer:
        found: list[bytes] = []
        while len(found) < count:
            messages = consumer.receive(timeout_s=PATIENCE_S)
            consumer.ack(messages)
            found += [message.body for message in messages]
        assert consumer.receive(timeout_s=0) == []
        return found


def test_a_time_that_has_passed_is_no_delay(broker: BrokerThread, producer: Producer) -> None:
    for passed in (NOW, NOW - timedelta(days=9999), (NOW - timedelta(hours=1)).timestamp(), 0.5):
        producer.send(Message("T", str(passed).encode()), deliver_at=passed)
    assert len(received(broker, 4)) == 4


def test_a_time_is_three_days_ahead_at_most(broker: BrokerThread, producer: Producer) -> None:
    producer.send(Message("T", b"in three days"), deliver_at=NOW + LONGEST)
    with pytest.raises(MessageIllegal, match="topic T: the delivery time is more than 259200 s from now"):
        producer.send(Message("T", b"later"), deliver_at=NOW + LONGEST + timedelta(milliseconds=1))
    assert received(broker, 0) == []
    set_clock(broker, NOW + LONGEST)
    assert received(broker, 1) == [b"in three days"]


def test_messages_of_a_group_are_in_the_order_of_their_times(broker: BrokerThread, producer: Producer) -> None:
    for body, seconds in ((b"fourth", 9), (b"second", 3), (b"third", 3), (b"first", 0)):
        later = (NOW + timedelta(seconds=seconds)).timestamp()
        producer.send(Message("T", body), message_group="a", deliver_at=later)
    assert received(broker, 1) == [b"first"]
    set_clock(broker, NOW + timedelta(seconds=4))
    assert received(broker, 2) == [b"second", b"third"]
    set_clock(broker, NOW + timedelta(seconds=10))
    assert received(broker, 1) == [b"fourth"]
