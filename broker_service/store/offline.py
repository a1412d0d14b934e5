"""A store directory as it lies on disk, read without a broker: log pieces, queue files, offsets.

Takes no lock, writes nothing, trusts nothing: what is damaged is skipped up to the next sound record, and reported.  A
sound record has its magic, every length and its checksum in order, and says that it lies where it does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import BLANK, BLANK_MAGIC, BLANK_SIZE, MIN_SIZE, Record, RecordError

from broker_service.store.chain import Stop, walk
from broker_service.store.committed import committed
from broker_service.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE, Entries
from broker_service.store.json_file import loads
from broker_service.store.offline_file import OfflineFile
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
    file, start, at = OfflineFile(path), int(path.name), 0
    while at < file.size:
        reason = ""
        data = file.read(at, _CHUNK)
        chain = walk(data, 0, len(data))
        if not len(chain.sizes) and chain.stop is Stop.END and len(data) < chain.next_size <= file.size - at:
            data = file.read(at, chain.next_size)  # a record larger than a chunk
            chain = walk(data, 0, len(data))
        if len(chain.sizes):
            records = Records.walk(np.frombuffer(data, np.uint8)[: chain.end], sizes=chain.sizes)
            good, reason = _sound(records, start + at)
            if good:
                yield Whole(start + at, records[:good])
                at += int(records.sizes[:good].sum())
            if not reason:
                continue
        elif chain.stop is Stop.BLANK and at + chain.next_size == file.size:
            yield Blank(start + at, chain.next_size)
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


def _reason(file: OfflineFile, at: int) -> str:
    if file.is_zero(at):
        return "zeros up to the end of the file"
    try:
        _decode(file, at)
    except RecordError as error:
        return error.reason
    except UnicodeDecodeError:
        return "a topic that is not UTF-8"
    return "no sound record"


def _decode(file: OfflineFile, at: int) -> Record:
    """The record there; ValueError if there is none."""
    head, left = file.read(at, BLANK_SIZE), file.size - at
    size = int.from_bytes(head[:4], "big") if head[4:] in _MAGICS else MIN_SIZE
    if not MIN_SIZE <= size <= left:
        raise RecordError(at, f"size {size}, {left} bytes left")
    return record.decode(file.read(at, size))


def _next_sound(file: OfflineFile, at: int) -> int:
    """The position of the next record or closing blank at or behind `at`; the end of the file if there is none."""
    return next((where - 4 for where in file.find(_MAGICS, at + 4) if _is_sound(file, where - 4)), file.size)


def _is_sound(file: OfflineFile, at: int) -> bool:
    size, magic = BLANK.unpack(file.read(at, BLANK_SIZE))
    if magic == BLANK_MAGIC:
        return bool(at + size == file.size)
    try:
        return _decode(file, at).commit_log_offset == int(file.path.name) + at
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
        files = [OfflineFile(path) for path in self.files]
        self.file_size = files[0].size if files else 0
        self.first_offset = int(self.files[0].name) // ENTRY_SIZE if self.files else 0
        self._parts = list(self._in_a_row(files))
        self.max_offset = self._end()
        self.min_offset = self._first_from(log_min)

    def _in_a_row(self, files: list[OfflineFile]) -> Iterator[OfflineFile]:
        """The files up to the first gap between them, or file of another size."""
        for number, file in enumerate(files):
            start = self.first_offset * ENTRY_SIZE + number * self.file_size
            if int(file.path.name) != start or file.size != self.file_size:
                return
            yield file

    def _entries(self, file: OfflineFile, begin: int = 0, end: int | None = None) -> Entries:
        """A file's entries; `begin` and `end` count from its start."""
        count = file.size // ENTRY_SIZE
        begin, end = min(begin, count), count if end is None else min(end, count)
        return np.frombuffer(file.read(begin * ENTRY_SIZE, max(end - begin, 0) * ENTRY_SIZE), ENTRY)

    def _end(self) -> int:
        end = self.first_offset
        for entries in map(self._entries, self._parts):
            useless = (entries["size"] <= 0) | (entries["commit_log_offset"] < 0)
            if useless.any():
                return end + int(useless.argmax())
            end += len(entries)
        return end

    def _first_from(self, log_min: int) -> int:
        begin = self.first_offset
        for entries in map(self._entries, self._parts):
            real = (entries["size"] != FILLER_SIZE) & (entries["commit_log_offset"] >= log_min)
            if real[: self.max_offset - begin].any():
                return begin + int(real.argmax())
            begin += len(entries)
        return self.max_offset

    def read(self, begin: int, end: int) -> Entries:
        """The entries from one queue offset to another."""
        found, at = [np.empty(0, ENTRY)], self.first_offset
        for file in self._parts:
            found.append(self._entries(file, max(begin - at, 0), max(end - at, 0)))
            at += file.size // ENTRY_SIZE
        return np.concatenate([part.view(np.uint8) for part in found]).view(ENTRY)

    def rest(self) -> int | None:
        """The queue offset of the first bytes behind the end that are not zero."""
        at = self.first_offset
        for file in self._parts:
            behind = self._entries(file, max(self.max_offset - at, 0)).view(np.uint8)
            if behind.any():
                return max(self.max_offset, at) + int((behind != 0).argmax()) // ENTRY_SIZE
            at += file.size // ENTRY_SIZE
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
        table = committed(offset_table, generations, {}, read_journal(directory / "rocketsim" / "offsets.journal"))
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
