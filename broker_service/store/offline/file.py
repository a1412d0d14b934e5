"""A file of a store directory, read chunk by chunk without a broker.

It is not mapped, so a sector that the disk cannot read is an error instead of SIGBUS.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from broker_service.errors import ReadFailed

_CHUNK = 8 << 20
_FIRST_CHUNK = 64 << 10  # what is searched for is mostly near


class OfflineFile:
    """`size` is the file's when it was made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes; fewer only where the file ends.  ReadFailed if the disk cannot read them."""
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
        """Whether there are only zeros from there to the end."""
        return not any(
            np.frombuffer(self.read(begin, _CHUNK), np.uint8).any() for begin in range(at, self.size, _CHUNK)
        )

    def find(self, wanted: Sequence[bytes], at: int) -> Iterator[int]:
        """Where any of these, all of one length, lie at or behind `at`, in order.

        Of bytes that were read: `find` on a map reads behind its end in Python 3.11.2, which ends the process.
        """
        overlap, chunk = len(wanted[0]) - 1, _FIRST_CHUNK
        while at < self.size:
            data = self.read(at, chunk + overlap)
            yield from sorted(at + found for one in wanted for found in _all(data, one))
            at, chunk = at + chunk, min(2 * chunk, _CHUNK)

    def find_backwards(self, wanted: bytes) -> Iterator[int]:
        """Where it lies, the last one first."""
        end = self.size
        while end > 0:
            begin = max(end - _CHUNK, 0)
            data = self.read(begin, end - begin + len(wanted) - 1)
            yield from (begin + found for found in reversed(list(_all(data, wanted))))
            end = begin


def _all(data: bytes, wanted: bytes) -> Iterator[int]:
    found = data.find(wanted)
    while found >= 0:
        yield found
        found = data.find(wanted, found + 1)


def numbered_files(directory: Path) -> list[Path]:
    """The files named by the position they start at, in order."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.isdigit() and len(path.name) == 20)
