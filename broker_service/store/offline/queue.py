"""Reads consume queues without a broker."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from broker_service.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE, Entries
from broker_service.store.offline.file import OfflineFile, numbered_files


class OfflineQueue:
    """The files of a consume queue.

    `min_offset` is the offset of the first entry whose record is still in the log.  `max_offset` is the offset behind
    the last valid entry.  `min_offset` is equal to `max_offset` if the log has no record of the queue any more.
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
        """Yields the files up to the first gap between files, or up to the first file of another size."""
        for number, file in enumerate(files):
            start = self.first_offset * ENTRY_SIZE + number * self.file_size
            if int(file.path.name) != start or file.size != self.file_size:
                return
            yield file

    def _entries(self, file: OfflineFile, begin: int = 0, end: int | None = None) -> Entries:
        """Reads a file's entries; `begin` and `end` count from the start of the file."""
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
        """Reads the entries of queue offsets [begin, end)."""
        found, at = [np.empty(0, ENTRY)], self.first_offset
        for file in self._parts:
            found.append(self._entries(file, max(begin - at, 0), max(end - at, 0)))
            at += file.size // ENTRY_SIZE
        return np.concatenate([part.view(np.uint8) for part in found]).view(ENTRY)

    def rest(self) -> int | None:
        """Returns the queue offset of the first nonzero bytes behind the end; None if there are none."""
        at = self.first_offset
        for file in self._parts:
            behind = self._entries(file, max(self.max_offset - at, 0)).view(np.uint8)
            if behind.any():
                return max(self.max_offset, at) + int((behind != 0).argmax()) // ENTRY_SIZE
            at += file.size // ENTRY_SIZE
        return None

    def place(self, queue_offset: int) -> tuple[Path, int]:
        """Returns the file and position of an entry; the directory and 0 if there is no such file."""
        at = queue_offset * ENTRY_SIZE
        for path in self.files:
            if int(path.name) <= at < int(path.name) + self.file_size:
                return path, at - int(path.name)
        return self.directory, 0


def queues(directory: Path, log_min: int) -> Iterator[OfflineQueue]:
    """Yields all queues, ordered by topic and queue id."""
    found = [path for path in (directory / "consumequeue").glob("*/*") if path.name.isdigit() and path.is_dir()]
    for path in sorted(found, key=lambda path: (path.parent.name, int(path.name))):
        yield OfflineQueue(path, log_min)
