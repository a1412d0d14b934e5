"""Reads the commit log without a broker.

A damaged part is reported and skipped up to the next valid record.  A record is valid if its magic number, lengths and
checksum are right and its log offset is the one where it lies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import BLANK, BLANK_MAGIC, BLANK_SIZE, MIN_SIZE, Record, RecordError

from broker_service.store.log_scanner import Stop, scan
from broker_service.store.offline.file import OfflineFile, numbered_files

_CHUNK = 8 << 20
_MAGICS = [magic.to_bytes(4, "big") for magic in (record.MESSAGE_MAGIC, record.MESSAGE_MAGIC_V2, BLANK_MAGIC)]


@dataclass(frozen=True, slots=True)
class Whole:
    """Valid records, back to back, from log offset `offset` on."""

    offset: int
    records: Records


@dataclass(frozen=True, slots=True)
class Blank:
    """The rest of a file that was too small for the next record."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Damaged:
    """Bytes that are no valid record, between valid records or at the end of a file that is not the last."""

    path: Path
    offset: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of the log, behind the last valid record.  `reason` describes what follows; "" if only zeros follow."""

    path: Path
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Misfit:
    """The end of a file that does not fit to the other files: a file is missing behind it, cut short, or too long.

    `offset` is the log offset at which the file ends, or should end, and `size` is the number of bytes that are missing
    there.
    """

    path: Path
    offset: int
    size: int
    reason: str


LogPart = Whole | Blank | Damaged | Tail | Misfit


def log_parts(directory: Path) -> Iterator[LogPart]:
    """Yields all parts of `commitlog/` in physical order.  If there is a file, the last part is a Tail, which a Misfit
    may follow.
    """
    files = numbered_files(directory / "commitlog")
    sizes = [path.stat().st_size for path in files]
    for number, path in enumerate(files):
        yield from _file_parts(path, is_last=number == len(files) - 1)
        if number < len(files) - 1:
            yield from _between(path, sizes[number], files[number + 1])
    if files:
        yield from _at_the_end(files[-1], sizes)


def _between(path: Path, size: int, following: Path) -> Iterator[Misfit]:
    start, expected = int(path.name), int(following.name) - int(path.name)
    if size < expected:
        reason = f"{size} bytes, and the next file starts {expected} bytes later: a file is missing or cut short"
        yield Misfit(path, start + size, expected - size, reason)
    elif size > expected:
        yield Misfit(path, start + expected, 0, f"runs into {following.name}")


def _at_the_end(path: Path, sizes: list[int]) -> Iterator[Misfit]:
    """Yields the last file if its size is not that of the others, or if it is the only file and empty.  A log file gets
    its size before its first record.
    """
    size, first = sizes[-1], sizes[0]
    if size != first:
        reason = f"{size} bytes, but the files before it have {first}"
        yield Misfit(path, int(path.name) + size, max(0, first - size), reason)
    elif not size:
        yield Misfit(path, int(path.name), 0, "0 bytes: its records are lost, or it never had any")


def _file_parts(path: Path, *, is_last: bool) -> Iterator[LogPart]:
    file, start, at = OfflineFile(path), int(path.name), 0
    while at < file.size:
        reason = ""
        data = file.read(at, _CHUNK)
        if not data:
            yield Damaged(path, start + at, file.size - at, "the file was cut short while it was read")
            at = file.size
            break
        records, walked = scan(data, start + at, crc=True, strict_from=0)
        if not len(walked.sizes) and walked.stop is Stop.END and len(data) < walked.next_size <= file.size - at:
            data = file.read(at, walked.next_size)  # the record is larger than a chunk
            records, walked = scan(data, start + at, crc=True, strict_from=0)
        if len(walked.sizes):
            if records is None:
                records = Records.walk(memoryview(data)[: walked.end], sizes=walked.sizes)
                good, reason = _count_valid(records, start + at)
                records = records[:good]
            if len(records):
                yield Whole(start + at, records)
                at += int(records.sizes.sum())
            if not reason:
                continue
        elif walked.stop is Stop.BLANK and at + walked.next_size == file.size:
            yield Blank(start + at, walked.next_size)
            at = file.size
            continue
        reason = reason or _reason(file, at)
        end = _next_sound(file, at + 1)
        if end == file.size and is_last:
            yield Tail(path, start + at, "" if file.is_zero(at) else reason)
            return
        yield Damaged(path, start + at, end - at, reason)
        at = end
    if is_last:
        yield Tail(path, start + at, "")


def _count_valid(records: Records, offset: int) -> tuple[int, str]:
    """Counts the valid records from the start on, and describes what is wrong with the next one.

    `offset` is the log offset of the first record.
    """
    good, reason = len(records), ""
    try:
        records.check()
        records.topics()
    except RecordError as error:
        good, reason = int(np.searchsorted(records.starts, error.at)), error.reason
        records = records[:good]
    if not good:
        return good, reason
    elsewhere = records.commit_log_offset != records.starts + (offset - records.starts[0])
    if elsewhere.any():
        good = int(elsewhere.argmax())
        reason = f"the record there has log offset {records.commit_log_offset[good]}"
    # No checksum covers the properties.  Properties never end with a zero, so a zero there shows that a page was lost.
    lost = (records.properties_size[:good] > 0) & (records.data[(records.starts + records.sizes)[:good] - 1] == 0)
    if lost.any():
        good, reason = int(lost.argmax()), "zeros in its properties"
    return good, reason


def _reason(file: OfflineFile, at: int) -> str:
    if file.is_zero(at):
        return "zeros up to the end of the file"
    try:
        _decode(file, at)
    except RecordError as error:
        return error.reason
    return "no sound record"


def _decode(file: OfflineFile, at: int) -> Record:
    """Decodes the record at this position; raises ValueError if there is none."""
    head, left = file.read(at, BLANK_SIZE), file.size - at
    size = int.from_bytes(head[:4], "big") if head[4:] in _MAGICS else MIN_SIZE
    if not MIN_SIZE <= size <= left:
        raise RecordError(at, f"size {size}, {left} bytes left")
    return record.decode(file.read(at, size))


def _next_sound(file: OfflineFile, at: int) -> int:
    """Returns the position of the next record or closing blank from `at` on; the end of the file if there is none."""
    return next((where - 4 for where in file.find(_MAGICS, at + 4) if _is_sound(file, where - 4)), file.size)


def _is_sound(file: OfflineFile, at: int) -> bool:
    size, magic = BLANK.unpack(file.read(at, BLANK_SIZE))
    if magic == BLANK_MAGIC:
        return bool(at + size == file.size)
    try:
        return _decode(file, at).commit_log_offset == int(file.path.name) + at
    except ValueError:
        return False
