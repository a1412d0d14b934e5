"""A broker's disk in the simulation, which outlives the broker and loses its power when the seed says so.

Disk calls of a broker's own threads take virtual time, in which the broker's event loop continues.
"""

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.threads import running_thread
from tests.support.memory_files import SECTOR, MemoryFiles, PowerCut

# The parts of a store to which a call can belong, for counting the different places where a broker has died.
_KINDS = ("commitlog", "consumequeue", "index", "config", "diverged", "rocketsim")


READS = frozenset(("open", "read", "pread", "size", "names"))
_FLUSHED_SLOTS = (0, 512)


@dataclass(frozen=True)
class Damage:
    """Bytes of a file that the disk has changed by itself."""

    path: Path
    begin: int
    were: bytes
    became: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.were)

    def is_in(self, content: bytes) -> bool:
        """Returns True if the damage is still in the file: nothing has overwritten it, and nobody has restored the
        file.
        """
        return content[self.begin : self.end] == self.became

    def taken_out_of(self, content: bytes) -> bytes:
        return content[: self.begin] + self.were + content[self.end :] if self.is_in(content) else content


class Disk(MemoryFiles):
    """A simulated disk.  If the broker died in the middle of a call, `died_in` is the name of the call and the kind of
    its file.  `damages` has all damage that the disk has ever done.
    """

    def __init__(self, capacity: int = 1 << 40) -> None:
        super().__init__(capacity)
        self.before = self._before
        self.died_in: tuple[str, str] | None = None
        self.damages: list[Damage] = []
        self.unread_sectors: set[tuple[Path, int]] = set()  # sectors at which a read has ever failed
        self.watch: Callable[[str, Path], None] | None = None  # called before every call
        self.removed: Callable[[Path], None] | None = None  # called after a file is removed

    @property
    def is_off(self) -> bool:
        return self._off

    def pull_the_plug(self) -> None:
        self._off = True

    def remove(self, path: Path) -> None:
        super().remove(path)
        if self.removed is not None:
            self.removed(path)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        try:
            return super().pread(handle, size, offset)
        except OSError:
            path, inode = self._handles[handle]
            sectors = set(range(offset // SECTOR, -(-(offset + size) // SECTOR)))
            self.unread_sectors.update((path, sector) for sector in sectors & inode.bad or sectors)
            raise

    def _before(self, call: str, path: Path) -> None:
        thread = running_thread()
        if thread is not None:
            thread.pause()
            if self._off:
                raise PowerCut
        if self.watch is not None:
            self.watch(call, path)
        if self.stop_at is not None and self.calls + 1 >= self.stop_at:
            self.died_in = (call, kind_of(path))

    # --- the disk that the next process finds ---------------------------------------------------------------------

    def after_kill(self) -> "Disk":
        return self._taken_over(self.kill())

    def after_power_loss(self, chance: random.Random) -> "Disk":
        return self._taken_over(self.power_loss(chance))

    def _taken_over(self, reborn: MemoryFiles) -> "Disk":
        disk = Disk(self.capacity)
        mine = {"before": disk.before, "died_in": None, "watch": self.watch, "removed": self.removed}
        disk.__dict__.update(reborn.__dict__, **mine)
        disk.faults, disk.damages, disk.failed, disk.unread = self.faults, self.damages, self.failed, self.unread
        disk.unread_sectors = self.unread_sectors
        self._names, self._durable_names, self._pending, self._handles = {}, {}, [], {}  # this object is not used again
        return disk

    # --- damage ---------------------------------------------------------------------------------------------------

    def damage(self, path: Path, begin: int, became: bytes) -> Damage | None:
        """Overwrites the bytes.  Returns None if the bytes were equal before, or have been damaged before."""
        were = self.content(path, durable=False)[begin : begin + len(became)]
        became = became[: len(were)]
        end = begin + len(became)
        was_damaged = any(item.path == path and item.begin < end and begin < item.end for item in self.damages)
        if were == became or was_damaged:
            return None
        self.overwrite(path, begin, became)
        self.damages.append(Damage(path, begin, were, became))
        return self.damages[-1]

    def flip_a_bit(self, path: Path, begin: int, bit: int) -> Damage | None:
        return self.damage(path, begin, bytes([self.content(path, durable=False)[begin] ^ 1 << bit]))

    @property
    def bad_sectors(self) -> int:
        return sum(len(inode.bad) for inode in self._names.values())

    def files_below(self, directory: Path) -> list[Path]:
        below = f"{directory}/"
        return sorted(path for path in self._names if str(path).startswith(below))

    def still_damaged(self) -> list[Damage]:
        """Returns the damage that is still there, newest first, because damage must be undone in that order."""
        return [item for item in reversed(self.damages) if item.is_in(self.content(item.path, durable=False))]

    def repair(self) -> None:
        """Restores the damaged files as an operator does, and makes all sectors readable."""
        for damage in self.still_damaged():
            if damage.is_in(self.content(damage.path, durable=False)):
                self.overwrite(damage.path, damage.begin, damage.were)
        for inode in self._inodes():
            inode.bad.clear()

    # --- for invariants -------------------------------------------------------------------------------------------

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Lets a test read the disk in a `with` block.  Faults that are planned for the broker do not hit the test's
        reads.
        """
        faults, self.faults = self.faults, []
        try:
            yield
        finally:
            self.faults = faults

    def content(self, path: Path, *, durable: bool) -> bytes:
        """Returns what the next process finds in the file after a kill, or empty bytes if the file does not exist.

        With `durable`, returns only what no power loss can take.
        """
        inode = (self._durable_names if durable else self._names).get(path)
        if inode is None:
            return b""
        return bytes(inode.durable if durable else inode.data)

    def as_written(self, path: Path, *, durable: bool) -> bytes:
        """Returns the same as `content`, but without the damage that the disk has done."""
        content = self.content(path, durable=durable)
        for damage in reversed(self.damages):
            if damage.path == path:
                content = damage.taken_out_of(content)
        return content

    def flushed_offset(self, root: Path, *, as_written: bool = False) -> int | None:
        """Returns the flushed offset that the broker has written, or None if it wrote none or nobody can read it."""
        path = root / "rocketsim" / "flushed"
        return flushed_in(self.as_written(path, durable=False) if as_written else self.content(path, durable=False))


def flushed_in(note: bytes) -> int | None:
    """Returns the offset in `rocketsim/flushed`, or None if neither slot is whole."""
    slots = [note[at : at + 36] for at in _FLUSHED_SLOTS if len(note) >= at + 36]
    whole = [struct.unpack(">qq", slot[:16]) for slot in slots if zlib.crc32(slot[:32]) == _number(slot[32:])]
    return max(whole)[1] if whole else None


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def kind_of(path: Path) -> str:
    """Returns the part of the store to which the file belongs.  For files of `rocketsim` and `config`, returns the
    file's name.
    """
    for kind in _KINDS:
        if kind in path.parts:
            return f"{kind}/{path.name}" if kind in ("config", "rocketsim") else kind
    return path.name
