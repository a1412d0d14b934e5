"""MessageStore opens a store, puts its parts together, and does their periodic work.

The event loop's thread calls all methods, except that the flush thread calls `flush` and any thread may call `warm`.
The store has no clock, so methods get the time as the argument `now_ms`, in milliseconds since 1970.

The broker reads through two parts, `log` by log offset and `queues` by queue offset or time.  `admission` says whether
appends are possible, and `retention` deletes expired files.  Apart from retention, every change of a store is a method
of MessageStore.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rocketsim_proto.records.record import Record

from broker_service.errors import (
    DiskFull,
    FlushFailed,
    NotFound,
    ReadFailed,
    RocketSimError,
    ServiceNotAvailable,
)
from broker_service.put_result import Appended
from broker_service.store.admission import Admission
from broker_service.store.batch import Batch
from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.cuts import Cuts
from broker_service.store.directory_lock import DirectoryLock
from broker_service.store.disk import Disk
from broker_service.store.dispatch import QueueExtent
from broker_service.store.durability import Durability
from broker_service.store.files import NO_ROOM, Files, open_file_limit, refusal
from broker_service.store.flushed_offset import Flushed
from broker_service.store.format_version import check_no_kv_store, check_version, note_version
from broker_service.store.index import MAX_BEHIND, Index
from broker_service.store.key_search import KeySearch
from broker_service.store.log_files import check_files
from broker_service.store.open_files import Failed, OpenFiles, WithoutWaiting
from broker_service.store.queue_reader import QueueReader
from broker_service.store.queue_table import QueueTable
from broker_service.store.recovery import TAIL_SIZE, Recovery, newest_stored_ms, recover, tail_crc
from broker_service.store.residency import Place
from broker_service.store.retention import Retention
from broker_service.store.writer import Writer

logger = logging.getLogger(__name__)

_INDEX_BYTES_A_TICK = 4 << 20
_PROBE_INTERVAL_MS = 1000
_AGE_INTERVAL_MS = 5000
_WARM_AROUND = 64 << 10  # bytes to read at once; a disk reads them as fast as a single page
_MAX_HANDLES = 4096


class MessageStore:
    """A store: one directory in RocketMQ's layout.  Use `open` to make a MessageStore."""

    def __init__(self, config: StoreConfig, disk: Disk, lock: DirectoryLock) -> None:
        root = config.root
        self.config = config
        self._lock = lock
        self.recovery = Recovery(clean=True)
        self.disk = disk  # the broker also writes its other files through this Disk
        self._open_files = OpenFiles(disk, handles=max(64, min(open_file_limit() // 4, _MAX_HANDLES)))
        self._without_waiting = WithoutWaiting(self._open_files)
        self.log = log = CommitLog(disk, self._open_files, root / "commitlog", config.mapped_file_size_commit_log)
        self._queues = queues = QueueTable(disk, self._open_files, root, config.mapped_file_size_consume_queue)
        self.queues = QueueReader(log, queues, config)
        self.index = index = Index(disk, self._open_files, log, config)
        self._durability = durability = Durability(disk, log, queues, index, config)
        self._writer = writer = Writer(disk, config, log, queues, durability, index)
        self._cuts = Cuts(disk, log, queues, index, writer, durability)
        self.admission = Admission(disk, log, writer, config)
        self.retention = Retention(disk, log, queues, index, durability, self.admission, config)
        self._next_probe_ms = 0
        self._next_age_ms = 0

    def reconfigure(self, config: StoreConfig) -> None:
        """Applies settings that may change while the store is open: retention, disk limits, limits of a pull."""
        self.config = self.queues.config = self.admission.config = self.retention.config = config
        self._durability.config = config

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
                    "until then clients read these messages from the other brokers of the same name"
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
        self.index.now_ms = now_ms
        self.log.load()
        self._queues.load_floors()
        flushed = self._durability.load()
        behind_gap = check_files(self.log, self._open_files, flushed.offset if flushed else None)
        # The file `abort` may be missing if the disk was full, but the file of the flushed offset also shows whether
        # the stop was clean, because only a clean stop writes a tail size.
        clean = self._lock.was_closed and not (flushed and flushed.is_of_an_open_store and self.log.starts)
        self.recovery = recover(
            self.log,
            self._queues,
            clean=clean,
            flushed=flushed,
            checkpoint=self._durability.checkpoint,
            delay_levels_ms=self.config.delay_levels_ms,
        )
        self.recovery.deleted_files += behind_gap
        # The checkpoint's time can be too old: a start after a crash need not write one, and a full disk may keep the
        # old one.
        self._durability.last_timestamp = self.recovery.newest_stored_ms or max(
            newest_stored_ms(self.log, self._queues), self._durability.last_timestamp
        )
        self.retention.trimmed_to = self.log.min_offset
        self._lock.mark_open()
        self._durability.set_flushed(Flushed(self.end_offset))
        if self.index.is_on:
            self.recovery.index = self.index.load(clean=clean, sure_until=self.recovery.index_sure_until)
        self._durability.start(now_ms)
        if self.recovery.rebuilt_queues or self.recovery.shortened_queues:
            # Without this flush the next start could find the cut entries behind newer ones.
            self._durability.flush_thoroughly()
        elif self.index.is_on and self.recovery.index_sure_until > self.index.sure_until:
            # An index file is being rebuilt.  The summary on disk says that the index entries are complete, so the
            # summary is deleted.
            self._queues.forget_summary()
            with suppress(ServiceNotAvailable):  # on a full disk the next thorough flush writes the summary
                self._durability.flush_thoroughly()

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
        self.index.work(MAX_BEHIND)
        self._durability.flush_thoroughly()
        size, crc = self.tail_crc(TAIL_SIZE)
        self._durability.set_flushed(Flushed(self.end_offset, size, crc))
        self._lock.mark_closed()

    def _release(self) -> None:
        self.disk.stop("the store is closed")
        self.log.close()
        self._durability.close()
        self._open_files.close()
        self._lock.release()

    # --- its extent -----------------------------------------------------------------------------------------------

    @property
    def dispatched(self) -> list[Callable[[Sequence[QueueExtent]], None]]:
        """Listeners that are called with the queue entries of all records that are appended, also by replication.

        The listeners are not called for records that recovery finds.
        """
        return self._writer.dispatched

    @property
    def min_offset(self) -> int:
        return self.log.min_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def newest_stored_ms(self) -> int:
        """The store time of the last record; 0 if this store never had one."""
        return self._durability.last_timestamp

    @property
    def oldest_stored_ms(self) -> int:
        """The store time of the first record that the log still has; 0 if the log is empty."""
        log = self.log
        return (log.timestamp_at(log.min_offset) or 0) if log.end_offset > log.min_offset else 0

    @property
    def flushed_offset(self) -> int:
        return self._durability.flushed

    @property
    def partial_size(self) -> int:
        """The number of bytes of a replicated record that is incomplete and only in memory."""
        return len(self._writer.partial)

    def __str__(self) -> str:
        state = self.admission.why_no_sends() or "writable"
        return f"{self.log} flushed={self.flushed_offset} queues={len(self._queues)} {state}"

    # --- writing --------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, topic: str, now_ms: int, store_host: bytes) -> Appended:
        """Stamps offsets, store time and store host into checked records of one topic, and appends them.

        Raises DiskFull or ServiceNotAvailable if the disk refuses; none of the records is stored then.
        """
        self.index.now_ms = now_ms
        return self._writer.append(batch, topic, now_ms, store_host)

    def append_one(self, record: Record, now_ms: int, store_host: bytes) -> Appended:
        """Appends one record that the broker has made itself, such as a delayed message or its delivery."""
        record.store_host = store_host
        return self.append(Batch.of_records([record]), record.topic, now_ms, store_host)

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        """Checks bytes of the master's log and appends them unchanged; returns the end of the last complete record.

        The bytes may end within a record; the next call, whose offset follows these bytes, brings the rest.
        Raises RecordError for a damaged record; all records before it are stored.
        """
        return self._writer.append_replicated(commit_log_offset, data)

    def truncate(self, offset: int, keep_in: Path | None) -> int:
        """Cuts the log back to `offset`, the start of a record; see `Cuts`."""
        return self._cuts.truncate(offset, keep_in)

    def queue_floors(self) -> list[tuple[str, int, int]]:
        """Returns (topic, queue id, first queue offset) for the queues whose first messages have expired.

        A new slave cannot derive these offsets from the log that it copies, because this log has no expired records.
        """
        return self._queues.floors()

    def start_over(self, offset: int, floors: Iterable[tuple[str, int, int]] = ()) -> None:
        """Deletes the log and the queues, and begins an empty log at `offset`; see `Cuts`."""
        self._cuts.start_over(offset, floors)

    def forget_before(self, floors: Mapping[str, Mapping[int, int]]) -> list[tuple[str, int]]:
        """Removes the queue entries of deleted topics, whose queues ended at `floors`.

        If a deleted topic was created again, its queues continue at `floors`.  The records themselves stay in the log
        until they expire.  Returns the queues, as (topic, queue id), that had entries to remove.
        """
        self.disk.check()
        return self._queues.forget_before(floors)

    # --- flushing and periodic work -------------------------------------------------------------------------------

    def flush(self) -> int:
        """Syncs everything appended before the call, and returns the flushed offset; the flush thread calls it.

        Raises FlushFailed after a failed sync, and then for every later call.
        """
        return self._durability.flush()

    def tick(self, now_ms: int) -> None:
        """Does small periodic work; the loop calls it about every 100 ms, with times that never fall (`BrokerTime`).

        After a failed sync the periodic work is not done any more, and the next write or flush raises FlushFailed.
        """
        self.index.now_ms = now_ms
        if self.disk.fatal is None:
            with suppress(FlushFailed):  # `disk.fatal` has the error, and it was logged
                self._work(now_ms)

    def _work(self, now_ms: int) -> None:
        self.log.release(self.flushed_offset)
        self.index.work(_INDEX_BYTES_A_TICK)
        if now_ms >= self._next_age_ms:
            self._next_age_ms = now_ms + _AGE_INTERVAL_MS
            self.log.age()
        if (self._writer.trouble or self._writer.no_room) and now_ms >= self._next_probe_ms:
            self._next_probe_ms = now_ms + _PROBE_INTERVAL_MS
            self._writer.probe()
        self._durability.work(now_ms)

    # --- reading --------------------------------------------------------------------------------------------------

    def without_waiting(self, failed: Failed) -> WithoutWaiting:
        """Returns a context in which a read that would wait for the disk raises Cold.

        After a Cold, the caller calls `warm` on a thread with the places that the Cold names, and reads again.
        `failed` has the errors of places that `warm` could not read.
        """
        return self._without_waiting(failed)

    def warm(self, places: Iterable[Place]) -> None:
        """Reads parts of files into the page cache; any thread may call it.

        Raises a ReadFailed that names file and position if the disk cannot read a part.
        """
        for path, at, size in places:
            try:
                handle = self.disk.open(path, read_only=True)
            except FileNotFoundError:
                continue  # The file was deleted meanwhile, which the caller's next read will notice.
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
        return self.log.read(commit_log_offset, max_bytes)

    def view_log(self, commit_log_offset: int, max_bytes: int) -> memoryview:
        """Reads as `read_log` does, but returns a view, which is valid until the log is cut."""
        return self.log.view_of(commit_log_offset, max_bytes)

    def key_search(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, before: int | None = None
    ) -> KeySearch:
        """Makes a search, newest first, for records with this key or UNIQ_KEY.

        The search finds records that were stored in [begin_ms, end_ms] and lie before log offset `before`.
        """
        if before is None or before > self.index.position:
            self.index.work(MAX_BEHIND)
        return KeySearch(
            self.index, self.log, topic, key, max_num=max_num, begin_ms=begin_ms, end_ms=end_ms, before=before
        )

    def tail_crc(self, size: int) -> tuple[int, int]:
        """Returns (size, CRC-32) of the last bytes of the log: at most `size`, within one file."""
        return tail_crc(self.log, self.end_offset, size)

    def tail_crc_at(self, offset: int, size: int) -> tuple[int, int]:
        """Returns (size, CRC-32) of the bytes before `offset`: at most `size`, within one file."""
        if not self.min_offset <= offset <= self.end_offset:
            raise NotFound(f"log offset {offset} is outside the log: {self.min_offset} to {self.end_offset}")
        return tail_crc(self.log, offset, size)
