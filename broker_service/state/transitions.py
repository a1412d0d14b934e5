"""Transitions change the state of consumption.  This file defines the transitions, and encodes and decodes them.

The body of a record of the topic `rmq_sys_rocketsim_state` has the transitions of calls that came together:

    | version 1 = 1 | kind 1 | fields … | kind 1 | fields … | …

All integers are big-endian; a text is | size 1 | UTF-8 |; a place is | group | topic | queue id 4 |.

| kind       | fields                                                                                              |
|------------|-----------------------------------------------------------------------------------------------------|
| 1 POP      | place, delivery id 8, start 8, next 8, popped 8, deadline 8, renewed until 8, client text, count 2, |
|            | for each message: queue offset 8, attempt 2                                                         |
| 2 SETTLE   | place, count 2, for each: delivery id 8, queue offset 8                                             |
| 3 DEADLINE | place, deadline 8, flags 1 (1 counted, 2 still renewed), count 2, for each: delivery id, queue offset |
| 4 RESET    | place, queue offset 8                                                                               |
| 5 DROP     | group text, topic text; an empty one stands for all                                                 |
| 6 REMEMBER | dead letters 1 (0 no, 1 yes), count 2, for each: delivery id 8, queue offset 8; in snapshots only   |
| 7 POP IN   | place, delivery id 8, start 8, next 8, popped 8, deadline 8, renewed until 8, client text,          |
|   ORDER    | attempt id text, count 2, for each message group: its name as text, count 2,                        |
|            | for each of its messages: queue offset 8, attempt 2, status 1 (`Step`)                              |
| 8 RETURN   | place, count 2, for each: delivery id 8, queue offset 8                                             |
| 10 COPYING | log offset 8: copies of timers may follow from there on                                             |
| 11 COPIED  | second 8, count 4, for each: log offset 8; a second of 0 and no timers only end the COPYING         |
| 12 TIMERS  | count 4, for each second: second 8; for each: how many 8; count 4, for each timer: log offset 8;    |
|            | count 4, for each recall: second 8, size 2, key; in snapshots only                                  |
| 13 to 15   | transactions: `transaction_changes.py`                                                              |

The record's own CRC covers the body.  A `Move` has no record of its own, but is a property of the copied record, so
that copy and settlement are one append.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from sys import intern
from typing import NamedTuple

import numpy as np

from broker_service.errors import StoreTooNew
from broker_service.state import transaction_changes
from broker_service.state.transaction_changes import Checked, Ended, Prepared, Resolved

VERSION = 1

POP, SETTLE, DEADLINE, RESET, DROP, REMEMBER = range(1, 7)
POP_IN_ORDER, RETURN = 7, 8
COPYING, COPIED, TIMERS = range(10, 13)
COUNTED, RENEWED = 1, 2

_QUEUE_ID = Struct(">I")
_POP = Struct(">QQQQQQ")
_COUNT = Struct(">H")
_MESSAGE = Struct(">QH")
_ORDERED = Struct(">QHB")
_DELIVERY = Struct(">QQ")
_DEADLINE = Struct(">QB")
_OFFSET = Struct(">Q")
_MAX_ATTEMPT = 0xFFFF


class Place(NamedTuple):
    """A queue from which a group reads."""

    group: str
    topic: str
    queue_id: int


class DeliveryId(NamedTuple):
    """Names one delivery of one message.  `pop` is the random number of the pop that took the message."""

    pop: int
    queue_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Delivers a group's next messages of a queue: those at `offsets`, each with its attempt.

    Messages from `start` to `next` that are not at `offsets` are skipped.  `renewed_until_ms` is 0 for deliveries that
    are not renewed.
    """

    place: Place
    pop: int
    start: int
    next: int
    offsets: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    client_id: str = ""
    popped_ms: int = 0
    deadline_ms: int = 0
    renewed_until_ms: int = 0


class Step(IntEnum):
    """The state of a message in a `TakeInOrder`.  RETURNED and ACKED occur only in snapshots."""

    WAITS = 0  # the message waits for earlier ones of its message group
    DELIVERED = 1
    RETURNED = 2  # the delivery has ended without an ack, but another delivery of the batch is under way
    ACKED = 3  # acknowledged before an earlier message of the batch
    GONE = 4  # the message waited, and has expired with the log


class Ordered(NamedTuple):
    """A message of a message group.

    `attempt` counts the delivery attempts, including the current one.  A message that waits or was returned has no
    current attempt.
    """

    queue_offset: int
    attempt: int
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeInOrder:
    """A `Take` of a group that consumes in order.  `groups` has message groups, each with its messages in order.

    Messages from `start` to `next` that are not in `groups` are skipped.  `attempt_id` is the client's name for this
    pop, or empty.
    """

    place: Place
    pop: int
    start: int
    next: int
    groups: tuple[tuple[str, tuple[Ordered, ...]], ...] = ()
    client_id: str = ""
    attempt_id: str = ""
    popped_ms: int = 0
    deadline_ms: int = 0
    renewed_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Return:
    """Ends deliveries without an ack, in a group that consumes in order, so that the messages wait in their old places
    again.
    """

    place: Place
    deliveries: tuple[DeliveryId, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Ends deliveries for good, so that their messages are not delivered to the group again."""

    place: Place
    deliveries: tuple[DeliveryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Sets the deadline of deliveries.

    `renewed` is True if the broker set the deadline and continues to renew the deliveries, and False if a client set
    it.
    """

    place: Place
    deliveries: tuple[DeliveryId, ...]
    deadline_ms: int
    counted: bool = True
    renewed: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Lets the group continue at this offset, and drops the group's deliveries under way in this queue."""

    place: Place
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Drops the state of a group, of a topic, or of a group in a topic.  An empty name stands for all groups or all
    topics.
    """

    group: str = ""
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Remember:
    """Names deliveries that were settled recently, by an ack or as dead letters."""

    deliveries: tuple[DeliveryId, ...]
    is_dead_letter: bool


@dataclass(frozen=True, slots=True)
class Copying:
    """Says that copies of timers may lie in the log from this log offset on.  Each copy names the timer that it
    settles.
    """

    log_offset: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Settles timers of one second, which were delivered, recalled or moved, and ends the last `Copying`."""

    second: int
    log_offsets: tuple[int, ...] = ()


UNKNOWN = -1
"""The second of a timer whose record cannot be read.  Snapshots and the state have it, but never the log."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting timers by their second: the number of timers in each second, their log offsets, and the keys of
    recalls.
    """

    seconds: bytes
    counts: bytes  # all three columns are int64 in the machine's byte order
    log_offsets: bytes
    recalls: tuple[tuple[int, str], ...] = ()


Transition = (
    Take
    | TakeInOrder
    | Settle
    | Return
    | Deadline
    | Reset
    | Drop
    | Remember
    | Copying
    | Copied
    | Waiting
    | Checked
    | Prepared
    | Resolved
)


@dataclass(frozen=True, slots=True)
class Move:
    """Says that the message of a delivery was appended again elsewhere, which settles the delivery."""

    place: Place
    delivery: DeliveryId
    is_dead_letter: bool


@dataclass(frozen=True, slots=True)
class Timer:
    """A record of the timer topic: a waiting message or, if `key` is set, a recall.  A recall waits like the message
    that it recalls.
    """

    second: int  # RocketMQ's TIMER_OUT_MS in seconds
    log_offset: int
    recalls: str = ""


Change = Transition | Move | Ended | Timer
"""Changes that follow from records.  A move, an op record and a timer are records of other topics."""


def encode(transitions: list[Transition]) -> bytes:
    return body_of(map(encoded, transitions))


def body_of(encoded_transitions: Iterable[bytes]) -> bytes:
    return bytes((VERSION,)) + b"".join(encoded_transitions)


def encoded(transition: Transition) -> bytes:
    match transition:
        case Take():
            head = bytes((POP,)) + _place(transition.place)
            times = transition.popped_ms, transition.deadline_ms, transition.renewed_until_ms
            head += _POP.pack(transition.pop, transition.start, transition.next, *times)
            head += _text(transition.client_id) + _COUNT.pack(len(transition.offsets))
            pairs = zip(transition.offsets, transition.attempts, strict=True)
            return head + b"".join(_MESSAGE.pack(offset, min(attempt, _MAX_ATTEMPT)) for offset, attempt in pairs)
        case TakeInOrder():
            head = bytes((POP_IN_ORDER,)) + _place(transition.place)
            times = transition.popped_ms, transition.deadline_ms, transition.renewed_until_ms
            head += _POP.pack(transition.pop, transition.start, transition.next, *times)
            head += _text(transition.client_id) + _text(transition.attempt_id) + _COUNT.pack(len(transition.groups))
            return head + b"".join(_text(name) + _ordered(messages) for name, messages in transition.groups)
        case Settle(place, deliveries):
            return bytes((SETTLE,)) + _place(place) + _deliveries(deliveries)
        case Return(place, deliveries):
            return bytes((RETURN,)) + _place(place) + _deliveries(deliveries)
        case Deadline():
            flags = COUNTED * transition.counted | RENEWED * transition.renewed
            head = bytes((DEADLINE,)) + _place(transition.place) + _DEADLINE.pack(transition.deadline_ms, flags)
            return head + _deliveries(transition.deliveries)
        case Reset(place, queue_offset):
            return bytes((RESET,)) + _place(place) + _OFFSET.pack(queue_offset)
        case Drop(group, topic):
            return bytes((DROP,)) + _text(group) + _text(topic)
        case Remember(deliveries, is_dead_letter):
            return bytes((REMEMBER, is_dead_letter)) + _deliveries(deliveries)
        case Checked() | Prepared() | Resolved():
            return transaction_changes.encoded(transition)
        case Copying(log_offset):
            return bytes((COPYING,)) + _OFFSET.pack(log_offset)
        case Copied(second, log_offsets):
            return bytes((COPIED,)) + _OFFSET.pack(second) + _column(np.array(log_offsets, "=i8").tobytes())
        case Waiting(seconds, counts, offsets, recalls):
            head = bytes((TIMERS,)) + _column(seconds) + _swapped(counts) + _column(offsets)
            keys = [(second, key.encode()) for second, key in recalls]
            return head + _MANY.pack(len(keys)) + b"".join(_KEY.pack(one, len(key)) + key for one, key in keys)


def decode(body: bytes) -> list[Transition]:
    """Decodes the body of a record.  Raises StoreTooNew for bytes of a newer version, ValueError for damaged bytes."""
    if not body or body[0] != VERSION:
        raise StoreTooNew(
            f"transitions of version {body[0] if body else 'none'}; this broker knows only version {VERSION}"
        )
    reader = _Reader(body)
    transitions: list[Transition] = []
    try:
        while reader.at < len(body):
            transitions.append(reader.transition())
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"transitions of {len(body)} bytes are damaged at {reader.at}: {error}") from error
    return transitions


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 1

    def transition(self) -> Transition:
        (kind,) = self._take(_BYTE)
        if kind == DROP:
            return Drop(self._text(), self._text())
        if kind == REMEMBER:
            (is_dead_letter,) = self._take(_BYTE)
            return Remember(self._deliveries(), bool(is_dead_letter))
        if kind == COPYING:
            return Copying(*self._take(_OFFSET))
        if kind == COPIED:
            (second,) = self._take(_OFFSET)
            return Copied(second, tuple(np.frombuffer(self._column(), "=i8").tolist()))
        if kind == TIMERS:
            seconds = self._column()
            return Waiting(seconds, self._numbers(len(seconds) // 8), self._column(), tuple(self._keys()))
        if transaction_changes.CHECKED <= kind <= transaction_changes.RESOLVED:
            change, self.at = transaction_changes.decode(kind, self._data, self.at)
            return change
        if not POP <= kind <= RETURN:
            raise StoreTooNew(
                f"a transition of kind {kind}; this broker knows only {POP} to {RETURN}, {COPYING} to {TIMERS} and "
                f"{transaction_changes.CHECKED} to {transaction_changes.RESOLVED}"
            )
        # Interns each name, so that it is in memory once for all queues and groups.
        place = Place(intern(self._text()), intern(self._text()), *self._take(_QUEUE_ID))
        if kind == RESET:
            return Reset(place, *self._take(_OFFSET))
        if kind == SETTLE:
            return Settle(place, self._deliveries())
        if kind == RETURN:
            return Return(place, self._deliveries())
        if kind == DEADLINE:
            deadline_ms, flags = self._take(_DEADLINE)
            counted, renewed = bool(flags & COUNTED), bool(flags & RENEWED)
            deliveries = self._deliveries()
            return Deadline(
                place=place, deliveries=deliveries, deadline_ms=deadline_ms, counted=counted, renewed=renewed
            )
        pop, start, following, popped_ms, deadline_ms, renewed_until_ms = self._take(_POP)
        client_id = self._text()
        if kind == POP_IN_ORDER:
            return TakeInOrder(
                place=place,
                pop=pop,
                start=start,
                next=following,
                client_id=client_id,
                attempt_id=self._text(),
                groups=self._groups(),
                popped_ms=popped_ms,
                deadline_ms=deadline_ms,
                renewed_until_ms=renewed_until_ms,
            )
        (count,) = self._take(_COUNT)
        messages = [self._take(_MESSAGE) for _ in range(count)]
        return Take(
            place=place,
            pop=pop,
            start=start,
            next=following,
            offsets=tuple(offset for offset, _ in messages),
            attempts=tuple(attempt for _, attempt in messages),
            client_id=client_id,
            popped_ms=popped_ms,
            deadline_ms=deadline_ms,
            renewed_until_ms=renewed_until_ms,
        )

    def _take(self, what: Struct) -> tuple[int, ...]:
        found = what.unpack_from(self._data, self.at)
        self.at += what.size
        return found

    def _text(self) -> str:
        size = self._data[self.at]
        end = self.at + 1 + size
        if end > len(self._data):
            raise IndexError(f"a text of {size} bytes would end beyond the record")
        text = self._data[self.at + 1 : end].decode()
        self.at = end
        return text

    def _groups(self) -> tuple[tuple[str, tuple[Ordered, ...]], ...]:
        (count,) = self._take(_COUNT)
        return tuple((self._text(), self._ordered()) for _ in range(count))

    def _ordered(self) -> tuple[Ordered, ...]:
        (count,) = self._take(_COUNT)
        found = (self._take(_ORDERED) for _ in range(count))
        return tuple(Ordered(offset, attempt, Step(step)) for offset, attempt, step in found)

    def _column(self) -> bytes:
        return self._numbers(*self._take(_MANY))

    def _numbers(self, count: int) -> bytes:
        end = self.at + 8 * count
        if end > len(self._data):
            raise IndexError(f"a column of {count} numbers would end beyond the record")
        found = _swapped(self._data[self.at : end])
        self.at = end
        return found

    def _keys(self) -> Iterator[tuple[int, str]]:
        (count,) = self._take(_MANY)
        for _ in range(count):
            second, size = self._take(_KEY)
            end = self.at + size
            if end > len(self._data):
                raise IndexError(f"a key of {size} bytes would end beyond the record")
            yield second, self._data[self.at : end].decode()
            self.at = end

    def _deliveries(self) -> tuple[DeliveryId, ...]:
        (count,) = self._take(_COUNT)
        return tuple(DeliveryId(*self._take(_DELIVERY)) for _ in range(count))


_BYTE = Struct(">B")
_MANY = Struct(">I")
_KEY = Struct(">QH")


def _place(place: Place) -> bytes:
    return _text(place.group) + _text(place.topic) + _QUEUE_ID.pack(place.queue_id)


def _text(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def _ordered(messages: tuple[Ordered, ...]) -> bytes:
    packed = (_ORDERED.pack(offset, min(attempt, _MAX_ATTEMPT), step) for offset, attempt, step in messages)
    return _COUNT.pack(len(messages)) + b"".join(packed)


def _column(numbers: bytes) -> bytes:
    return _MANY.pack(len(numbers) // 8) + _swapped(numbers)


def _swapped(numbers: bytes) -> bytes:
    """Converts int64 numbers from the machine's byte order to big-endian, or back."""
    return np.frombuffer(numbers, "=i8").astype(">i8").tobytes()


def _deliveries(deliveries: tuple[DeliveryId, ...]) -> bytes:
    return _COUNT.pack(len(deliveries)) + b"".join(_DELIVERY.pack(*delivery) for delivery in deliveries)
