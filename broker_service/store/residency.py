"""Residency knows which blocks of the log are in memory, because only blocks in memory may be read through maps.

Reading a mapped page that is not in memory blocks the whole process, and if its sector is bad, SIGBUS ends the process.

A block that was written or found in memory in the last seconds counts as in memory, unless other blocks were read from
the disk since then, because these may have pushed it out.  For all other blocks, the kernel is asked whether the page
cache has them.  If the page cache does not have a block, a thread that may wait reads it with `pread`, for which a bad
sector is an ordinary error.
"""

from collections.abc import Iterable
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BITS = 20
BLOCK = 1 << _BITS
_FEW = 64  # up to this number of parts of the log, a loop in Python is faster than numpy

# When this many blocks were read from the disk, blocks that were written before may be out of memory.  Linux keeps file
# pages that were used only once in a list that may be as short as a fifteenth of a memory of 24 GiB.
PUSHED_OUT_AFTER = 128

Positions = npt.NDArray[np.int64]
Place = tuple[Path, int, int]  # file, position, size in bytes


class Cold(Exception):
    """A read would have to wait for the disk, because `places` are not in memory."""

    def __init__(self, places: list[Place]) -> None:
        super().__init__(f"{len(places)} parts of files have to be read from the disk")
        self.places = places


class Residency:
    """The blocks that were found in memory or written in the last seconds.

    `age`, which is called every few seconds, forgets the blocks from before its previous call.  `missed` forgets them
    earlier, if blocks have to be read from the disk.
    """

    def __init__(self) -> None:
        self._found: set[int] = set()
        self._found_before: set[int] = set()
        self._written_from: int | None = None  # None: nothing counts as written
        self._written_before_from: int | None = None
        self._missing = 0  # blocks that were not in memory since the last `age`

    def age(self, log_end: int) -> None:
        """Forgets the blocks that were found or written before the previous call; to be called every few seconds."""
        self._found_before, self._found = self._found, set()
        self._written_before_from, self._written_from = self._written_from, log_end
        self._missing = 0

    def missed(self, count: int, log_end: int) -> None:
        """Notes that so many blocks were not in memory, and have to be read from the disk.

        If memory is full, each of them pushes another block out, usually the one that was read first.  For a client
        that reads the log a second time, for its next queue, this is just the block that it needs next.  Therefore no
        block that was found before counts as in memory any more.
        """
        if not count:
            return
        self._found.clear()
        self._found_before.clear()
        self._missing += count
        if self._missing >= PUSHED_OUT_AFTER:
            self.age(log_end)

    @property
    def written_from(self) -> float:
        """The log offset behind which all bytes were written at most a few seconds ago."""
        since = self._written_from if self._written_before_from is None else self._written_before_from
        return inf if since is None else since

    def unknown(self, blocks: Iterable[int]) -> list[int]:
        """Returns the blocks that may not be in memory any more."""
        since, found, before = self.written_from, self._found, self._found_before
        return [block for block in blocks if block not in found and block not in before and block * BLOCK < since]

    def found(self, blocks: Iterable[int]) -> None:
        self._found.update(blocks)


def blocks_of(offsets: Positions, sizes: Positions) -> set[int]:
    """Returns the blocks in which these parts of the log lie."""
    if len(offsets) <= _FEW:
        places = zip(offsets.tolist(), sizes.tolist(), strict=True)
        return {block for at, size in places for block in range(at >> _BITS, (at + size - 1 >> _BITS) + 1)}
    firsts, lasts = offsets >> _BITS, (offsets + sizes - 1) >> _BITS  # shifts, since a division takes ten times as long
    first, last = int(firsts.min()), int(lasts.max())
    if last - first <= 1:
        return {first, last}
    blocks = set(firsts[np.flatnonzero(np.diff(firsts))].tolist())
    blocks.add(int(firsts[-1]))
    beyond = lasts > firsts
    if beyond.any():
        for first, last in zip(firsts[beyond].tolist(), lasts[beyond].tolist(), strict=True):
            blocks.update(range(first + 1, last + 1))
    return blocks
