"""A commit log in memory for tests of streams.  A record is its size in 4 bytes, and a body."""

import struct
import threading
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rocketsim_proto.records.record import RecordError

SIZE = struct.Struct(">I")


def record(body: bytes) -> bytes:
    return SIZE.pack(SIZE.size + len(body)) + body


class MemoryLog:
    """A ReplicatedLog.  With `fail_flush`, the next flushes fail.  `cut` has the bytes that were cut."""

    def __init__(self, data: bytes = b"", *, min_offset: int = 0, file_size: int = 1 << 30) -> None:
        self.data = bytearray(data)
        self.min_offset = min_offset
        self.flushed_offset = self.end_offset
        self.file_size = file_size
        self.fail_flush: Exception | None = None
        self.cut: list[bytes] = []
        self.flushes = 0
        self._aside = b""
        self._lock = threading.Lock()  # prevents a cut during a flush, as in a real store

    @property
    def end_offset(self) -> int:
        return self.min_offset + len(self.data)

    def append(self, *bodies: bytes) -> int:
        self.data += b"".join(map(record, bodies))
        return self.end_offset

    def read_log(self, commit_log_offset: int, max_bytes: int) -> bytes:
        assert self.min_offset <= commit_log_offset <= self.end_offset
        start = commit_log_offset - self.min_offset
        room = self.file_size - commit_log_offset % self.file_size
        return bytes(self.data[start : start + min(max_bytes, room)])

    def view_log(self, commit_log_offset: int, max_bytes: int) -> memoryview:
        return memoryview(self.read_log(commit_log_offset, max_bytes))

    def without_waiting(self, failed: object) -> AbstractContextManager[None]:
        return nullcontext()

    def warm(self, places: object) -> None:
        raise AssertionError(f"a log in memory has nothing to read from a disk: {places}")

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        if commit_log_offset == self.end_offset:
            self._aside = b""
        assert commit_log_offset == self.end_offset + len(self._aside)
        data, self._aside = self._aside + bytes(data), b""
        at = 0
        while at + SIZE.size <= len(data):
            (size,) = SIZE.unpack_from(data, at)
            if size < SIZE.size:
                raise RecordError(at, f"size {size}")
            if at + size > len(data):
                break
            at += size
        self.data += data[:at]
        self._aside = data[at:]
        return self.end_offset

    def tail_crc_at(self, commit_log_offset: int, size: int) -> tuple[int, int]:
        stop = commit_log_offset - self.min_offset
        tail = bytes(self.data[max(0, stop - size) : stop])
        return len(tail), zlib.crc32(tail)

    def truncate(self, offset: int, keep_in: Path | None) -> int:
        with self._lock:
            self.cut.append(bytes(self.data[offset - self.min_offset :]))
            del self.data[offset - self.min_offset :]
            self._aside = b""
            self.flushed_offset = min(self.flushed_offset, offset)
        return self.end_offset

    def queue_floors(self) -> list[tuple[str, int, int]]:
        return []

    def start_over(self, offset: int, floors: list[tuple[str, int, int]]) -> None:
        with self._lock:
            self.data.clear()
            self._aside = b""
            self.min_offset = self.flushed_offset = offset

    def flush(self) -> int:
        if self.fail_flush is not None:
            raise self.fail_flush
        with self._lock:
            self.flushes += 1
            end = self.flushed_offset = self.end_offset
        return end
