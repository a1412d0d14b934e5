"""A store directory as it lies on disk, read without a broker: log pieces, queue files, offsets.

Takes no lock, writes nothing, trusts nothing: what is damaged is skipped up to the next sound record, and reported.  A
sound record has its magic, every length and its checksum in order, and says that it lies where it does.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rocketsim_proto import record
from rocketsim_proto.columnar import Records
from rocketsim_proto.record import BLANK, BLANK_MAGIC, BLANK_SIZE, RecordError

from broker_service.store.chain import Stop, walk
from broker_service.store.committed import committed
from broker_service.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE, Entries
from broker_service.store.json_file import loads
from broker_service.store.offset_journal import read_journal

_CHUNK = 8 << 20
_MAGICS = [magic.to_bytes(4, "big") for magic in (record.MESSAGE_MAGIC, record.MESSAGE_MAGIC_V2, BLANK_MAGIC)]


@dataclass(frozen=True, slots=True)
class Whole:
    """Sound records, back to back, the first of them at `offset` of the log."""

    offset: int
    records: Records


@dataclass(frozen=True, slots=True)
class Blank:
    """The rest of a file that was too small for the next record."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Damaged:
    """Bytes of the log that are no record, between sound ones or before the end of a file that is not the last."""

    path: Path
    offset: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Behind the last sound record of the log: the end.  `reason` says what is there if it is not zeros."""

    path: Path
    offset: int
    reason: str


Piece = Whole | Blank | Damaged | Tail


def map_file(path: Path) -> Any:
    """The file's bytes, read-only; they are not all read."""
    with path.open("rb") as file:
        size = path.stat().st_size
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def numbered_files(directory: Path) -> list[Path]:
    """The files named by the position they start at, in order."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.isdigit() and len(path.name) == 20)


# --- the log ------------------------------------------------------------------------------------------------------


def log_pieces(directory: Path) -> Iterator[Piece]:
    """Everything in `commitlog/`, in physical order; a Tail comes last, unless there is no file."""
    files = numbered_files(directory / "commitlog")
    for number, path in enumerate(files):
        yield from _file_pieces(path, is_last=number == len(files) - 1)


def _file_pieces(path: Path, *, is_last: bool) -> Iterator[Piece]:
    data, start, at = map_file(path), int(path.name), 0
    while at < len(data):
        reason = ""
        chain = walk(data, at, min(at + _CHUNK, len(data)))
        if not len(chain.sizes) and chain.stop is Stop.END and at + max(chain.next_size, BLANK_SIZE) <= len(data):
            chain = walk(data, at, at + max(chain.next_size, BLANK_SIZE))  # a record larger than a chunk
        if len(chain.sizes):
            records = Records.walk(np.frombuffer(data, np.uint8)[at : chain.end], sizes=chain.sizes)
            good, reason = _sound(records, start + at)
            if good:
                yield Whole(start + at, records[:good])
                at += int(records.sizes[:good].sum())
            if not reason:
                continue
        elif chain.stop is Stop.BLANK and at + chain.next_size == len(data):
            yield Blank(start + at, chain.next_size)
            at = len(data)
            continue
        reason = reason or _reason(data, at)
        end = _next_sound(data, start, at + 1)
        if end == len(data) and is_last:
            yield Tail(path, start + at, "" if _is_zero(data, at) else reason)
            return
        yield Damaged(path, start + at, end - at, reason)
        at = end
    if is_last:
        yield Tail(path, start + at, "")


def _sound(records: Records, offset: int) -> tuple[int, str]:
    """How many of these records, which lie at `offset` of the log, are sound; and what is wrong with the next one."""
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
        reason = f"a record that says it lies at {records.commit_log_offset[good]}"
    # No checksum covers the properties; the zeros of a page that was lost can be seen at their end.
    lost = (records.properties_size[:good] > 0) & (records.data[(records.starts + records.sizes)[:good] - 1] == 0)
    if lost.any():
        good, reason = int(lost.argmax()), "zeros in its properties"
    return good, reason


def _reason(data: Any, at: int) -> str:
    if _is_zero(data, at):
        return "zeros up to the end of the file"
    try:
        record.decode(data, at)
    except RecordError as error:
        return error.reason
    except UnicodeDecodeError:
        return "a topic that is not UTF-8"
    return "no sound record"


def _is_zero(data: Any, at: int) -> bool:
    rest = np.frombuffer(data, np.uint8)[at:]
    return not any(rest[begin : begin + _CHUNK].any() for begin in range(0, len(rest), _CHUNK))


def _next_sound(data: Any, start: int, at: int) -> int:
    """The position of the next record or closing blank at or behind `at`; the end of the file if there is none."""
    found = [_next_with_magic(data, start, at, magic) for magic in _MAGICS]
    return min(found)


def _next_with_magic(data: Any, start: int, at: int, magic: bytes) -> int:
    where = data.find(magic, at + 4)
    while where >= 0:
        if _is_sound(data, start, where - 4):
            return int(where) - 4
        where = data.find(magic, where + 1)
    return len(data)


def _is_sound(data: Any, start: int, at: int) -> bool:
    if at + BLANK_SIZE <= len(data):
        size, magic = BLANK.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            return bool(at + size == len(data))
    try:
        return record.decode(data, at).commit_log_offset == start + at
    except ValueError:
        return False


# --- the queues ---------------------------------------------------------------------------------------------------


class OfflineQueue:
    """A consume queue's files.

    `min_offset` is where the first record at or behind the log's minimum is, `max_offset` behind the last entry that
    makes sense; where nothing of the queue is left in the log, they are equal.
    """

    def __init__(self, directory: Path, log_min: int) -> None:
        self.directory = directory
        self.topic = directory.parent.name
        self.queue_id = int(directory.name)
        self.files = numbered_files(directory)
        maps = [np.frombuffer(map_file(path), np.uint8) for path in self.files]
        self.file_size = len(maps[0]) if maps else 0
        self.first_offset = int(self.files[0].name) // ENTRY_SIZE if self.files else 0
        self._parts = list(self._in_a_row(maps))
        self.max_offset = self._end()
        self.min_offset = self._first_from(log_min)

    def _in_a_row(self, maps: list[npt.NDArray[np.uint8]]) -> Iterator[Entries]:
        """The entries of each file, up to the first gap between files or file of another size."""
        for number, (path, data) in enumerate(zip(self.files, maps, strict=True)):
            start = self.first_offset * ENTRY_SIZE + number * self.file_size
            if int(path.name) != start or len(data) != self.file_size:
                return
            yield data[: len(data) // ENTRY_SIZE * ENTRY_SIZE].view(ENTRY)

    def _end(self) -> int:
        end = self.first_offset
        for entries in self._parts:
            useless = (entries["size"] <= 0) | (entries["commit_log_offset"] < 0)
            if useless.any():
                return end + int(useless.argmax())
            end += len(entries)
        return end

    def _first_from(self, log_min: int) -> int:
        begin = self.first_offset
        for entries in self._parts:
            real = (entries["size"] != FILLER_SIZE) & (entries["commit_log_offset"] >= log_min)
            if real[: self.max_offset - begin].any():
                return begin + int(real.argmax())
            begin += len(entries)
        return self.max_offset

    def read(self, begin: int, end: int) -> Entries:
        """A copy of the entries from one queue offset to another."""
        found, at = [np.empty(0, np.uint8)], self.first_offset
        for entries in self._parts:
            found.append(entries[max(begin - at, 0) : max(end - at, 0)].view(np.uint8))
            at += len(entries)
        return np.concatenate(found).view(ENTRY)

    def rest(self) -> int | None:
        """The queue offset of the first bytes behind the end that are not zero."""
        at = self.first_offset
        for entries in self._parts:
            behind = entries[max(self.max_offset - at, 0) :].view(np.uint8)
            if behind.any():
                return max(self.max_offset, at) + int((behind != 0).argmax()) // ENTRY_SIZE
            at += len(entries)
        return None

    def place(self, queue_offset: int) -> tuple[Path, int]:
        """The file and position of an entry; of the directory's start, if there is no such file."""
        at = queue_offset * ENTRY_SIZE
        for path in self.files:
            if int(path.name) <= at < int(path.name) + self.file_size:
                return path, at - int(path.name)
        return self.directory, 0


def queues(directory: Path, log_min: int) -> Iterator[OfflineQueue]:
    """By topic and queue id."""
    found = [path for path in (directory / "consumequeue").glob("*/*") if path.name.isdigit() and path.is_dir()]
    for path in sorted(found, key=lambda path: (path.parent.name, int(path.name))):
        yield OfflineQueue(path, log_min)


# --- consumer offsets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    group: str
    topic: str
    queue_id: int
    offset: int


def committed_offsets(directory: Path) -> list[CommittedOffset]:
    """What is committed, by group, topic and queue: `config/consumerOffset.json`, and after a SIGKILL what the
    journal has on top of it.  ValueError if a file is damaged."""
    try:
        offset_table = _read_json(directory / "config" / "consumerOffset.json").get("offsetTable", {})
        generations = _read_json(directory / "rocketsim" / "offset_generations.json").get("generations", {})
        table = committed(offset_table, generations, read_journal(directory / "rocketsim" / "offsets.journal"))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no table of offsets: {error}") from error
    return [
        CommittedOffset(group, topic, queue_id, entry.offset)
        for (group, topic), queues in sorted(table.items())
        for queue_id, entry in sorted(queues.items())
        if entry.offset >= 0
    ]


def _read_json(path: Path) -> dict[str, Any]:
    content = loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content
