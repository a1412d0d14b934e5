"""Finder: finds the messages that a pop may deliver now, and changes nothing.

A *scan* reads one queue from the offset at which the group continues.  The scan ends when it has enough messages, when
it has read enough bytes, or when the filter has excluded too many messages.  For a group that consumes in order, the
scan first takes waiting messages whose message group has become free, and then new messages that may be delivered.

If the disk cannot read a queue, the scan of that queue is tried again after some seconds.  While one queue cannot be
read, pops read the other queues.
"""

import logging
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from rocketsim_proto.model import GetMessageStatus
from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_TAGS

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker
from broker_service.broker.reads.selection import Selection, select
from broker_service.broker.reads.subscription import codes_of
from broker_service.errors import ReadFailed, RocketSimError, StoreCorrupt
from broker_service.pop.deliveries import MAX_MESSAGES
from broker_service.pop.picker import Groups, Picker, Room
from broker_service.pop.places import Places
from broker_service.state.transitions import DeliveryId, Place
from broker_service.state.writer import StateWriter
from broker_service.store.pull import GetMessageResult

logger = logging.getLogger(__name__)

MAX_POP_BYTES = 4 << 20
# Limit for the delivered and waiting messages of all groups that consume in order, counted together.  Each of these
# messages takes 170 to 800 bytes of memory.  One group may use at most half of what the other groups leave free.
MAX_ORDERED = 200_000
MAX_ORDERED_OF_A_QUEUE = 10_000

WAITING_A_SCAN = 500  # limit for the new messages that one scan lets wait because their message groups are locked


class Message(NamedTuple):
    """A record that the scan found for a pop."""

    record: bytes
    queue_offset: int
    attempt: int


class _Scan(NamedTuple):
    """One scan of a queue, from offset `start` to at most `end`.

    The scan reads at most `entries` messages, and takes at most `most` of them, whose records have at most `most_bytes`
    together.
    """

    place: Place
    is_retry: bool
    selection: Selection
    start: int
    end: int
    entries: int
    most: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """An offset at which the disk cannot read a queue.  The read is tried again at `until`, a time of the broker's
    clock.
    """

    queue_offset: int
    until: float
    failure: RocketSimError


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """The messages of a queue from `start` to `next` that a pop may deliver.

    `read_bytes` counts the bytes that were read to find these messages.  For a group that consumes in order, `groups`
    has the messages that the pop takes or lets wait, by message group.  If the pop gets the messages of an earlier
    attempt again, `again` has the deliveries of that attempt.
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
        # Unreadable messages that were already logged; only groups that consume in order have such entries.
        self._unreadable: set[tuple[Place, int]] = set()
        self._unreadable_from: dict[Place, _Unreadable] = {}

    def find(
        self, places: Sequence[tuple[Place, bool]], max_messages: int, selection: Selection, *, is_ordered: bool
    ) -> list[QueueBatch]:
        """Returns the messages to deliver from these queues, and the ranges in which the filter excluded all messages.

        In `places`, the second value is True for queues of retry topics.  Raises the error of an unreadable queue if no
        message is found.
        """
        room, entries = min(max_messages, MAX_MESSAGES), selection.entries
        room_bytes = min(MAX_POP_BYTES, selection.most_bytes)
        found: list[QueueBatch] = []
        failure: RocketSimError | None = None
        for place, is_retry in places:
            first, end = self._broker.store.queues.bounds(place.topic, place.queue_id)
            start = max(self._places.next(place, first), first)
            # A group that no longer consumes in order still gets the messages that were left waiting while it consumed
            # in order.
            in_order = partial(self._find_in_order, may_take_new=is_ordered)
            for search in (in_order,) if is_ordered else (in_order, self._find_new):
                if room <= 0 or room_bytes <= 0 or entries <= 0:
                    return found
                scan = _Scan(place, is_retry, selection, start, end, entries, room, room_bytes)
                try:
                    one = search(scan)
                except (ReadFailed, StoreCorrupt) as error:
                    failure = error
                    continue  # the other queues are still scanned
                if one is not None:
                    found.append(one)
                    room -= len(one.messages)
                    room_bytes -= one.read_bytes
                    entries -= max(one.next - one.start, selection.least_counted)
        if failure is not None and not found:
            raise failure
        return found

    def again(self, places: Sequence[tuple[Place, bool]], attempt_id: str) -> list[QueueBatch]:
        """Returns the messages that an earlier attempt of the same pop took in order from these queues."""
        return [one for place, is_retry in places if (one := self._again(place, is_retry, attempt_id))]

    def _find_new(self, scan: _Scan) -> QueueBatch | None:
        """Finds new messages for a group that does not consume in order."""
        place, at = scan.place, scan.start
        messages: list[Message] = []
        read_bytes = 0
        while at < scan.end and at - scan.start < scan.entries and read_bytes < scan.most_bytes and not messages:
            try:
                at, messages, size = self._read_on(scan, at, read_bytes)
            except (ReadFailed, StoreCorrupt):
                if at == scan.start:
                    raise
                break
            read_bytes += size
        if at == scan.start:
            return None
        pop = self._chance.getrandbits(64)
        return QueueBatch(place, scan.is_retry, pop, scan.start, at, tuple(messages), read_bytes)

    def _read_on(self, scan: _Scan, at: int, read_bytes: int) -> tuple[int, list[Message], int]:
        """Reads the next messages of the scan's queue, from the offset `at`.  `read_bytes` is how many bytes the scan
        has read before this call.

        Returns the next offset to read, the selected messages before that offset, and the number of bytes read.  If the
        disk cannot read a whole batch, only the first message is read.  If the disk cannot read even a single message,
        the queue is tried again later.
        """
        place = scan.place
        known = self._unreadable_from.get(place)
        if known is not None and known.queue_offset == at and self._broker.clock() < known.until:
            # Without `with_traceback(None)`, every raise would lengthen the saved traceback.
            raise known.failure.with_traceback(None)
        try:
            try:
                read = self._read_some(scan, at, scan.most_bytes - read_bytes)
            except (ReadFailed, StoreCorrupt):
                read = self._read_some(scan._replace(start=at, entries=1, most=1), at, 1)
        except (ReadFailed, StoreCorrupt) as failure:
            if known is None or known.queue_offset != at:
                logger.error(
                    "queue %d of topic %s cannot be read at offset %d, so group %s gets no more of it for now: %s",
                    *(place.queue_id, place.topic, at, place.group, failure),
                )
            self._unreadable_from[place] = _Unreadable(at, self._broker.clock() + master_loop.AFTER_TROUBLE_S, failure)
            raise
        if known is not None:
            del self._unreadable_from[place]
        return read

    def _read_some(self, scan: _Scan, at: int, most_bytes: int) -> tuple[int, list[Message], int]:
        """Does one read for `_read_on`, and returns the same values.

        Retried messages are not filtered again, because they were filtered at their first delivery.
        """
        store, place, selection = self._broker.store, scan.place, scan.selection
        if selection.condition is not None and not scan.is_retry:
            until = min(scan.start + scan.entries, at + selection.evaluated_together(at - scan.start))
            chosen = select(store, *place[1:], at, until, scan.most, most_bytes, selection.condition)
            found = chosen.next, [Message(*one, 1) for one in chosen.messages], chosen.read_bytes
        else:
            codes = None if scan.is_retry else codes_of(selection.tags)
            read = store.queues.get_message(place.topic, place.queue_id, at, scan.most, most_bytes, codes)
            with store.log.decoding(read.records):
                messages = _messages(read, scan.is_retry, selection.tags)
            found = read.next_begin_offset, messages, len(read.records)
        if found[0] <= at:
            raise StoreCorrupt(
                f"queue {place.queue_id} of topic {place.topic} cannot be read at {at}: run `rocketsim store verify`"
            )
        return found

    def _find_in_order(self, scan: _Scan, *, may_take_new: bool) -> QueueBatch | None:
        """Finds messages of free message groups: first waiting messages, then new ones if `may_take_new`."""
        place, start = scan.place, scan.start
        queue = self._writer.state.queues.get(place)
        locks = queue.locks if queue is not None else None
        if locks is None and not may_take_new:
            return None
        ordered = len(locks.group_of) if locks is not None else 0
        unused = MAX_ORDERED - self._writer.state.ordered_count - self._writer.state.ordered_of.get(place.group, 0)
        may_wait = min(WAITING_A_SCAN, MAX_ORDERED_OF_A_QUEUE - ordered, unused // 2)
        picker: Picker[Message] = Picker(locks, Room(scan.most, scan.most_bytes, may_wait))
        read_bytes = 0
        while wanted := picker.waiting():
            try:
                records, gone = self._records(place, wanted, scan.most_bytes)
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
        at = start
        # A scan in order reads a full batch, because many of the messages may belong to locked message groups.
        new = scan._replace(most=MAX_MESSAGES)
        stopped = not may_take_new
        while (
            not stopped and at < scan.end and at - start < scan.entries and read_bytes < scan.most_bytes
        ) and not picker.is_full:
            try:
                at, messages, size = self._read_on(new, at, read_bytes)
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
        pop, taken = self._chance.getrandbits(64), tuple(picker.messages)
        return QueueBatch(place, scan.is_retry, pop, start, at, taken, read_bytes, picker.groups)

    def _again(self, place: Place, is_retry: bool, attempt_id: str) -> QueueBatch | None:
        """Returns the messages that an earlier attempt of the same pop took in order from this queue.

        A message group is left out if one of its messages cannot be read, or if the client has given one back or moved
        its deadline, because the client has then received the earlier answer.  Returns None if no message is left.
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
        """Reads the records at these queue offsets in order: as many as fit into `max_bytes`, but at least one.

        Returns the records with their offsets, and the offsets whose records have expired.
        """
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
        """Returns the queue offsets, among the given ones, whose messages the disk cannot read.  Each unreadable
        message is logged once.
        """
        unreadable = []
        for offset in queue_offsets:
            try:
                self._records(place, [offset], 1)
            except (ReadFailed, StoreCorrupt) as error:
                unreadable.append(offset)
                if (place, offset) not in self._unreadable:
                    self._unreadable.add((place, offset))
                    logger.error(
                        "message %d of topic %s cannot be read, so its message group waits in group %s: %s",
                        *(offset, place.topic, place.group, error),
                    )
        return unreadable


def _messages(read: GetMessageResult, is_retry: bool, tags: frozenset[str] | None) -> list[Message]:
    """Returns the messages whose tag is in `tags`, which is compared with the tag itself.  The store selects messages
    by the hash of their tag, and different tags may have the same hash.
    """
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
