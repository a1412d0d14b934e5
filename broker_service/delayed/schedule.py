"""Decides when a delayed message is due, and how far each delay level is delivered.

A delayed message waits in queue level-1 of SCHEDULE_TOPIC_XXXX until it is due.  A delivery appends a new record to the
message's real topic, and this record has the delay level and the offset in the schedule topic.  The log itself
therefore says how far each level is delivered, so that a crash neither repeats nor loses a delivery.  A broker that has
saved a `DelayPosition` need not read the log from its beginning.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import (
    BLANK,
    BLANK_MAGIC,
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    Record,
)

from broker_service.broker.frame import PROPERTY_DELIVERED_LEVEL, PROPERTY_DELIVERED_OFFSET
from broker_service.errors import StoreCorrupt

READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class DelayPosition:
    """For each delay level, the schedule offset of the next message to deliver, at the time when the log ended at
    `log_offset`.
    """

    log_offset: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)

    def advanced(self, log_offset: int, delivered: Iterable[tuple[int, int]]) -> "DelayPosition":
        """Returns the position after further deliveries, which are (level, schedule offset) pairs of records before
        `log_offset`.
        """
        offsets = dict(self.offsets)
        for level, schedule_offset in delivered:
            offsets[level] = max(offsets.get(level, 0), schedule_offset + 1)
        return DelayPosition(log_offset, offsets)


class Log(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...

    def decoding(self, records: bytes, offset: int) -> AbstractContextManager[None]: ...

    def damaged(self, offset: int, reason: str) -> StoreCorrupt: ...


def replayed_positions(position: DelayPosition, log: Log) -> Iterator[DelayPosition]:
    """Reads the log from `position` on, to the log's end, for records of deliveries.  Yields the new position after
    each read.
    """
    for at, data in whole_records(log, position.log_offset):
        with log.decoding(data, at - len(data)):
            marks = _marks(data)
        position = position.advanced(at, marks)
        yield position


def whole_records(log: Log, log_offset: int, read_bytes: int = READ_BYTES) -> Iterator[tuple[int, bytes]]:
    """Reads the log from `log_offset` to its end.  Yields for each read the log offset after its complete records, and
    these records.
    """
    at = max(log_offset, log.min_offset)
    while at < log.end_offset:
        at = max(at, log.min_offset)  # log files may expire while this function reads
        data = log.read(at, read_bytes)
        whole, is_blank = _whole_records(data)
        if is_blank:
            at += BLANK.unpack_from(data)[0]
            continue
        if not whole:
            # A single record may be longer than one read.
            whole = int.from_bytes(data[:4], "big")
            if whole <= len(data):
                raise log.damaged(at, "no record")
            data = log.read(at, whole)
        at += whole
        yield at, data[:whole]


def _whole_records(data: bytes) -> tuple[int, bool]:
    """Returns how many bytes of `data` are complete records, and True if `data` begins with a blank record, which fills
    a log file's end.
    """
    at = 0
    while at + BLANK.size <= len(data):
        size, magic = BLANK.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            return at, at == 0
        if size < record.MIN_SIZE or at + size > len(data):
            break
        at += size
    return at, False


def _marks(data: bytes) -> list[tuple[int, int]]:
    """Returns (level, schedule offset) of the delayed messages that these records deliver."""
    if f"{PROPERTY_DELIVERED_OFFSET}\x01".encode() not in data:
        return []
    records = Records.walk(data)
    levels = records.property(PROPERTY_DELIVERED_LEVEL).to_pylist()
    offsets = records.property(PROPERTY_DELIVERED_OFFSET).to_pylist()
    marks = [(level or "", offset or "") for level, offset in zip(levels, offsets, strict=True)]
    return [(int(level), int(offset)) for level, offset in marks if level.isdecimal() and offset.isdecimal()]


def due_in_ms(stored_ms: int, delay_ms: int, now_ms: int) -> int:
    """Returns in how many milliseconds a message with this store time must be delivered.

    A message whose store time is in the future is due at once, as in RocketMQ (correctDeliverTimestamp), because its
    store time is wrong.  A store time is in the future if the clock was set back, or is behind the clock of the former
    master.  If a message with a wrong store time waited, all later messages of its level would wait, too.
    """
    return 0 if stored_ms > now_ms else max(0, stored_ms + delay_ms - now_ms)


def delivered_record(delayed: Record, level: int, schedule_offset: int) -> Record:
    """Makes the record that delivers a delayed message, in its real topic and queue."""
    properties = dict(delayed.properties)
    topic = properties.get(PROPERTY_REAL_TOPIC, "")
    queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdigit():
        raise ValueError(f"the record does not say where it belongs: topic {topic!r}, queue {queue_id!r}")
    properties.pop(PROPERTY_DELAY, None)
    properties[PROPERTY_DELIVERED_LEVEL] = str(level)
    properties[PROPERTY_DELIVERED_OFFSET] = str(schedule_offset)
    return Record(
        topic=topic,
        body=delayed.body,
        queue_id=int(queue_id),
        flag=delayed.flag,
        sys_flag=delayed.sys_flag,
        born_timestamp=delayed.born_timestamp,
        born_host=delayed.born_host,
        store_host=delayed.store_host,
        reconsume_times=delayed.reconsume_times,
        properties=properties,
    )
