"""MessageStore: the store's interface for the broker.

The event loop's thread calls everything except `flush` (the flush thread) and `warm` (any thread).  There is no
clock in the store: `now_ms` is an argument, milliseconds since 1970.  `writer.py` appends, `durability.py` syncs,
`pull.py` and `ranges.py` read, `recovery.py` starts, `key_search.py` searches.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from rocketsim_proto.records.record import Record, encode

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
_INDEX_MAX_BEHIND = 16 << 20  # from here on appends pull the index along
_PROBE_INTERVAL_MS = 1000
_CHUNK = 1 << 20
_AGE_INTERVAL_MS = 5000
_NOTE_INTERVAL_MS = 1000
_WARM_AROUND = 64 << 10  # a disk takes no longer for it than for a page
_MAX_HANDLES = 4096
_RESERVE = 16 << 20  # bytes at the end of the last log file: some hundred thousand acknowledgements
_RESERVED_PART = 4  # at most a sixteenth of it


class MessageStore:
    """A directory in RocketMQ's layout; made by `open` only."""

    def __init__(self, config: StoreConfig, disk: Disk, lock: DirectoryLock) -> None:
        root = config.root
        self.config = config
        self._lock = lock
        self.recovery = Recovery(clean=True)
        self.confirm_offset: int | None = None  # readers see what ends at or before it; None: everything
        self.disk = disk  # for everything that a broker keeps beside the log, too
        self._open_files = OpenFiles(disk, handles=max(64, min(open_file_limit() // 4, _MAX_HANDLES)))
        self._without_waiting = WithoutWaiting(self._open_files)
        self._log = CommitLog(disk, self._open_files, root / "commitlog", config.mapped_file_size_commit_log)
        self._queues = QueueTable(disk, self._open_files, root, config.mapped_file_size_consume_queue)
        slots, entries = config.max_hash_slot_num, config.max_index_num
        self._index = Index(disk, self._open_files, root, self._log, slots, entries)
        self._durability = Durability(disk, root, self._log)
        self._writer = Writer(disk, config, self._log, self._queues, self._durability, self._on_appended)
        self._reader = Reader(self._log, config)
        self._now_ms = 0  # of the last call that said; names index files
        self._next_probe_ms = 0
        self._next_age_ms = 0
        self._next_thorough_ms = 0
        self._next_note_ms = 0
        self._ticked_ms = 0
        self._trimmed_to = 0  # queues and index have nothing of records before it
        self._is_reserved = False  # what is left of the last log file, for what the broker appends itself
        self.disk_too_full: str | None = None  # above the warning level; said to clients, so without a path

    def reconfigure(self, config: StoreConfig) -> None:
        """Applies settings that may change while the store is open: retention, disk limits, limits of a pull."""
        self.config = config
        self._reader = Reader(self._log, config)

    # --- opening and closing --------------------------------------------------------------------------------------

    @classmethod
    def open(cls, config: StoreConfig, now_ms: int, files: Files | None = None) -> "MessageStore":
        """Locks the directory (StoreLocked), recovers (StoreTooNew, StoreCorrupt), and marks the store as open until
        `close`.  DiskFull or ServiceNotAvailable where the disk refuses that; nothing is lost, and it can be tried
        again."""
        try:
            return cls._opened(config, now_ms, Disk(files or Files(), config.root, private=config.private))
        except RocketSimError:
            raise
        except OSError as error:
            if error.errno in NO_ROOM and not isinstance(error, FlushFailed):
                raise DiskFull(
                    f"opening {config.root}: no room on the disk ({error}) to make again what a power loss took or a "
                    "killed process had begun, as queues from the log; nothing is lost: make room, then start again; "
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
        # On a full disk `abort` may be missing; but only a clean stop knows the tail of the log.
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
        self._durability.last_timestamp = self.recovery.newest_stored_ms or self._durability.last_timestamp
        self._trimmed_to = self._log.min_offset
        self._lock.mark_open()
        self._durability.set_flushed(Flushed(self.end_offset))
        if self.config.message_index_enable:
            self.recovery.index = self._index.load(clean=clean, sure_until=self.recovery.index_sure_until)
        self._next_thorough_ms = now_ms + self.config.flush_consume_queue_thorough_interval_ms
        self._next_note_ms = now_ms + _NOTE_INTERVAL_MS
        if self.recovery.rebuilt_queues or self.recovery.shortened_queues:
            self._flush_thoroughly()  # entries that were cut must not be found behind those of new records
        elif self.config.message_index_enable and self.recovery.index_sure_until > self._index.sure_until:
            # Of an index file that is made again the next start must not think that it is on disk.
            self._queues.forget_summary()
            with suppress(ServiceNotAvailable):  # no room: the next thorough flush writes the summary
                self._flush_thoroughly()

    def close(self) -> None:
        """Flushes everything and marks the store as closed cleanly, unless a write or flush failed for good."""
        try:
            if self.disk.fatal is None:
                self._close_cleanly()
        finally:
            self._release()

    def abandon(self) -> None:
        """Leaves the store as a kill does."""
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
        """Called with the queue entries of everything that is appended, here or by replication; not of what recovery
        finds."""
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
    def flushed_offset(self) -> int:
        return self._durability.flushed

    @property
    def partial_size(self) -> int:
        """Bytes of a replicated record that is not complete yet; they are in memory only."""
        return len(self._writer.partial)

    @property
    def index_behind(self) -> int:
        """Bytes of log that are not indexed yet."""
        return self._index.behind if self.config.message_index_enable else 0

    @property
    def writable(self) -> bool:
        return self.why_not_writable() is None

    def why_not_writable(self) -> str | None:
        """Why nothing is appended now, whoever asks; None: it is."""
        return self.disk.fatal or self._writer.trouble

    def why_no_sends(self, size: int = 0) -> str | None:
        """Why clients may not send that many bytes now.  What the broker appends itself, such as acknowledgements,
        retries and due messages, goes on above the disk's warning level, and to the end of the last log file.
        """
        return self.why_not_writable() or self._writer.no_room or self.disk_too_full or self._why_reserved(size)

    def _why_reserved(self, size: int) -> str | None:
        """Clients do not use the last part of a log file before the disk has room for the next one.  Once one is
        refused for that, all are, until it has."""
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
        """Stamps offsets, time and host into checked records of one topic and appends them.

        DiskFull or ServiceNotAvailable if the disk refuses, with nothing of them left behind.
        """
        self._now_ms = now_ms
        return self._writer.append(batch, topic, now_ms, store_host)

    def append_one(self, record: Record, now_ms: int, store_host: bytes) -> Appended:
        """Appends one record that the broker itself has made: a delayed message, or its delivery."""
        record.store_host = store_host
        return self.append(Batch.of_frame(bytearray(encode(record)), 1), record.topic, now_ms, store_host)

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        """Appends the master's log as it is, checked; returns the end of the last whole record that is stored.

        The rest of a partial record comes with the next call, whose offset counts on from this one's bytes.
        RecordError for a record that is not whole: all before it is stored, nothing of it.
        """
        return self._writer.append_replicated(commit_log_offset, data)

    def _on_appended(self, offset: int, batch: Batch) -> None:
        if self.config.message_index_enable:
            self._index.offer(offset, batch)
            if self._index.behind > _INDEX_MAX_BEHIND:
                self._index.work(2 * batch.size, self._now_ms)

    def truncate(self, offset: int, keep_in: Path | None) -> int:
        """Cuts the log back to `offset`, a record's start; returns how many bytes went.

        They are copied to a file in `keep_in` first.  The new end is on disk before anything is zeroed, and the
        zeros are on disk before anything is appended, so after a crash recovery finds the old log, the new one, or a
        part of what was cut.
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
        self._flush_thoroughly()  # the queues' cut too: nothing is appended before it is on disk
        return end - self.end_offset

    @contextmanager
    def _completing_a_cut(self) -> Iterator[None]:
        """An error stops the store: it would append behind what is left of the cut, and take that for its own later.
        The next start finds the old log, the new one, or a part of what was to be cut, and it is cut again.
        """
        try:
            yield
        except OSError as error:
            if self.disk.fatal is None:
                self.disk.stop(f"a cut of the log could not be completed ({error}): restart the broker")
                logger.critical("%s", self.disk.fatal)
            self.disk.check()

    def queue_floors(self) -> list[tuple[str, int, int]]:
        """(topic, queue id, first queue offset) of the queues whose first messages have expired; a slave that gets
        the rest of the log cannot derive it.
        """
        return self._queues.floors()

    def start_over(self, offset: int, floors: Iterable[tuple[str, int, int]] = ()) -> None:
        """Deletes log and queues and leaves an empty log at `offset`, the start of a log file, and queues that begin at
        the master's `floors`.

        For a slave that is new, or that has no record in common with what its master still has.
        """
        with self._durability.lock:
            self.disk.check()
            before = self.min_offset
            self._writer.partial.clear()
            self._durability.void_requests()
            self._queues.forget_summary()
            self._durability.set_flushed(Flushed(0))  # a crash in between leaves an empty log, not a damaged one
            with self._completing_a_cut():
                self._queues.shorten(dict.fromkeys(self._queues.keys(), QueueEnd(0, 0)))
                self._log.cut(before)
                self._log.delete_after(before)
                self._queues.drop_all()
                if self.config.message_index_enable:
                    self._index.start_over(offset)
                with Attempt() as beginning:
                    self._queues.begin_at(floors)
                    # A log that begins at the master's minimum is in step with it, and is not sent the floors again.
                    self._queues.take_unsynced(0, 0).sync()
                    self._log.begin_at(offset)
                    self._log.create_first()
                if beginning.refused:
                    # No room: the log stays empty, and its master makes it start over again.
                    self._queues.drop_all()
                    self._log.begin_at(0)
                    if self.config.message_index_enable:
                        self._index.start_over(0)
            if beginning.refused:
                raise beginning.refused
            self._durability.set_flushed(Flushed(offset))
        self._flush_thoroughly()

    def _keep(self, offset: int, end: int, directory: Path) -> None:
        """Copies log bytes to a file of their own, named by their offset."""
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
        """Per queue of the topic the offset of its next message."""
        return {queue_id: self.queue_end(topic, queue_id) for name, queue_id in self.queues() if name == topic}

    def forget_before(self, floors: Mapping[str, Mapping[int, int]]) -> list[tuple[str, int]]:
        """These topics were deleted with queues that ended at `floors`, and may have been made again.

        What their queues have from before goes, and they go on at `floors`; records stay in the log until they expire.
        Returns the queues, (topic, id), that had some.
        """
        self.disk.check()
        return self._queues.forget_before(floors)

    # --- flushing and periodic work -------------------------------------------------------------------------------

    def flush(self) -> int:
        """Called by the flush thread: on return everything appended before the call is on disk; returns the flushed
        offset.  FlushFailed after a failed sync, then for every later call, too.
        """
        return self._durability.flush()

    def _flush_thoroughly(self) -> None:
        self._request_thorough()
        while self._durability.is_requested:
            self.flush()
            if self._durability.trouble is not None:
                raise ServiceNotAvailable(self._durability.trouble)

    def _request_thorough(self) -> None:
        """Makes the next flush sync queues and index, too; recovery then starts at this point."""
        end = self.end_offset
        paths, timestamp, index_offset = self._index.take_unsynced()
        queues = self._queues.take_unsynced(end, index_offset)
        last_timestamp = self._durability.last_timestamp
        self._durability.request(ThoroughFlush(queues, self._index.directory, paths, timestamp, end, last_timestamp))

    def tick(self, now_ms: int) -> None:
        """Small periodic work on the loop, to be called about every 100 ms.  It does nothing after a failed sync,
        its own included; the next write or flush raises FlushFailed.
        """
        if now_ms < self._ticked_ms:  # the clock went back: what is due within seconds must not wait for hours
            self._next_probe_ms = self._next_age_ms = self._next_thorough_ms = self._next_note_ms = now_ms
        self._now_ms = self._ticked_ms = now_ms
        if self.disk.fatal is None:
            with suppress(FlushFailed):  # `disk.fatal` keeps it, and it is in the log
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
        """The log offset where the log will begin once the files that have expired are deleted.

        A slave keeps what its master still has, unless its own disk is too full.
        """
        used = self.disk.disk_usage(self.config.root).used_percent
        log = self._log
        gone = None if masters_min_offset is None else bisect_right(log.starts[1:], masters_min_offset)
        count = expired_files(map(log.first_timestamp, log.starts[1:]), now_ms, used, self.config, gone)
        # Of the file that will be the first something is flushed: its size is on disk.
        return min(log.starts[count], self.flushed_offset - 1) if count else log.min_offset

    def delete_expired(
        self, now_ms: int, needed_from: int | None = None, masters_min_offset: int | None = None
    ) -> list[str]:
        """Deletes expired files, except what lies behind `needed_from`; returns one line per file.  Also looks
        whether the disk is above its warning level.  OSError if a file cannot be deleted, or a queue not be read; the
        next call goes on from there.
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
        """Whether a queue is sure to remember where it goes on, once the log before that offset is gone.

        It nearly always is: a thorough flush is a minute old, unless the disk has no room to note one.
        """
        if self._durability.queues_on_disk < log_offset:
            with suppress(ServiceNotAvailable):  # said by the flush, which is tried again; so is this
                self._flush_thoroughly()
        return self._durability.queues_on_disk >= log_offset

    # --- reading --------------------------------------------------------------------------------------------------

    def without_waiting(self, failed: Failed) -> WithoutWaiting:
        """A context in which a read that would wait for the disk raises Cold; a thread then calls `warm` with its
        places.  `failed`: for which of them that has failed.
        """
        return self._without_waiting(failed)

    def warm(self, places: Iterable[Place]) -> None:
        """Reads parts of files into the page cache; any thread may call it.  ReadFailed names file and position."""
        for path, at, size in places:
            try:
                handle = self.disk.open(path, read_only=True)
            except FileNotFoundError:
                continue  # deleted by now; who asks again will see
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
        """Up to `max_bytes` of the log, within one file and before `end_offset`; NotFound for an offset outside the
        log.
        """
        return self._log.read(commit_log_offset, max_bytes)

    def view_log(self, commit_log_offset: int, max_bytes: int) -> memoryview:
        """As `read_log`, but a view, valid until the log is cut."""
        return self._log.view_of(commit_log_offset, max_bytes)

    def read_record(self, commit_log_offset: int) -> bytes:
        """The whole record that starts there, as queues, index or state say.  NotFound if it is not in the log any
        more; StoreCorrupt if it is damaged.
        """
        return self._log.record_at(commit_log_offset)

    def find_record(self, commit_log_offset: int) -> bytes | None:
        """The whole record that starts at an offset that anybody has named, if one does; StoreCorrupt if it is
        damaged.
        """
        return self._log.record_at(commit_log_offset) if self._log.has_record_at(commit_log_offset) else None

    def decoding(
        self, records: bytes | memoryview, commit_log_offset: int | None = None
    ) -> AbstractContextManager[None]:
        """For what decodes records that were read here: StoreCorrupt with file and log offset instead of RecordError.
        They were read through a queue, or lie from that log offset on.
        """
        return self._log.decoding(records, commit_log_offset)

    def damaged(self, commit_log_offset: int, reason: str) -> StoreCorrupt:
        """The error of a record that starts there."""
        return self._log.damaged(commit_log_offset, reason)

    def queues(self) -> list[tuple[str, int]]:
        return self._queues.keys()

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max) queue offsets that readers see, max exclusive.  Without a message both are the offset of the next
        one: 0, or where the topic goes on if it was deleted and made again.
        """
        queue = self._queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_at(self.confirm_offset))

    def first_offset_ever(self, topic: str, queue_id: int) -> int | None:
        """The queue's minimum, if none of its messages has expired since the topic was made; else None."""
        min_offset = self.queue_bounds(topic, queue_id)[0]
        return min_offset if min_offset <= self._queues.began_at(topic, queue_id) else None

    def queue_end_at(self, topic: str, queue_id: int, log_offset: int) -> int:
        """The queue's end when the log ended at `log_offset`; its minimum, if that is larger by now."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_at(log_offset)

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue's end, including messages that readers do not see yet."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def log_offsets(self, topic: str, queue_id: int, queue_offset: int) -> list[int]:
        """Where in the log the queue's records from there on lie, also those that readers do not see yet."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return []
        first = max(queue_offset, queue.min_offset)
        offsets: list[int] = queue.read(first, queue.max_offset - first)["commit_log_offset"].tolist()
        return offsets

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
        """Log offset and size of the record, as the queue has them; None for one that it does not have."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        one = queue.read(queue_offset, 1)[0]
        return int(one["commit_log_offset"]), int(one["size"])

    def log_goes_on_at(self, log_offset: int) -> bool:
        """Whether a record ends there, as far as the disk can read: another one begins, or a file or the log ends."""
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
        """Reads one queue by RocketMQ's rules (tables D2b and D3).  `correct_offset`: whether an offset outside the
        queue is answered with the nearest valid one, as the answering role does.
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
        """Reads (topic, queue id, from, until) ranges one after the other, at least one record, up to `max_bytes`;
        statuses as in D3, offsets corrected.  `entries`: an estimate of how many messages fit, 0 without one.
        """
        spans = (
            Span(self._queues.get(topic, queue_id), first, until, self.queue_bounds(topic, queue_id)[1])
            for topic, queue_id, first, until in ranges
        )
        return self._reader.read_ranges(spans, max_bytes, tags_codes, entries)

    def size_and_time_of(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int]:
        """The size in bytes and store time in ms of a message's record; (0, 0) if it does not exist."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return 0, 0
        return self._reader.size_and_time(queue, queue_offset)

    def store_timestamp_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """The store time in ms; 0 if the message does not exist."""
        return self.size_and_time_of(topic, queue_id, queue_offset)[1]

    def search_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The queue offset of the first message stored at or after that time; the queue's end if there is none."""
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
        """A search for records with this key or UNIQ_KEY that were stored in [begin_ms, end_ms] and lie before log
        offset `before`, newest first.
        """
        if before is None or before > self._index.position:
            self._work_on_index(_INDEX_MAX_BEHIND)
        return KeySearch(
            self._index, self._log, topic, key, max_num=max_num, begin_ms=begin_ms, end_ms=end_ms, before=before
        )

    def tail_crc(self, size: int) -> tuple[int, int]:
        """(size, CRC-32) of the last bytes of the log, at most `size`, within one file."""
        return tail_crc(self._log, self.end_offset, size)

    def tail_crc_at(self, offset: int, size: int) -> tuple[int, int]:
        """The same for the bytes before `offset`."""
        if not self.min_offset <= offset <= self.end_offset:
            raise NotFound(f"log offset {offset} is outside the log: {self.min_offset} to {self.end_offset}")
        return tail_crc(self._log, offset, size)
