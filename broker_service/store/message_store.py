"""MessageStore: the store as the broker sees it.

One thread (the event loop's) calls everything but `flush`, which one flush thread calls.  No asyncio and no clock here: `now_ms`
is an argument.  The order of an append is log, queues, end offset: nothing counts before the last step, and a step that fails
is taken back.
"""

import os
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rocketsim_proto import record as record_format
from rocketsim_proto.columnar import Records
from rocketsim_proto.record import BLANK, BLANK_MAGIC, BLANK_SIZE, Record, RecordError

from broker_service.errors import FlushFailed, NotFound, ServiceNotAvailable, StoreCorrupt, StoreLocked
from broker_service.model import Appended, QueueAppend
from broker_service.store.chain import Stop, sound, walk
from broker_service.store.checkpoint import Checkpoint
from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.consume_queue import ConsumeQueue
from broker_service.store.dispatch import QueueRun, is_queued, queue_offsets, queue_runs
from broker_service.store.files import Buffer, Files, refusal
from broker_service.store.flushed_offset import Flushed, FlushedOffset
from broker_service.store.open_files import OpenFiles
from broker_service.store.placement import place
from broker_service.store.pull import GetMessageResult, RangeResult, Reader, TagsCodes
from broker_service.store.queue_table import QueueSync, QueueTable
from broker_service.store.recovery import TAIL_SIZE, Recovery, recover, tail_crc

_FULL_RANGE = 2**63 - 1


class MessageStore:
    """A directory in RocketMQ's layout; made by `open` only."""

    def __init__(self, config: StoreConfig, files: Files) -> None:
        root = config.root
        self.config = config
        self.recovery = Recovery(clean=True)
        self.confirm_offset: int | None = None
        self._files = files
        self._open_files = OpenFiles(files)
        self._log = CommitLog(files, self._open_files, root / "commitlog", config.mapped_file_size_commit_log)
        self._queues = QueueTable(files, self._open_files, root, config.mapped_file_size_consume_queue)
        memory = config.physical_memory * config.access_message_in_memory_max_ratio // 100
        self._reader = Reader(self._log, memory)
        self._partial = b""  # the beginning of a replicated record whose rest has not come
        self._last_timestamp = 0  # of the newest record
        self._trouble: str | None = None  # why writes fail now; may pass
        self._fatal: str | None = None  # why this store never writes again
        self._next_probe_ms = 0
        self._next_thorough_ms = 0
        # Shared with the flush thread.  The lock is held for a whole flush; the loop takes it for a truncation only.
        self._flush_lock = threading.Lock()
        self._flushed = 0
        self._flushed_file = FlushedOffset(files, root / "rocketsim" / "flushed")
        self._checkpoint = Checkpoint()
        self._thorough: tuple[QueueSync, int, int] | None = None  # with log offset and timestamp
        self._lock_handle = -1

    # --- opening and closing --------------------------------------------------------------------------------------

    @classmethod
    def open(cls, config: StoreConfig, now_ms: int, files: Files | None = None) -> "MessageStore":
        """Locks the directory (StoreLocked), recovers (StoreCorrupt), and marks the store as open until `close`."""
        files = files or Files()
        for directory in ("commitlog", "consumequeue", "index", "config", "rocketsim"):
            files.make_directory(config.root / directory)
        store = cls(config, files)
        store._lock()
        try:
            store._recover(now_ms)
        except BaseException:
            store._release()
            raise
        return store

    def _lock(self) -> None:
        path = self._path("lock")
        try:
            self._lock_handle = self._files.lock(path)
        except BlockingIOError as error:
            holder = "another process"
            if self._files.exists(self._path("abort")):
                pid = self._files.read(self._path("abort")).decode(errors="replace").strip()
                holder = f"process {pid}" if pid else holder
            raise StoreLocked(
                f"{self.config.root} is in use by {holder} (it holds {path}): stop that broker, or set another storePathRootDir"
            ) from error
        self._files.pwrite(self._lock_handle, b"lock", 0)

    def _recover(self, now_ms: int) -> None:
        abort = self._path("abort")
        clean = not self._files.exists(abort)
        self._log.load()
        self._queues.load_floors()
        flushed = self._flushed_file.load()
        self._checkpoint = Checkpoint.load(self._files, self._path("checkpoint"))
        self.recovery = recover(
            self._log,
            self._queues,
            clean=clean,
            flushed=flushed,
            checkpoint=self._checkpoint,
            delay_levels_ms=self.config.delay_levels_ms,
        )
        self._files.write_atomically(abort, str(os.getpid()).encode())
        self._flushed = self._log.end_offset
        self._flushed_file.save(Flushed(self._flushed), sync=True)
        self._last_timestamp = self._checkpoint.log_timestamp
        self._next_thorough_ms = now_ms + self.config.flush_consume_queue_thorough_interval_ms

    def close(self) -> None:
        """Flushes everything and marks the store as closed cleanly, unless a write or flush failed for good."""
        try:
            if self._fatal is None:
                self._close_cleanly()
        finally:
            self._release()

    def _close_cleanly(self) -> None:
        self._log.clean()
        self._request_thorough()
        self.flush()
        size, crc = tail_crc(self._log, self.end_offset, TAIL_SIZE)
        self._flushed_file.save(Flushed(self.end_offset, size, crc), sync=True)
        self._files.remove(self._path("abort"))
        self._files.sync_directory(self.config.root)

    def _release(self) -> None:
        self._log.close()
        self._flushed_file.close()
        self._open_files.close()
        if self._lock_handle >= 0:
            self._files.close(self._lock_handle)
            self._lock_handle = -1
        self._fatal = self._fatal or "the store is closed"

    def _path(self, name: str) -> Path:
        return self.config.root / name

    # --- where it stands ------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def flushed_offset(self) -> int:
        return self._flushed

    @property
    def writable(self) -> bool:
        return self.why_not_writable() is None

    def why_not_writable(self) -> str | None:
        return self._fatal or self._trouble

    def __str__(self) -> str:
        state = self.why_not_writable() or "writable"
        return f"{self._log} flushed={self.flushed_offset} queues={len(self._queues)} {state}"

    # --- appending ------------------------------------------------------------------------------------------------

    def append(self, records: Records, topic: str, now_ms: int, store_host: bytes) -> Appended:
        """Stamps offsets, time and host into checked records of one topic (`data` must be writable) and appends them."""
        self._refuse_if_fatal()
        placement = place(self.end_offset, self._log.file_size, records.sizes)
        queues = {int(queue): self._queues.get_or_create(topic, int(queue)) for queue in np.unique(records.queue_id)}
        next_offsets = {queue_id: queue.max_offset for queue_id, queue in queues.items()}
        queued = is_queued(records.sys_flag)
        offsets = queue_offsets(records.queue_id, queued, next_offsets)
        records.stamp(offsets, placement.offsets, now_ms, store_host)
        pieces: list[tuple[int, Buffer]] = []
        for run in placement.runs:
            pieces.append((run.commit_log_offset, _bytes_of(records[run.first : run.last])))
        pieces += [(at, BLANK.pack(size, BLANK_MAGIC)) for at, size in placement.blanks]
        pieces.sort(key=lambda piece: piece[0])  # a file is made when the one before it is complete
        self._store(pieces, placement.end_offset, queue_runs(records, self.config.delay_levels_ms, topic))
        self._last_timestamp = now_ms
        appends = [
            QueueAppend(queue_id, first, queues[queue_id].max_offset - first)
            for queue_id, first in next_offsets.items()
        ]
        runs = [(run.commit_log_offset, run.last - run.first) for run in placement.runs]
        return Appended(appends, runs, placement.end_offset, now_ms)

    def append_one(self, record: Record, now_ms: int, store_host: bytes) -> Appended:
        """The per-record path: what the broker itself writes (delayed messages and their delivery)."""
        record.store_host = store_host
        return self.append(Records.walk(bytearray(record_format.encode(record))), record.topic, now_ms, store_host)

    def append_replicated(self, commit_log_offset: int, data: bytes) -> int:
        """Appends the master's log as it is, at exactly our end (plus what is kept aside of a partial record).

        Every whole record is checked; RecordError for one that is not, with all before it stored and nothing of it.  The rest
        of a record may come with the next call.  Returns the end of the last whole record or blank that is stored.
        """
        self._refuse_if_fatal()
        if not self._log.starts and self.end_offset == 0 and commit_log_offset and not self._partial:
            if commit_log_offset % self._log.file_size:
                raise StoreCorrupt(
                    f"an empty log cannot begin at {commit_log_offset}: no multiple of {self._log.file_size}"
                )
            self._log.begin_at(commit_log_offset)
        expected = self.end_offset + len(self._partial)
        if commit_log_offset == self.end_offset:
            self._partial = b""
        elif commit_log_offset != expected:
            raise StoreCorrupt(f"log bytes from {commit_log_offset} on do not join this log, which goes to {expected}")
        data = self._partial + data if self._partial else data
        self._partial = b""
        at = 0
        while at < len(data):
            room = self._log.file_size - self.end_offset % self._log.file_size
            chain = walk(data, at, min(len(data), at + room))
            if len(chain.sizes):
                self._append_checked(np.frombuffer(data, np.uint8)[at : chain.end], chain.sizes, at)
                room -= chain.end - at
                at = chain.end
            if chain.stop is Stop.BLANK and chain.next_size == room:
                if len(data) - at < room:
                    break
                self._store([(self.end_offset, memoryview(data)[at : at + room])], self.end_offset + room, [])
                at += room
            elif chain.stop is Stop.END and chain.next_size <= room - BLANK_SIZE:
                break
            else:
                raise RecordError(at, f"{chain.stop.value} of size {chain.next_size}, {room} bytes left in the file")
        self._partial = bytes(memoryview(data)[at:])
        return self.end_offset

    def _append_checked(self, data: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64], at: int) -> None:
        records = Records.walk(data, sizes=sizes)
        good, reason = sound(records, self.end_offset, crc=True, strict_from=_FULL_RANGE)
        bad_at = at + int(records.starts[good]) if good < len(records) else -1
        if good:
            records = records[:good]
            end = self.end_offset + int(records.sizes.sum())
            self._store([(self.end_offset, _bytes_of(records))], end, queue_runs(records, self.config.delay_levels_ms))
            self._last_timestamp = int(records.store_timestamp[-1])
        if bad_at >= 0:
            raise RecordError(bad_at, reason)

    def _store(self, pieces: list[tuple[int, Buffer]], end: int, runs: list[QueueRun]) -> None:
        """Log, queues, end offset; all or nothing."""
        touched: list[tuple[ConsumeQueue, int, int]] = []
        try:
            self._log.write(pieces)
            for run in runs:
                queue = self._queues.get_or_create(run.topic, run.queue_id)
                touched.append((queue, queue.max_offset, queue.log_end))
                self._queues.append(queue, run)
        except OSError as error:
            self._log.take_back(end)
            for queue, max_offset, log_end in reversed(touched):
                queue.take_back(max_offset, log_end)
            refused = refusal(error, f"writing to {self.config.root}")
            self._trouble = str(refused)
            raise refused from error
        self._trouble = None
        self._log.end_offset = end

    def _refuse_if_fatal(self) -> None:
        if self._fatal is not None:
            raise ServiceNotAvailable(self._fatal)

    # --- flushing -------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """The flush thread's: on return everything appended before the call is on disk.  Returns up to where.

        A failed sync is final: the kernel may have dropped the pages, so a second try would lie.
        """
        with self._flush_lock:
            self._refuse_if_fatal()
            end, timestamp = self._log.end_offset, self._last_timestamp
            thorough, self._thorough = self._thorough, None
            try:
                if end > self._flushed:
                    self._log.sync(self._flushed, end)
                    self._flushed_file.save(Flushed(end), sync=thorough is not None)
                    self._flushed = end
                    self._checkpoint.log_timestamp = timestamp
                if thorough is not None:
                    self._flush_thoroughly(*thorough)
            except OSError as error:
                self._fatal = (
                    f"flushing {self.config.root} failed ({error}): what was written is in doubt, restart the broker"
                )
                raise FlushFailed(self._fatal) from error
            return end

    def _flush_thoroughly(self, queues: QueueSync, log_offset: int, timestamp: int) -> None:
        queues.run()
        self._checkpoint.queues_log_offset = log_offset
        self._checkpoint.queues_timestamp = timestamp
        self._checkpoint.save(self._files, self._path("checkpoint"))

    def _request_thorough(self) -> None:
        """The next flush also syncs queues and index and moves the checkpoint: recovery starts there."""
        with self._flush_lock:
            if self._thorough is None:
                end = self.end_offset
                self._thorough = (self._queues.take_unsynced(end), end, self._last_timestamp)

    def tick(self, now_ms: int) -> None:
        """Small periodic work; called every 100 ms or so."""
        if self._fatal is not None:
            return
        self._log.release(self._flushed)
        if now_ms >= self._next_thorough_ms and self._flush_lock.acquire(blocking=False):
            self._flush_lock.release()
            self._next_thorough_ms = now_ms + self.config.flush_consume_queue_thorough_interval_ms
            self._request_thorough()

    # --- reading --------------------------------------------------------------------------------------------------

    def read_log(self, commit_log_offset: int, max_bytes: int) -> bytes:
        """Raw bytes, never across a file's end, never beyond `end_offset`; empty there.  NotFound outside the log."""
        return self._log.read(commit_log_offset, max_bytes)

    def read_record(self, commit_log_offset: int) -> bytes:
        """One whole record; NotFound if none starts there."""
        if not self.min_offset <= commit_log_offset < self.end_offset:
            raise NotFound(f"log offset {commit_log_offset} is outside the log: {self.min_offset} to {self.end_offset}")
        head = self._log.read(commit_log_offset, BLANK_SIZE)
        size = BLANK.unpack(head)[0] if len(head) == BLANK_SIZE else 0
        data = self._log.read(commit_log_offset, size)
        try:
            found = record_format.decode(data).commit_log_offset
        except (RecordError, UnicodeDecodeError):
            found = -1
        if found != commit_log_offset:
            raise NotFound(f"no record starts at log offset {commit_log_offset}")
        return data

    def queues(self) -> list[tuple[str, int]]:
        return self._queues.keys()

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max) as readers see them; (0, 0) for a queue that is not there."""
        queue = self._queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_at(self.confirm_offset))

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
        """RocketMQ's read, tables D2b and D3; `correct_offset` is the answering role's part in them."""
        queue, end = self._queues.get(topic, queue_id), self.queue_bounds(topic, queue_id)[1]
        return self._reader.get_message(
            queue, queue_offset, end, max_msg_nums, max_msg_bytes, tags_codes, correct_offset
        )

    def read_range(
        self,
        topic: str,
        queue_id: int,
        from_offset: int,
        until_offset: int,
        max_bytes: int,
        tags_codes: TagsCodes = None,
    ) -> RangeResult:
        """As many records of the range as fit, at least one; statuses as D3, offsets corrected."""
        queue, end = self._queues.get(topic, queue_id), self.queue_bounds(topic, queue_id)[1]
        return self._reader.read_range(queue, from_offset, until_offset, end, max_bytes, tags_codes)

    def store_timestamp_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When the message was stored; 0 if it is not there."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return 0
        return self._reader.store_timestamp(queue, queue_offset)

    def search_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message stored at or after that time; the end of the queue if there is none."""
        low, high = self.queue_bounds(topic, queue_id)
        queue = self._queues.get(topic, queue_id)
        while queue is not None and low < high:
            middle = (low + high) // 2
            if self._reader.store_timestamp(queue, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def tail_crc(self, size: int) -> tuple[int, int]:
        """(size, CRC-32) of the last bytes of the log, at most `size`, within one file."""
        return tail_crc(self._log, self.end_offset, size)

    def tail_crc_at(self, offset: int, size: int) -> tuple[int, int]:
        """The same for the bytes before `offset`."""
        if not self.min_offset <= offset <= self.end_offset:
            raise NotFound(f"log offset {offset} is outside the log: {self.min_offset} to {self.end_offset}")
        return tail_crc(self._log, offset, size)

    # --- topics ---------------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, floors: dict[int, int] | None = None) -> dict[int, int]:
        """Deletes the topic's queues; its records stay in the log until they expire.  Returns, per queue, the offset where it
        goes on if the topic is made again; a slave passes the master's as `floors`."""
        self._refuse_if_fatal()
        return self._queues.delete_topic(topic, floors)


def _bytes_of(records: Records) -> memoryview:
    """The bytes of records; without a copy where they lie back to back."""
    if (records.starts[1:] == records.starts[:-1] + records.sizes[:-1]).all():
        return memoryview(records.data.data)[int(records.starts[0]) : int(records.starts[-1] + records.sizes[-1])]
    return memoryview(records.take_bytes())
