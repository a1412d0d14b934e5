"""Gathers messages into batches, in one lane for each broker, topic, kind and WAIT flag, and decides which batch may be
sent.  Pure: it has no lock and no clock.

A batch is sent when it is full.  A batch is also sent when its first message has waited for the linger time, and at
most one other batch of the lane is unanswered.  If a caller waits for the result (SYNC, ORDERED), a batch is sent as
soon as no other batch of the lane is unanswered.  The rules for sending a batch make batches grow with the load,
because a call costs as much as some hundred messages.

An ordered lane has one unanswered batch at a time, so that neither the network nor a retry can reorder two messages of
a group.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")


class Kind(IntEnum):
    SYNC = 1
    ASYNC = 2
    ORDERED = 3
    ONEWAY = 4
    ALONE = 5  # delayed messages, which RocketMQ takes in no batch
    COLUMNS = 6  # Arrow columns, which are a batch already


LEAVES_WHEN_IDLE = frozenset({Kind.SYNC, Kind.ORDERED})
PART_FULL_IN_FLIGHT = 2  # a lane with this many batches under way sends only full batches
ALWAYS_FULL = frozenset({Kind.ALONE, Kind.COLUMNS})


class LaneKey(NamedTuple):
    broker_name: str
    topic: str
    kind: Kind
    wait_store_msg_ok: bool = True


@dataclass(slots=True)
class Lane(Generic[E]):
    key: LaneKey
    open: list[E] = field(default_factory=list)
    open_bytes: int = 0
    open_since: float = 0.0
    full: deque[tuple[list[E], int]] = field(default_factory=deque)
    in_flight: int = 0


@dataclass(slots=True)
class Batch(Generic[E]):
    """Accepted messages that are sent together.  `Accumulator.done` must be called with the batch after the send, even
    if the send has failed."""

    lane: Lane[E]
    entries: Sequence[E]
    size_bytes: int


class Accumulator(Generic[E]):
    """Lanes of entries.  `size_bytes` counts the bytes of all messages that are accepted and not done, whether they
    wait or are under way."""

    def __init__(self, *, linger_s: float, batch_bytes: int, max_in_flight: int) -> None:
        self.linger_s = linger_s
        self.batch_bytes = batch_bytes
        self.max_in_flight = max_in_flight
        self.size_bytes = 0
        self.closing = False
        self._lanes: dict[tuple[str, str, Kind, bool], Lane[E]] = {}

    def __str__(self) -> str:
        waiting = sum(len(lane.open) + sum(len(entries) for entries, _ in lane.full) for lane in self._lanes.values())
        under_way = sum(lane.in_flight for lane in self._lanes.values())
        return f"{waiting} waiting in {len(self._lanes)} lanes, {under_way} batches under way, {self.size_bytes} bytes"

    def lane(self, broker_name: str, topic: str, kind: Kind, wait_store_msg_ok: bool = True) -> Lane[E]:
        key = (broker_name, topic, kind, wait_store_msg_ok)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(LaneKey(*key))
        return lane

    def add(self, lane: Lane[E], entry: E, size_bytes: int, now: float) -> bool:
        """Accepts an entry.  Returns True if a sender has to be notified, because a batch is ready or a linger time
        has begun."""
        self.size_bytes += size_bytes
        if lane.open and lane.open_bytes + size_bytes > self.batch_bytes:
            self._close_open(lane)
        began = not lane.open
        if began:
            lane.open_since = now
        lane.open.append(entry)
        lane.open_bytes += size_bytes
        if lane.open_bytes >= self.batch_bytes or lane.key.kind in ALWAYS_FULL:
            self._close_open(lane)
            began = True
        # If as many batches of the lane as possible are under way, no sender is notified now, but the end of one of
        # these batches notifies a sender.
        return began and lane.in_flight < self._limit(lane)

    def start_alone(self, lane: Lane[E], entry: E, size_bytes: int) -> Batch[E] | None:
        """If nothing else of the entry's lane (broker, topic and kind) waits or is under way, returns a batch of only
        this entry, which the caller sends itself without waiting for another thread."""
        if lane.open or lane.full or lane.in_flight:
            return None
        self.size_bytes += size_bytes
        lane.in_flight = 1
        return Batch(lane, [entry], size_bytes)

    def take(self, now: float) -> Batch[E] | None:
        """Returns the next batch that may be sent, or None.  The batches of one lane are returned in the order in which
        they were filled."""
        for lane in self._lanes.values():
            if lane.in_flight >= self._limit(lane):
                continue
            if not lane.full and lane.in_flight < PART_FULL_IN_FLIGHT and self._due(lane) <= now:
                self._close_open(lane)
            if lane.full:
                entries, size_bytes = lane.full.popleft()
                lane.in_flight += 1
                return Batch(lane, entries, size_bytes)
        return None

    def due_in(self, now: float) -> float | None:
        """Returns in how many seconds the next open batch may be sent, if no batch under way ends earlier.  Returns
        None if no open batch is waiting for its linger time."""
        dues = [
            self._due(lane)
            for lane in self._lanes.values()
            if lane.open and lane.in_flight < min(self._limit(lane), PART_FULL_IN_FLIGHT)
        ]
        return max(0.0, min(dues) - now) if dues else None

    def done(self, batch: Batch[E]) -> None:
        lane = batch.lane
        lane.in_flight -= 1
        self.size_bytes -= batch.size_bytes
        assert lane.in_flight >= 0 and self.size_bytes >= 0
        if not (lane.in_flight or lane.open or lane.full) and len(self._lanes) > 64:
            self._lanes.pop(lane.key, None)  # otherwise lanes of topics that are used no more would pile up

    def is_empty(self) -> bool:
        return not any(lane.open or lane.full or lane.in_flight for lane in self._lanes.values())

    def _close_open(self, lane: Lane[E]) -> None:
        lane.full.append((lane.open, lane.open_bytes))
        lane.open, lane.open_bytes = [], 0

    def _limit(self, lane: Lane[E]) -> int:
        return 1 if lane.key.kind is Kind.ORDERED else self.max_in_flight

    def _due(self, lane: Lane[E]) -> float:
        """Returns the time at which the open batch is sent even if it is not full."""
        if not lane.open:
            return float("inf")
        if self.closing or (lane.key.kind in LEAVES_WHEN_IDLE and not lane.in_flight):
            return lane.open_since
        return lane.open_since + self.linger_s
