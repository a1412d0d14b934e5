"""A test of a program that uses RocketMQ's own Python client: each order is packed once.

pip install rocketmq-python-client
python -m pytest examples/test_official_client.py
"""

from collections.abc import Iterator

import pytest
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

import rocketsim_testing
from rocketsim_testing import Pair


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with rocketsim_testing.pair(endpoints=True) as started:
        yield started


def send(endpoints: str, topic: str, *orders: bytes) -> None:
    producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
    producer.startup()
    for order in orders:
        message = Message()
        message.topic, message.body = topic, order
        producer.send(message)
    producer.shutdown()


def pack(endpoints: str, topic: str, count: int) -> list[bytes]:
    """The program: packs this many orders, and returns them.  An answer of the broker may have only some of them."""
    configuration = ClientConfiguration(endpoints, Credentials())
    consumer = SimpleConsumer(configuration, "packers", {topic: FilterExpression()}, await_duration=5)
    consumer.startup()
    packed: list[bytes] = []
    while len(packed) < count:
        for message in consumer.receive(32, 15):  # pyright: ignore -- its type in the client allows a Future
            packed.append(message.body)
            consumer.ack(message)
    consumer.shutdown()
    return packed


def test_an_order_is_packed_once(pair: Pair) -> None:
    topic = pair.make_topic(queues=1)
    send(pair.endpoints, topic, b"order 7", b"order 8")
    packed = pack(pair.endpoints, topic, 2)
    assert sorted(packed) == [b"order 7", b"order 8"]
    pair.wait_for_lag("packers", topic)
