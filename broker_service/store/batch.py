"""Batch holds records that are about to be appended: it checks them, stamps them and makes their queue entries.  Pure.

With the compiled module, a batch of any size is a `_Columns`: compiled functions do the work, and numpy does what they
do not accept.

Without the compiled module, numpy does all the work.  numpy needs as long to check one record as to check about fifty,
so a batch of up to `FEW` records is a `_OneByOne`, which checks one record after the other.  `_OneByOne` and `_Columns`
give the same results.  If `_OneByOne` finds an error, `_Columns` checks the records again and raises the error, so that
errors do not depend on the batch's size.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rocketsim_proto.records import kernels
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import (
    NAME_END,
    PROPERTY_DELAY,
    PROPERTY_END,
    PROPERTY_TAGS,
    Parts,
    Record,
    RecordError,
    body_crc,
    decode,
    decode_properties,
    encode,
    locate,
    tags_code,
)
from rocketsim_proto.records.slices import as_bytes
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.store.consume_queue import ENTRY
from broker_service.store.dispatch import (
    QueueExtent,
    can_name_a_queue,
    delivery_times,
    is_queued,
    level_of,
    queue_extents,
    queue_offsets,
)
from broker_service.store.log_scanner import (
    Walk,
    count_valid,
    impossible_place,
    scan,
    unusable_topic,
    wrong_log_offset,
)

FEW = 24

_NEVER = 2**63 - 1
_SECTOR = bytes(512)
_ENTRY = Struct(">qiq")
_OFFSETS = Struct(">qq")  # queue offset, log offset
_QUEUE_OFFSET = 20  # the position of `_OFFSETS` in a record
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_END = PROPERTY_END.encode()
_TAGS = (PROPERTY_TAGS + NAME_END).encode()
_NAMES = re.compile(rb"(?:^|\x02)([^\x01\x02]+)\x01[^\x02]")  # the names of properties that have a value


class Fields(NamedTuple):
    """The fields of one record, or columns with the fields of many.

    A check that uses only arithmetic and comparisons works for single values and for columns alike.
    """

    size: Any  # the whole record, in bytes
    body_size: Any
    properties_size: Any
    sys_flag: Any


class Batch(ABC):
    """Records that lie back to back in one buffer, in log order.  A RecordError names a position in the buffer."""

    size: int  # bytes

    @staticmethod
    def of_frame(data: bytearray | memoryview, count: int) -> "Batch":
        """Makes a batch of the records that fill `data`.  `stamp` will write into `data`.

        Raises RecordError unless `data` has exactly `count` records, all lengths are consistent, and each body matches
        its checksum.
        """
        if _is_few(count):
            try:
                return _OneByOne.of_frame(data, count)
            except RecordError:
                pass  # `_Columns` finds the error again and raises it.
        return _Columns.of_frame(data, count)

    @staticmethod
    def of_checked(data: bytearray | memoryview, places: Any, queue_ids: list[int]) -> "Batch":
        """Makes a batch of the records that the compiled `check` has found and checked in a frame."""
        batch = _Columns(Records.at(as_bytes(data), places), len(data))
        batch.queue_ids = sorted(queue_ids)
        return batch

    @staticmethod
    def of_records(records: Sequence[Record]) -> "Batch":
        """Encodes these records.  Raises RecordError if a field of a record cannot be encoded."""
        return Batch.of_frame(bytearray(b"".join(map(encode, records))), len(records))

    @staticmethod
    def of_log(data: memoryview, offset: int) -> tuple["Batch", str, Walk]:
        """Makes a batch of the records at the start of `data`, which are the bytes of a log from `offset` on.

        The batch ends before the first record that is damaged or has another log offset.  The second returned value
        describes what is wrong with the record at which the batch ends; it is "" if all records are valid.  The third
        one has the sizes of all whole records, valid or not, and says what lies behind them.
        """
        records, walked = scan(data, offset, crc=True, strict_from=_NEVER)
        if records is not None:
            return _Columns(records, walked.end), "", walked
        if _is_few(len(walked.sizes)):
            return *_OneByOne.of_walk(data, walked.sizes, offset), walked
        return *_Columns.of_walk(data, walked.sizes, offset), walked

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def part(self, first: int, last: int) -> "Batch":
        """Returns records `first` to `last` (exclusive) as a batch over the same buffer."""

    @property
    @abstractmethod
    def sizes(self) -> list[int] | npt.NDArray[np.int64]:
        """The size of each record in bytes."""

    @property
    @abstractmethod
    def queue_ids(self) -> list[int]:
        """The different queue ids, sorted."""

    @property
    @abstractmethod
    def columns(self) -> Records: ...

    @property
    @abstractmethod
    def last_store_timestamp(self) -> int: ...

    @abstractmethod
    def view_bytes(self) -> memoryview:
        """The records as they lie in the buffer."""

    # --- checks -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_topic(self, topic: str) -> None:
        """Raises RecordError unless all records carry exactly this topic."""

    @abstractmethod
    def fields(self) -> list[tuple[int, Fields]]:
        """Returns (number, fields) for each record; `_Columns` returns (0, columns of all records) only."""

    @abstractmethod
    def lost_sector(self) -> int | None:
        """Returns the number of a record whose properties contain a sector of zeros or end with a zero byte; None if no
        record has such properties.

        Properties have no checksum, so recovery would take zeros in them for a sector that never reached the disk.
        """

    @abstractmethod
    def properties_among(self, names: frozenset[bytes]) -> frozenset[bytes]:
        """Returns those of `names` that are a property of at least one record."""

    # --- what the broker adds -----------------------------------------------------------------------------------------

    @abstractmethod
    def stamp(self, offset: int, next_offsets: dict[int, int], now_ms: int, store_host: bytes) -> None:
        """Writes the broker's fields into the records: log offset, queue offset, store time and store host.

        Log offsets are consecutive from `offset` on.  Queue offsets come from `next_offsets` (queue id to next offset),
        which is updated.  `store_host` is 8 bytes (IPv4) or 20 bytes (IPv6).  If a record's host field has another
        length than `store_host`, the call raises RecordError and writes nothing.
        """

    @abstractmethod
    def queue_extents(self, delay_levels_ms: Sequence[int]) -> list[QueueExtent]:
        """Makes the queue entries of these records, which must be stamped already."""


class _OneByOne(Batch):
    def __init__(self, data: memoryview, records: list[Parts]) -> None:
        self._data = data
        self._records = records
        self._properties = [bytes(data[parts.properties_start : parts.end]) for parts in records]
        self.size = records[-1].end - records[0].start if records else 0

    @classmethod
    def of_frame(cls, data: bytearray | memoryview, count: int) -> "_OneByOne":
        view, found, at = memoryview(data), [], 0
        while at < len(data):
            found.append(_checked(view, at))
            at += found[-1].size
        if len(found) != count:
            raise RecordError(0, f"{len(found)} records, {count} announced")
        return cls(view, found)

    @classmethod
    def of_walk(cls, data: memoryview, sizes: npt.NDArray[np.int64], offset: int) -> tuple["_OneByOne", str]:
        found, reason, at = [], "", 0
        for _ in range(len(sizes)):
            try:
                parts = _checked(data, at)
            except RecordError as error:
                reason = error.reason
                break
            if parts.commit_log_offset != offset + at:
                reason = wrong_log_offset(parts.commit_log_offset)
                break
            if min(parts.queue_id, parts.queue_offset) < 0:
                reason = impossible_place(parts.queue_id, parts.queue_offset)
                break
            try:
                topic = bytes(data[parts.topic_start : parts.topic_end]).decode()
            except UnicodeDecodeError:
                reason = "a topic that is not UTF-8"
                break
            if not can_name_a_queue(topic):
                reason = unusable_topic(topic)
                break
            found.append(parts)
            at += parts.size
        return cls(data, found), reason

    def __len__(self) -> int:
        return len(self._records)

    def part(self, first: int, last: int) -> "_OneByOne":
        return self if last - first == len(self._records) else _OneByOne(self._data, self._records[first:last])

    @property
    def sizes(self) -> list[int]:
        return [parts.size for parts in self._records]

    @property
    def queue_ids(self) -> list[int]:
        if len(self._records) == 1:
            return [self._records[0].queue_id]
        return sorted({parts.queue_id for parts in self._records})

    @property
    def columns(self) -> Records:
        starts = np.array([parts.start for parts in self._records], np.int64)
        return Records(as_bytes(self._data), starts, np.array(self.sizes, np.int64))

    @property
    def last_store_timestamp(self) -> int:
        return self._store_timestamp(self._records[-1])

    def view_bytes(self) -> memoryview:
        return self._data[self._records[0].start : self._records[-1].end]

    def check_topic(self, topic: str) -> None:
        name = topic.encode()
        for parts in self._records:
            if self._data[parts.topic_start : parts.topic_end] != name:
                self.columns.check_topic(topic)

    def fields(self) -> list[tuple[int, Fields]]:
        return [
            (number, Fields(one.size, one.body_end - one.body_start, one.end - one.properties_start, one.sys_flag))
            for number, one in enumerate(self._records)
        ]

    def lost_sector(self) -> int | None:
        for number, properties in enumerate(self._properties):
            if _is_lost(properties):
                return number
        return None

    def properties_among(self, names: frozenset[bytes]) -> frozenset[bytes]:
        together = b"".join(self._properties)
        if not any(name in together for name in names):  # the usual case: no record has such a property
            return frozenset()
        return names.intersection(chain.from_iterable(map(_NAMES.findall, self._properties)))

    def _store_timestamp(self, parts: Parts) -> int:
        return int.from_bytes(self._data[parts.born_end : parts.born_end + 8], "big", signed=True)

    def stamp(self, offset: int, next_offsets: dict[int, int], now_ms: int, store_host: bytes) -> None:
        stored = now_ms.to_bytes(8, "big") + store_host
        for parts in self._records:
            if parts.store_end - parts.born_end != len(stored):
                room = parts.store_end - parts.born_end - 8
                raise RecordError(parts.start, f"{room} bytes for a store host of {len(store_host)}")
        stamped = []
        for parts in self._records:
            queue_offset = 0
            if is_queued(parts.sys_flag):
                queue_offset = next_offsets[parts.queue_id]
                next_offsets[parts.queue_id] = queue_offset + 1
            _OFFSETS.pack_into(self._data, parts.start + _QUEUE_OFFSET, queue_offset, offset)
            self._data[parts.born_end : parts.store_end] = stored
            # `Parts._replace` would take twice as long
            stamped.append(Parts(*parts[:5], queue_offset, offset, *parts[7:]))
            offset += parts.size
        self._records = stamped

    def queue_extents(self, delay_levels_ms: Sequence[int]) -> list[QueueExtent]:
        found: list[tuple[str, int, int, bytearray]] = []  # topic, queue, first offset, entries
        last: dict[tuple[bytes, int], tuple[int, bytearray]] = {}  # queue -> (next offset, its newest extent's entries)
        for parts, properties in zip(self._records, self._properties, strict=True):
            if not is_queued(parts.sys_flag):
                continue
            topic = bytes(self._data[parts.topic_start : parts.topic_end])
            expected, entries = last.get((topic, parts.queue_id), (-1, bytearray()))
            if expected != parts.queue_offset:
                entries = bytearray()
                found.append((topic.decode(), parts.queue_id, parts.queue_offset, entries))
            code = tags_code(_tags(properties))
            if topic == _SCHEDULE_TOPIC:
                code = self._delivery_time(parts, properties, code, delay_levels_ms)
            entries += _ENTRY.pack(parts.commit_log_offset, parts.size, code)
            last[topic, parts.queue_id] = parts.queue_offset + 1, entries
        return [
            QueueExtent(topic, queue_id, first, np.frombuffer(entries, ENTRY))
            for topic, queue_id, first, entries in found
        ]

    def _delivery_time(self, parts: Parts, properties: bytes, otherwise: int, delay_levels_ms: Sequence[int]) -> int:
        level = level_of(decode_properties(properties).get(PROPERTY_DELAY, ""))
        stored = self._store_timestamp(parts)
        return int(delivery_times(np.array([level]), np.array([stored]), np.array([otherwise]), delay_levels_ms)[0])


class _Columns(Batch):
    def __init__(self, records: Records, size: int) -> None:
        self._records = records
        self.size = size

    @classmethod
    def of_frame(cls, data: bytearray | memoryview, count: int) -> "_Columns":
        if kernels.compiled is not None and (found := kernels.compiled.walk(data, None, count, True)) is not None:
            return cls(Records.at(as_bytes(data), found), len(data))
        records = Records.walk(data, count)
        records.check()
        return cls(records, len(data))

    @classmethod
    def of_walk(cls, data: memoryview, sizes: npt.NDArray[np.int64], offset: int) -> tuple["_Columns", str]:
        size = int(sizes.sum())
        records = Records.walk(data[:size], sizes=sizes)
        good, reason = count_valid(records, offset, crc=True, strict_from=_NEVER)
        return cls(records, size).part(0, good), reason

    def __len__(self) -> int:
        return len(self._records)

    def part(self, first: int, last: int) -> "_Columns":
        if last - first == len(self._records):
            return self
        records = self._records[first:last]
        return _Columns(records, int(records.sizes.sum()))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return self._records.sizes

    @cached_property
    def queue_ids(self) -> list[int]:
        ids = self._records.queue_id
        return sorted(set(ids[np.append(ids[:-1] != ids[1:], True)].tolist()))

    @property
    def columns(self) -> Records:
        return self._records

    @property
    def last_store_timestamp(self) -> int:
        return int(self._records[-1:].store_timestamp[0])

    def view_bytes(self) -> memoryview:
        start = int(self._records.starts[0])
        return self._records.data.data[start : start + self.size]

    def check_topic(self, topic: str) -> None:
        self._records.check_topic(topic)

    def fields(self) -> list[tuple[int, Fields]]:
        records = self._records
        return [(0, Fields(records.sizes, records.body_size, records.properties_size, records.sys_flag))]

    def lost_sector(self) -> int | None:
        records = self._records
        ends = records.properties_start + records.properties_size - 1
        suspicious = (records.properties_size > 0) & (records.data[ends] == 0)
        suspicious |= records.properties_size >= len(_SECTOR)
        for row in np.flatnonzero(suspicious).tolist():
            start = int(records.properties_start[row])
            if _is_lost(records.data[start : start + int(records.properties_size[row])].tobytes()):
                return row
        return None

    def properties_among(self, names: frozenset[bytes]) -> frozenset[bytes]:
        return names & self._records.property_names()

    def stamp(self, offset: int, next_offsets: dict[int, int], now_ms: int, store_host: bytes) -> None:
        records = self._records
        if kernels.compiled is not None and kernels.compiled.stamp(
            records.data, np.ascontiguousarray(records.starts), offset, next_offsets, now_ms, store_host
        ):
            records.forget_stamp()
            return
        offsets = records.starts + (offset - int(records.starts[0]))
        taken = queue_offsets(records.queue_id, is_queued(records.sys_flag), next_offsets)
        records.stamp(taken, offsets, now_ms, store_host)

    def queue_extents(self, delay_levels_ms: Sequence[int]) -> list[QueueExtent]:
        return queue_extents(self._records, delay_levels_ms)


def _is_few(count: int) -> bool:
    return kernels.compiled is None and count <= FEW


def _checked(data: memoryview, at: int) -> Parts:
    """Locates the record at `at`; raises RecordError unless its lengths are consistent and its checksum matches."""
    parts = locate(data, at)
    if body_crc(data[parts.body_start : parts.body_end]) != parts.body_crc:
        decode(data, at)  # raises the error
    return parts


def _is_lost(properties: bytes) -> bool:
    return properties.endswith(b"\0") or _SECTOR in properties


def _tags(properties: bytes) -> str:
    """Returns the value of TAGS as `decode_properties` would, without decoding the other properties."""
    if _TAGS not in properties:
        return ""
    tags = b""
    for one in properties.split(_END):
        if one.startswith(_TAGS):
            tags = one[len(_TAGS) :] or tags
    return tags.decode("utf-8", "replace")
