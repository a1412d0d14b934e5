"""Reads one queue by the rules of RocketMQ 4.9.8.

docs/decision_tables.md has these rules: table D2b for limits and for the suggestion to read from the slave, table D3
for statuses and offsets.  `get_message` examines one entry after the other, as RocketMQ does; `ranges.py` reads large
frames.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rocketsim_proto.model import GetMessageStatus
from rocketsim_proto.records.record import FIXED_SIZE_V4

from broker_service.store.batch_read import NotInLog, read_records
from broker_service.store.commit_log import CommitLog, store_timestamp_at
from broker_service.store.config import StoreConfig
from broker_service.store.consume_queue import ENTRY_SIZE, FILLER_SIZE, ConsumeQueue, Entries
from broker_service.store.ranges import TagsCodes, check_expired, damaged, outside

_CONVERTED_TOGETHER = 40  # entries: an answer has up to 32 messages by default
MAX_INDEX_BYTES_SCANNED = 16000  # bytes of 800 entries; a pull that asks for more messages scans more


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMessageResult:
    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    sizes: bytes = b""  # the size of each record, little-endian uint32
    count: int = 0
    suggest_pull_from_slave: bool = False


def memory_size(config: StoreConfig) -> int:
    """Returns the number of bytes at the log's end that count as in memory, by RocketMQ's 40 % rule."""
    return config.physical_memory * config.access_message_in_memory_max_ratio // 100


def get_message(
    log: CommitLog,
    config: StoreConfig,
    queue: ConsumeQueue | None,
    offset: int,
    max_offset: int,
    max_messages: int,
    max_bytes: int,
    tags_codes: TagsCodes,
    correct_offset: bool,
) -> GetMessageResult:
    """Reads messages of a queue within the limits of `config`.  Readers may see the messages before `max_offset`."""
    min_offset = queue.min_offset if queue else 0
    nothing = outside(queue is not None, offset, min_offset, max_offset)
    if queue is None or nothing is not None:
        assert nothing is not None
        status, corrected = nothing
        next_offset = corrected if correct_offset or status is GetMessageStatus.OFFSET_OVERFLOW_ONE else offset
        return GetMessageResult(
            status=status, next_begin_offset=next_offset, min_offset=min_offset, max_offset=max_offset
        )
    # As in RocketMQ, a pull does not cross the end of a queue's file, and the examined entries are limited.
    scan = max(MAX_INDEX_BYTES_SCANNED, max_messages * ENTRY_SIZE)
    entries = queue.read(offset, min(max_offset, queue.file_end(offset), offset + -(-scan // ENTRY_SIZE)) - offset)
    chosen, scanned, status, last_examined = _choose(
        log, config, queue, offset, entries, max_messages, max_bytes, tags_codes
    )
    picked = entries[chosen]
    return GetMessageResult(
        status=status,
        next_begin_offset=offset + scanned,
        min_offset=min_offset,
        max_offset=max_offset,
        records=_records(log, queue, [offset + number for number in chosen], picked),
        sizes=picked["size"].astype("<u4").tobytes(),
        count=len(chosen),
        suggest_pull_from_slave=log.end_offset - last_examined > memory_size(config),
    )


def _limits(config: StoreConfig, max_messages: int, max_bytes: int, *, on_disk: bool) -> tuple[int, int]:
    """Returns the most messages and the most bytes of an answer, for messages on disk or in memory."""
    if on_disk:
        most, most_bytes = config.max_transfer_count_on_message_in_disk, config.max_transfer_bytes_on_message_in_disk
    else:
        most, most_bytes = (
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
        )
    return min(max_messages, most), min(max_bytes, most_bytes)


def _choose(
    log: CommitLog,
    config: StoreConfig,
    queue: ConsumeQueue,
    offset: int,
    entries: Entries,
    max_messages: int,
    max_bytes: int,
    tags_codes: TagsCodes,
) -> tuple[list[int], int, GetMessageStatus, int]:
    """Selects the messages of an answer, by the same loop as RocketMQ.

    Returns (rows taken, entries consumed, status, log offset of the last entry examined).
    """
    end, file_size, log_min = log.end_offset, log.file_size, log.min_offset
    in_memory_from = end - memory_size(config)
    in_memory = _limits(config, max_messages, max_bytes, on_disk=False)
    on_disk = _limits(config, max_messages, max_bytes, on_disk=True)
    status = GetMessageStatus.NO_MATCHED_MESSAGE
    chosen: list[int] = []
    total = last_examined = number = 0
    skip_to = -1
    for number, (position, size, code) in enumerate(_one_by_one(entries)):
        last_examined = position
        if position < skip_to:
            continue
        most, most_bytes = on_disk if position < in_memory_from else in_memory
        if chosen and (len(chosen) >= most or total + size > most_bytes):  # the first message is always taken
            break
        if tags_codes is not None and code not in tags_codes:
            if not chosen:
                status = GetMessageStatus.NO_MATCHED_MESSAGE
            continue
        if position < log_min or size == FILLER_SIZE:
            if size != FILLER_SIZE:
                check_expired(queue, offset + number, size, log_min)
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


def _one_by_one(entries: Entries) -> Iterator[tuple[int, int, int]]:
    """Yields the entries.  Entries are converted a few at a time, because a pull without a filter needs only a few."""
    for at in range(0, len(entries), _CONVERTED_TOGETHER):
        yield from entries[at : at + _CONVERTED_TOGETHER].tolist()


def size_and_time(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> tuple[int, int]:
    """Returns a record's size and store time; (0, 0) for an entry whose record has expired."""
    entry = queue.read(queue_offset, 1)[0]
    offset, size = int(entry["commit_log_offset"]), int(entry["size"])
    if size == FILLER_SIZE or not log.min_offset <= offset < log.end_offset:
        return 0, 0
    return size, store_timestamp_at(log.peek(offset, FIXED_SIZE_V4), 0)


def _records(log: CommitLog, queue: ConsumeQueue, queue_offsets: list[int], entries: Entries) -> bytes:
    """Reads the records of these entries.

    Raises StoreCorrupt if the log has other records at these offsets, since the queue's files are damaged then.
    """
    offsets, sizes = entries["commit_log_offset"].astype(np.int64), entries["size"].astype(np.int64)
    queue_ids = np.full(len(entries), queue.queue_id)
    try:
        return b"".join(read_records(log, offsets, sizes, queue_ids, np.array(queue_offsets, np.int64)).slices)
    except NotInLog as error:
        raise damaged(queue, queue_offsets[error.row]) from None
