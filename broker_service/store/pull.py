"""Which messages a read of one queue gives: RocketMQ 4.9.8's tables D2b (limits, "read from the slave") and D3 (status,
offset).

`get_message` is RocketMQ's call, entry by entry as there; `read_range` is ours, for large frames: the same statuses,
its own limits, whole columns at once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rocketsim_proto.columnar import RecordError, Records

from broker_service.errors import StoreCorrupt
from broker_service.model import GetMessageStatus
from broker_service.store.commit_log import CommitLog, store_timestamp_at
from broker_service.store.config import StoreConfig
from broker_service.store.consume_queue import ENTRY_SIZE, FILLER_SIZE, NO_ENTRIES, ConsumeQueue, Entries
from broker_service.store.gather import gather

MAX_INDEX_BYTES_SCANNED = 16000  # 800 entries, unless more messages were asked for
_ENTRIES_AT_A_TIME = 16384
_MAX_ENTRIES_SCANNED = 1 << 18  # of a range, per call: 0.25 million entries take some ms

Positions = npt.NDArray[np.int64]
TagsCodes = frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMessageResult:
    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    sizes: bytes = b""  # of each record, little-endian uint32
    count: int = 0
    suggest_pull_from_slave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    sizes: bytes = b""
    count: int = 0
    suggest_pull_from_slave: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads queues of one log, by the limits of `config`."""

    log: CommitLog
    config: StoreConfig

    @property
    def memory(self) -> int:
        """How much of the log's end counts as being in memory: the 40 % rule."""
        return self.config.physical_memory * self.config.access_message_in_memory_max_ratio // 100

    def get_message(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: TagsCodes,
        correct_offset: bool,
    ) -> GetMessageResult:
        min_offset = queue.min_offset if queue else 0
        outside = _outside(queue is not None, offset, min_offset, max_offset)
        if queue is None or outside is not None:
            assert outside is not None
            status, corrected = outside
            next_offset = corrected if correct_offset or status is GetMessageStatus.OFFSET_OVERFLOW_ONE else offset
            return GetMessageResult(
                status=status, next_begin_offset=next_offset, min_offset=min_offset, max_offset=max_offset
            )
        # As RocketMQ: never across the end of a queue's file, and a bound on the entries looked at.
        scan = max(MAX_INDEX_BYTES_SCANNED, max_messages * ENTRY_SIZE)
        entries = queue.read(offset, min(max_offset, queue.file_end(offset), offset + -(-scan // ENTRY_SIZE)) - offset)
        chosen, scanned, status, last_examined = self._choose(entries, max_messages, max_bytes, tags_codes)
        picked = entries[chosen]
        return GetMessageResult(
            status=status,
            next_begin_offset=offset + scanned,
            min_offset=min_offset,
            max_offset=max_offset,
            records=self._records(queue, offset + np.array(chosen, np.int64), picked),
            sizes=picked["size"].astype("<u4").tobytes(),
            count=len(chosen),
            suggest_pull_from_slave=self.log.end_offset - last_examined > self.memory,
        )

    def _is_full(self, count: int, total: int, size: int, max_messages: int, max_bytes: int, on_disk: bool) -> bool:
        """Whether one more message of `size` is too much; the first one always goes."""
        config = self.config
        if on_disk:
            max_messages = min(max_messages, config.max_transfer_count_on_message_in_disk)
            max_bytes = min(max_bytes, config.max_transfer_bytes_on_message_in_disk)
        else:
            max_messages = min(max_messages, config.max_transfer_count_on_message_in_memory)
            max_bytes = min(max_bytes, config.max_transfer_bytes_on_message_in_memory)
        return count >= max_messages or total + size > max_bytes

    def _choose(
        self, entries: Entries, max_messages: int, max_bytes: int, tags_codes: TagsCodes
    ) -> tuple[list[int], int, GetMessageStatus, int]:
        """(rows taken, entries consumed, status, log offset of the last entry examined): RocketMQ's loop, literally."""
        end, file_size, log_min = self.log.end_offset, self.log.file_size, self.log.min_offset
        memory = self.memory
        status = GetMessageStatus.NO_MATCHED_MESSAGE
        chosen: list[int] = []
        total = last_examined = number = 0
        skip_to = -1
        for number, (position, size, code) in enumerate(entries.tolist()):
            last_examined = position
            if position < skip_to:
                continue
            on_disk = end - position > memory
            if chosen and self._is_full(len(chosen), total, size, max_messages, max_bytes, on_disk):
                break
            if tags_codes is not None and code not in tags_codes:
                if not chosen:
                    status = GetMessageStatus.NO_MATCHED_MESSAGE
                continue
            if position < log_min or size == FILLER_SIZE:
                if not chosen:
                    status = GetMessageStatus.MESSAGE_WAS_REMOVING
                skip_to = position - position % file_size + file_size
                continue
            chosen.append(number)
            total += size
            status = GetMessageStatus.FOUND
            skip_to = -1
        else:
            number = len(entries)
        return chosen, number, status, last_examined

    def read_range(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        until: int,
        max_offset: int,
        max_bytes: int,
        tags_codes: TagsCodes,
    ) -> RangeResult:
        """As many records of [offset, until) as fit into `max_bytes`, at least one; `next_offset` is where to go on."""
        min_offset = queue.min_offset if queue else 0
        outside = _outside(queue is not None, offset, min_offset, max_offset)
        if queue is None or outside is not None:
            assert outside is not None
            status, next_offset = outside
            return RangeResult(status=status, next_offset=next_offset, min_offset=min_offset, max_offset=max_offset)
        parts: list[Entries] = []
        places: list[Positions] = []
        at, end, room = offset, min(until, max_offset, offset + _MAX_ENTRIES_SCANNED), max_bytes
        last_examined, full, removed = 0, False, False
        while at < end and not full:
            entries = queue.read(at, min(_ENTRIES_AT_A_TIME, end - at))
            taking = entries["commit_log_offset"] >= self.log.min_offset
            taking &= entries["size"] != FILLER_SIZE
            removed = removed or not taking.all()
            if tags_codes is not None:
                taking &= np.isin(entries["tags_code"], np.fromiter(tags_codes, np.int64, len(tags_codes)))
            rows = np.flatnonzero(taking)
            sizes = np.cumsum(entries["size"][rows], dtype=np.int64)
            fitting = int(np.searchsorted(sizes, room, side="right"))
            if fitting == 0 and len(rows) and not parts:
                fitting = 1
            full = fitting < len(rows)
            scanned = int(rows[fitting]) if full else len(entries)
            if fitting:
                parts.append(entries[rows[:fitting]])
                places.append(at + rows[:fitting])
                room -= int(sizes[fitting - 1])
            last_examined = int(entries["commit_log_offset"][max(scanned - 1, 0)])
            at += scanned
        picked = np.concatenate(parts) if parts else NO_ENTRIES
        status = GetMessageStatus.FOUND if parts else GetMessageStatus.NO_MATCHED_MESSAGE
        if removed and not parts and tags_codes is None:
            status = GetMessageStatus.MESSAGE_WAS_REMOVING
        return RangeResult(
            status=status,
            next_offset=at,
            min_offset=min_offset,
            max_offset=max_offset,
            records=self._records(queue, np.concatenate(places) if places else np.empty(0, np.int64), picked),
            sizes=picked["size"].astype("<u4").tobytes(),
            count=len(picked),
            suggest_pull_from_slave=at > offset and self.log.end_offset - last_examined > self.memory,
        )

    def store_timestamp(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """0 for an entry whose record is gone."""
        entry = queue.read(queue_offset, 1)[0]
        offset = int(entry["commit_log_offset"])
        if offset < self.log.min_offset or entry["size"] == FILLER_SIZE:
            return 0
        start = self.log.start_of(offset)
        return store_timestamp_at(self.log.view(start), offset - start)

    def _records(self, queue: ConsumeQueue, queue_offsets: Positions, entries: Entries) -> bytes:
        """The records' bytes; never others than those the queue stands for, should its files be damaged."""
        if not len(entries):
            return b""
        offsets, sizes = entries["commit_log_offset"].astype(np.int64), entries["size"].astype(np.int64)
        inside = offsets % self.log.file_size + sizes <= self.log.file_size
        if (inside & (sizes > 0) & (offsets + sizes <= self.log.end_offset)).all():
            data = gather(self.log, entries)
            if _are(data, sizes, offsets, queue_offsets, queue.queue_id):
                return data
        raise StoreCorrupt(
            f"consume queue {queue.directory} is damaged at or behind offset {int(queue_offsets[0])}: "
            "stop the broker, delete that folder and start again, it is made anew from the log"
        )


def _are(data: bytes, sizes: Positions, offsets: Positions, queue_offsets: Positions, queue_id: int) -> bool:
    """Whether these are the records at those offsets of the log and of the queue."""
    try:
        records = Records.walk(data, sizes=sizes)
    except RecordError:
        return False
    return bool(
        (records.commit_log_offset == offsets).all()
        and (records.queue_offset == queue_offsets).all()
        and (records.queue_id == queue_id).all()
    )


def _outside(exists: bool, offset: int, min_offset: int, max_offset: int) -> tuple[GetMessageStatus, int] | None:
    """Table D3 for an offset at which there is nothing to read: status and corrected next offset."""
    if not exists:
        return GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0
    if max_offset == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < min_offset:
        return GetMessageStatus.OFFSET_TOO_SMALL, min_offset
    if offset == max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, max_offset
    return None
