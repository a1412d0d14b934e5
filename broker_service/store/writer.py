"""Appends: from records to bytes in the log and entries in the queues.

The order is log, queues, end offset: nothing counts before the last step, and a step that fails is taken back, so that
a refused put leaves nothing that could be read, now or after a restart.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import BLANK, BLANK_MAGIC, BLANK_SIZE, RecordError

from broker_service.errors import DiskFull, StoreCorrupt
from broker_service.model import Appended, QueueAppend
from broker_service.store import few
from broker_service.store.append_plan import place
from broker_service.store.commit_log import CommitLog, store_timestamp_at
from broker_service.store.config import StoreConfig
from broker_service.store.consume_queue import ConsumeQueue
from broker_service.store.disk import Disk
from broker_service.store.dispatch import QueueRun, is_queued, queue_offsets, queue_runs
from broker_service.store.durability import Durability
from broker_service.store.files import Buffer, refusal
from broker_service.store.log_scanner import Chain, Stop, sound, walk
from broker_service.store.queue_table import QueueTable

_NEVER = 2**63 - 1
_SPARE = 1 << 20  # what a disk must have free, beside the next log file, to count as having room again

OnAppended = Callable[[int, int, Records], None]


class Writer:
    """`on_appended(offset, size, records)` is told of every batch that lies back to back, for the index."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        durability: Durability,
        on_appended: OnAppended,
    ) -> None:
        self.trouble: str | None = None  # why writes fail now; may pass
        self.disk_too_full: str | None = None  # by the retention's measure
        self.partial = bytearray()  # the beginning of a replicated record whose rest has not come
        self._disk = disk
        self._config = config
        self._log = log
        self._queues = queues
        self._durability = durability
        self._on_appended = on_appended
        self._room_needed = 0

    def append(self, records: Records, topic: str, now_ms: int, store_host: bytes) -> Appended:
        """Stamps offsets, time and host into checked records of one topic, and appends them."""
        self._disk.check()
        if self.disk_too_full is not None:
            raise DiskFull(self.disk_too_full)
        if len(records) <= few.FEW and self._fits(records):
            return self._append_few(records, topic, now_ms, store_host)
        placement = place(self._log.end_offset, self._log.file_size, records.sizes)
        queue_ids = records.queue_id
        queues = self._queues_of(topic, _different(queue_ids))
        firsts = {queue_id: queue.max_offset for queue_id, queue in queues.items()}
        offsets = queue_offsets(queue_ids, is_queued(records.sys_flag), firsts)
        records.stamp(offsets, placement.offsets, now_ms, store_host)
        parts = [(run.commit_log_offset, _rows(records, run.first, run.last)) for run in placement.runs]
        written = [(offset, part.view_bytes()) for offset, part in parts]
        pieces: list[tuple[int, Buffer]] = [*written]
        pieces += [(at, BLANK.pack(size, BLANK_MAGIC)) for at, size in placement.blanks]
        pieces.sort(key=lambda piece: piece[0])  # a file is made when the one before it is complete
        self._store(pieces, placement.end_offset, queue_runs(records, self._config.delay_levels_ms, topic), now_ms)
        for (offset, data), (_, part) in zip(written, parts, strict=True):
            self._on_appended(offset, len(data), part)
        runs = [(run.commit_log_offset, run.last - run.first) for run in placement.runs]
        return Appended(_grown(queues, firsts), runs, placement.end_offset, now_ms)

    def _fits(self, records: Records) -> bool:
        """Whether they can be written as they lie, into one file, with a blank record behind them."""
        log, size = self._log, len(records.data)
        room = log.file_size - log.end_offset % log.file_size
        return sum(parts.size for parts in records.parts) == size <= room - BLANK_SIZE

    def _append_few(self, records: Records, topic: str, now_ms: int, store_host: bytes) -> Appended:
        """`append` of a few records that fill `data` and fit."""
        offset = self._log.end_offset
        end = offset + len(records.data)
        queues = self._queues_of(topic, sorted({parts.queue_id for parts in records.parts}))
        firsts = {queue_id: queue.max_offset for queue_id, queue in queues.items()}
        view = records.data.data
        stamped = few.stamp(view, records.parts, offset, dict(firsts), now_ms, store_host)
        self._store([(offset, view)], end, few.queue_runs(view, stamped, self._config.delay_levels_ms), now_ms)
        # Columns made before know nothing of the stamps.
        self._on_appended(offset, end - offset, Records.of_parts(records.data, stamped))
        return Appended(_grown(queues, firsts), [(offset, len(stamped))], end, now_ms)

    def _queues_of(self, topic: str, queue_ids: list[int]) -> dict[int, ConsumeQueue]:
        return {queue_id: self._queues.get_or_create(topic, queue_id) for queue_id in queue_ids}

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        """Appends the master's log as it is; returns the end of the last whole record or blank that is stored.

        `commit_log_offset` is our end plus what is kept aside of a partial record; our end itself starts that record
        over. RecordError for a record that is not whole, or not where it says it is: all before it is stored, nothing
        of it.
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
            self.partial += data  # of a large record, whose head has been checked: nothing is copied again and again
            return log.end_offset
        if self.partial:
            data, self.partial = memoryview(self.partial + data), bytearray()
        at = 0
        while at < len(data):
            room = log.file_size - log.end_offset % log.file_size
            chain = walk(data, at, min(len(data), at + room))
            if len(chain.sizes):
                if not (len(chain.sizes) <= few.FEW and self._append_few_checked(data, chain, at)):
                    self._append_checked(np.frombuffer(data, np.uint8)[at : chain.end], chain.sizes, at)
                room -= chain.end - at
                at = chain.end
            if chain.stop is Stop.BLANK and chain.next_size == room:
                if len(data) - at < room:
                    break
                self._store([(log.end_offset, memoryview(data)[at : at + room])], log.end_offset + room, [], None)
                at += room
            elif chain.stop is Stop.END and chain.next_size <= room - BLANK_SIZE:
                break
            else:
                raise RecordError(at, f"{chain.stop.value} of size {chain.next_size}, {room} bytes left in the file")
        self.partial = bytearray(memoryview(data)[at:])
        return log.end_offset

    def _append_few_checked(self, data: bytes | memoryview, chain: Chain, at: int) -> bool:
        """A few records, if nothing is wrong with them; else nothing is done."""
        view, offset = memoryview(data), self._log.end_offset
        records = few.sound(view, chain.sizes.tolist(), at, offset)
        if records is None:
            return False
        runs = few.queue_runs(view, records, self._config.delay_levels_ms)
        timestamp = store_timestamp_at(view, records[-1].start)
        self._store([(offset, view[at : chain.end])], offset + chain.end - at, runs, timestamp)
        self._on_appended(offset, chain.end - at, Records.of_parts(np.frombuffer(data, np.uint8), records))
        return True

    def _append_checked(self, data: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64], at: int) -> None:
        records = Records.walk(data, sizes=sizes)
        offset = self._log.end_offset
        good, reason = sound(records, offset, crc=True, strict_from=_NEVER)
        if good:
            whole = _rows(records, 0, good)
            written = whole.view_bytes()
            runs = queue_runs(whole, self._config.delay_levels_ms)
            self._store([(offset, written)], offset + len(written), runs, int(whole.store_timestamp[-1]))
            self._on_appended(offset, len(written), whole)
        if good < len(records):
            raise RecordError(at + int(records.starts[good]), reason)

    def _store(self, pieces: list[tuple[int, Buffer]], end: int, runs: list[QueueRun], timestamp: int | None) -> None:
        """Log, queues, end offset; all or nothing."""
        touched: list[tuple[ConsumeQueue, int, int]] = []
        try:
            self._log.write(pieces)
            for run in runs:
                queue = self._queues.get_or_create(run.topic, run.queue_id)
                touched.append((queue, queue.max_offset, queue.log_end))
                self._queues.append(queue, run)
        except OSError as error:
            self._room_needed = _SPARE + (self._config.mapped_file_size_commit_log if end > self._log.file_end else 0)
            self._log.take_back(end)
            for queue, max_offset, log_end in reversed(touched):
                queue.take_back(max_offset, log_end)
            refused = refusal(error, f"writing to {self._config.root}")
            self.trouble = str(refused)
            raise refused from error
        self.trouble = None
        if timestamp is not None:
            self._durability.last_timestamp = timestamp
        self._log.end_offset = end

    def probe(self) -> None:
        """Looks whether what made the last write fail has passed."""
        try:
            self._log.clean()
            self._log.touch()
            if self._disk.disk_usage(self._config.root).free >= self._room_needed:
                self.trouble = None
        except OSError:
            return  # Not yet.


def _grown(queues: Mapping[int, ConsumeQueue], firsts: Mapping[int, int]) -> list[QueueAppend]:
    """By how much each queue has grown since it ended at `firsts`."""
    return [QueueAppend(queue_id, first, queues[queue_id].max_offset - first) for queue_id, first in firsts.items()]


def _different(queue_ids: npt.NDArray[np.int32]) -> list[int]:
    runs = np.append(queue_ids[:-1] != queue_ids[1:], True)
    return sorted(set(queue_ids[runs].tolist()))


def _rows(records: Records, first: int, last: int) -> Records:
    """A part; the same object for all, since that keeps the columns it has made."""
    return records if first == 0 and last == len(records) else records[first:last]
