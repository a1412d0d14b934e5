"""StateLog keeps the state of consumption in step with this broker's log, on masters and slaves.

After a start or a cut of the log, StateLog takes the state from the newest valid snapshot and applies the log after it.
StateLog keeps two snapshots, `consumption.snapshot` and the earlier one with the ending `.old`, in case the newer one
is damaged or the log was cut.

Four kinds of records change the state, and are applied in log order.  If a record that changes the state cannot be
read, because of a bad sector or damage, only a part of the state waits for it:

| record                                       | if it cannot be read                                             |
|----------------------------------------------|------------------------------------------------------------------|
| a record of the timer topic                  | its message waits                                                |
| a copy in a retry or dead letter topic       | the message whose delivery it settles is delivered again         |
| a record of RocketMQ's topics of             | all transactions wait, since any of them may have ended with it  |
| transactions                                 |                                                                  |
| a record of the state topic                  | all changes wait, since all later ones depend on it              |
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.reserved import DLQ_PREFIX, RETRY_PREFIX, STATE_TOPIC, TIMER_TOPIC

from broker_service.errors import FlushFailed, NotFound, ReadFailed, RocketSimError, StoreCorrupt, StoreTooNew
from broker_service.runtime.garbage import not_collected
from broker_service.state import half_messages, timer_record, transitions
from broker_service.state import snapshot as snapshots
from broker_service.state.moves import move_of
from broker_service.state.snapshot import Snapshot
from broker_service.state.state import State
from broker_service.state.transitions import UNKNOWN, Change, Timer
from broker_service.store.dispatch import QueueExtent
from broker_service.store.message_store import MessageStore

logger = logging.getLogger(__name__)

SNAPSHOT_LOG_BYTES = 64 << 20  # bytes of the log after which another snapshot is due

READ_BYTES = 256 << 10  # bytes to read from a queue at a time
MANY = 16  # from this many records on, reading columns is faster than reading single records

RecordChanges = tuple[int, list[Change]]  # the log offset of a record, and its changes
Extent = tuple[int, int]  # the log offset and size of a record


class Written(NamedTuple):
    """A record of the state topic that this broker has just appended, so that it need not be read."""

    end_offset: int
    body: bytes


class _Entry(NamedTuple):
    """Names an entry of a queue."""

    topic: str
    queue_id: int
    queue_offset: int


class StateLog:
    """Keeps the state.  Notes each record that the store dispatches, for the next `catch_up` to apply."""

    def __init__(self, store: MessageStore, snapshot_path: Path) -> None:
        self.state = State()
        self._store = store
        self._path = snapshot_path
        self._older = snapshot_path.with_name(f"{snapshot_path.name}.old")
        self._saved_at = 0  # log offset of the last snapshot
        self._is_saved = True  # False if something has changed since the last snapshot
        self._unapplied: list[Extent] = []
        self._is_reload_due = False  # True if the last reload has failed
        self._failed_at: _Entry | None = None
        self._unread: tuple[_Entry, RocketSimError] | None = None  # the first unreadable record of a transaction
        store.dispatched.append(self._dispatched)

    @not_collected()
    def reload(self) -> None:
        """Reads the state from a snapshot, if any, and the log after it.  To be called at a start and after a cut of
        the log.

        Deliveries that are neither in the snapshot nor in the log after it are lost, because their part of the log has
        expired.  If the reload fails, the next `catch_up` repeats it, so that no snapshot is made of an incomplete
        state.
        """
        self._is_reload_due = True
        self._check(self._failed_at)  # raises early if the record that failed before still cannot be read
        self._failed_at = self._unread = None
        self.state, self._unapplied = State(), []
        begin = self._saved_at = self._store.min_offset
        snapshot = self.read_snapshot()
        if snapshot is not None:
            begin = self._saved_at = snapshot.log_offset
            for made_again in snapshot.transitions:
                self.state.apply(made_again)
        self._is_saved = True
        sources = [
            self.changes_from(topic, queue_id, begin)
            for topic, queue_id in self._store.queues.keys()
            if _has_changes(topic)
        ]
        for _, changes in heapq.merge(*sources, key=itemgetter(0)):
            self._is_saved = False
            for transition in changes:
                self.state.apply(transition)
        self._is_reload_due = False

    @property
    def is_snapshot_due(self) -> bool:
        """Returns True if a start would have to read so much of the log that another snapshot is worth writing."""
        return self._store.end_offset - self._saved_at >= SNAPSHOT_LOG_BYTES

    def saving(self) -> Callable[[], None] | None:
        """Returns a function that writes a snapshot on any thread.

        Returns None if nothing has changed since the last snapshot, or if a record of a transaction cannot be read.
        """
        self.catch_up()
        if self._is_saved or self._unread is not None:
            return None
        store = self._store
        try:
            tail = store.tail_crc(snapshots.TAIL_BYTES)
        except ReadFailed:
            tail = store.tail_crc(snapshots.SHORT_TAIL_BYTES)
        self._saved_at = end = store.end_offset
        self._is_saved = True
        queues = [
            (place, one.next, dict(one.under_way), one.locks.groups() if one.locks is not None else ())
            for place, one in self.state.queues.items()
        ]
        recent = self.state.recent()
        more = chain(self.state.transactions.rebuilding(), self.state.timers.rebuilding())

        def save() -> None:
            fresh = self._path.with_name(f"{self._path.name}.new")
            try:
                store.disk.write_atomically(fresh, snapshots.encode(end, tail, queues, recent, more))
                if store.disk.exists(self._path):
                    store.disk.rename(self._path, self._older)
                store.disk.rename(fresh, self._path)
                store.disk.sync_directory(self._path.parent)
            except OSError:
                self._is_saved = False
                raise

        return save

    def read_snapshot(self) -> Snapshot | None:
        """Reads the newest snapshot that is valid for this log."""
        for path in (self._path, self._older):
            try:
                snapshot = snapshots.decode(self._store.disk.read_synced(path))
                size = snapshot.tail[0] or snapshots.TAIL_BYTES
                if self._store.tail_crc_at(snapshot.log_offset, size) == snapshot.tail:
                    return snapshot
                why = f"the log before offset {snapshot.log_offset} is not that of the snapshot"
            except FileNotFoundError:
                continue
            except FlushFailed:
                raise
            except (OSError, ValueError, NotFound, StoreTooNew) as error:
                why = str(error)
            logger.warning("the snapshot %s is not used, and more of the log is read instead: %s", path, why)
        return None

    def catch_up(self, written: Written | None = None) -> None:
        """Applies the records that were appended since the last call.

        Raises an error if a record cannot be applied, and every later call tries this record again first.
        """
        if self._is_reload_due:
            self.reload()
        if not self._unapplied:
            return
        self._is_saved = False
        unapplied, self._unapplied = sorted(self._unapplied), []
        applied = 0
        try:
            for extents in _runs(unapplied):
                for _, changes in self._timers_of(extents) or (self._changes_at(extent, written) for extent in extents):
                    for transition in changes:
                        self.state.apply(transition)
                    applied += 1
        except BaseException:
            self._unapplied = unapplied[applied:]
            raise

    def _timers_of(self, extents: Sequence[Extent]) -> list[RecordChanges] | None:
        """Returns the changes of these adjacent records; None if each record must be read by itself."""
        if len(extents) < MANY:
            return None
        first, (last, size) = extents[0][0], extents[-1]
        try:
            return _timers_in(self._store.log.read(first, last + size - first), len(extents))
        except (NotFound, ReadFailed, StoreCorrupt):
            return None

    def _changes_at(self, extent: Extent, written: Written | None) -> RecordChanges:
        offset, _ = extent
        if written is not None and sum(extent) == written.end_offset:
            return offset, _in_body(written.body, offset)
        try:
            data = self._store.log.record_at(offset)
        except NotFound:
            return offset, []  # the record has expired
        except (ReadFailed, StoreCorrupt) as error:
            return offset, self._substitutes_for(self._entry_of(offset), offset, error)
        return offset, changes_in(record.decode(data, check_crc=False), offset)

    @property
    def unapplied_from(self) -> int | None:
        """Returns the log offset of the first record that is not applied; None if all are applied."""
        if self._is_reload_due or self._unread is not None:
            return self._saved_at
        return min(self._unapplied)[0] if self._unapplied else None

    def check_transactions(self) -> None:
        """Raises an error if a record that may change transactions could not be read."""
        if self._unread is not None:
            raise self._unread[1].with_traceback(None)  # every raise would lengthen the error's traceback

    def read_again(self) -> bool:
        """If a record of a transaction could not be read before, reads the state again and returns True.

        Raises if the record still cannot be read.
        """
        if self._unread is None:
            return False
        self._check(self._unread[0])
        self.reload()
        self.check_transactions()
        return True

    def _dispatched(self, extents: Iterable[QueueExtent]) -> None:
        for extent in extents:
            if _has_changes(extent.topic):
                columns = extent.entries["commit_log_offset"], extent.entries["size"]
                self._unapplied += zip(*(column.tolist() for column in columns), strict=True)

    def changes_from(self, topic: str, queue_id: int, log_offset: int) -> Iterator[RecordChanges]:
        """Yields the changes in the queue's records from this log offset on."""
        at, end = self._store.queues.bounds(topic, queue_id)
        at = max(at, self._store.queues.end_at(topic, queue_id, log_offset))
        alone = 1
        while at < end:
            try:
                at, changes = self._read(_Entry(topic, queue_id, at), end)
                yield from changes
                alone = 1
            except (ReadFailed, StoreCorrupt, StoreTooNew) as error:
                for one in range(at, min(at + alone, end)):  # a bad sector can make reads of all records near it fail
                    yield self._read_alone(_Entry(topic, queue_id, one), error)
                at, alone = at + alone, 2 * alone
        for one in range(end, self._store.queues.end(topic, queue_id)):  # records that readers do not see yet
            yield self._read_alone(_Entry(topic, queue_id, one))

    def _read(self, entry: _Entry, end: int) -> tuple[int, list[RecordChanges]]:
        """Reads as many records as fit into READ_BYTES.

        Returns the queue offset of the next record, and the changes in the records that were read.
        """
        topic, queue_id, at = entry
        found = self._store.queues.read_ranges([(topic, queue_id, at, end)], READ_BYTES)
        if found.answers[0].next_offset <= at:
            raise _unreadable(entry)
        data, sizes = memoryview(b"".join(found.records)), np.frombuffer(found.sizes, "<u4")
        changes = _timers_in(data, len(sizes)) if topic == TIMER_TOPIC and len(sizes) >= MANY else None
        if changes is None:
            changes = []
            for size in sizes.tolist():
                with self._store.log.decoding(data):
                    message = record.decode(data)
                changes.append((message.commit_log_offset, changes_in(message, message.commit_log_offset)))
                data = data[size:]
        return found.answers[0].next_offset, changes

    def _read_alone(self, entry: _Entry, error: RocketSimError | None = None) -> RecordChanges:
        """Returns the changes of one record or, if the record cannot be read, the changes that are applied instead.

        `error` is the error of an earlier read of this record together with others.
        """
        log_offset, size = self._store.queues.entry(*entry) or (0, 0)
        try:
            return log_offset, self._changes_of(entry, log_offset)
        except (NotFound, ReadFailed, StoreCorrupt, StoreTooNew) as of_this_one:
            # If no record ends where the queue's entry says, the entry may be damaged, and not only the record.
            if isinstance(of_this_one, NotFound) or not self._store.log.goes_on_at(log_offset + size):
                self._failed_at = entry
                raise error or _unreadable(entry) from of_this_one
            return log_offset, self._substitutes_for(entry, log_offset, of_this_one)

    def _changes_of(self, entry: _Entry, log_offset: int) -> list[Change]:
        message = record.decode(self._store.log.record_at(log_offset), check_crc=False)
        if (message.topic, message.queue_id, message.queue_offset) != entry:
            raise self._store.log.damaged(log_offset, f"it is not message {entry.queue_offset} of topic {entry.topic}")
        return changes_in(message, log_offset)

    def _check(self, entry: _Entry | None) -> None:
        """Raises an error if the record still exists and still cannot be read."""
        found = self._store.queues.entry(*entry) if entry is not None else None
        if entry is not None and found is not None:
            with suppress(NotFound):
                self._changes_of(entry, found[0])

    def _entry_of(self, log_offset: int) -> _Entry | None:
        for topic, queue_id in self._store.queues.keys():
            if _has_changes(topic):
                entry = _Entry(topic, queue_id, self._store.queues.end_at(topic, queue_id, log_offset))
                if (self._store.queues.entry(*entry) or (None,))[0] == log_offset:
                    return entry
        return None

    def _substitutes_for(self, entry: _Entry | None, log_offset: int, error: RocketSimError) -> list[Change]:
        """Returns the changes that are applied instead of a record that cannot be read.

        Raises the error if the record belongs to the state topic, or if its topic is not known.
        """
        if entry is None or entry.topic == STATE_TOPIC:
            self._failed_at = entry
            raise error
        changes: list[Change] = []
        if entry.topic == TIMER_TOPIC:
            changes, why = [Timer(UNKNOWN, log_offset)], "so a message with a delivery time waits, or is not recalled"
        elif half_messages.has_changes(entry.topic):
            self._unread, why = self._unread or (entry, error), "so transactions wait until it can be read"
        else:
            why = "if it is a copy of a message, that message is delivered again"
        where = f"the record of topic {entry.topic} at log offset {log_offset}"
        logger.error("%s cannot be read, %s: %s", where, why, error)
        return changes


def _unreadable(entry: _Entry) -> StoreCorrupt:
    topic, queue_id, at = entry
    return StoreCorrupt(f"queue {queue_id} of topic {topic} cannot be read at {at}: run `rocketsim store verify`")


def _has_changes(topic: str) -> bool:
    is_of_broker = topic in (STATE_TOPIC, TIMER_TOPIC) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return is_of_broker or half_messages.has_changes(topic)


def changes_in(message: record.Record, log_offset: int) -> list[Change]:
    if message.topic == TIMER_TOPIC:
        return _timers(message, log_offset)
    if message.topic == STATE_TOPIC:
        return _in_body(message.body, log_offset)
    change: Change | None = move_of(message)
    if half_messages.has_changes(message.topic):
        change = half_messages.change_in(message)
    return [] if change is None else [change]


def _in_body(body: bytes, log_offset: int) -> list[Change]:
    try:
        return [*transitions.decode(body)]
    except ValueError as error:
        raise StoreCorrupt(
            f"the record of topic {STATE_TOPIC} at log offset {log_offset} is damaged: {error}"
        ) from error


def _runs(extents: Sequence[Extent]) -> Iterator[Sequence[Extent]]:
    """Yields groups of records that are adjacent in the log."""
    first = size = 0
    for number, (offset, length) in enumerate(extents):
        if number > first and (offset != sum(extents[number - 1]) or size + length > READ_BYTES):
            yield extents[first:number]
            first, size = number, 0
        size += length
    if extents:
        yield extents[first:]


def _timers_in(data: bytes | memoryview, count: int) -> list[RecordChanges] | None:
    """Returns the changes of these records of the timer topic, which are read as columns.

    Returns None if a record belongs to another topic, or cannot be read as part of a column.
    """
    try:
        records = Records.walk(data, count)
        records.check()
        if records.topic_codes()[0] != [TIMER_TOPIC]:
            return None
        times = [
            timer_record.second_in(value or "") for value in records.property(timer_record.PROPERTY_OUT_MS).to_pylist()
        ]
        keys = records.property(timer_record.PROPERTY_DELETE_KEY).to_pylist()
    except ValueError:
        return None
    offsets = records.commit_log_offset.tolist()
    return [
        (offset, [Timer(second, offset, key or "")]) for offset, second, key in zip(offsets, times, keys, strict=True)
    ]


def _timers(waiting: record.Record, log_offset: int) -> list[Change]:
    try:
        second = timer_record.second_of(waiting)
    except ValueError as error:
        logger.error("the record of topic %s at log offset %d is not delivered: %s", TIMER_TOPIC, log_offset, error)
        return []
    return [Timer(second, log_offset, waiting.properties.get(timer_record.PROPERTY_DELETE_KEY, ""))]
