"""OffsetJournal: what was committed since `consumerOffset.json` was last written, one line of JSON a commit.

    ["group","topic",{"0":[generation,offset],"1":[generation,offset]}]

A line is with the operating system when `append` returns, so SIGKILL takes nothing back.  A last line that a power loss
cut short is dropped, and said so.  `rotate` puts the lines so far aside; they go once the JSON file has them.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from broker_service.store.files import refusal

logger = logging.getLogger(__name__)


class OffsetEntry(NamedTuple):
    """A committed offset, the next one to read; compared by generation first.  Offset -1: deleted."""

    generation: int
    offset: int


NO_OFFSET = -1
NEVER = OffsetEntry(0, NO_OFFSET)
Line = tuple[str, str, Mapping[int, OffsetEntry]]


def read_journal(path: Path) -> Iterator[Line]:
    """Every whole line from the oldest on, as it lies on disk; changes nothing."""
    for number in _rotations(path):
        yield from _lines(_rotated(path, number))[0]
    if path.exists():
        yield from _lines(path)[0]


class OffsetJournal:
    """Not thread-safe but for `drop`, which may run beside anything else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rotated = max(_rotations(path), default=0)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._end = os.fstat(self._file).st_size

    def replay(self) -> Iterator[Line]:
        """Every line from the oldest on.  Cuts off what is damaged at the end, so call it before the first append."""
        yield from read_journal(self._path)
        whole = _lines(self._path)[1]
        if whole < self._end:
            os.ftruncate(self._file, whole)
            self._end = whole

    def append(self, group: str, topic: str, entries: Mapping[int, OffsetEntry]) -> None:
        line = json.dumps([group, topic, entries], separators=(",", ":")).encode() + b"\n"
        try:
            written = os.pwrite(self._file, line, self._end)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except OSError as error:
            os.ftruncate(self._file, self._end)  # No half line may stand before the next whole one.
            raise refusal(error, f"committing offsets of group {group} to {self._path}") from error
        self._end += len(line)

    @property
    def is_empty(self) -> bool:
        return self._end == 0

    def rotate(self) -> int:
        """Put the lines so far aside and begin anew; returns the number that `drop` takes."""
        self._rotated += 1
        fresh = os.open(
            self._path.with_name(self._path.name + ".new"), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        os.rename(self._path, _rotated(self._path, self._rotated))
        os.rename(self._path.with_name(self._path.name + ".new"), self._path)
        os.close(self._file)
        self._file, self._end = fresh, 0
        return self._rotated

    def drop(self, number: int) -> None:
        """The JSON file has everything up to this rotation."""
        for older in _rotations(self._path):
            if older <= number:
                _rotated(self._path, older).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._file)


def _rotated(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _rotations(path: Path) -> list[int]:
    """The numbers of what was put aside, oldest first."""
    names = (other.name for other in path.parent.glob(f"{path.name}.*"))
    return sorted(int(name.rpartition(".")[2]) for name in names if re.fullmatch(r".*\.[0-9]+", name))


def _lines(path: Path) -> tuple[list[Line], int]:
    """The good lines from the beginning, and where they end."""
    data = path.read_bytes()
    lines: list[Line] = []
    at = 0
    for piece in data.splitlines(keepends=True):
        line = _parse(piece)
        if line is None:
            logger.warning("%s: dropped %d bytes at %d that are no whole commit", path, len(data) - at, at)
            break
        lines.append(line)
        at += len(piece)
    return lines, at


def _parse(piece: bytes) -> Line | None:
    if not piece.endswith(b"\n"):
        return None
    try:
        group, topic, entries = json.loads(piece)
        return str(group), str(topic), {int(key): OffsetEntry(int(g), int(o)) for key, (g, o) in entries.items()}
    except (ValueError, TypeError, AttributeError):
        return None
