"""A disk in memory behind the store's seam: it tears, fills up, fails, and loses power.

What was written and not synced is kept apart: `power_loss` keeps a random part of it, sector by sector, and of the
names in directories that were not synced a random beginning; `kill` keeps all.  Every call that changes something has a
number, in order, so that a test can fail or stop the world at the n-th.

Trouble is that of ext4 and XFS on Linux.  After a failed `fdatasync` the pages count as clean: they can be read, by
this process and the next, as long as they stay in the page cache; the next sync succeeds without writing them; and
`power_loss` (or `evict`, when memory is short) shows what the disk really has.  Writing the same bytes again makes them
dirty.  A full disk refuses whatever needs room: new names, new blocks, also those of a sparse file's holes.
"""

import errno
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from broker_service.store.files import Buffer, DiskUsage, Files

SECTOR = 512
PAGE = 4096


class PowerCut(BaseException):
    """The world stops here.  No OSError: nobody may catch it and go on."""


@dataclass(eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    pages: set[int] = field(default_factory=set)  # allocated

    def resize(self, size: int) -> None:
        if len(self.data) != size:  # also shared with a map, which cannot grow
            self.data.extend(bytes(size - len(self.data)))
            self.durable.extend(bytes(size - len(self.durable)))  # sizes reach the disk with preallocation


@dataclass
class Fault:
    """Fails the `nth` call of one kind from now on (and all later ones, if `for_good`); a write first does a part."""

    call: str
    nth: int
    error: int
    for_good: bool = False
    part: float = 0.0
    matching: str = ""

    def hits(self, call: str, path: str) -> bool:
        if call != self.call or self.matching not in path or (self.nth <= 0 and not self.for_good):
            return False
        self.nth -= 1
        return self.nth == 0 or (self.for_good and self.nth < 0)


class MemoryFiles(Files):
    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.usage: DiskUsage | None = None  # what disk_usage says, if a test wants it so
        self.calls = 0
        self.log: list[str] = []  # every call that changed something
        self.stop_at: int | None = None  # the number of the call at which the power goes
        self.faults: list[Fault] = []
        self.before: Callable[[str, Path], None] | None = None
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._pending: list[tuple[Path, Path, Inode | None]] = []  # (directory, name, inode or gone)
        self._directories: set[Path] = set()
        self._handles: dict[int, tuple[Path, Inode]] = {}
        self._next_handle = 100
        self._locks: dict[int, Path] = {}
        self._off = False
        self._off_in_write = False

    # --- trouble --------------------------------------------------------------------------------------------------

    def fail(
        self, call: str, error: int, *, nth: int = 1, for_good: bool = False, part: float = 0.0, matching: str = ""
    ) -> Fault:
        """From now on the nth such call on a path that contains `matching` fails."""
        fault = Fault(call, nth, error, for_good, part, matching)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        self.faults.clear()

    def fill(self) -> None:
        """Another program takes all the room that is left."""
        self.capacity = self._used()

    def make_room(self, size: int = 1 << 40) -> None:
        self.capacity = self._used() + size

    def evict(self) -> None:
        """The kernel gives up every clean page; what a failed sync left off the disk reads as the disk has it."""
        self._evict(self._inodes())

    def evict_some(self, chance: random.Random) -> None:
        """The same of some files."""
        self._evict([inode for inode in dict.fromkeys(self._names.values()) if chance.random() < 0.3])

    def _evict(self, inodes: Iterable[Inode]) -> None:
        for inode in inodes:
            data = bytearray(inode.durable)
            for offset, written in inode.unsynced:
                data[offset : offset + len(written)] = written
            inode.data[:] = data

    def kill(self) -> "MemoryFiles":
        """The disk as the next process finds it: everything written is there, and what was not synced still is not."""
        reborn = self._reborn(lambda inode: bytearray(inode.data), dict(self._names))
        for path, inode in self._names.items():
            copy = reborn._names[path]
            copy.durable, copy.unsynced = bytearray(inode.durable), list(inode.unsynced)
        reborn._durable_names = {
            path: next((reborn._names[name] for name, other in self._names.items() if other is inode), inode)
            for path, inode in self._durable_names.items()
        }
        reborn._pending = [
            (directory, path, inode and next((reborn._names[n] for n, o in self._names.items() if o is inode), inode))
            for directory, path, inode in self._pending
        ]
        return reborn

    def power_loss(self, chance: random.Random) -> "MemoryFiles":
        """The disk as it is after the power went: what was synced, and a random part of the rest."""
        names = dict(self._durable_names)
        for _, path, inode in self._pending[: chance.randint(0, len(self._pending))]:
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode

        def content(inode: Inode) -> bytearray:
            data = bytearray(inode.durable)
            for offset, written in inode.unsynced:
                for at, piece in _sectors(offset, written):
                    if chance.random() < 0.5:
                        data[at : at + len(piece)] = piece
            return data

        return self._reborn(content, names)

    def _reborn(self, content: Callable[[Inode], bytearray], names: dict[Path, Inode]) -> "MemoryFiles":
        self._off = True  # whoever still holds the old disk must not write to it
        reborn = MemoryFiles(self.capacity)
        reborn.usage = self.usage
        copies: dict[int, Inode] = {}
        for path, inode in names.items():
            if id(inode) not in copies:
                data = content(inode)
                copies[id(inode)] = Inode(data, bytearray(data), [], set(inode.pages))
            reborn._names[path] = copies[id(inode)]
        reborn._durable_names = dict(reborn._names)
        reborn._directories = set(self._directories)
        return reborn

    def _look(self, call: str, path: Path) -> None:
        """A call that changes nothing.  It has no number; a fault can hit it; a test may look when all is over."""
        for fault in self.faults:
            if fault.hits(call, str(path)):
                raise OSError(fault.error, errno.errorcode[fault.error], str(path))

    def _change(self, call: str, path: Path, act: Callable[[float], None]) -> None:
        """One numbered change; `act` does a part of it (1.0: all)."""
        if self._off:
            raise PowerCut
        if self.before is not None:
            self.before(call, path)
        self.calls += 1
        self.log.append(f"{call} {path}")
        if self.stop_at is not None and self.calls >= self.stop_at:
            # A sync that the end interrupts has done nothing yet, a write a part.
            if not call.startswith(("fdatasync", "sync")):
                self._off_in_write = True
                act(random.Random(self.calls).random())
            self._off = True
            raise PowerCut
        for fault in self.faults:
            if fault.hits(call, str(path)):
                act(fault.part)
                raise OSError(fault.error, errno.errorcode[fault.error], str(path))
        act(1.0)

    # --- Files ----------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        if self._off:
            raise PowerCut
        self._look("open", path)
        inode = self._names.get(path)
        if inode is None and path in self._directories:
            inode = Inode()
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._directory_of(path)
            inode = Inode()

            def act(part: float) -> None:
                if part == 1.0:
                    self._need_room(path)
                    self._name(path, inode)

            self._change("create", path, act)
        self._next_handle += 1
        self._handles[self._next_handle] = (path, inode)
        return self._next_handle

    def close(self, handle: int) -> None:
        self._locks.pop(handle, None)
        self._handles.pop(handle)

    def preallocate(self, handle: int, size: int) -> None:
        path, inode = self._handles[handle]

        def act(part: float) -> None:
            if part == 1.0:
                self._allocate(inode, 0, size, path)
                inode.resize(size)

        self._change("preallocate", path, act)

    def resize(self, handle: int, size: int) -> None:
        path, inode = self._handles[handle]
        self._change("resize", path, lambda part: inode.resize(size) if part == 1.0 else None)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        path, inode = self._handles[handle]
        written = bytes(data)

        def act(part: float) -> None:
            if self._off_in_write and offset // SECTOR == (offset + len(written) - 1) // SECTOR:
                part = round(part)  # neither a process nor the power dies in the middle of a sector
            piece = written[: int(len(written) * part)]
            self._allocate(inode, offset, len(piece), path)
            if offset + len(piece) > len(inode.data):
                inode.resize(offset + len(piece))
            inode.data[offset : offset + len(piece)] = piece
            inode.unsynced.append((offset, piece))

        self._change("pwrite", path, act)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        path, inode = self._handles[handle]
        self._look("pread", path)
        return bytes(inode.data[offset : offset + size])

    def pread_cached(self, handle: int, size: int, offset: int) -> bytes | None:
        return self.pread(handle, size, offset)

    def is_cached(self, handle: int, size: int, offset: int) -> bool:
        return offset + size <= len(self._handles[handle][1].data)

    def map(self, handle: int) -> memoryview:
        return memoryview(self._handles[handle][1].data).toreadonly()

    def written_parts(self, handle: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Those that have blocks; holes read as zeros."""
        parts: list[tuple[int, int]] = []
        for page in sorted(self._handles[handle][1].pages):
            first, last = max(page * PAGE, begin), min((page + 1) * PAGE, end)
            if first < last and parts and parts[-1][1] == first:
                parts[-1] = parts[-1][0], last
            elif first < last:
                parts.append((first, last))
        return parts

    def fdatasync(self, handle: int) -> None:
        path, inode = self._handles[handle]

        def act(part: float) -> None:
            # As Linux has it: after a failed sync all pages count as clean, whatever the disk has of them.
            for offset, written in inode.unsynced[: round(len(inode.unsynced) * part)]:
                inode.durable[offset : offset + len(written)] = written
            inode.unsynced.clear()

        self._change("fdatasync", path, act)

    def sync_directory(self, path: Path) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))

        def act(part: float) -> None:
            if part < 1.0:
                return
            for directory, name, inode in self._pending:
                if directory == path:
                    if inode is None:
                        self._durable_names.pop(name, None)
                    else:
                        self._durable_names[name] = inode
            self._pending = [change for change in self._pending if change[0] != path]

        self._change("sync_directory", path, act)

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._directories

    def size(self, path: Path) -> int:
        self._look("size", path)
        return len(self._inode(path).data)

    def names(self, directory: Path) -> list[str]:
        self._look("names", directory)
        entries = {path.name for path in self._names if path.parent == directory}
        return sorted(entries | {path.name for path in self._directories if path.parent == directory})

    def make_directory(self, path: Path) -> None:
        if path not in self._directories:
            self._look("make_directory", path)
            self._need_room(path)
            self._directories.update([path, *path.parents])

    def remove(self, path: Path) -> None:
        if path in self._names:
            self._change("remove", path, lambda part: self._unname(path) if part == 1.0 else None)

    def remove_tree(self, path: Path) -> None:
        for name in [name for name in self._names if path in name.parents]:
            self.remove(name)
        self._directories = {name for name in self._directories if name != path and path not in name.parents}

    def rename(self, source: Path, target: Path) -> None:
        def act(part: float) -> None:
            if part == 1.0:
                if source not in self._names:
                    raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
                inode = self._names.pop(source)
                self._name(target, inode)
                self._pending.append((source.parent, source, None))

        self._change("rename", target, act)

    def read(self, path: Path) -> bytes:
        self._look("read", path)
        return bytes(self._inode(path).data)

    def disk_usage(self, path: Path) -> DiskUsage:
        return self.usage or DiskUsage(self.capacity, self.capacity - self._used())

    def lock(self, path: Path) -> int:
        if path in self._locks.values():
            raise BlockingIOError(errno.EAGAIN, "locked", str(path))
        handle = self.open(path, create=True)
        self._locks[handle] = path
        return handle

    # --- inside ---------------------------------------------------------------------------------------------------

    def poke(self, path: Path, offset: int, data: bytes) -> None:
        """Changes bytes behind everybody's back, as a failing disk does."""
        inode = self._inode(path)
        inode.data[offset : offset + len(data)] = data
        inode.durable[offset : offset + len(data)] = data

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    def _inodes(self) -> set[Inode]:
        return {*self._names.values(), *self._durable_names.values(), *(inode for _, inode in self._handles.values())}

    def _need_room(self, path: Path) -> None:
        """For a name in a directory."""
        if self._used() >= self.capacity:
            raise OSError(errno.ENOSPC, "no room on the disk", str(path))

    def _directory_of(self, path: Path) -> None:
        if path.parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))

    def _inode(self, path: Path) -> Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self._names[path]

    def _name(self, path: Path, inode: Inode) -> None:
        self._names[path] = inode
        self._pending.append((path.parent, path, inode))

    def _unname(self, path: Path) -> None:
        del self._names[path]
        self._pending.append((path.parent, path, None))

    def _used(self) -> int:
        return sum(len(inode.pages) for inode in set(self._names.values())) * PAGE

    def _allocate(self, inode: Inode, offset: int, size: int, path: Path) -> None:
        fresh = set(range(offset // PAGE, -(-(offset + size) // PAGE))) - inode.pages
        if fresh and self._used() + len(fresh) * PAGE > self.capacity:
            raise OSError(errno.ENOSPC, "no room on the disk", str(path))
        inode.pages |= fresh


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    pieces = []
    at = 0
    while at < len(data):
        size = min(SECTOR - (offset + at) % SECTOR, len(data) - at)
        pieces.append((offset + at, data[at : at + size]))
        at += size
    return pieces
