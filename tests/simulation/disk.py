"""A broker's disk in the simulation: `MemoryFiles` that survives its broker, and loses its power as the seed has it.

A power loss keeps any part of what was not synced: sectors in any order, torn ones among them, file sizes, and names in
directories.  Calls of a broker's own threads take time, in which its event loop goes on.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.threads import running_thread
from tests.support.memory_files import SECTOR, Inode, MemoryFiles, PowerCut

# What a call is done to, for counting the different places where a broker has died.
_KINDS = ("commitlog", "consumequeue", "index", "config", "diverged", "rocketsim")


class Disk(MemoryFiles):
    """`died_in`: the call and the kind of file in the middle of which it went."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        super().__init__(capacity)
        self.before = self._before
        self.died_in: tuple[str, str] | None = None

    @property
    def is_off(self) -> bool:
        return self._off

    @property
    def faults_left(self) -> int:
        return sum(fault.nth > 0 or fault.for_good for fault in self.faults)

    def pull_the_plug(self) -> None:
        self._off = True

    def _before(self, call: str, path: Path) -> None:
        thread = running_thread()
        if thread is not None:
            thread.pause()
            if self._off:
                raise PowerCut
        if self.stop_at is not None and self.calls + 1 >= self.stop_at:
            self.died_in = (call, kind_of(path))

    # --- the disk that the next process finds ---------------------------------------------------------------------

    def after_kill(self) -> "Disk":
        return self._taken_over(self.kill())

    def after_power_loss(self, chance: random.Random) -> "Disk":
        names = dict(self._durable_names)
        for changes in self._renames_and_others():
            if chance.random() < 0.5:
                for name, inode in changes:
                    if inode is None:
                        names.pop(name, None)
                    else:
                        names[name] = inode
        return self._taken_over(self._reborn(lambda inode: _what_is_left(inode, chance), names))

    def _taken_over(self, reborn: MemoryFiles) -> "Disk":
        disk = Disk(self.capacity)
        mine = {"before": disk.before, "died_in": None}
        disk.__dict__.update(reborn.__dict__, **mine)
        disk.faults = self.faults
        self._names, self._durable_names, self._pending, self._handles = {}, {}, [], {}  # nobody asks this one again
        return disk

    def _renames_and_others(self) -> Iterator[list[tuple[Path, Inode | None]]]:
        """Changes of names that are not on disk; each happens as a whole, and later ones of a name imply earlier."""
        pending = [(name, inode) for _, name, inode in self._pending]
        at = 0
        while at < len(pending):
            name, inode = pending[at]
            is_rename = inode is not None and at + 1 < len(pending) and pending[at + 1][1] is None
            is_rename = is_rename and pending[at + 1][0].name == name.name + ".tmp"
            yield pending[at : at + 2] if is_rename else pending[at : at + 1]
            at += 2 if is_rename else 1

    # --- for invariants -------------------------------------------------------------------------------------------

    def content(self, path: Path, *, durable: bool) -> bytes:
        """What the next process finds after a kill, or what no power loss takes; empty for a file that is not there."""
        inode = (self._durable_names if durable else self._names).get(path)
        if inode is None:
            return b""
        return bytes(inode.durable if durable else inode.data)


def _what_is_left(inode: Inode, chance: random.Random) -> bytearray:
    data = bytearray(inode.durable)
    for offset, written in inode.unsynced:
        for at in range(offset - offset % SECTOR, offset + len(written), SECTOR):
            if chance.random() < 0.5:
                first, last = max(at, offset), min(at + SECTOR, offset + len(written))
                data[first:last] = written[first - offset : last - offset]
    return data


def kind_of(path: Path) -> str:
    """The part of the store that the file belongs to; files of `rocketsim` and `config` by name."""
    for kind in _KINDS:
        if kind in path.parts:
            return f"{kind}/{path.name}" if kind in ("config", "rocketsim") else kind
    return path.name
