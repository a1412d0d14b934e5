"""OfflineFile reads a file of a store directory chunk by chunk, without a broker.

The file is not mapped, so a sector that the disk cannot read raises an error instead of SIGBUS.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from broker_service.errors import ReadFailed

CHUNK = 8 << 20
FIRST_CHUNK = 64 << 10  # small, because `find` usually finds what it searches for nearby


class OfflineFile:
    """One file of a store.  `size` is the file's size when this object was made; a running broker may change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def read(self, at: int, size: int) -> bytes:
        """Reads `size` bytes, or fewer at the end of the file.  Raises ReadFailed if the disk cannot read the bytes."""
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunks = []
            while size > 0 and (chunk := os.pread(handle, size, at)):
                chunks.append(chunk)
                at, size = at + len(chunk), size - len(chunk)
        except OSError as error:
            raise ReadFailed.of(self.path, at, error) from error
        finally:
            os.close(handle)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def is_zero(self, at: int) -> bool:
        """Returns True if the file has only zeros from `at` to its end."""
        return not any(np.frombuffer(self.read(begin, CHUNK), np.uint8).any() for begin in range(at, self.size, CHUNK))

    def find(self, wanted: Sequence[bytes], at: int) -> Iterator[int]:
        """Yields, in order, the positions from `at` on of any of these byte strings, which have the same length.

        The method reads the file instead of mapping it, because in Python 3.11.2 `find` on a map reads behind the map's
        end, which kills the process.
        """
        overlap, chunk = len(wanted[0]) - 1, FIRST_CHUNK
        while at < self.size:
            data = self.read(at, chunk + overlap)
            yield from sorted(at + found for one in wanted for found in _all(data, one))
            at, chunk = at + chunk, min(2 * chunk, CHUNK)

    def find_backwards(self, wanted: bytes) -> Iterator[int]:
        """Yields the positions of this byte string, the last one first."""
        end = self.size
        while end > 0:
            begin = max(end - CHUNK, 0)
            data = self.read(begin, end - begin + len(wanted) - 1)
            yield from (begin + found for found in reversed(list(_all(data, wanted))))
            end = begin


def _all(data: bytes, wanted: bytes) -> Iterator[int]:
    found = data.find(wanted)
    while found >= 0:
        yield found
        found = data.find(wanted, found + 1)


def numbered_files(directory: Path) -> list[Path]:
    """Returns the files of a directory that are named by their start position, in order."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.isdigit() and len(path.name) == 20)
