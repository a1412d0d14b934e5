"""The commit log holds the messages of all topics in one order, in files of one size.

Each file is named by the log offset at which it starts.  This module handles positions and bytes; `log_scanner.py`
handles records.  One thread writes to the log, and the flush thread only calls `sync`.  `sync` and `clean` never run at
the same time: their callers hold the lock of `Durability`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketsim_proto.records.record import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    HEAD,
    HEAD_SIZE,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_SIZE,
    SYS_FLAG_BORN_HOST_V6,
    RecordError,
    decode,
)

from broker_service.errors import NotFound, ReadFailed, StoreCorrupt
from broker_service.store.files import Buffer, Files, used_size
from broker_service.store.open_files import OpenFiles
from broker_service.store.residency import BLOCK, Cold, Place, Positions, Residency, blocks_of

_CHUNK = 1 << 20


def file_name(start: int) -> str:
    return f"{start:020d}"


def store_timestamp_at(view: Buffer, at: int) -> int:
    """Returns the store time of the record at this position."""
    sys_flag = int.from_bytes(view[at + 36 : at + 40], "big")
    at += HEAD_SIZE + (20 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 8)
    return int.from_bytes(view[at : at + 8], "big")


class CommitLog:
    """The files of the log and the end of the log.

    Invariants: `starts` has no gap.  All bytes from `end_offset` to the end of the last file are zero, except in the
    range `_dirty`.
    """

    def __init__(self, files: Files, open_files: OpenFiles, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.starts: list[int] = []
        self.end_offset = 0
        self._base = 0  # the log offset at which the first file will start, if the log has no file
        self._files = files
        self._open = open_files
        self._residency = Residency()
        self._paths: dict[int, Path] = {}  # a cache: making a Path takes as long as reading a small record
        # Handles of files that may hold bytes not yet on disk.  Only the writing thread adds and closes these handles.
        # A handle is closed only when its whole file is flushed, and therefore never while `sync` is using it.
        self._writing: dict[int, int] = {}
        self._created = 0
        self._created_on_disk = 0
        # log offsets that a failed write may have written; they must be zeroed before the next write
        self._dirty: tuple[int, int] | None = None
        self._was_sent = False  # True if sockets may refer to the log's pages

    # --- files ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Lists the files.  After `load`, the caller must call `check_files` of log_files.py; recovery then sets
        `end_offset`.

        Raises StoreCorrupt if a file's name is not a multiple of the file size.
        """
        self._files.make_directory(self.directory)
        self.starts = [int(name) for name in self._files.names(self.directory) if name.isdigit()]
        for start in self.starts:
            if start % self.file_size:
                raise self.wrong_size(start, "its name is no multiple of the file size")
        self.end_offset = self._base = self.min_offset

    def wrong_size(self, start: int, found: str) -> StoreCorrupt:
        """Makes the error for a file whose size or name does not fit the configured file size."""
        return StoreCorrupt(
            f"{self.path(start)}: {found}, mappedFileSizeCommitLog is {self.file_size}: "
            "correct the configuration, or restore the file"
        )

    def has_no_records(self) -> bool:
        """Returns True if none of the files has a record."""
        return not any(any(self.peek(start, 8)) for start in self.starts)

    def begin_at(self, offset: int) -> None:
        """Makes an empty log start at this offset, for a new slave whose master has deleted its first files."""
        assert not self.starts and offset % self.file_size == 0, f"{self} cannot begin at {offset}"
        self._base = self.end_offset = offset

    def create_first(self) -> None:
        """Makes the first file of an empty log, so that a restart finds where the log begins."""
        self._write_handle(self._base)

    @property
    def min_offset(self) -> int:
        return self.starts[0] if self.starts else self._base

    @property
    def file_end(self) -> int:
        """The log offset at which the last file ends."""
        return self.starts[-1] + self.file_size if self.starts else self._base

    def path(self, start: int) -> Path:
        if (path := self._paths.get(start)) is None:
            path = self._paths[start] = self.directory / file_name(start)
        return path

    def start_of(self, offset: int) -> int:
        return offset - offset % self.file_size

    def delete_before(self, offset: int) -> list[Path]:
        """Deletes the files that end at or before `offset`, but never the file that is being written."""
        deleted = []
        while self.starts and self.starts[0] + self.file_size <= min(offset, self.start_of(self.end_offset)):
            deleted.append(self._delete(self.starts[0]))
            # Without this sync the deleted file could reappear after a power loss, with a gap between it and the log.
            self._files.sync_directory(self.directory)
        return deleted

    def delete_after(self, offset: int) -> list[Path]:
        """Deletes the files that start at or after `offset`, newest first, so that a crash leaves no gap."""
        deleted = []
        while self.starts and self.starts[-1] >= offset:
            deleted.append(self._delete(self.starts[-1]))
        return deleted

    def _delete(self, start: int) -> Path:
        path = self.path(start)
        self._files.remove(path)
        self._open.forget(path)
        del self._paths[start]
        self.starts.remove(start)
        handle = self._writing.pop(start, None)
        if handle is not None:
            self._files.close(handle)
        if not self.starts:
            self._base = start
        return path

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, slices: Iterable[tuple[int, Buffer]]) -> None:
        """Writes byte slices, each of which lies within one file.  `is_dirty` must be False.

        An append writes behind the end of the log.  If the write succeeds, an append must set `end_offset`.  If the
        write raises OSError, an append must call `failed_until` with the end of the slices.
        """
        assert self._dirty is None, f"{self}: bytes of a failed write are still behind the end"
        for offset, data in slices:
            start = self.start_of(offset)
            self._files.pwrite(self._write_handle(start), data, offset - start)

    def failed_until(self, end: int) -> None:
        """Notes that a failed append may have written between the log's end and `end`.  `clean` must follow."""
        self._dirty = (self.end_offset, max(end, self._dirty[1]) if self._dirty else end)

    @property
    def is_dirty(self) -> bool:
        return self._dirty is not None

    def clean(self) -> None:
        """Zeroes, on disk, the bytes that a failed write left behind the log's end, since recovery would take them for
        records.

        Raises OSError if the disk still refuses.  No other `sync` may run during this call, because the kernel reports
        a failed sync to only one of the callers.
        """
        if self._dirty is not None:
            begin, end = self._dirty
            self.zero(begin, end)
            self.sync(begin, end)
            self._dirty = None

    def touch(self) -> None:
        """Writes a zero behind the end to test if the disk accepts writes; raises OSError if it does not."""
        if self.end_offset < self.file_end:
            start = self.start_of(self.end_offset)
            self._files.pwrite(self._write_handle(start), b"\0", self.end_offset - start)

    def check_not_sent(self) -> None:
        """Stops a cut of a log whose pages readers may still have to read, before the cut has changed anything."""
        assert not self._was_sent, f"{self}: readers may not have read yet what was sent of it without a copy"

    def cut(self, offset: int, *, in_doubt: bool = False) -> int:
        """Makes `offset` the end of the log and zeroes, on disk, everything behind it.

        Returns the offset behind the last byte that was not zero.  With `in_doubt`, existing zeros are written again,
        since they may be in the page cache only.  A log that serves readers calls
        `check_not_sent` first.
        """
        self.end_offset = offset = max(offset, self.min_offset)
        self.delete_after(self.first_spare(offset))
        not_zero = self.zero(offset, self.file_end, in_doubt=in_doubt)
        self.hold(offset)
        self.sync(0, max(offset, self.file_end))
        return not_zero

    def first_spare(self, offset: int) -> int:
        """Returns the start of the first file that a log with this end does not need.

        An empty log keeps its first file, whose name is the offset at which the log begins.
        """
        is_whole = offset % self.file_size == 0 and offset > self.min_offset
        return offset if is_whole else self.start_of(offset) + self.file_size

    def timestamp_at(self, offset: int) -> int | None:
        """Returns the store time of the record that begins at a log offset, or None if no record begins there."""
        head = self.peek(offset, MIN_SIZE)
        if int.from_bytes(head[4:8], "big") not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
            return None
        return store_timestamp_at(head, 0)

    def zero(self, offset: int, end: int, *, in_doubt: bool = False) -> int:
        """Fills existing files with zeros from `offset` to `end`; returns the offset behind the last nonzero byte."""
        not_zero = offset
        for start in [start for start in self.starts if start + self.file_size > offset and start < end]:
            path = self.path(start)
            begin, stop = max(offset - start, 0), min(end - start, self.file_size)
            for first, last in self._files.written_parts(self._open.handle(path), begin, stop):
                for at in range(first, last, _CHUNK):
                    data = self._open.read(path, min(_CHUNK, last - at), at)
                    used = used_size(data)
                    if used:
                        not_zero = start + at + used
                    if used or in_doubt:
                        self._files.pwrite(self._write_handle(start), bytes(len(data) if in_doubt else used), at)
        return not_zero

    def _write_handle(self, start: int) -> int:
        handle = self._writing.get(start)
        if handle is not None:
            return handle
        path = self.path(start)
        if start < self.file_end:
            handle = self._files.open(path)
        else:
            assert start == self.file_end, f"{self}: a file at {start} would leave a gap"
            handle = self._create(path)
            self.starts.append(start)
        self._writing[start] = handle
        return handle

    def _create(self, path: Path) -> int:
        handle = self._files.open(path, create=True)
        try:
            self._files.preallocate(handle, self.file_size)
            if not self.starts:
                # The first file is synced at once, because only this file says where the log begins and how large log
                # files are.
                self._files.fdatasync(handle)
                self._files.sync_directory(self.directory)
        except OSError:
            self._files.close(handle)
            self._files.remove(path)
            raise
        self._created += 1
        return handle

    # --- flushing -------------------------------------------------------------------------------------------------

    def hold(self, offset: int) -> None:
        """Makes the next `sync` cover all files that end behind `offset`; called by a recovery and a cut."""
        for start in self.starts:
            if start + self.file_size > offset:
                self._write_handle(start)
        self._created += 1

    def sync(self, flushed: int, end: int) -> None:
        """Syncs the log from `flushed`, up to which it is on disk already, to `end`."""
        created = self._created
        for start, handle in tuple(self._writing.items()):
            if start < end and start + self.file_size > flushed:
                self._files.fdatasync(handle)
        if created != self._created_on_disk:
            self._files.sync_directory(self.directory)
            self._created_on_disk = created

    def release(self, flushed: int) -> None:
        """Closes the handles of files that are full and entirely on disk."""
        for start in [start for start in self._writing if start + self.file_size <= min(flushed, self.end_offset)]:
            self._files.close(self._writing.pop(start))

    def close(self) -> None:
        while self._writing:
            self._files.close(self._writing.popitem()[1])

    # --- reading --------------------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Reads `size` bytes, or fewer at the end of a file or of the log.

        Raises NotFound for an offset outside the log.
        """
        start, size = self._locate(offset, size)
        return self._open.read(self.path(start), size, offset - start) if size > 0 else b""

    def record_at(self, offset: int) -> bytes:
        """Reads the whole record that starts at this offset.

        The offset comes from a queue, the index or other state, so a record is expected there.  Raises NotFound if the
        record is no longer in the log, and StoreCorrupt if it is damaged.
        """
        head = self.read(offset, BLANK_SIZE)
        if not head:
            raise NotFound(f"no record starts at log offset {offset}, where the log ends")
        data = self.read(offset, BLANK.unpack(head)[0] if len(head) == BLANK_SIZE else 0)
        with self.decoding(data, offset):
            found = decode(data).commit_log_offset
        if found != offset:
            raise self.damaged(offset, f"the record there has log offset {found}")
        return data

    def has_record_at(self, offset: int) -> bool:
        """Returns True if the bytes at this offset are a record's head, with this log offset in it.

        The rest of the record, behind its head, may be damaged.
        """
        if not self.min_offset <= offset < self.end_offset:
            return False
        head = self.read(offset, HEAD.size)
        if len(head) < HEAD.size:
            return False
        _, magic, _, _, _, _, commit_log_offset, _, _ = HEAD.unpack(head)
        return magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) and commit_log_offset == offset

    def find_record(self, offset: int) -> bytes | None:
        """Reads the record at an offset that a client has named; None if no record starts there.

        Raises StoreCorrupt if the record is damaged.
        """
        return self.record_at(offset) if self.has_record_at(offset) else None

    def goes_on_at(self, offset: int) -> bool:
        """Returns True if a record can end at this offset: the next record, a blank one, or the end of the log follows.

        Returns True also if the disk cannot read the bytes at this offset.
        """
        try:
            if offset == self.end_offset or self.has_record_at(offset):
                return True
            head = self.read(offset, BLANK_SIZE) if self.min_offset <= offset < self.end_offset else b""
        except ReadFailed:
            return True
        rest = self.file_size - offset % self.file_size
        return len(head) == BLANK_SIZE and BLANK.unpack(head) == (rest, BLANK_MAGIC)

    @contextmanager
    def decoding(self, records: bytes | memoryview, offset: int | None = None) -> Iterator[None]:
        """A context for code that decodes complete records of the log: it turns a RecordError into StoreCorrupt.

        `records` begins at log offset `offset`.  Without `offset`, an error names the log offset that is written
        in the record's head.  This offset is right, because the read compared it with the queue's entry.
        """
        try:
            yield
        except RecordError as error:
            at = HEAD.unpack_from(records, error.at)[6] if offset is None else offset + error.at
            raise self.damaged(at, error.reason) from error

    def damaged(self, offset: int, reason: str) -> StoreCorrupt:
        """Makes the error for a damaged record that starts at this offset."""
        return StoreCorrupt(
            f"{self.path(self.start_of(offset))} is damaged at log offset {offset} ({reason}): run `rocketsim store "
            "verify`; restore the file or take the log of the other broker"
        )

    def peek(self, offset: int, size: int) -> bytes:
        """Reads up to `size` bytes of one file, which may lie behind the end of the log."""
        start = self.start_of(offset)
        return self._open.read(self.path(start), min(size, start + self.file_size - offset), offset - start)

    def view_of(self, offset: int, size: int) -> memoryview:
        """Reads as `read` does, but returns a view of the mapped file instead of a copy."""
        start, size = self._locate(offset, size)
        if size > 0:
            self.need(range(offset // BLOCK, (offset + size - 1) // BLOCK + 1))
        return self.view(start)[offset - start : offset - start + size] if size > 0 else memoryview(b"")

    def _locate(self, offset: int, size: int) -> tuple[int, int]:
        """Returns the file that holds the offset, and how many of the `size` bytes it has."""
        if not self.min_offset <= offset <= self.end_offset:
            raise NotFound(f"log offset {offset} is outside the log: {self.min_offset} to {self.end_offset}")
        start = self.start_of(offset)
        return start, min(size, start + self.file_size - offset, self.end_offset - offset)

    def need_records(self, offsets: Positions, sizes: Positions) -> None:
        """Calls `need` for the blocks in which these records lie."""
        if offsets.min() < self._residency.written_from:
            self.need(blocks_of(offsets, sizes))

    def need(self, blocks: Iterable[int]) -> None:
        """Makes sure that these blocks are in memory, so that a map of them can be read without waiting.

        Blocks that are not in memory are read, or Cold is raised if this thread must not wait for the disk.  Raises
        ReadFailed if the disk cannot read the blocks.
        """
        cold: list[Place] = []
        found, missing = [], 0
        for block in self._residency.unknown(blocks):
            places = list(self._places(block))
            if not all(self._open.is_cached(path, size, at) for path, at, size in places):
                missing += 1
                if not self._open.waits:
                    self._open.check_failed(places)
                    cold += places
                    continue
                for path, at, size in places:
                    self._open.read(path, size, at)
            found.append(block)
        self._residency.missed(missing, self.end_offset)
        if cold:
            raise Cold(cold)
        self._residency.found(found)

    def _places(self, block: int) -> Iterator[Place]:
        """Returns the parts of files in which the block lies, up to the end of the log."""
        at, end = max(block * BLOCK, self.min_offset), min((block + 1) * BLOCK, self.end_offset)
        while at < end:
            start = self.start_of(at)
            stop = min(end, start + self.file_size)
            yield self.path(start), at - start, stop - at
            at = stop

    def send(self, offset: int, size: int, to: int) -> int:
        """Sends bytes of one file to the socket with the descriptor `to`, as far as the kernel has room for them, and
        returns the number of these bytes.  Raises BlockingIOError if the kernel has no room.

        The bytes must be in memory, as after `need`.  The kernel does not copy them, so that a receiver sees what is
        written to them before it reads them.  Therefore the log must not be cut after this call.
        """
        self._was_sent = True
        start = self.start_of(offset)
        return self._files.send(self._open.handle(self.path(start)), size, offset - start, to)

    def age(self) -> None:
        """Forgets which blocks were in memory some seconds ago; called every few seconds."""
        self._residency.age(self.end_offset)

    def view(self, start: int) -> memoryview:
        """Returns a read-only view of a whole file.  The view shows later writes, too.

        Callers may read only blocks for which they called `need`.
        """
        return self._open.map(self.path(start))

    def __str__(self) -> str:
        return f"commit log {self.min_offset}..{self.end_offset} in {len(self.starts)} files"
