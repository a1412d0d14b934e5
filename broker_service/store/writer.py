"""Writer appends records to the log and their entries to the queues.

The writer writes the log first, then the queues, and then moves the end offset, which alone makes the records visible.
A step that fails is undone, so that a refused put leaves nothing that anybody could read, now or after a restart.
"""

import logging
from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np
from rocketsim_proto.records.record import BLANK, BLANK_MAGIC, BLANK_SIZE, RecordError

from broker_service.errors import DiskFull, StoreCorrupt
from broker_service.put_result import Appended, QueueAppend
from broker_service.store.append_plan import plan_append
from broker_service.store.batch import Batch
from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.consume_queue import ConsumeQueue
from broker_service.store.disk import Attempt, Disk
from broker_service.store.dispatch import QueueExtent
from broker_service.store.durability import Durability
from broker_service.store.files import Buffer, refusal
from broker_service.store.index import Index
from broker_service.store.log_scanner import Stop
from broker_service.store.queue_table import QueueTable

logger = logging.getLogger(__name__)

_SPARE = 1 << 20  # bytes that must be free beside the next log file before a disk counts as having room again


class Writer:
    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        durability: Durability,
        index: Index,
    ) -> None:
        self.trouble: str | None = None  # why the last write failed; None after a write or probe that succeeds
        # a full disk's error; kept until the disk has room, even if small writes succeed
        self.no_room: str | None = None
        self.partial = bytearray()  # the beginning of a replicated record whose rest has not arrived yet
        self._disk = disk
        self._config = config
        self._log = log
        self._queues = queues
        self._durability = durability
        self._index = index
        self.dispatched: list[Callable[[Sequence[QueueExtent]], None]] = []  # called with new, visible queue entries
        self._room_needed = 0

    def append(self, batch: Batch, topic: str, now_ms: int, store_host: bytes) -> Appended:
        """Stamps offsets, store time and store host into checked records of one topic, and appends them."""
        self._disk.check()
        plan = plan_append(self._log.end_offset, self._log.file_size, batch.sizes)
        queues = {queue_id: self._queues.get_or_create(topic, queue_id) for queue_id in batch.queue_ids}
        firsts = {queue_id: queue.max_offset for queue_id, queue in queues.items()}
        next_offsets = dict(firsts)
        parts = [(extent.commit_log_offset, batch.part(extent.first, extent.last)) for extent in plan.extents]
        for offset, part in parts:
            part.stamp(offset, next_offsets, now_ms, store_host)
        slices: list[tuple[int, Buffer]] = [(offset, part.view_bytes()) for offset, part in parts]
        if plan.blanks:
            slices += [(at, BLANK.pack(size, BLANK_MAGIC)) for at, size in plan.blanks]
            slices.sort(key=itemgetter(0))  # a file is created only when the one before it is complete
        queue_extents = [extent for _, part in parts for extent in part.queue_extents(self._config.delay_levels_ms)]
        self._store(slices, plan.end_offset, parts, queue_extents, now_ms)
        extents = [(offset, len(part)) for offset, part in parts]
        grown = [QueueAppend(queue_id, first, next_offsets[queue_id] - first) for queue_id, first in firsts.items()]
        return Appended(grown, extents, plan.end_offset, now_ms)

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        """Appends bytes of the master's log unchanged; returns the end of the last whole record or blank in the log.

        The bytes must continue this log, so `commit_log_offset` is the log's end plus the size of the incomplete record
        in `partial`.  If `commit_log_offset` is the log's end, `partial` is discarded.  Raises RecordError for a
        damaged record, or one with another log offset; all records before it are stored.
        """
        self._disk.check()
        log = self._log
        if not log.starts and commit_log_offset != log.end_offset + len(self.partial):
            if commit_log_offset % log.file_size:
                raise StoreCorrupt(f"an empty log cannot begin at {commit_log_offset}, inside a log file")
            log.begin_at(commit_log_offset)
            self.partial.clear()
        if commit_log_offset == log.end_offset:
            self.partial.clear()
        elif commit_log_offset != log.end_offset + len(self.partial):
            ends = f"{log.end_offset} (+{len(self.partial)} of a partial record)"
            raise StoreCorrupt(f"log bytes from {commit_log_offset} on do not join this log, which ends at {ends}")
        if len(self.partial) + len(data) < int.from_bytes(self.partial[:4], "big") and len(self.partial) >= BLANK_SIZE:
            # The rest of a large record is still missing, and its head was checked, so the bytes are only collected.
            self.partial += data
            return log.end_offset
        if self.partial:
            data, self.partial = memoryview(self.partial + data), bytearray()
        view, at = memoryview(data), 0
        while at < len(view):
            room = log.file_size - log.end_offset % log.file_size
            batch, reason, walked = Batch.of_log(view[at : at + room], log.end_offset)
            if len(walked.sizes):
                self._append_checked(batch, reason, at)
                room -= walked.end
                at += walked.end
            if walked.stop is Stop.BLANK and walked.next_size == room:
                if len(view) - at < room:
                    break
                self._store([(log.end_offset, view[at : at + room])], log.end_offset + room, [], [], None)
                at += room
            elif walked.stop is Stop.END and walked.next_size <= room - BLANK_SIZE:
                break
            else:
                raise RecordError(at, f"{walked.stop.value} of size {walked.next_size}, {room} bytes left in the file")
        self.partial = bytearray(view[at:])
        return log.end_offset

    def _append_checked(self, batch: Batch, reason: str, at: int) -> None:
        """Appends replicated records, the first of which is at position `at` of what has come.

        Raises RecordError after that if there is a `reason`, which is what is wrong with the record behind the batch.
        """
        offset = self._log.end_offset
        extents = batch.queue_extents(self._config.delay_levels_ms)
        if (gap := self._queues.first_with_long_gap(extents)) is not None:
            places = offset + np.cumsum(batch.sizes) - batch.sizes
            batch = batch.part(0, int(np.searchsorted(places, gap.entries["commit_log_offset"][0])))
            extents = batch.queue_extents(self._config.delay_levels_ms)
            reason = f"a record at offset {gap.queue_offset} of queue {gap.topic}/{gap.queue_id}, far behind its end"
        if len(batch):
            timestamp = batch.last_store_timestamp
            self._store([(offset, batch.view_bytes())], offset + batch.size, [(offset, batch)], extents, timestamp)
        if reason:
            raise RecordError(at + batch.size, reason)

    def _store(
        self,
        slices: Sequence[tuple[int, Buffer]],
        end: int,
        batches: Sequence[tuple[int, Batch]],
        extents: Sequence[QueueExtent],
        timestamp: int | None,
    ) -> None:
        """Writes log and queues and moves the end offset, or undoes everything; then informs index and listeners."""
        touched: list[tuple[ConsumeQueue, int, int]] = []
        try:
            self.clean()
            self._log.write(slices)
            for extent in extents:
                queue = self._queues.get_or_create(extent.topic, extent.queue_id)
                touched.append((queue, queue.max_offset, queue.log_end))
                self._queues.append(queue, extent)
        except OSError as error:
            self._room_needed = _SPARE + (self._config.mapped_file_size_commit_log if end > self._log.file_end else 0)
            for queue, max_offset, log_end in reversed(touched):
                queue.undo_puts(max_offset, log_end)
            refused = refusal(error, "appending to the log")
            if self.trouble is None:
                logger.error("%s: %s", self._config.root, refused)
            self.trouble = str(refused)
            if isinstance(refused, DiskFull):
                self.no_room = self.trouble
            self._log.failed_until(end)
            with Attempt():  # If cleaning fails, the next write or `probe` cleans up first.
                self.clean()
            raise refused from error
        self.trouble = None
        if timestamp is not None:
            self._durability.last_timestamp = timestamp
        self._log.end_offset = end
        for offset, batch in batches:
            self._index.offer(offset, batch)
        for listener in self.dispatched:
            listener(extents)

    def clean(self) -> None:
        """Removes, on disk too, what a refused write has left behind; raises OSError if the disk still refuses."""
        if self._log.is_dirty:
            with self._durability.lock:
                self._log.clean()

    def probe(self) -> None:
        """Checks whether writes are possible again after a failed one."""
        try:
            self.clean()
            self._log.touch()
            if self._disk.disk_usage(self._config.root).free >= self._room_needed:
                self.trouble = self.no_room = None
        except OSError:
            return  # The disk still refuses writes.
