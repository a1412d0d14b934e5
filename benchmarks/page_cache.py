"""Fills the machine's free memory with page cache before each run, as it is on a machine that has been up for days.

A hypervisor may take free memory back from a virtual machine.  The first write to such a page then waits for the host.
On the machine of the published figures, writing a new file took up to ten times as long per byte as in memory that was
in use before, and how much of the memory was free changed from run to run.
"""

import os
from collections.abc import Callable
from pathlib import Path

import psutil

CHUNK = 256 << 20  # bytes read between two looks at the free memory
PIECE = 1 << 20  # bytes of a single read
LIMIT = 1 << 40  # no machine has more free memory; ends the loop if the system's figures make no sense


def free_memory() -> int:
    return psutil.virtual_memory().free


class PageCache:
    """Reads a file without content, which takes no space on the disk, at places that were not read before.

    The pages that are read stay in memory until others need them.  The file is in `folder`, and its pages are free
    again when the folder is deleted.  `free` returns the machine's free memory in bytes.
    """

    def __init__(self, folder: Path, free: Callable[[], int] = free_memory, chunk: int = CHUNK) -> None:
        self._path = folder / "page-cache"
        self._free = free
        self._chunk = chunk
        self._end = 0

    def fill(self) -> int:
        """Reads until the free memory no longer falls, which means that the kernel has to drop other pages to make
        room.  Returns the number of bytes that were read, which is one chunk if the memory was full before.
        """
        begun = self._end
        with self._path.open("ab") as file:
            free = self._free()
            while self._end - begun < LIMIT:
                self._read(file.fileno())
                before, free = free, self._free()
                if before - free < self._chunk // 2:
                    break
        return self._end - begun

    def _read(self, handle: int) -> None:
        end = self._end + self._chunk
        os.ftruncate(handle, end)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._end)
            piece = bytearray(min(PIECE, self._chunk))
            while file.tell() < end:
                file.readinto(piece)
        self._end = end
