"""Scans log bytes for valid records.

A record tells only its own size, so records must be found one after the other.  Compiled code finds and checks them in
one pass, if there is any.  Python code does the same more slowly, and says what is wrong with a record.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from rocketsim_proto.records import kernels
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_SIZE,
    RecordError,
)
from rocketsim_proto.records.slices import as_bytes

from broker_service.store.commit_log import CommitLog
from broker_service.store.dispatch import can_name_a_queue

_SIZE_AND_MAGIC = struct.Struct(">II")
_CHUNK = 8 << 20
_SECTOR = 512


class Stop(Enum):
    END = "the data ends"  # after a whole record, or within the next one
    BLANK = "a blank record"
    NO_RECORD = "no record"


@dataclass(frozen=True, slots=True)
class Walk:
    """The whole records that a walk found.  The records end at `end`, where the walk stopped.

    If a record or blank begins at `end`, `next_size` is its size.
    """

    sizes: npt.NDArray[np.int64]
    end: int
    stop: Stop
    next_size: int


def walk(data: Any, at: int = 0) -> Walk:
    """Finds the records that lie in `data` from position `at` on, one behind the other.

    Only sizes and magic numbers are checked.
    """
    view, limit = memoryview(data), len(data)
    sizes: list[int] = []
    unpack = _SIZE_AND_MAGIC.unpack_from
    while True:
        if at + _SIZE_AND_MAGIC.size > limit:
            stop, size = Stop.END, 0
            break
        size, magic = unpack(view, at)
        if magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_V2:
            stop = Stop.BLANK if magic == BLANK_MAGIC and size >= BLANK_SIZE else Stop.NO_RECORD
            break
        if size < MIN_SIZE:
            stop = Stop.NO_RECORD
            break
        if at + size > limit:
            stop = Stop.END
            break
        sizes.append(size)
        at += size
    return Walk(np.array(sizes, np.int64), at, stop, size)


def scan(data: Any, offset: int, *, crc: bool, strict_from: int) -> tuple[Records | None, Walk]:
    """Walks through `data` from the start on.  The first record lies at log offset `offset`.

    Returns the result of `walk`, and the same records as Records if compiled code has found all of them valid by the
    rules of `count_valid`.  If there is no compiled code, or it does not accept one of the records, None is returned
    instead, and the caller must check the records.
    """
    if kernels.compiled is None:
        return None, walk(data)
    found, end = kernels.compiled.scan(data, offset, crc, strict_from)
    rest = walk(data, end)
    walked = replace(rest, sizes=np.append(found[1], rest.sizes))
    return None if len(rest.sizes) else Records.at(as_bytes(data), found), walked


def count_valid(records: Records, offset: int, *, crc: bool, strict_from: int) -> tuple[int, str]:
    """Counts the valid records from the start on.  The first record lies at log offset `offset`.

    Returns the count, and what is wrong with the next record ("" if all are valid).  A record is valid if its lengths
    are consistent, its log offset is right, its queue id, queue offset and topic are possible, and, with `crc`, its
    body matches its checksum.  Since topic and properties have no checksum, a sector of zeros in them counts as damage
    from log offset `strict_from` on.
    """
    if not len(records):
        return 0, ""
    shift = offset - int(records.starts[0])
    good, reason = len(records), ""
    while good:
        try:
            records.check(crc=crc)
            break
        except RecordError as error:
            # Check the records before the invalid one again, because `check` compares checksums only if all lengths are
            # right.
            good, reason = int(np.searchsorted(records.starts, error.at)), error.reason
            records = records[:good]
    misplaced = records.commit_log_offset != records.starts + shift
    if misplaced.any():
        good = int(misplaced.argmax())
        reason = wrong_log_offset(int(records.commit_log_offset[good]))
        records = records[:good]
    unplaced = (records.queue_id < 0) | (records.queue_offset < 0)
    if unplaced.any():
        good = int(unplaced.argmax())
        reason = impossible_place(int(records.queue_id[good]), int(records.queue_offset[good]))
        records = records[:good]
    try:
        topics, codes = records.topic_codes()
    except RecordError as error:
        good, reason = int(np.searchsorted(records.starts, error.at)), error.reason
        records = records[:good]
        topics, codes = records.topic_codes()
    nameless = [number for number, topic in enumerate(topics) if not can_name_a_queue(topic)]
    if nameless:
        good = int(np.isin(codes, nameless).argmax())
        reason = unusable_topic(topics[int(codes[good])])
    for row in range(int(np.searchsorted(records.starts, strict_from - shift)), good):
        if _lost_sector(records, row, shift):
            return row, "zeros in its topic or properties"
    return good, reason


def wrong_log_offset(commit_log_offset: int) -> str:
    """Describes a record whose log offset is not the one at which it lies."""
    return f"the record there has log offset {commit_log_offset}"


def impossible_place(queue_id: int, queue_offset: int) -> str:
    """Describes a record whose queue id or queue offset is impossible."""
    return f"a record at offset {queue_offset} of queue {queue_id}"


def unusable_topic(topic: str) -> str:
    return f"a record of topic {topic[:40]!r}, which no folder can be named after"


def _lost_sector(records: Records, row: int, shift: int) -> bool:
    """Returns True if a sector of the record's topic and properties is all zeros and so never reached the disk."""
    begin, size = int(records.topic_start[row]), int(records.topic_size[row])
    end = int(records.starts[row] + records.sizes[row]) if records.properties_size[row] else begin + size
    if records.data[end - 1] == 0:
        return True
    while begin < end:
        stop = min(end, begin + _SECTOR - (begin + shift) % _SECTOR)
        if not records.data[begin:stop].any():
            return True
        begin = stop
    return False


class LogScan:
    """Reads the log in chunks, from the start of a record on, and yields its valid records.

    After the scan, `end_offset` is where the scan ended, and `reason` is why.  The scan reads the files as they are and
    ignores the log's `end_offset`.  Checksums are verified from log offset `check_from` on.
    """

    def __init__(
        self, log: CommitLog, offset: int, *, check_from: int, strict_from: int, stop_at: int | None = None
    ) -> None:
        self._log = log
        self._check_from = check_from
        self._strict_from = strict_from
        self._stop_at = stop_at
        self.end_offset = offset
        self.reason = ""

    def from_the_beginning(self) -> "LogScan":
        """Makes a scan from the log's start to where this scan ended, which does not verify checksums again."""
        end = self.end_offset
        return LogScan(self._log, self._log.min_offset, check_from=end, strict_from=end, stop_at=end)

    def __iter__(self) -> Iterator[tuple[int, Records]]:
        log, limit = self._log, self._stop_at if self._stop_at is not None else self._log.file_end
        while not self.reason and self.end_offset < limit:
            offset, start = self.end_offset, log.start_of(self.end_offset)
            room = min(start + log.file_size, limit) - offset
            data = log.peek(offset, min(_CHUNK, room))
            records, walked = self._scan(data, offset)
            if not len(walked.sizes) and walked.stop is Stop.END and len(data) < walked.next_size <= room:
                data = log.peek(offset, walked.next_size)  # the record is larger than a chunk
                records, walked = self._scan(data, offset)
            if len(walked.sizes):
                if len(records):
                    self.end_offset += int(records.sizes.sum())
                    yield offset, records
            elif walked.stop is Stop.BLANK and offset + walked.next_size == start + log.file_size:
                self.end_offset = start + log.file_size
            elif walked.stop is Stop.NO_RECORD and not any(data[: _SIZE_AND_MAGIC.size]):
                self.reason = "the log ends"
            elif walked.stop is Stop.END and self._stop_at is not None:
                break
            else:
                self.reason = f"{walked.stop.value} of size {walked.next_size}"
        if not self.reason:
            self.reason = "the log ends"

    def _scan(self, data: bytes, offset: int) -> tuple[Records, Walk]:
        """Returns the valid records at the start of `data`, and all whole ones.  Sets `reason` if one is not valid."""
        crc = offset + len(data) > self._check_from
        records, walked = scan(data, offset, crc=crc, strict_from=self._strict_from)
        if records is None:
            records = Records.walk(memoryview(data)[: walked.end], sizes=walked.sizes)
            good, self.reason = count_valid(records, offset, crc=crc, strict_from=self._strict_from)
            records = records if good == len(records) else records[:good]  # a slice would lose cached columns
        return records, walked
