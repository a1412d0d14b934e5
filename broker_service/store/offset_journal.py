"""OffsetJournal has the commits since `consumerOffset.json` was last written, one line of JSON per commit:

    1b851995 ["group","topic",{"0":[generation,offset],"1":[generation,offset,[epoch,epoch id,log offset]]}]

A line begins with the CRC-32 of its JSON; older versions wrote none.  A damaged line is dropped with a warning, and the
other lines are kept.  On replay, an entry can only raise the committed offset, but if its line ends with `true`, the
entry replaces the offset.

A line is in the page cache when `append` returns, so SIGKILL loses nothing.  `rotate` starts a new file.  `drop`
deletes the old files once `consumerOffset.json` has their offsets.

`reserve` bytes are allocated in advance, so that commits continue for a while on a full disk.  The last line
is followed by zeros.  After a power loss zeros may also lie between lines, because sectors reach the disk in any order.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from isal import isal_zlib

from broker_service.store.files import Files, refusal, used_size

logger = logging.getLogger(__name__)

_LINE = re.compile(rb"\0+|[^\0\n]*\n|[^\0\n]+")  # zeros are sectors that a power loss kept from the disk
RESERVE = 4 << 20  # bytes, enough for some ten thousand commits
_GROWTH = 20  # bytes by which a line can be longer if it names a later point in the log


class LogPoint(NamedTuple):
    """A point in the history of a log: the log's end offset, and the epoch that was current then."""

    epoch: int = 0
    epoch_id: int = 0
    log_offset: int = 0


NO_POINT = LogPoint()


class _Offset(NamedTuple):
    generation: int
    offset: int


class OffsetEntry(_Offset):
    """A committed offset, which is the next one to read; -1 means deleted.

    A reset raises the generation, so entries compare by generation first: an offset of a lower generation is outdated.
    `raised_at` says when the generation was raised.  `raised_at` is NO_POINT in the first generation, and if the point
    is unknown.  Comparisons ignore `raised_at`.
    """

    raised_at: LogPoint = NO_POINT

    def __new__(cls, generation: int, offset: int, raised_at: LogPoint = NO_POINT) -> Self:
        entry = super().__new__(cls, generation, offset)
        if raised_at.epoch:
            entry.raised_at = raised_at
        return entry

    def at(self, offset: int) -> "OffsetEntry":
        """Returns an entry with another offset, and with the generation of this entry."""
        return OffsetEntry(self.generation, offset, self.raised_at)


NO_OFFSET = -1
NEVER = OffsetEntry(0, NO_OFFSET)


class Line(NamedTuple):
    group: str
    topic: str
    entries: Mapping[int, OffsetEntry]
    replaces: bool = False


def read_journal(path: Path, files: Files | None = None) -> Iterator[Line]:
    """Yields every valid line, oldest first, and changes no file."""
    files = files or Files()
    for number in _rotations(files, path):
        yield from _lines(files, _rotated(path, number))[0]
    if files.exists(path):
        yield from _lines(files, path)[0]


class OffsetJournal:
    """The journal's files.  The class is not thread-safe, except for `drop`, which may run at any time.

    `reserve` is the number of bytes to allocate in advance, if the disk has room for them.
    """

    def __init__(self, path: Path, files: Files | None = None, reserve: int = RESERVE) -> None:
        self._path = path
        self._files = files or Files()
        self._reserve = reserve
        self._files.make_directory(path.parent)
        self._rotated = max(_rotations(self._files, path), default=0)
        fresh = _fresh(path)
        if not self._files.exists(path) and self._files.exists(fresh):
            self._files.rename(fresh, path)  # a rotation was interrupted
        self._file = self._files.open(path, create=True)
        self._end = used_size(self._files.read(path))
        self._dirty = self._end  # the position up to which a failed append may have written; only zeros follow
        try:
            self._files.preallocate(self._file, reserve)
        except OSError as error:
            logger.warning("%s: its reserve of %d bytes could not be allocated: %s", path, reserve, error)

    def replay(self) -> Iterator[Line]:
        """Yields every valid line, oldest first, and then cuts off a damaged end.

        Must be called before the first append.
        """
        yield from read_journal(self._path, self._files)
        self._end = _lines(self._files, self._path)[1]
        self._take_back(self._dirty)

    def append(self, group: str, topic: str, entries: Mapping[int, OffsetEntry], *, replaces: bool = False) -> None:
        """Appends a commit.  Raises DiskFull or ServiceNotAvailable, with nothing appended, if the disk refuses."""
        line = _line(group, topic, entries, replaces=replaces)
        self._write(group, line)
        self._end = self._dirty = self._end + len(line)

    def make_room(self, group: str, topic: str, entries: Mapping[int, OffsetEntry]) -> None:
        """Writes the zeros that a later `append` of these entries will overwrite; raises as `append` would.

        After this call the append cannot fail for lack of room, even if the caller does other work before the append.
        """
        size = len(_line(group, topic, entries, replaces=False)) + _GROWTH * len(entries)
        self._write(group, bytes(size))

    def _write(self, group: str, data: bytes) -> None:
        try:
            self._clean()
            self._files.pwrite(self._file, data, self._end)
        except OSError as error:
            self._take_back(self._end + len(data))
            raise refusal(error, f"committing offsets of group {group} to {self._path}") from error

    def _take_back(self, end: int) -> None:
        """Removes what a failed append wrote.

        If the bytes of a failed append stayed, a partial line could precede a whole one, and a refused line could be
        replayed.
        """
        self._dirty = max(self._dirty, end)
        try:
            self._clean()
        except OSError:
            return  # The next append begins by removing what the failed append wrote.

    def _clean(self) -> None:
        if self._dirty > self._end:
            written = len(self._files.pread(self._file, self._dirty - self._end, self._end))
            self._files.pwrite(self._file, bytes(written), self._end)
            self._dirty = self._end

    @property
    def is_empty(self) -> bool:
        return self._end == 0

    def rotate(self) -> int:
        """Starts a new file; returns the number of the old one, for `drop`.

        Raises OSError if the disk refuses; the old file then stays in use.
        """
        path = _fresh(self._path)
        self._files.remove(path)
        file = self._files.open(path, create=True)
        try:
            self._files.preallocate(file, self._reserve)
            if self._files.exists(self._path):  # missing if the last rotation failed after it had renamed the file
                self._files.rename(self._path, _rotated(self._path, self._rotated + 1))
                self._rotated += 1
            self._files.rename(path, self._path)
        except OSError:
            self._files.close(file)
            self._files.remove(path)
            raise
        self._files.close(self._file)
        self._file, self._end, self._dirty = file, 0, 0
        return self._rotated

    def drop(self, number: int) -> None:
        """Deletes the old files up to this number; to be called once `consumerOffset.json` has their offsets."""
        for older in _rotations(self._files, self._path):
            if older <= number:
                self._files.remove(_rotated(self._path, older))

    def close(self) -> None:
        self._files.close(self._file)


def _line(group: str, topic: str, entries: Mapping[int, OffsetEntry], *, replaces: bool) -> bytes:
    values = {queue: (*entry, entry.raised_at) if entry.raised_at.epoch else entry for queue, entry in entries.items()}
    words = [group, topic, values, True] if replaces else [group, topic, values]
    text = json.dumps(words, separators=(",", ":")).encode()
    return b"%08x %b\n" % (isal_zlib.crc32(text), text)


def _fresh(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _rotated(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _rotations(files: Files, path: Path) -> list[int]:
    """Returns the numbers of the old files, oldest first."""
    names = (name for name in files.names(path.parent) if name.startswith(f"{path.name}."))
    return sorted(int(name.rpartition(".")[2]) for name in names if re.fullmatch(r".*\.[0-9]+", name))


def _lines(files: Files, path: Path) -> tuple[list[Line], int]:
    """Reads a file; returns the valid lines, and where the last one ends."""
    data = files.read(path)
    data = data[: used_size(data)]
    lines: list[Line] = []
    at = end = 0
    for raw in _LINE.findall(data):
        line = _parse(raw)
        at += len(raw)
        if line is None:
            logger.warning("%s: dropped %d bytes at %d that are no commit", path, len(raw), at - len(raw))
        else:
            lines.append(line)
            end = at
    return lines, end


def _entry(generation: int, offset: int, raised_at: Sequence[int] = NO_POINT) -> OffsetEntry:
    return OffsetEntry(int(generation), int(offset), LogPoint(*map(int, raised_at)))


def _parse(raw: bytes) -> Line | None:
    text = raw[:-1]
    if not raw.endswith(b"\n"):
        return None
    if text[:1] != b"[":  # older versions wrote lines that have no checksum and begin with [
        crc, _, text = text.partition(b" ")
        if crc != b"%08x" % isal_zlib.crc32(text):
            return None
    try:
        group, topic, entries, *replaces = json.loads(text)
        return Line(str(group), str(topic), {int(key): _entry(*entries[key]) for key in entries}, replaces == [True])
    except (ValueError, TypeError, AttributeError):
        return None
