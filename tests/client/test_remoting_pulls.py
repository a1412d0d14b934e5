"""Reads of ranges over the remoting protocol, from a broker that is slow or refuses pulls."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import Record, encode
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Header

from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Connection
from rocketsim_client.errors import BrokerUnavailable, CallTimeout, SystemBusy
from rocketsim_client.model import PullFrame, QueueRange
from rocketsim_client.transport.remoting import pace, reads
from rocketsim_client.transport.remoting.connections import Connections, Request
from testbed.polling import wait_until
from tests.support.remoting_peer import RemotingPeer, answer_to, readers

MESSAGES = 40
STEP = 4  # messages that the broker returns for a pull


class Clock:
    """Replaces the module `time`.  `sleep` only moves the time on, after a call of `during_sleep`."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.ahead_s = 0.0
        self.during_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        self.during_sleep()
        self.slept.append(seconds)
        self.ahead_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(reads, "time", made)
    monkeypatch.setattr(pace, "time", made)
    return made


class Queue:
    """A broker with one queue.  A test may replace `answer`."""

    def __init__(self) -> None:
        self.peer = RemotingPeer(lambda request, _: self.answer(request))

    def answer(self, request: Header) -> bytes | None:
        return self.found(request)

    def found(self, request: Header) -> bytes:
        offset = int(request.fields["queueOffset"])
        end = min(offset + min(int(request.fields["maxMsgNums"]), STEP), MESSAGES)
        records = [encode(Record(topic="t", body=b"%d" % at, queue_offset=at)) for at in range(offset, end)]
        bounds = {"minOffset": 0, "maxOffset": MESSAGES, "suggestWhichBrokerId": 0}
        return answer_to(request, 0, "FOUND", b"".join(records), nextBeginOffset=end, **bounds)

    def refused(self, request: Header) -> bytes:
        return answer_to(request, ResponseCode.FLOW_CONTROL, "too many requests")

    def pulls(self) -> list[int]:
        """Returns the offsets of all pulls that have come."""
        return [int(one.fields["queueOffset"]) for one in self.peer.requests if one.code == RequestCode.PULL_MESSAGE]


@contextmanager
def reading(queue: Queue, frame_bytes: int = 1 << 20, timeout_s: float = 60.0, **settings: Any) -> Iterator[Any]:
    """Opens a read of the whole queue, and yields the transport and the iterator of its frames."""
    with queue.peer as peer:
        where = Connection.of(peer.address, protocol="remoting", **settings)
        with Cluster(where) as cluster:
            transport: Any = cluster.transport
            options: dict[str, Any] = {"group": "g", "expression": "*", "timeout_s": timeout_s}
            asked = [QueueRange("t", 0, 0, MESSAGES)]
            yield transport, transport.reads.pull_range(peer.address, asked, max_frame_bytes=frame_bytes, **options)


def wait_until_answered(transport: Any, queue: Queue) -> None:
    connection = transport.connections.to(queue.peer.address, 60.0)
    wait_until(lambda: connection.is_idle, "all pulls are answered")
    # The thread that reads has passed on all earlier answers before that of a later call.
    later = Request(RequestCode.GET_MAX_OFFSET, "a later call", {"queueOffset": "0", "maxMsgNums": "1"})
    transport.connections.call(queue.peer.address, later, 60.0)


def offsets(*frames: PullFrame) -> list[int]:
    return [offset for one in frames for offset in Records.walk(one.records).queue_offset.tolist()]


def test_a_pull_that_flow_control_refuses_is_sent_again_after_a_pause(clock: Clock) -> None:
    class Throttling(Queue):
        def answer(self, request: Header) -> bytes:
            return self.refused(request) if len(self.pulls()) % 2 else self.found(request)

    queue = Throttling()
    with reading(queue) as (_, frames):
        assert offsets(*frames) == list(range(MESSAGES))
    assert len(queue.pulls()) > MESSAGES // STEP
    assert clock.slept and set(clock.slept) == {reads.FLOW_CONTROL_PAUSE_S}


def test_flow_control_that_never_ends_is_an_error_at_the_deadline(clock: Clock) -> None:
    queue = Queue()
    queue.answer = queue.refused  # type: ignore[method-assign]
    with reading(queue, timeout_s=3.0) as (_, frames):
        with pytest.raises(SystemBusy, match=r"pull of queue 0 of topic 't'.*too many requests"):
            next(frames)
    assert sum(clock.slept) < 4.0


def test_the_time_for_connecting_belongs_to_the_timeout_of_a_read(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = Connections.to

    def slowly(self: Connections, address: str, timeout_s: float) -> Any:
        clock.ahead_s += timeout_s
        return connected(self, address, 60.0)

    monkeypatch.setattr(Connections, "to", slowly)
    queue = Queue()
    queue.answer = queue.refused  # type: ignore[method-assign]
    with reading(queue, timeout_s=3.0) as (_, frames):
        with pytest.raises((CallTimeout, SystemBusy)):
            next(frames)
    assert sum(clock.slept) <= reads.FLOW_CONTROL_PAUSE_S


def test_other_calls_that_flow_control_refuses_are_asked_again_later() -> None:
    queue = Queue()
    queue.answer = queue.refused  # type: ignore[method-assign]
    with reading(queue) as (transport, _), pytest.raises(SystemBusy, match="too many requests"):
        transport.reads.queue_bounds(queue.peer.address, "t", [0], 60.0)


def test_an_answer_that_comes_after_its_pull_was_sent_again_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that needs longer for each pull would otherwise be asked for ever."""

    class Slow(Queue):
        """Answers a pull only once the same pull has come again."""

        def __init__(self) -> None:
            super().__init__()
            self._waiting: dict[str, Header] = {}

        def answer(self, request: Header) -> bytes | None:
            earlier = self._waiting.get(request.fields["queueOffset"])
            self._waiting[request.fields["queueOffset"]] = request
            return None if earlier is None else self.found(earlier)

    monkeypatch.setattr(reads, "ASKED_AGAIN_AFTER_S", 0.1)
    monkeypatch.setattr(reads, "FRAME_AFTER_S", 0.1)
    with reading(Slow()) as (_, frames):
        assert offsets(*frames) == list(range(MESSAGES))


def test_a_broker_that_vanishes_under_a_window_of_pulls_leaves_no_thread_behind() -> None:
    class Vanishing(Queue):
        """Answers two pulls, and ends the connection while the answers of several others are waited for."""

        def answer(self, request: Header) -> bytes | None:
            if len(self.pulls()) <= 2:
                return self.found(request)
            self.peer.drop()
            return None

    queue = Vanishing()
    with reading(queue) as (_, frames):
        with pytest.raises(BrokerUnavailable, match=queue.peer.address):
            list(frames)
        wait_until(lambda: readers() == [], "the end of the thread that has read from the broker")


def test_a_reader_that_stalls_lets_no_pull_be_sent_twice(clock: Clock) -> None:
    queue = Queue()
    with reading(queue, frame_bytes=1) as (transport, frames):
        found = []
        for frame in frames:
            found.append(frame)
            wait_until_answered(transport, queue)
            clock.ahead_s += 5 * reads.ASKED_AGAIN_AFTER_S
        assert offsets(*found) == list(range(MESSAGES))
    assert sorted(queue.pulls()) == sorted(set(queue.pulls()))


def test_a_slow_pace_is_no_reason_to_send_pulls_again_or_to_give_up(clock: Clock) -> None:
    queue = Queue()
    with reading(queue, timeout_s=2.0, max_pulls_per_second=1) as (transport, frames):
        clock.during_sleep = lambda: wait_until_answered(transport, queue)
        assert offsets(*frames) == list(range(MESSAGES))
    assert sorted(queue.pulls()) == sorted(set(queue.pulls()))
    assert sum(clock.slept) >= len(queue.pulls()) - 4  # the last pulls, which are sent together, delay nothing
