"""A consume queue has the positions of one queue's records in the log.  The files of a queue consist of 20-byte
entries:

    0                     8        12             20
    | commit_log_offset 8 | size 4 | tags_code 8 |     big-endian

The number of an entry is its queue offset.  Behind the last entry a file has zeros.  A queue can be rebuilt from the
log.  If the queue's first entry is not at the start of its file, the places before it have fillers of size MAX_INT, as
in RocketMQ.
"""

from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from broker_service.store.commit_log import file_name
from broker_service.store.disk import Attempt
from broker_service.store.files import Files, used_size
from broker_service.store.open_files import OpenFiles

ENTRY = np.dtype([("commit_log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_SIZE = ENTRY.itemsize
_OFFSET_AND_SIZE = Struct(">qi")
FILES_TO_CHECK = 3  # number of the newest files that every start checks, as RocketMQ does
FILLER_SIZE = 2**31 - 1
Entries = npt.NDArray[Any]
NO_ENTRIES = np.empty(0, ENTRY)


class QueueEnd(NamedTuple):
    max_offset: int
    log_end: int  # the log offset where the last entry's record ends; 0 without entries


class ConsumeQueue:
    """The files of one queue.

    Invariants: min_offset <= max_offset.  `log_end` is the log offset where the last entry's record ends, or 0 if the
    queue has no entries.
    """

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        directory: Path,
        file_size: int,
        start_at: int = 0,
        *,
        allocates: bool = False,
    ) -> None:
        self.directory = directory
        self.topic = directory.parent.name
        self.queue_id = int(directory.name)
        self.file_size = file_size
        self.min_offset = self.max_offset = start_at
        self.log_end = 0
        self.unsynced: set[Path] = set()  # files written since the last thorough flush
        # The names of the files on disk, even of invalid files, show how far the queue had come: at least to
        # `named_offset`, and at most to `named_end`.
        self.named_offset = self.named_end = 0
        self._files = files
        self._open = open_files
        self._allocates = allocates  # if True, the blocks of a new file are allocated at once, if the disk has room
        self._starts: list[int] = []  # byte positions of the files
        self._path_start, self._last_path = -1, directory

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, log_min: int, log_end: int, *, sure_until: int | None) -> str | None:
        """Reads the entries on disk and keeps the valid ones before any damage.

        Returns a description of the damage, or None if the files have none.  Every entry of a file is checked if the
        file may have holes after a power loss.  Files that end before queue offset `sure_until` were synced and need no
        check, but the newest three files are always checked.
        """
        self._starts = [int(name) for name in self._files.names(self.directory) if name.isdigit()]
        if self._starts:
            self.named_offset = self._starts[-1] // ENTRY_SIZE
            self.named_end = (self._starts[-1] + self.file_size) // ENTRY_SIZE
        damage = self._check_files()
        sure = 0 if sure_until is None else sure_until * ENTRY_SIZE
        newest = self._starts[-FILES_TO_CHECK:]
        whole = [start for start in self._starts if start + self.file_size > sure or start in newest]
        self.max_offset = self._starts[0] // ENTRY_SIZE if self._starts else self.max_offset
        for start in self._starts:
            if start in whole or start == self._starts[-1]:
                entries = self._read_file(start)
                count = _count_valid(entries, log_end)
                self.max_offset = start // ENTRY_SIZE + count
                behind = entries[count:]
                if behind["size"].any() or behind["commit_log_offset"].any():
                    damage = damage or f"entry {self.max_offset} is impossible"
                if count < self.file_size // ENTRY_SIZE:
                    if start != self._starts[-1]:
                        damage = damage or f"entries end at {self.max_offset}, but another file follows"
                    break
        # The previous process may have died before it synced these files.  The files must survive a power loss from now
        # on.
        self.unsynced.update(self._path(start) for start in self._starts if start + self.file_size > sure)
        self._cut_files(self.max_offset)
        if damage:
            self._zero_behind_max()
        self.min_offset = self.first_offset
        self.log_end = self._log_end_at(self.max_offset)
        self.trim(log_min, delete=False)
        return damage

    def _check_files(self) -> str | None:
        """Deletes the first unusable file and all files behind it; returns what is wrong with that file."""
        for number, start in enumerate(self._starts):
            path = self._path(start)
            size = self._files.size(path)
            gap = number and start != self._starts[number - 1] + self.file_size
            if size == self.file_size and not gap and start % self.file_size == 0:
                continue
            for later in self._starts[number:]:
                self._drop(later)
            del self._starts[number:]
            return f"a file is missing before {path}" if gap else f"{path} has {size} bytes, not {self.file_size}"
        return None

    def _log_end_at(self, end: int) -> int:
        """Returns the log offset where the record of the last entry before `end` ends; 0 if there is no such entry."""
        last = self.read(end - 1, 1) if end > self.min_offset else NO_ENTRIES
        filled = len(last) and last["size"][0] != FILLER_SIZE
        return int(last["commit_log_offset"][0]) + int(last["size"][0]) if filled else 0

    # --- writing --------------------------------------------------------------------------------------------------

    def put(self, queue_offset: int, entries: Entries) -> None:
        """Writes entries from `queue_offset` on, and replaces entries that the queue already has there.

        After an OSError, `min_offset`, `max_offset` and `log_end` are unchanged.
        """
        if self._starts and self.min_offset == self.max_offset != queue_offset:
            self._cut_files(0)  # The queue has no readable entry, so it restarts at the new offset.
            self._drop(self._starts.pop())
        if not self._starts:
            self._begin(queue_offset)
        elif queue_offset > self.max_offset:
            self._write(self.max_offset, _fillers(queue_offset - self.max_offset).tobytes())
        data = entries.tobytes()
        self._write(queue_offset, data)
        end = queue_offset + len(entries)
        if end >= self.max_offset:
            self.max_offset = end
            self.log_end = sum(_OFFSET_AND_SIZE.unpack_from(data, len(data) - ENTRY_SIZE))

    def begin_at(self, queue_offset: int) -> None:
        """Sets the offset of the next entry of a queue that has no files.

        The name of the queue's first file keeps the offset across restarts.
        """
        if self._starts or not queue_offset:
            return
        self._begin(queue_offset)
        if not self._starts:
            self._create(queue_offset * ENTRY_SIZE)
            self.unsynced.add(self._path(self._starts[0]))

    def put_if_different(self, queue_offset: int, entries: Entries) -> bool:
        """Calls `put` unless the files have these entries already; returns True if it wrote them."""
        if self._starts and queue_offset >= self.first_offset:
            existing = self._read_raw(queue_offset, len(entries))
            if existing == entries.tobytes():
                if queue_offset + len(entries) > self.max_offset:
                    self.max_offset = queue_offset + len(entries)
                    self.log_end = int(entries["commit_log_offset"][-1]) + int(entries["size"][-1])
                return False
        self.put(queue_offset, entries)
        return True

    def _begin(self, queue_offset: int) -> None:
        """Starts the first file, with fillers up to the first entry, as RocketMQ does."""
        start = queue_offset * ENTRY_SIZE // self.file_size * self.file_size
        self._write(start // ENTRY_SIZE, _fillers(queue_offset - start // ENTRY_SIZE).tobytes())
        self.min_offset = self.max_offset = queue_offset

    def _write(self, queue_offset: int, data: bytes) -> None:
        """Writes bytes into the files at this queue offset and creates files as needed.

        Most calls write to one file only.  An append to thousands of queues spends most of its time in this function.
        """
        at = queue_offset * ENTRY_SIZE
        while data:
            start = at - at % self.file_size
            path = self._path(start)
            if not self._starts or start > self._starts[-1]:
                self._create(start)
            room = start + self.file_size - at
            self.unsynced.add(path)
            self._files.pwrite(self._open.handle(path), data if len(data) <= room else data[:room], at - start)
            data, at = data[room:], at + room

    def _create(self, start: int) -> None:
        self._files.make_directory(self.directory)
        path = self._path(start)
        handle = self._files.open(path, create=True)
        try:
            if not (self._allocates and self._allocate(handle)):
                self._files.resize(handle, self.file_size)
        except OSError:
            self._files.remove(path)
            raise
        finally:
            self._files.close(handle)
        self._starts.append(start)

    def _allocate(self, handle: int) -> bool:
        with Attempt() as allocating:
            self._files.preallocate(handle, self.file_size)
        return allocating.refused is None

    def allocate(self) -> None:
        """Allocates the blocks of the newest file if the disk has room, since an earlier version may have made it
        sparse.
        """
        if self._allocates and self._starts:
            self._allocate(self._open.handle(self._path(self._starts[-1])))

    def undo_puts(self, max_offset: int, log_end: int) -> None:
        """Undoes the puts of a failed append: zeroes what they wrote, as far as the disk allows."""
        self.max_offset, self.log_end = max_offset, log_end
        self.min_offset = min(self.min_offset, max_offset)
        try:
            self._zero_behind_max()
        except OSError:
            # Bytes that stay do no harm: the next put to this queue overwrites them, and recovery cuts entries that
            # point behind the log's end.
            return

    def _zero_behind_max(self) -> None:
        at = self.max_offset * ENTRY_SIZE
        for start in self._starts:
            if start + self.file_size > at:
                begin = max(at - start, 0)
                used = len(self._read_used(start, begin))
                if used:
                    self.unsynced.add(self._path(start))
                    self._files.pwrite(self._open.handle(self._path(start)), bytes(used), begin)

    def zero_again(self) -> None:
        """Writes the zeros behind the end again, after an unclean stop.

        The zeros may be in the page cache only, while the disk still has entries that were cut.
        """
        at = self.max_offset * ENTRY_SIZE
        for start in self._starts:
            if start + self.file_size > at:
                path = self._path(start)
                handle = self._open.handle(path)
                for first, last in self._files.written_parts(handle, max(at - start, 0), self.file_size):
                    self.unsynced.add(path)
                    self._files.pwrite(handle, bytes(last - first), first)

    @property
    def first_offset(self) -> int:
        """The queue offset at which the queue's first file starts."""
        return self._starts[0] // ENTRY_SIZE if self._starts else self.max_offset

    # --- reading --------------------------------------------------------------------------------------------------

    def read(self, queue_offset: int, count: int) -> Entries:
        """Reads up to `count` entries from `queue_offset`, which must be in [min_offset, max_offset]."""
        count = min(count, self.max_offset - queue_offset)
        return np.frombuffer(self._read_raw(queue_offset, count), ENTRY) if count > 0 else NO_ENTRIES

    def read_bytes(self, queue_offset: int, count: int) -> bytes:
        """Reads entries in [min_offset, max_offset] as bytes; it returns fewer only where a file is missing."""
        return self._read_raw(queue_offset, count)

    def file_end(self, queue_offset: int) -> int:
        """Returns the queue offset at which the file that has this queue offset ends."""
        at = queue_offset * ENTRY_SIZE
        return (at - at % self.file_size + self.file_size) // ENTRY_SIZE

    def max_at(self, confirm_offset: int | None) -> int:
        """Returns the end of the queue for readers who may see the log only up to `confirm_offset`."""
        if confirm_offset is None or self.log_end <= confirm_offset:
            return self.max_offset
        return max(self.min_offset, self._first_behind(confirm_offset))

    def _first_behind(self, log_offset: int) -> int:
        """Returns the first entry whose record ends behind `log_offset`.

        The search goes backwards from the end of the queue, where the entry usually is.
        """
        end, count = self.max_offset, 64
        while end > self.min_offset:
            begin = max(self.min_offset, end - count)
            entries = self.read(begin, end - begin)
            ends = entries["commit_log_offset"].astype(np.int64) + entries["size"]
            ends[entries["size"] == FILLER_SIZE] = 0
            inside = np.flatnonzero(ends <= log_offset)
            if len(inside):
                return begin + int(inside[-1]) + 1
            end, count = begin, count * 8
        return end

    def _read_raw(self, queue_offset: int, count: int) -> bytes:
        at, size = queue_offset * ENTRY_SIZE, count * ENTRY_SIZE
        chunks = []
        while size > 0:
            start = at - at % self.file_size
            if not self._starts or not self._starts[0] <= start <= self._starts[-1]:
                break
            chunk = min(size, start + self.file_size - at)
            chunks.append(self._open.read(self._path(start), chunk, at - start))
            at, size = at + chunk, size - chunk
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _read_file(self, start: int) -> Entries:
        """Reads the entries of a file, without the zeros behind the last one."""
        data = self._read_used(start, 0)
        return np.frombuffer(data.ljust(-(-len(data) // ENTRY_SIZE) * ENTRY_SIZE, b"\0"), ENTRY)

    def _read_used(self, start: int, at: int) -> bytes:
        """Reads a file's bytes from a position to the last nonzero byte.  Files are sparse, and holes are not read."""
        path, chunks = self._path(start), []
        for first, last in self._files.written_parts(self._open.handle(path), at, self.file_size):
            chunks += [bytes(first - at), self._open.read(path, last - first, first)]
            at = last
        data = b"".join(chunks)
        return data[: used_size(data)]

    # --- following the log ----------------------------------------------------------------------------------------

    def truncate(self, log_offset: int) -> bool:
        """Removes the entries of records that end behind `log_offset`; returns True if there were any."""
        end = self.end_at(log_offset)
        if end is not None:
            self.shorten(end)
            self.remove_behind_end()
        return end is not None

    def end_at(self, log_offset: int) -> QueueEnd | None:
        """Returns where the queue would end if the log ended at `log_offset`; None if the queue's end would stay."""
        if self.log_end <= log_offset:
            return None
        end = self._first_behind(log_offset)
        return QueueEnd(end, self._log_end_at(end))

    def shorten(self, end: QueueEnd) -> None:
        """Moves the queue's end in memory only, so readers see the new end even if `remove_behind_end` fails."""
        self.max_offset, self.log_end = end
        self.min_offset = min(self.min_offset, self.max_offset)

    def remove_behind_end(self) -> None:
        """Removes from the files the entries that `shorten` cut off."""
        self._cut_files(self.max_offset)
        self._zero_behind_max()

    def forget_from(self, queue_offset: int) -> None:
        """Removes the entries from this queue offset on, which can be rebuilt from the log."""
        if self.first_offset <= queue_offset < self.max_offset:
            self.max_offset = queue_offset
            self.min_offset = min(self.min_offset, queue_offset)
            self._cut_files(queue_offset)
            self._zero_behind_max()
            self.log_end = self._log_end_at(self.max_offset)

    def trim(self, log_min: int, *, delete: bool = True) -> list[Path]:
        """Moves `min_offset` to the first entry whose record is still in the log, and deletes the files before it.

        As in RocketMQ, the last file stays, because its name is a queue offset that the queue has reached.
        """
        self.min_offset = self._first_from(log_min)
        deleted = []
        while delete and len(self._starts) > 1 and self._starts[0] + self.file_size <= self.min_offset * ENTRY_SIZE:
            deleted.append(self._drop(self._starts.pop(0)))
        return deleted

    def _first_from(self, log_min: int) -> int:
        """Finds, by binary search, the first entry whose record is at or behind `log_min`.

        A filler counts as an entry before `log_min`.
        """
        # The search begins at `first_offset`, because holes in files can make `min_offset` too high.
        low, high = self.first_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.read(middle, 1)[0]
            if entry["size"] == FILLER_SIZE or entry["commit_log_offset"] < log_min:
                low = middle + 1
            else:
                high = middle
        return low

    def begins_with_expired(self, log_min: int) -> bool:
        """Returns True if no record can be missing before the first entry.

        No record can be missing if the queue has no entry, or if the record of its first entry has expired or is the
        first record of the log.
        """
        first = self.read(self.first_offset, 1)
        return not len(first) or first["size"][0] == FILLER_SIZE or bool(first["commit_log_offset"][0] <= log_min)

    def _cut_files(self, max_offset: int) -> None:
        """Deletes the files behind the file that the next entry belongs to."""
        while len(self._starts) > 1 and self._starts[-1] >= max_offset * ENTRY_SIZE:
            self._drop(self._starts.pop())

    def _drop(self, start: int) -> Path:
        path = self._path(start)
        self._open.forget(path)
        self.unsynced.discard(path)
        self._files.remove(path)
        return path

    def delete(self) -> None:
        for start in self._starts:
            self._open.forget(self._path(start))
        self._starts.clear()
        self.unsynced.clear()
        self._files.remove_tree(self.directory)

    def _path(self, start: int) -> Path:
        # Most calls ask for the same file.  Its Path is kept, because a new Path would have to compute its hash again.
        if start != self._path_start:
            self._path_start, self._last_path = start, self.directory / file_name(start)
        return self._last_path

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id} {self.min_offset}..{self.max_offset}"


def _fillers(count: int) -> Entries:
    entries = np.zeros(count, ENTRY)
    entries["size"] = FILLER_SIZE
    return entries


def _count_valid(entries: Entries, log_end: int) -> int:
    """Counts the valid entries from the start on: sizes are positive, records in order, none behind the log's end."""
    offsets, sizes = entries["commit_log_offset"].astype(np.int64), entries["size"].astype(np.int64)
    filler = (sizes == FILLER_SIZE) & (offsets == 0)
    good = (sizes > 0) & (offsets >= 0) & (filler | (offsets + sizes <= log_end))
    in_order = filler[:-1] | filler[1:] | (offsets[1:] >= offsets[:-1] + sizes[:-1])
    good[1:] &= in_order
    return len(entries) if good.all() else int(good.argmin())
