"""MessageStore is the store's interface for the broker.

The event loop's thread calls all methods, except that the flush thread calls `flush` and any thread may call `warm`.
The store has no clock: `now_ms`, milliseconds since 1970, is an argument.

`writer.py` appends, `durability.py` syncs, `pull.py` and `ranges.py` read queues, `key_search.py` searches by key, and
`recovery.py` does the work of a start.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from rocketsim_proto.records.record import Record

from broker_service.errors import (
    DiskFull,
    FlushFailed,
    NotFound,
    ReadFailed,
    RocketSimError,
    ServiceNotAvailable,
    StoreCorrupt,
)
from broker_service.model import Appended
from broker_service.store.batch import Batch
from broker_service.store.commit_log import CommitLog, file_name
from broker_service.store.config import StoreConfig
from broker_service.store.consume_queue import QueueEnd
from broker_service.store.directory_lock import DirectoryLock
from broker_service.store.disk import Attempt, Disk
from broker_service.store.dispatch import QueueExtent
from broker_service.store.durability import Durability, ThoroughFlush
from broker_service.store.files import NO_ROOM, Files, open_file_limit, refusal
from broker_service.store.flushed_offset import Flushed
from broker_service.store.format_version import check_no_kv_store, check_version, note_version
from broker_service.store.index import Index
from broker_service.store.key_search import KeySearch
from broker_service.store.open_files import Failed, OpenFiles, WithoutWaiting
from broker_service.store.pull import GetMessageResult, Reader
from broker_service.store.queue_table import QueueTable
from broker_service.store.ranges import RangesResult, Span, TagsCodes
from broker_service.store.recovery import TAIL_SIZE, Recovery, recover, tail_crc
from broker_service.store.residency import Place
from broker_service.store.retention import expired_files
from broker_service.store.writer import Writer

logger = logging.getLogger(__name__)

__all__ = ["GetMessageResult", "MessageStore", "RangesResult", "StoreConfig"]

_INDEX_BYTES_A_TICK = 4 << 20
_INDEX_MAX_BEHIND = 16 << 20  # if the index is further behind, each append also does some indexing
_PROBE_INTERVAL_MS = 1000
_CHUNK = 1 << 20
_AGE_INTERVAL_MS = 5000
_NOTE_INTERVAL_MS = 1000
_WARM_AROUND = 64 << 10  # bytes to read at once; a disk takes no longer for them than for a page
_MAX_HANDLES = 4096
_RESERVE = 16 << 20  # bytes kept at the end of the last log file; some hundred thousand acknowledgements
_RESERVED_PART = 4  # the reserve is at most a sixteenth (2 ** -4) of a log file


class MessageStore:
    """A store: one directory in RocketMQ's layout.  Use `open` to make one."""

    def __init__(self, config: StoreConfig, disk: Disk, lock: DirectoryLock) -> None:
        root = config.root
        self.config = config
        self._lock = lock
        self.recovery = Recovery(clean=True)
        self.confirm_offset: int | None = None  # readers see records that end at or before it; None means all records
        self.disk = disk  # the broker's other files go through it, too
        self._open_files = OpenFiles(disk, handles=max(64, min(open_file_limit() // 4, _MAX_HANDLES)))
        self._without_waiting = WithoutWaiting(self._open_files)
        self._log = CommitLog(disk, self._open_files, root / "commitlog", config.mapped_file_size_commit_log)
        self._queues = QueueTable(disk, self._open_files, root, config.mapped_file_size_consume_queue)
        slots, entries = config.max_hash_slot_num, config.max_index_num
        self._index = Index(disk, self._open_files, root, self._log, slots, entries)
        self._durability = Durability(disk, root, self._log)
        self._writer = Writer(disk, config, self._log, self._queues, self._durability, self._on_appended)
        self._reader = Reader(self._log, config)
        self._now_ms = 0  # the time that the last call passed; index files are named by it
        self._next_probe_ms = 0
        self._next_age_ms = 0
        self._next_thorough_ms = 0
        self._next_note_ms = 0
        self._trimmed_to = 0  # the log offset before which queues and index have no entries any more
        self._is_reserved = False  # only the broker itself may append to the rest of the last log file
        self.disk_too_full: str | None = None  # the refusal above the warning level; sent to clients, so without a path

    def reconfigure(self, config: StoreConfig) -> None:
        """Applies settings that may change while the store is open: retention, disk limits, limits of a pull."""
        self.config = config
        self._reader = Reader(self._log, config)

    # --- opening and closing --------------------------------------------------------------------------------------

    @classmethod
    def open(cls, config: StoreConfig, now_ms: int, files: Files | None = None) -> "MessageStore":
        """Locks the directory, recovers its content, and marks the store as open until `close`.

        Raises StoreLocked, StoreTooNew or StoreCorrupt if the store cannot be used.  Raises DiskFull or
        ServiceNotAvailable if the disk refuses a write; nothing is lost then, and the caller can try again.
        """
        try:
            return cls._opened(config, now_ms, Disk(files or Files(), config.root, private=config.private))
        except RocketSimError:
            raise
        except OSError as error:
            if error.errno in NO_ROOM and not isinstance(error, FlushFailed):
                raise DiskFull(
                    f"opening {config.root}: no room on the disk ({error}) to rebuild, from the log, files that a "
                    "power loss or a killed process left incomplete; nothing is lost: make room, then start again; "
                    "its messages are read from the other brokers of its name meanwhile"
                ) from error
            raise refusal(error, f"opening {config.root}") from error

    @classmethod
    def _opened(cls, config: StoreConfig, now_ms: int, disk: Disk) -> "MessageStore":
        for directory in ("commitlog", "consumequeue", "index", "config", "rocketsim"):
            disk.make_directory(config.root / directory)
        disk.sync_directory(config.root)
        store = cls(config, disk, DirectoryLock(disk, config.root))
        try:
            disk.take_from_others()
            check_version(config.root, disk)
            check_no_kv_store(config.root, disk)
            store._recover(now_ms)
            note_version(config.root, disk)
        except BaseException:
            store._release()
            raise
        return store

    def _recover(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._log.load()
        self._queues.load_floors()
        flushed = self._durability.load()
        behind_gap = self._log.check_files(flushed.offset if flushed else None)
        # On a full disk `abort` may be missing.  Then the flushed offset tells: only a clean stop writes a tail size.
        clean = self._lock.was_closed and not (flushed and flushed.is_of_an_open_store and self._log.starts)
        self.recovery = recover(
            self._log,
            self._queues,
            clean=clean,
            flushed=flushed,
            checkpoint=self._durability.checkpoint,
            delay_levels_ms=self.config.delay_levels_ms,
        )
        self.recovery.deleted_files += behind_gap
        self._durability.last_timestamp = self.recovery.newest_stored_ms or self._newest_of_queues()
        self._trimmed_to = self._log.min_offset
        self._lock.mark_open()
        self._durability.set_flushed(Flushed(self.end_offset))
        if self.config.message_index_enable:
            self.recovery.index = self._index.load(clean=clean, sure_until=self.recovery.index_sure_until)
        self._next_thorough_ms = now_ms + self.config.flush_consume_queue_thorough_interval_ms
        self._next_note_ms = now_ms + _NOTE_INTERVAL_MS
        if self.recovery.rebuilt_queues or self.recovery.shortened_queues:
            self._flush_thoroughly()  # so that the next start does not find the cut entries behind newer ones
        elif self.config.message_index_enable and self.recovery.index_sure_until > self._index.sure_until:
            # An index file is being rebuilt.  The summary on disk says that its entries are complete, so it is deleted.
            self._queues.forget_summary()
            with suppress(ServiceNotAvailable):  # on a full disk the next thorough flush writes the summary
                self._flush_thoroughly()

    def _newest_of_queues(self) -> int:
        """Returns the store time of the newest record that has a queue entry, or the checkpoint's if that is later.

        The checkpoint alone can be too old: a start after a crash need not write one, and a full disk can keep the old.
        """
        try:
            newest = self._queues.newest_record()
            found = None if newest is None else self._log.timestamp_at(newest)
        except OSError:  # a bad sector: the checkpoint's time is all that is known
            found = None
        return max(found or 0, self._durability.last_timestamp)

    def close(self) -> None:
        """Flushes everything and marks the store as closed cleanly, unless a write or flush failed for good."""
        try:
            if self.disk.fatal is None:
                self._close_cleanly()
        finally:
            self._release()

    def abandon(self) -> None:
        """Leaves the store in the state in which a killed process leaves it."""
        self._release()

    def _close_cleanly(self) -> None:
        self._writer.clean()
        self._work_on_index(_INDEX_MAX_BEHIND)
        self._flush_thoroughly()
        size, crc = self.tail_crc(TAIL_SIZE)
        self._durability.set_flushed(Flushed(self.end_offset, size, crc))
        self._lock.mark_closed()

    def _release(self) -> None:
        self.disk.stop("the store is closed")
        self._log.close()
        self._durability.close()
        self._open_files.close()
        self._lock.release()

    # --- where it stands ------------------------------------------------------------------------------------------

    @property
    def dispatched(self) -> list[Callable[[Sequence[QueueExtent]], None]]:
        """Listeners that are called with the queue entries of all records that are appended, also by replication.

        They are not called for records that recovery finds.
        """
        return self._writer.dispatched

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def newest_stored_ms(self) -> int:
        """The store time of the last record; 0 if this store never had one."""
        return self._durability.last_timestamp

    @property
    def oldest_stored_ms(self) -> int:
        """The store time of the first record that the log still has; 0 without one."""
        log = self._log
        return (log.timestamp_at(log.min_offset) or 0) if log.end_offset > log.min_offset else 0

    @property
    def flushed_offset(self) -> int:
        return self._durability.flushed

    @property
    def partial_size(self) -> int:
        """The number of bytes of a replicated record that is incomplete; they are in memory only."""
        return len(self._writer.partial)

    @property
    def index_behind(self) -> int:
        """The number of log bytes that are not indexed yet."""
        return self._index.behind if self.config.message_index_enable else 0

    @property
    def writable(self) -> bool:
        return self.why_not_writable() is None

    def why_not_writable(self) -> str | None:
        """Returns why nothing can be appended now, neither by clients nor by the broker; None if appends work."""
        return self.disk.fatal or self._writer.trouble

    def why_no_sends(self, size: int = 0) -> str | None:
        """Returns why clients may not send this many bytes now; None if they may.

        The broker's own records, such as acknowledgements, retries and due messages, have a larger limit: they are
        appended above the disk's warning level, too, and to the very end of the last log file.
        """
        return self.why_not_writable() or self._writer.no_room or self.disk_too_full or self._why_reserved(size)

    def _why_reserved(self, size: int) -> str | None:
        """Returns the refusal if the rest of the last log file is kept for the broker's own records.

        That is so while the disk has no room for another log file.  Once a send is refused for this reason, all sends
        are, until the disk has room.
        """
        log = self._log
        left = log.file_end - log.end_offset - size
        if left >= min(_RESERVE, log.file_size >> _RESERVED_PART) and not self._is_reserved:
            return None
        self._is_reserved = self.disk.disk_usage(self.config.root).free < log.file_size
        if not self._is_reserved:
            return None
        return (
            "the broker's disk has no room for another log file, and the rest of the last one is kept for "
            "acknowledgements: make room on it"
        )

    def __str__(self) -> str:
        state = self.why_no_sends() or "writable"
        return f"{self._log} flushed={self.flushed_offset} queues={len(self._queues)} {state}"

    # --- writing --------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, topic: str, now_ms: int, store_host: bytes) -> Appended:
        """Stamps offsets, store time and store host into checked records of one topic, and appends them.

        Raises DiskFull or ServiceNotAvailable if the disk refuses; none of the records is left behind then.
        """
        self._now_ms = now_ms
        return self._writer.append(batch, topic, now_ms, store_host)

    def append_one(self, record: Record, now_ms: int, store_host: bytes) -> Appended:
        """Appends one record that the broker has made itself, such as a delayed message or its delivery."""
        record.store_host = store_host
        return self.append(Batch.of_records([record]), record.topic, now_ms, store_host)

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        """Checks bytes of the master's log and appends them unchanged; returns the end of the last whole record.

        The bytes may end within a record; the next call, whose offset follows these bytes, brings the rest.
        Raises RecordError for a damaged record; all records before it are stored.
        """
        return self._writer.append_replicated(commit_log_offset, data)

    def _on_appended(self, offset: int, batch: Batch) -> None:
        if self.config.message_index_enable:
            self._index.offer(offset, batch)
            if self._index.behind > _INDEX_MAX_BEHIND:
                self._index.work(2 * batch.size, self._now_ms)

    def truncate(self, offset: int, keep_in: Path | None) -> int:
        """Cuts the log back to `offset`, the start of a record; returns the number of bytes removed.

        They are copied to a file in `keep_in` first.  The new end is synced before bytes are zeroed, and the zeros are
        synced before anything is appended.  After a crash, recovery therefore finds the old log, the new one, or the
        new one followed by a part of the removed records.
        """
        with self._durability.lock:
            self.disk.check()
            end = self.end_offset
            if offset >= end:
                return 0
            if keep_in is not None:
                self._keep(max(offset, self.min_offset), end, keep_in)
            ends = self._queues.ends_at(max(offset, self.min_offset))
            self._writer.partial.clear()
            self._durability.void_requests()
            self._queues.forget_summary()
            self._durability.set_flushed(Flushed(min(offset, self.flushed_offset)))
            with self._completing_a_cut():
                self._queues.shorten(ends)
                self._log.cut(offset)
                self._queues.remove_behind_ends(ends)
                if self.config.message_index_enable:
                    self._index.truncate(self.end_offset)
        self._flush_thoroughly()  # the cut of the queues must be on disk, too, before anything is appended
        return end - self.end_offset

    @contextmanager
    def _completing_a_cut(self) -> Iterator[None]:
        """A context for a cut of the log that stops the store if the cut fails.

        Without the stop, the store would append before remains of the old log, which a recovery would take for
        records of the new one.  The next start finds the old log, or a part of it, and replication cuts it again.
        """
        try:
            yield
        except OSError as error:
            if self.disk.fatal is None:
                self.disk.stop(f"a cut of the log could not be completed ({error}): restart the broker")
                logger.critical("%s", self.disk.fatal)
            self.disk.check()

    def queue_floors(self) -> list[tuple[str, int, int]]:
        """Returns (topic, queue id, first queue offset) for the queues whose first messages have expired.

        A new slave needs them: it gets only the rest of the log, from which it cannot derive these offsets.
        """
        return self._queues.floors()

    def start_over(self, offset: int, floors: Iterable[tuple[str, int, int]] = ()) -> None:
        """Deletes the log and the queues, and begins an empty log at `offset`, the start of a log file.

        The queues begin at the master's `floors`.  It is for a slave that is new, or whose log has no record in common
        with what its master still has.
        """
        with self._durability.lock:
            self.disk.check()
            before = self.min_offset
            self._writer.partial.clear()
            self._durability.void_requests()
            self._queues.forget_summary()
            self._durability.set_flushed(Flushed(0))  # so that a crash in between leaves an empty log, no damaged one
            with self._completing_a_cut():
                self._queues.shorten(dict.fromkeys(self._queues.keys(), QueueEnd(0, 0)))
                self._log.cut(before)
                self._log.delete_after(before)
                self._queues.drop_all()
                if self.config.message_index_enable:
                    self._index.start_over(offset)
                with Attempt() as beginning:
                    self._queues.begin_at(floors)
                    # The floors are synced first: once the log begins at the master's minimum, it continues from
                    # there, and the master does not send the floors again.
                    self._queues.take_unsynced(0, 0).sync()
                    self._log.begin_at(offset)
                    self._log.create_first()
                if beginning.refused:
                    # The disk is full: the log stays empty at 0, so that the master makes it start over again.
                    self._queues.drop_all()
                    self._log.begin_at(0)
                    if self.config.message_index_enable:
                        self._index.start_over(0)
            if beginning.refused:
                raise beginning.refused
            self._durability.set_flushed(Flushed(offset))
        self._flush_thoroughly()

    def _keep(self, offset: int, end: int, directory: Path) -> None:
        """Copies log bytes to a separate file, which is named by their offset."""
        self.disk.make_directory(directory)
        path = directory / file_name(offset)
        handle = self.disk.open(path, create=True)
        try:
            at = offset
            while at < end:
                data = self._log.read(at, _CHUNK)
                self.disk.pwrite(handle, data, at - offset)
                at += len(data)
            self.disk.fdatasync(handle)
        except OSError:
            self.disk.discard(path)
            raise
        finally:
            self.disk.close(handle)
        self.disk.sync_directory(directory)

    def queue_ends(self, topic: str) -> dict[int, int]:
        """Returns, for each queue of the topic, the offset of its next message."""
        return {queue_id: self.queue_end(topic, queue_id) for name, queue_id in self.queues() if name == topic}

    def forget_before(self, floors: Mapping[str, Mapping[int, int]]) -> list[tuple[str, int]]:
        """Removes the queue entries of deleted topics, whose queues ended at `floors`.

        If such a topic was created again, its queues continue at `floors`.  The records stay in the log until they
        expire.  Returns the queues, as (topic, queue id), that had entries to remove.
        """
        self.disk.check()
        return self._queues.forget_before(floors)

    # --- flushing and periodic work -------------------------------------------------------------------------------

    def flush(self) -> int:
        """Syncs everything appended before the call, and returns the flushed offset; the flush thread calls it.

        Raises FlushFailed after a failed sync, and then for every later call.
        """
        return self._durability.flush()

    def _flush_thoroughly(self) -> None:
        self._request_thorough()
        while self._durability.is_requested:
            self.flush()
            if self._durability.trouble is not None:
                raise ServiceNotAvailable(self._durability.trouble)

    def _request_thorough(self) -> None:
        """Makes the next flush sync queues and index, too, so that recovery starts at the current end of the log."""
        end = self.end_offset
        paths, timestamp, index_offset = self._index.take_unsynced()
        queues = self._queues.take_unsynced(end, index_offset)
        last_timestamp = self._durability.last_timestamp
        self._durability.request(ThoroughFlush(queues, self._index.directory, paths, timestamp, end, last_timestamp))

    def tick(self, now_ms: int) -> None:
        """Does small periodic work; the loop calls it about every 100 ms, with times that never fall (`BrokerTime`).

        After a failed sync it does nothing; the next write or flush raises FlushFailed.
        """
        self._now_ms = now_ms
        if self.disk.fatal is None:
            with suppress(FlushFailed):  # `disk.fatal` has the error, and it was logged
                self._work(now_ms)

    def _work(self, now_ms: int) -> None:
        self._log.release(self.flushed_offset)
        self._work_on_index(_INDEX_BYTES_A_TICK)
        if now_ms >= self._next_age_ms:
            self._next_age_ms = now_ms + _AGE_INTERVAL_MS
            self._log.age()
        if (self._writer.trouble or self._writer.no_room) and now_ms >= self._next_probe_ms:
            self._next_probe_ms = now_ms + _PROBE_INTERVAL_MS
            self._writer.probe()
        if now_ms >= self._next_note_ms:
            self._next_note_ms = now_ms + _NOTE_INTERVAL_MS
            self._durability.note_is_due = True
        if now_ms >= self._next_thorough_ms and not self._durability.is_requested:
            self._next_thorough_ms = now_ms + self.config.flush_consume_queue_thorough_interval_ms
            self._queues.save_floors()
            self._request_thorough()

    def _work_on_index(self, max_bytes: int) -> None:
        if self.config.message_index_enable:
            self._index.work(max_bytes, self._now_ms)

    def expires_before(self, now_ms: int, masters_min_offset: int | None = None) -> int:
        """Returns the log offset at which the log will begin once the expired files are deleted.

        A slave keeps the files that its master still has, unless its own disk is too full.
        """
        used = self.disk.disk_usage(self.config.root).used_percent
        log = self._log
        gone = None if masters_min_offset is None else bisect_right(log.starts[1:], masters_min_offset)
        count = expired_files(map(log.timestamp_at, log.starts[1:]), now_ms, used, self.config, gone)
        # The file that becomes the first one must have flushed bytes, since its size is on disk only then.
        return min(log.starts[count], self.flushed_offset - 1) if count else log.min_offset

    def delete_expired(
        self, now_ms: int, needed_from: int | None = None, masters_min_offset: int | None = None
    ) -> list[str]:
        """Deletes expired files, but none that has bytes behind `needed_from`; returns one line per deleted file.

        It also checks if the disk is above its warning level.  Raises OSError if a file cannot be deleted or a queue
        cannot be read; the next call continues from there.
        """
        used = self.disk.disk_usage(self.config.root).used_percent
        self._look_at_warning_level(used)
        log = self._log
        deleted = []
        until = self.expires_before(now_ms, masters_min_offset)
        if needed_from is not None:
            until = min(until, needed_from)
        if until > log.min_offset and self._queues_are_on_disk(until):
            deleted = log.delete_before(until)
        if log.min_offset == self._trimmed_to:
            return []
        deleted += self._queues.trim(log.min_offset) + self._index.trim(log.min_offset)
        self._trimmed_to = log.min_offset
        self._queues.prune_floors()
        self._next_thorough_ms = now_ms  # the remembered queue bounds have changed
        return [f"deleted {path} (disk {used:.0f} % full, log starts at {log.min_offset} now)" for path in deleted]

    def _look_at_warning_level(self, used: float) -> None:
        limit, before = self.config.disk_warning_ratio, self.disk_too_full
        self.disk_too_full = (
            f"the broker's disk is {used:.0f} % full, above {limit} % (diskSpaceWarningLevelRatio) it takes no "
            "messages from clients: make room on it"
            if used > limit
            else None
        )
        if self.disk_too_full and not before:
            logger.warning("%s: %s", self.config.root, self.disk_too_full)
        elif before and not self.disk_too_full:
            logger.info("%s: clients may send again, the disk is %.0f %% full", self.config.root, used)

    def _queues_are_on_disk(self, log_offset: int) -> bool:
        """Returns True if all queue entries of records before `log_offset` are on disk; if not, it tries to sync them.

        Without its entries, a queue would not know its next offset once the log files are deleted.  The entries are
        nearly always on disk, since a thorough flush runs every minute unless the disk is full.
        """
        if self._durability.queues_on_disk < log_offset:
            with suppress(ServiceNotAvailable):  # the flush logs it; both are tried again
                self._flush_thoroughly()
        return self._durability.queues_on_disk >= log_offset

    # --- reading --------------------------------------------------------------------------------------------------

    def without_waiting(self, failed: Failed) -> WithoutWaiting:
        """Returns a context in which a read that would wait for the disk raises Cold.

        A thread then calls `warm` with the places of the Cold.  `failed` has the errors of places that `warm` could not
        read.
        """
        return self._without_waiting(failed)

    def warm(self, places: Iterable[Place]) -> None:
        """Reads parts of files into the page cache; any thread may call it.  ReadFailed names file and position."""
        for path, at, size in places:
            try:
                handle = self.disk.open(path, read_only=True)
            except FileNotFoundError:
                continue  # The file was deleted meanwhile; the repeated read will find that.
            except OSError as error:
                raise ReadFailed.of(path, at, error) from error
            try:
                for begin in range(at - at % _WARM_AROUND, at + size, _WARM_AROUND):
                    self.disk.pread(handle, _WARM_AROUND, begin)
            except OSError as error:
                raise ReadFailed.of(path, begin, error) from error
            finally:
                self.disk.close(handle)

    def read_log(self, commit_log_offset: int, max_bytes: int) -> bytes:
        """Reads up to `max_bytes` of the log, within one file and before `end_offset`; NotFound outside the log."""
        return self._log.read(commit_log_offset, max_bytes)

    def view_log(self, commit_log_offset: int, max_bytes: int) -> memoryview:
        """Reads as `read_log` does, but returns a view, which is valid until the log is cut."""
        return self._log.view_of(commit_log_offset, max_bytes)

    def read_record(self, commit_log_offset: int) -> bytes:
        """Reads the record that starts at this offset, as a queue, the index or other state of the broker says.

        Raises NotFound if the record is no longer in the log, and StoreCorrupt if it is damaged.
        """
        return self._log.record_at(commit_log_offset)

    def find_record(self, commit_log_offset: int) -> bytes | None:
        """Reads the record at an offset that a client has named; None if no record starts there.

        Raises StoreCorrupt if the record is damaged.
        """
        return self._log.record_at(commit_log_offset) if self._log.has_record_at(commit_log_offset) else None

    def decoding(
        self, records: bytes | memoryview, commit_log_offset: int | None = None
    ) -> AbstractContextManager[None]:
        """A context for code that decodes records: it turns a RecordError into StoreCorrupt with file and log offset.

        The records lie from `commit_log_offset` on; without it, they were read through a queue.
        """
        return self._log.decoding(records, commit_log_offset)

    def damaged(self, commit_log_offset: int, reason: str) -> StoreCorrupt:
        """Makes the error for a damaged record that starts at this offset."""
        return self._log.damaged(commit_log_offset, reason)

    def queues(self) -> list[tuple[str, int]]:
        return self._queues.keys()

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns the (min, max) queue offsets that readers see; max is exclusive.

        If the queue has no messages, both are the offset of its next message.  That is 0, or a larger offset if the
        topic was deleted and created again.
        """
        queue = self._queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_at(self.confirm_offset))

    def first_offset_ever(self, topic: str, queue_id: int) -> int | None:
        """Returns the queue's minimum if none of its messages has expired since the topic was created; else None."""
        min_offset = self.queue_bounds(topic, queue_id)[0]
        return min_offset if min_offset <= self._queues.began_at(topic, queue_id) else None

    def queue_end_at(self, topic: str, queue_id: int, log_offset: int) -> int:
        """Returns the end that the queue had when the log ended at `log_offset`, but at least its current minimum."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_at(log_offset)

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Returns the queue's end, including messages that readers do not see yet."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def log_offsets(self, topic: str, queue_id: int, queue_offset: int) -> list[int]:
        """Returns the log offsets of the queue's records from `queue_offset` on, also of those not yet visible."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return []
        first = max(queue_offset, queue.min_offset)
        offsets: list[int] = queue.read(first, queue.max_offset - first)["commit_log_offset"].tolist()
        return offsets

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
        """Returns the log offset and size of a message's record; None if the queue does not have the message."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        one = queue.read(queue_offset, 1)[0]
        return int(one["commit_log_offset"]), int(one["size"])

    def log_goes_on_at(self, log_offset: int) -> bool:
        """Returns True if a record can end at this offset; see `CommitLog.goes_on_at`."""
        return self._log.goes_on_at(log_offset)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_msg_nums: int,
        max_msg_bytes: int,
        tags_codes: TagsCodes,
        correct_offset: bool = True,
    ) -> GetMessageResult:
        """Reads one queue by RocketMQ's rules (tables D2b and D3 of docs/decision_tables.md).

        With `correct_offset`, an offset outside the queue is answered with the nearest valid one.
        """
        queue, end = self._queues.get(topic, queue_id), self.queue_bounds(topic, queue_id)[1]
        return self._reader.get_message(
            queue, queue_offset, end, max_msg_nums, max_msg_bytes, tags_codes, correct_offset
        )

    def read_ranges(
        self,
        ranges: Iterable[tuple[str, int, int, int]],
        max_bytes: int,
        tags_codes: TagsCodes = None,
        entries: int = 0,
    ) -> RangesResult:
        """Reads (topic, queue id, from, until) ranges one after the other: up to `max_bytes`, but at least one record.

        The statuses are those of table D3, and offsets outside a queue are corrected.  `entries` is an estimate of how
        many messages fit; 0 means unknown.
        """
        spans = (
            Span(self._queues.get(topic, queue_id), first, until, self.queue_bounds(topic, queue_id)[1])
            for topic, queue_id, first, until in ranges
        )
        return self._reader.read_ranges(spans, max_bytes, tags_codes, entries)

    def size_and_time_of(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int]:
        """Returns the size in bytes and store time in ms of a message's record; (0, 0) if it does not exist."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return 0, 0
        return self._reader.size_and_time(queue, queue_offset)

    def store_timestamp_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Returns the store time in ms of a message; 0 if it does not exist."""
        return self.size_and_time_of(topic, queue_id, queue_offset)[1]

    def search_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the offset of the queue's first message stored at or after this time; its end if there is none."""
        low, high = self.queue_bounds(topic, queue_id)
        queue = self._queues.get(topic, queue_id)
        while queue is not None and low < high:
            middle = (low + high) // 2
            if self._reader.size_and_time(queue, middle)[1] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def key_search(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, before: int | None = None
    ) -> KeySearch:
        """Makes a search, newest first, for records with this key or UNIQ_KEY.

        It finds records that were stored in [begin_ms, end_ms] and lie before log offset `before`.
        """
        if before is None or before > self._index.position:
            self._work_on_index(_INDEX_MAX_BEHIND)
        return KeySearch(
            self._index, self._log, topic, key, max_num=max_num, begin_ms=begin_ms, end_ms=end_ms, before=before
        )

    def tail_crc(self, size: int) -> tuple[int, int]:
        """Returns (size, CRC-32) of the last bytes of the log: at most `size`, within one file."""
        return tail_crc(self._log, self.end_offset, size)

    def tail_crc_at(self, offset: int, size: int) -> tuple[int, int]:
        """Returns (size, CRC-32) of the bytes before `offset`: at most `size`, within one file."""
        if not self.min_offset <= offset <= self.end_offset:
            raise NotFound(f"log offset {offset} is outside the log: {self.min_offset} to {self.end_offset}")
        return tail_crc(self._log, offset, size)
