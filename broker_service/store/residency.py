"""Which blocks of the log are in memory; only those are read through maps.

Reading a map that is not in memory blocks the process, and a bad sector ends it with SIGBUS.  So a block that was not
written or read in the last seconds is looked for in the page cache first, and if it is not there read with `pread` by a
thread that may wait.  A bad sector is an error there.
"""

from collections.abc import Iterable
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BITS = 20
BLOCK = 1 << _BITS

Positions = npt.NDArray[np.int64]
Place = tuple[Path, int, int]


class Cold(Exception):
    """A read would wait for the disk: `places`, (path, position, size in bytes), are not in memory."""

    def __init__(self, places: list[Place]) -> None:
        super().__init__(f"{len(places)} parts of files have to be read from the disk")
        self.places = places


class Residency:
    """Blocks found in memory, or written, since the last but one call of `age`."""

    def __init__(self) -> None:
        self._found: set[int] = set()
        self._found_before: set[int] = set()
        self._written_from: int | None = None  # None: nothing counts as written
        self._written_before_from: int | None = None

    def age(self, log_end: int) -> None:
        """To be called every few seconds: what was found or written two calls ago has to be looked for again."""
        self._found_before, self._found = self._found, set()
        self._written_before_from, self._written_from = self._written_from, log_end

    @property
    def written_from(self) -> float:
        """What lies at or behind this offset was written a short while ago."""
        since = self._written_from if self._written_before_from is None else self._written_before_from
        return inf if since is None else since

    def unknown(self, blocks: Iterable[int]) -> list[int]:
        """The blocks that may have left memory."""
        since, found, before = self.written_from, self._found, self._found_before
        return [block for block in blocks if block not in found and block not in before and block * BLOCK < since]

    def found(self, block: int) -> None:
        self._found.add(block)


def blocks_of(offsets: Positions, sizes: Positions) -> set[int]:
    """The blocks that these parts of the log lie in."""
    firsts, lasts = offsets >> _BITS, (offsets + sizes - 1) >> _BITS  # a division takes ten times as long
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
