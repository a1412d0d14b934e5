"""Checks index files without a broker: first that each file is consistent, then that its entries agree with the log.

An index file does not say how many slots it has, which is set in the broker's configuration.  This module finds the
number of slots from the position of the last entry, whose log offset and entry number are in the file's header.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker_service.store.index_file import ENTRY, ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE, IndexHeader
from broker_service.store.index_keys import IndexKeys
from broker_service.store.json_file import loads
from broker_service.store.offline.file import OfflineFile

Wrong = tuple[int, str]  # position in the file, what is wrong there
Entries = npt.NDArray[Any]
Finding = tuple[Path, int, str]
Pairs = npt.NDArray[np.int64]
_MAX_SECONDS = 2**31 - 1


@dataclass(slots=True)
class Difference:
    """The differences between a file's entries and the keys of the log's records."""

    position: int  # the position of the first difference in the file
    log_offset: int  # the log offset of the first difference
    wrong: int = 0
    missing: int = 0

    def __str__(self) -> str:
        parts = [f"{self.wrong} entries that are not those of the log's records"] if self.wrong else []
        parts += [f"{self.missing} keys without an entry"] if self.missing else []
        return f"{' and '.join(parts)}, the first for log offset {self.log_offset}"


class OfflineIndexFile:
    """One index file.  Before `slot_count` is set, only `header_trouble` and `find_slot_count` may be called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = OfflineFile(path)
        self.size = self._file.size
        header = self._file.read(0, HEADER_SIZE)
        self.header = IndexHeader(*HEADER.unpack(header)) if len(header) == HEADER_SIZE else IndexHeader()
        self.slot_count = 0

    @property
    def count(self) -> int:
        return self.header.next_entry - 1

    def position(self, number: int) -> int:
        return HEADER_SIZE + self.slot_count * SLOT_SIZE + number * ENTRY_SIZE

    def entries(self, rows: slice | None = None) -> Entries:
        """Reads the entries of these rows; row 0 is entry number 1.  Without `rows`, all entries are read."""
        begin, end = (rows.start, rows.stop) if rows else (0, self.count)
        return np.frombuffer(self._file.read(self.position(begin + 1), (end - begin) * ENTRY_SIZE), ENTRY)

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        return self.entries()["commit_log_offset"].astype(np.int64)

    def _slots(self) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._file.read(HEADER_SIZE, self.slot_count * SLOT_SIZE), ">i4").astype(np.int64)

    # --- the number of slots --------------------------------------------------------------------------------------

    def header_trouble(self) -> str | None:
        head = self.header
        if self.size < HEADER_SIZE + SLOT_SIZE + ENTRY_SIZE:
            return f"{self.size} bytes are no index file"
        if not 1 <= head.next_entry <= (self.size - HEADER_SIZE - SLOT_SIZE) // ENTRY_SIZE:
            return f"its header counts {self.count} entries, more than the file has room for"
        if not 0 <= head.first_offset <= head.last_offset:
            return f"its header says it has log offsets {head.first_offset} to {head.last_offset}"
        return None

    def find_slot_count(self) -> int:
        """Returns the number of slots with which header, entries and slots are consistent; 0 if no number is."""
        if not self.count or not self.header.last_offset:
            return 0
        # RocketMQ's default, four entries per slot, is tried first: searching a large file for its last entry takes
        # seconds.
        usual, rest = divmod(self.size - HEADER_SIZE, SLOT_SIZE + 4 * ENTRY_SIZE)
        if (
            not rest
            and usual
            and self.count < 4 * usual
            and self._ends_with_its_last_entry(usual)
            and self._fits(usual)
        ):
            return usual
        wanted = self.header.last_offset.to_bytes(8, "big")
        for at in self._file.find_backwards(wanted):
            size = at - 4 - self.count * ENTRY_SIZE - HEADER_SIZE
            if size > 0 and size % SLOT_SIZE == 0 and self._fits(size // SLOT_SIZE):
                return size // SLOT_SIZE
        return 0

    def _ends_with_its_last_entry(self, slot_count: int) -> bool:
        at = HEADER_SIZE + slot_count * SLOT_SIZE + self.count * ENTRY_SIZE + 4
        return int.from_bytes(self._file.read(at, 8), "big") == self.header.last_offset

    def _fits(self, slot_count: int) -> bool:
        """Returns True if the first entry fits the header, and most slots lead to an entry whose hash belongs to the
        slot.
        """
        self.slot_count = slot_count
        try:
            if int(self.entries(slice(0, 1))["commit_log_offset"][0]) != self.header.first_offset:
                return False
            slots = self._slots()
            places = np.flatnonzero((slots > 0) & (slots <= self.count))
            right = self.entries()["hash"][slots[places] - 1] % slot_count == places
            return 2 * int(right.sum()) >= len(places)
        finally:
            self.slot_count = 0

    # --- by itself ------------------------------------------------------------------------------------------------

    def wrong(self, *, slots_are_current: bool) -> Iterator[Wrong]:
        """Yields the inconsistencies of the file, at most one of each kind."""
        entries, head = self.entries(), self.header
        backwards = np.flatnonzero(np.diff(self.offsets) < 0)
        if len(backwards):
            number = int(backwards[0]) + 2
            yield self.position(number), f"entry {number} points before the one in front of it"
        elif int(self.offsets[0]) != head.first_offset:
            yield self.position(1), f"the first entry points to {self.offsets[0]}, the header says {head.first_offset}"
        elif int(self.offsets[-1]) != head.last_offset:
            what = f"the last entry points to {self.offsets[-1]}, the header says {head.last_offset}"
            yield self.position(self.count), what
        numbers = np.arange(1, self.count + 1)
        hashes, previous = entries["hash"].astype(np.int64), entries["previous"].astype(np.int64)
        negative = np.flatnonzero(hashes < 0)
        if len(negative):
            yield self.position(int(negative[0]) + 1), f"entry {negative[0] + 1} has the hash {hashes[negative[0]]}"
            return
        places = hashes % self.slot_count
        of_place = places[np.clip(previous - 1, 0, self.count - 1)] == places
        unchained = np.flatnonzero((previous < 0) | (previous >= numbers) | ((previous > 0) & ~of_place))
        if len(unchained):
            number = int(unchained[0]) + 1
            yield (
                self.position(number),
                f"{len(unchained)} entries are not chained to an entry of the same slot, the first is {number}",
            )
        elif slots_are_current:
            yield from self._wrong_slots(places, previous)

    def _wrong_slots(self, places: npt.NDArray[np.int64], previous: npt.NDArray[np.int64]) -> Iterator[Wrong]:
        """Checks that every entry is reached exactly once, either from its slot or from a newer entry."""
        slots = self._slots()
        used = np.flatnonzero(slots)
        newest = slots[used]
        inside = (newest > 0) & (newest <= self.count)
        astray = used[~inside]
        if not len(astray):
            astray = used[places[newest - 1] != used]
        if len(astray):
            what = f"{len(astray)} slots lead to no entry of the same slot, first slot {astray[0]}: {slots[astray[0]]}"
            yield HEADER_SIZE + int(astray[0]) * SLOT_SIZE, what
            return
        reached = np.bincount(np.concatenate((newest, previous[previous > 0])), minlength=self.count + 1)[1:]
        lost = np.flatnonzero(reached != 1)
        if len(lost):
            number = int(lost[0]) + 1
            yield self.position(number), f"{len(lost)} entries are not found from their slots, the first is {number}"
        elif len(used) != self.header.slots_used:
            yield 32, f"its header counts {self.header.slots_used} used slots, there are {len(used)}"

    def rows(self, begin: int, end: int) -> slice:
        """Returns the rows of the entries for records in [begin, end) of the log."""
        first, last = np.searchsorted(self.offsets, (begin, end))
        return slice(int(first), int(last))


class OfflineIndex:
    """All index files of a store.

    The constructor checks each file by itself.  After construction, the caller must call `compare` for all parts of the
    log, in order, and `findings` last.
    """

    def __init__(self, directory: Path) -> None:
        self._wrong: list[Finding] = []
        self._differences: dict[Path, Difference] = {}
        self._files = self._consistent_files(directory)
        self._borders = {
            offset for file in self._files for offset in (file.header.first_offset, file.header.last_offset)
        }

    def _consistent_files(self, directory: Path) -> list[OfflineIndexFile]:
        """Returns the files that are consistent by themselves; keeps findings about the others."""
        paths = sorted(path for path in (directory / "index").glob("*") if path.name.isdigit())
        missing = _noted_names(directory / "rocketsim" / "index.json") - {path.name for path in paths}
        self._wrong += [(directory / "index" / name, 0, "missing") for name in sorted(missing)]
        files = []
        for file in map(OfflineIndexFile, paths):
            if trouble := file.header_trouble():
                self._wrong.append((file.path, 0, trouble))
            elif file.count and file.header.last_offset:
                file.slot_count = file.find_slot_count()
                files.append(file)
        # all files have the same number of slots
        slot_counts = {file.size: file.slot_count for file in files if file.slot_count}
        sound = []
        for file in files:
            file.slot_count = file.slot_count or slot_counts.get(file.size, 0)
            if file.position(file.count + 1) > file.size:
                file.slot_count = 0  # the file would have no room for the entries that its header counts
            # The slots of the file being written are written only now and then, and at a clean stop.
            being_written = file.path == paths[-1] and (directory / "abort").exists()
            wrong = [(0, "header, slots and entries do not fit together")]
            if file.slot_count:
                wrong = list(file.wrong(slots_are_current=not being_written))
            self._wrong += [(file.path, at, what) for at, what in wrong]
            sound += [] if wrong else [file]
        return sound

    def findings(self, log_end: int) -> Iterator[Finding]:
        """Yields file, position, and what is wrong there."""
        yield from self._wrong
        for path, difference in self._differences.items():
            yield path, difference.position, str(difference)
        for file in self._files:
            if file.header.last_offset >= log_end:
                position = file.position(file.rows(log_end, log_end).start + 1)
                yield file.path, position, f"entries that point behind the log's end, {log_end}"

    def compare(self, keys: IndexKeys, begin: int, end: int) -> None:
        """Compares the entries for [begin, end) of the log with the keys of its records; keeps the differences."""
        files = [file for file in self._files if file.header.last_offset >= begin and file.header.first_offset < end]
        for file in self._files:
            if file.header.last_offset < begin:
                file.__dict__.pop("offsets", None)  # frees 160 MB for a full file
        if not files:
            return
        entries = [file.entries(file.rows(begin, end)) for file in files]
        covered = np.zeros(len(keys), np.bool_)
        for file in files:
            covered |= (keys.offsets >= file.header.first_offset) & (keys.offsets <= file.header.last_offset)
        found, expected = _pairs(np.concatenate(entries)), _pairs(keys)[covered]
        if len(found) == len(expected) and (found == expected).all():
            self._compare_times(files, entries, keys.timestamps[covered], begin)
        else:
            self._compare_one_by_one(files, entries, expected, begin)

    def _compare_times(
        self, files: list[OfflineIndexFile], entries: list[Entries], timestamps: npt.NDArray[np.int64], begin: int
    ) -> None:
        at = 0
        for file, part in zip(files, entries, strict=True):
            times, head, before = timestamps[at : at + len(part)], file.header, file.rows(begin, begin).start
            wrong = part["seconds"] != np.clip((times - head.first_timestamp) // 1000, 0, _MAX_SECONDS)
            if len(part) and before == 0:
                wrong[0] |= times[0] != head.first_timestamp
            if len(part) and before + len(part) == file.count:
                wrong[-1] |= times[-1] != head.last_timestamp
            if wrong.any():
                row = int(wrong.argmax())
                self._note(file, int(part["commit_log_offset"][row]), before + row + 1, wrong=int(wrong.sum()))
            at += len(part)

    def _compare_one_by_one(
        self, files: list[OfflineIndexFile], entries: list[Entries], expected: Pairs, begin: int
    ) -> None:
        missing = Counter(map(tuple, expected.tolist()))
        for file, part in zip(files, entries, strict=True):
            before = file.rows(begin, begin).start
            for row, pair in enumerate(map(tuple, _pairs(part).tolist())):
                if missing[pair] > 0:
                    missing[pair] -= 1
                else:
                    self._note(file, pair[0], before + row + 1, wrong=1)
        for (log_offset, _), count in sorted((+missing).items()):
            # If a record is at the border of a file, its other keys can be in the next file, or not indexed yet.
            if log_offset not in self._borders:
                file = next(file for file in files if file.header.last_offset >= log_offset)
                self._note(file, log_offset, file.rows(log_offset, log_offset).start + 1, missing=count)

    def _note(self, file: OfflineIndexFile, log_offset: int, number: int, *, wrong: int = 0, missing: int = 0) -> None:
        known = self._differences.setdefault(file.path, Difference(file.position(number), log_offset))
        known.wrong += wrong
        known.missing += missing


def _pairs(what: IndexKeys | Entries) -> Pairs:
    """Returns (log offset, hash) for each key or entry."""
    if isinstance(what, IndexKeys):
        return np.stack((what.offsets, what.hashes), axis=1)
    return np.stack((what["commit_log_offset"].astype(np.int64), what["hash"].astype(np.int64)), axis=1)


def _noted_names(path: Path) -> set[str]:
    """Returns the index files in the broker's list; an empty set if there is no readable list."""
    try:
        return set(loads(path.read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, TypeError, KeyError):
        return set()
