"""Finder: finds the messages that a pop may deliver of its queues now.  It changes nothing.

A queue that the disk cannot read is tried again after some seconds.  Meanwhile pops go on with the other queues.
"""

import logging
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_TAGS

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker
from broker_service.broker.reads.subscription import codes_of
from broker_service.errors import ReadFailed, RocketSimError, StoreCorrupt
from broker_service.model import GetMessageStatus
from broker_service.pop.model import MAX_MESSAGES
from broker_service.pop.picker import Groups, Picker, Room
from broker_service.pop.places import Places
from broker_service.pop.selection import Selection, select
from broker_service.state.transitions import DeliveryId, Place
from broker_service.state.writer import StateWriter
from broker_service.store.pull import GetMessageResult

logger = logging.getLogger(__name__)

MAX_POP_BYTES = 4 << 20
# Messages that were taken in order and are not settled, or wait for others: 170 to 800 bytes each.  A group may have as
# many as it leaves room for others.
MAX_ORDERED = 200_000
MAX_ORDERED_OF_A_QUEUE = 10_000

_WAITING_A_LOOK = 500  # messages of a queue that one look passes over because of their message groups


class Message(NamedTuple):
    """A record in a queue, found for a pop."""

    record: bytes
    queue_offset: int
    attempt: int


class _Look(NamedTuple):
    """One look of a pop into a queue: it begins at `start` and goes `entries` far."""

    place: Place
    is_retry: bool
    start: int
    entries: int
    selection: Selection


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A queue cannot be read from this offset on; it is tried again after `until`, by the broker's clock."""

    queue_offset: int
    until: float
    failure: RocketSimError


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """The messages of a queue from `start` to `next` that a pop may deliver; `read_bytes` were read to find them.

    `groups`: what a pop in order takes.  `again`: the deliveries that an earlier attempt of this pop has taken already.
    """

    place: Place
    is_retry: bool
    pop: int
    start: int
    next: int
    messages: tuple[Message, ...]
    read_bytes: int
    groups: Groups | None = None
    again: tuple[DeliveryId, ...] = ()

    @property
    def deliveries(self) -> tuple[DeliveryId, ...]:
        return self.again or tuple(DeliveryId(self.pop, message.queue_offset) for message in self.messages)


class Finder:
    def __init__(self, broker: Broker, writer: StateWriter, places: Places, chance: random.Random) -> None:
        self._broker = broker
        self._writer = writer
        self._places = places
        self._chance = chance
        self._unreadable: set[tuple[Place, int]] = set()  # messages in order that the log file has named
        self._unreadable_from: dict[Place, _Unreadable] = {}

    def find(
        self, places: Sequence[tuple[Place, bool]], max_messages: int, selection: Selection, *, is_ordered: bool
    ) -> list[QueueBatch]:
        """Returns what may be delivered of these queues, and what the filter excludes.

        `places` says of each queue whether it is a retry topic's.  Raises if nothing is found and a queue cannot be
        read.
        """
        room, entries = min(max_messages, MAX_MESSAGES), selection.entries
        room_bytes = min(MAX_POP_BYTES, selection.most_bytes)
        found: list[QueueBatch] = []
        failure: RocketSimError | None = None
        for place, is_retry in places:
            looks = [partial(self._look_in_order, place, is_retry, may_take_new=is_ordered)]
            if not is_ordered:
                looks.append(partial(self._look_at, place, is_retry))
            for look in looks:
                if room <= 0 or room_bytes <= 0 or entries <= 0:
                    return found
                try:
                    one = look(room, room_bytes, entries, selection)
                except (ReadFailed, StoreCorrupt) as error:
                    failure = error
                    continue  # other queues go on
                if one is not None:
                    found.append(one)
                    room -= len(one.messages)
                    room_bytes -= one.read_bytes
                    entries -= max(one.next - one.start, selection.least_counted)
        if failure is not None and not found:
            raise failure
        return found

    def again(self, places: Sequence[tuple[Place, bool]], attempt_id: str) -> list[QueueBatch]:
        """Returns what an earlier attempt of this pop took in order of these queues."""
        return [one for place, is_retry in places if (one := self._again(place, is_retry, attempt_id))]

    def _look_at(
        self, place: Place, is_retry: bool, room: int, room_bytes: int, entries: int, selection: Selection
    ) -> QueueBatch | None:
        first, end = self._broker.store.queues.bounds(place.topic, place.queue_id)
        start = at = max(self._places.next(place, first), first)
        look = _Look(place, is_retry, start, entries, selection)
        messages: list[Message] = []
        read_bytes = 0
        while at < end and at - start < entries and read_bytes < room_bytes and not messages:
            left = room, room_bytes - read_bytes
            try:
                at, messages, size = self._read_on(look, at, *left)
            except (ReadFailed, StoreCorrupt):
                if at == start:
                    raise
                break
            read_bytes += size
        if at == start:
            return None
        return QueueBatch(place, is_retry, self._chance.getrandbits(64), start, at, tuple(messages), read_bytes)

    def _read_on(self, look: _Look, at: int, most: int, most_bytes: int) -> tuple[int, list[Message], int]:
        """The next offset to read, the messages before it that are selected, and how many bytes were read.

        Where the disk cannot read all of it, the first one alone; where it cannot read that, the queue is tried again
        later.
        """
        place = look.place
        known = self._unreadable_from.get(place)
        if known is not None and known.queue_offset == at and self._broker.clock() < known.until:
            raise known.failure.with_traceback(None)  # else it grows with each time
        try:
            try:
                read = self._read_some(look, at, most, most_bytes)
            except (ReadFailed, StoreCorrupt):
                read = self._read_some(look._replace(start=at, entries=1), at, 1, 1)
        except (ReadFailed, StoreCorrupt) as failure:
            if known is None or known.queue_offset != at:
                logger.error(
                    "queue %d of %s cannot be read from %d on, group %s gets no more of it for now: %s",
                    *(place.queue_id, place.topic, at, place.group, failure),
                )
            self._unreadable_from[place] = _Unreadable(at, self._broker.clock() + master_loop.AFTER_TROUBLE_S, failure)
            raise
        if known is not None:
            del self._unreadable_from[place]
        return read

    def _read_some(self, look: _Look, at: int, most: int, most_bytes: int) -> tuple[int, list[Message], int]:
        """A retried message was selected when it came first."""
        store, (place, is_retry, start, entries, selection) = self._broker.store, look
        if selection.condition is not None and not is_retry:
            until = min(start + entries, at + selection.evaluated_together(at - start))
            chosen = select(store, *place[1:], at, until, most, most_bytes, selection.condition)
            found = chosen.next, [Message(*one, 1) for one in chosen.messages], chosen.read_bytes
        else:
            codes = None if is_retry else codes_of(selection.tags)
            read = store.queues.get_message(place.topic, place.queue_id, at, most, most_bytes, codes)
            with store.log.decoding(read.records):
                messages = _messages(read, is_retry, selection.tags)
            found = read.next_begin_offset, messages, len(read.records)
        if found[0] <= at:
            raise StoreCorrupt(
                f"queue {place.queue_id} of {place.topic} cannot be read at {at}: run `rocketsim store verify`"
            )
        return found

    def _look_in_order(
        self,
        place: Place,
        is_retry: bool,
        room: int,
        room_bytes: int,
        entries: int,
        selection: Selection,
        *,
        may_take_new: bool,
    ) -> QueueBatch | None:
        """Without `may_take_new`, only what waits: the group does not consume in order any more."""
        queue = self._writer.state.queues.get(place)
        locks = queue.locks if queue is not None else None
        if locks is None and not may_take_new:
            return None
        ordered = len(locks.group_of) if locks is not None else 0
        unused = MAX_ORDERED - self._writer.state.ordered_count - self._writer.state.ordered_of.get(place.group, 0)
        may_wait = min(_WAITING_A_LOOK, MAX_ORDERED_OF_A_QUEUE - ordered, unused // 2)
        picker: Picker[Message] = Picker(locks, Room(room, room_bytes, may_wait))
        read_bytes = 0
        while wanted := picker.waiting():
            try:
                records, gone = self._records(place, wanted, room_bytes)
            except (ReadFailed, StoreCorrupt):
                unreadable = self._unreadable_of(place, wanted)
                if not unreadable:
                    raise
                for offset in unreadable:
                    picker.skip(offset)
                continue
            read_bytes = sum(len(data) for _, data in records)
            picker.take_waiting({offset: Message(data, offset, wanted[offset]) for offset, data in records}, gone)
            break
        first, end = self._broker.store.queues.bounds(place.topic, place.queue_id)
        start = at = max(self._places.next(place, first), first)
        look = _Look(place, is_retry, start, entries, selection)
        stopped = not may_take_new
        while not stopped and at < end and at - start < entries and read_bytes < room_bytes and not picker.is_full:
            left = MAX_MESSAGES, room_bytes - read_bytes
            try:
                at, messages, size = self._read_on(look, at, *left)
            except (ReadFailed, StoreCorrupt):
                if at == start and not picker.groups:
                    raise
                break
            read_bytes += size
            refused = next((message for message in messages if not picker.take(message)), None)
            if refused is not None:
                at, stopped = refused.queue_offset, True
        if at == start and not picker.groups:
            return None
        taken = tuple(picker.messages)
        return QueueBatch(place, is_retry, self._chance.getrandbits(64), start, at, taken, read_bytes, picker.groups)

    def _again(self, place: Place, is_retry: bool, attempt_id: str) -> QueueBatch | None:
        """Returns what an earlier attempt of this pop took in order.

        Returns None if the client has given some of it back since, or has changed a deadline: it got the answer then,
        or the attempt counts because of what it could not receive.  Message groups are left out if one of their
        messages cannot be read.
        """
        taken = {
            delivery.queue_offset: (delivery, one) for delivery, one in self._writer.state.taken_by(place, attempt_id)
        }
        try:
            records, _ = self._records(place, taken, MAX_POP_BYTES)
        except (ReadFailed, StoreCorrupt):
            unreadable = self._unreadable_of(place, taken)
            if not unreadable:
                raise
            locks = self._writer.state.queues[place].locks
            assert locks is not None
            waits = {locks.group_of[offset] for offset in unreadable}
            readable = [offset for offset in taken if locks.group_of[offset] not in waits]
            records, _ = self._records(place, readable, MAX_POP_BYTES)
        if not records:
            return None
        messages = tuple(Message(data, offset, taken[offset][1].attempt) for offset, data in records)
        again = tuple(taken[message.queue_offset][0] for message in messages)
        return QueueBatch(place, is_retry, 0, 0, 0, messages, 0, (), again)

    def _records(
        self, place: Place, queue_offsets: Collection[int], max_bytes: int
    ) -> tuple[list[tuple[int, bytes]], set[int]]:
        """The first of these records, as many as fit, at least one, each with its offset; and which have expired."""
        if not queue_offsets:
            return [], set()
        offsets = list(queue_offsets)
        read = self._broker.store.queues.read_ranges(
            [(*place[1:], offset, offset + 1) for offset in offsets], max_bytes
        )
        data, at, records = b"".join(read.records), 0, []
        with self._broker.store.log.decoding(data):
            for size in np.frombuffer(read.sizes, "<u4").tolist():
                records.append((record.locate(data, at).queue_offset, data[at : at + size]))
                at += size
        removed = GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.MESSAGE_WAS_REMOVING
        return records, {offsets[answer.span_index] for answer in read.answers if answer.status in removed}

    def _unreadable_of(self, place: Place, queue_offsets: Collection[int]) -> list[int]:
        """Returns those of these messages that the disk cannot read.  The log file names each once."""
        unreadable = []
        for offset in queue_offsets:
            try:
                self._records(place, [offset], 1)
            except (ReadFailed, StoreCorrupt) as error:
                unreadable.append(offset)
                if (place, offset) not in self._unreadable:
                    self._unreadable.add((place, offset))
                    logger.error(
                        "message %d of %s cannot be read, its message group waits in group %s: %s",
                        *(offset, place.topic, place.group, error),
                    )
        return unreadable


def _messages(read: GetMessageResult, is_retry: bool, tags: frozenset[str] | None) -> list[Message]:
    """The messages with exactly these tags: different tags may have the same hash."""
    found, at = [], 0
    for size in np.frombuffer(read.sizes, "<u4").tolist():
        parts = record.locate(read.records, at)
        data = read.records[at : at + size]
        at += size
        if tags is not None and not is_retry:
            properties = record.decode_properties(read.records[parts.properties_start : parts.end])
            if properties.get(PROPERTY_TAGS, "") not in tags:
                continue
        attempt = 1
        if is_retry:
            reconsume_times, _, _ = record.TAIL.unpack_from(read.records, parts.store_end)
            attempt = max(0, reconsume_times) + 1
        found.append(Message(data, parts.queue_offset, attempt))
    return found
