"""`rocketsim consume --pop` against a real broker in this process: what was shown is acknowledged, nothing else is."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.signature import Credentials

from broker_service.modes import BrokerRole
from rocketsim_cli import consume
from rocketsim_cli.main import main
from rocketsim_client import Consumer, InvalidReceiptHandle, Message, Producer, PullConsumer
from rocketsim_client.connection import Connection
from rocketsim_client.errors import BrokerUnavailable, MessageIllegal
from rocketsim_client.message_view import MessageView
from rocketsim_client.tls import Tls
from testbed.polling import PATIENCE_S
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.tls import CA


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    monkeypatch.setattr(consume, "WAIT_S", 0.01)
    with broker_thread(tmp_path) as started:
        started.make_topic("T")
        yield started


def consumer_of(broker: BrokerThread, **options: Any) -> Consumer:
    return Consumer("", "g", "T", cluster=broker.cluster, timeout_s=PATIENCE_S, **options)


def send(broker: BrokerThread, count: int, message_group: str | None = None) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    with Producer(cluster=broker.cluster, timeout_s=PATIENCE_S) as producer:
        for body in bodies:
            producer.send(Message("T", body), message_group=message_group)
    return bodies


class Screen:
    """Collects the bodies that are shown; before it shows body number `at`, it calls `act`."""

    def __init__(self, at: int = 0, act: Callable[[], object] = lambda: None) -> None:
        self.shown: list[bytes] = []
        self.told: list[str] = []
        self._at, self._act = at, act

    def show(self, message: MessageView) -> None:
        if len(self.shown) + 1 == self._at:
            self._act()
        self.shown.append(message.body)


def show(
    consumer: Consumer,
    screen: Screen,
    *,
    stop: threading.Event | None = None,
    follow: bool = False,
    most: int | None = None,
) -> None:
    member = consume.Member(consumer, tell=screen.told.append)
    consume.show_until(stop or threading.Event(), member, screen.show, follow=follow, max_messages=most)


def left(broker: BrokerThread, count: int = 0) -> dict[bytes, int]:
    """Returns what another member gets, at least `count` messages: body -> attempt."""
    found: dict[bytes, int] = {}
    with consumer_of(broker) as other:
        while messages := other.receive(timeout_s=PATIENCE_S if len(found) < count else 0):
            found |= {message.body: message.delivery_attempt for message in messages}
        assert broker.do(lambda: broker.node.consumption.state.under_way_count) == len(found)
    return found


def test_everything_is_shown_and_acknowledged(broker: BrokerThread) -> None:
    bodies = send(broker, 2 * consume.ACKS + 1)
    screen = Screen()
    with consumer_of(broker) as consumer:
        show(consumer, screen)
        assert consumer.in_flight == 0
    assert screen.shown == bodies and left(broker) == {}


def test_an_ack_that_no_slave_has_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "WAIT_S", 0.01)
    monkeypatch.setattr(consume, "ACKS", 1)
    with broker_thread(tmp_path, broker_role=BrokerRole.SYNC_MASTER, slave_wait_time_ms=0) as broker:
        broker.make_topic("T")
        send(broker, 3)
        screen = Screen()
        with consumer_of(broker) as consumer:
            show(consumer, screen)
        assert len(screen.told) == 1 and "acknowledged with SLAVE_NOT_AVAILABLE" in screen.told[0]
        told: list[str] = []
        with PullConsumer("", "pulls", cluster=broker.cluster, timeout_s=PATIENCE_S) as pulls:
            reader = consume.Reader(pulls, "T", "*", commits=True, tell=told.append)
            reader.start(consume.Start.EARLIEST)
            consume.show_until(threading.Event(), reader, screen.show, follow=False, max_messages=3)
        assert told == ["committed with SLAVE_NOT_AVAILABLE: messages may come again if the broker is lost"]


def test_in_order_the_next_message_comes_after_the_ack_of_the_one_before_it(broker: BrokerThread) -> None:
    broker.make_group("g", consume_message_orderly=True)
    bodies = send(broker, 3, message_group="a")
    screen = Screen()
    with consumer_of(broker) as consumer:
        show(consumer, screen)
    assert screen.shown == bodies and left(broker) == {}


def test_a_signal_ends_consume_between_two_messages(broker: BrokerThread) -> None:
    bodies = send(broker, 10)
    stop = threading.Event()
    screen = Screen(4, stop.set)
    with consumer_of(broker) as consumer:
        show(consumer, screen, stop=stop, follow=True)
    assert screen.shown == bodies[:4]
    assert left(broker, 6) == dict.fromkeys(bodies[4:], 1)


def test_consume_ends_after_max_messages(broker: BrokerThread) -> None:
    bodies = send(broker, 5)
    screen = Screen()
    with consumer_of(broker) as consumer:
        show(consumer, screen, follow=True, most=3)
    assert screen.shown == bodies[:3]
    assert left(broker, 2) == dict.fromkeys(bodies[3:], 1)


def test_a_message_that_could_not_be_shown_is_not_acknowledged(broker: BrokerThread) -> None:
    bodies = send(broker, 4)

    def pipe_is_closed() -> None:
        raise BrokenPipeError

    screen = Screen(3, pipe_is_closed)
    with consumer_of(broker) as consumer, pytest.raises(BrokenPipeError):
        show(consumer, screen)
    assert screen.shown == bodies[:2]
    assert left(broker, 2) == {bodies[2]: 2, bodies[3]: 1}


@pytest.mark.parametrize("call", ["poll", "ack"])
def test_while_it_follows_a_broker_that_is_away_is_asked_again(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    bodies = send(broker, 2)
    screen = Screen()
    with consumer_of(broker) as consumer:
        fail_once(consumer, call, BrokerUnavailable("no connection"), monkeypatch)
        follow_until_acknowledged(consumer, screen, len(bodies))
    assert screen.shown == bodies and left(broker) == {}
    assert screen.told == ["no connection; trying again"]


@pytest.mark.parametrize(("follow", "error"), [(False, BrokerUnavailable("away")), (True, MessageIllegal("never"))])
def test_an_error_that_asking_again_cannot_cure_ends_it_and_so_does_any_if_it_does_not_follow(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, follow: bool, error: Exception
) -> None:
    send(broker, 1)
    screen = Screen()
    with consumer_of(broker) as consumer:
        fail_once(consumer, "ack", error, monkeypatch)
        with pytest.raises(type(error)):
            show(consumer, screen, follow=follow)
    assert screen.shown == [b"0"] and left(broker) == {}, "the ack was tried again at the end"


def test_an_expired_delivery_is_reported(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    send(broker, 1)
    screen = Screen()
    with consumer_of(broker) as consumer:
        fail_once(consumer, "ack", InvalidReceiptHandle("comes again"), monkeypatch)
        show(consumer, screen)
    assert screen.told == ["comes again"] and left(broker, 1) == {b"0": 2}


def test_a_member_has_the_keys_and_certificates_of_the_command_and_asks_for_no_more_than_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def consumer(connection: Connection, *_: Any, **options: Any) -> Consumer:
        asked.update(options, connection=connection)
        raise BrokerUnavailable("no connection")

    monkeypatch.setattr("rocketsim_client.Consumer", consumer)
    monkeypatch.setenv("ROCKETSIM_ACCESS_KEY", "user")
    monkeypatch.setenv("ROCKETSIM_SECRET_KEY", "password")
    command = ("consume", "-n", "127.0.0.1:1", "-t", "T", "-g", "g", "--pop", "--max-messages", "7")
    with pytest.raises(SystemExit):
        main(("--tls", "--tls-ca", str(CA), *command))
    assert (asked["connection"].credentials, asked["max_in_flight"]) == (Credentials("user", "password"), 7)
    assert asked["connection"].tls == Tls(ca=str(CA))


def fail_once(consumer: Consumer, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = getattr(consumer, name), []

    def call(*arguments: Any, **others: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise error
        return real(*arguments, **others)

    monkeypatch.setattr(consumer, name, call)


def follow_until_acknowledged(consumer: Consumer, screen: Screen, count: int) -> None:
    stop, real = threading.Event(), consumer.poll

    def poll(timeout_s: float | None = None) -> Any:
        if len(screen.shown) == count and not consumer.in_flight:
            stop.set()
        return real(timeout_s)

    consumer.poll = poll  # type: ignore[method-assign]
    show(consumer, screen, stop=stop, follow=True)
