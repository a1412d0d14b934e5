"""A disk in memory that implements the store's file interface.  A disk in memory can tear writes, fill up, fail and
lose power.

The disk keeps unsynced changes apart.  `kill` keeps all unsynced changes.  `power_loss` keeps a random choice:
some of the written sectors, any size that a file has had since its last sync, and any of the unsynced names in a
directory, in no order.  Calls that change something are numbered in order, so that a test can fail or stop the n-th
one.

Failures are those of ext4 and XFS on Linux.  After a failed `fdatasync` the pages count as clean.  This process and the
next one can read the unwritten pages as long as they stay in the page cache.  The sync after a failed one succeeds
without writing these pages.  `power_loss` (or `evict`, when memory is short) shows what the disk really has.  Writing
the same bytes again makes the pages dirty.  A full disk refuses new names and new blocks, also blocks for the holes of
a sparse file.  A call that needs more blocks than are free does a part of its work.  A sector that is `bad` cannot be
read until all of it is written again.
"""

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NoReturn

from broker_service.store.files import Buffer, DiskUsage, Files

SECTOR = 512
PAGE = 4096
BOUNDLESS = 1 << 40


class MemoryPath(type(Path())):  # type: ignore[misc]
    """A path that makes its children, siblings and parent only once.  pathlib takes so long to make, hash and compare
    paths that a store on a disk in memory would spend a third of its time on it.
    """

    def __truediv__(self, name: object) -> "MemoryPath":
        return self._made(("/", name), lambda: super(MemoryPath, self).__truediv__(name))

    def with_name(self, name: str) -> "MemoryPath":
        return self.parent / name

    @property
    def parent(self) -> "MemoryPath":
        return self._made((), lambda: super(MemoryPath, self).parent)

    def _made(self, how: object, make: Callable[[], "MemoryPath"]) -> "MemoryPath":
        made = self.__dict__.setdefault("_relatives", {})
        if how not in made:
            made[how] = make()
        return made[how]


class PowerCut(BaseException):
    """Ends the process.  PowerCut is no OSError, so that no code catches it and continues."""


@dataclass(eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)  # shorter than `data` if the new size is not on the disk yet
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # the file's sizes since the last sync
    pages: set[int] = field(default_factory=set)  # allocated
    bad: set[int] = field(default_factory=set)  # sectors

    def resize(self, size: int) -> None:
        if len(self.data) != size:  # bytes that a memory map shares must not be resized
            self.data.extend(bytes(size - len(self.data)))
            self.sizes.append(size)

    def write(self, offset: int, data: bytes) -> None:
        if offset + len(data) > len(self.data):
            self.resize(offset + len(data))
        self.data[offset : offset + len(data)] = data
        self.unsynced.append((offset, data))
        if self.bad:
            self.bad.difference_update(range(-(-offset // SECTOR), (offset + len(data)) // SECTOR))

    def sync(self, part: float = 1.0) -> None:
        """Writes unsynced changes to the disk.  As in Linux, all pages count as clean after a failed sync, whatever the
        disk has of them.
        """
        if part == 1.0:
            self._grow(len(self.data))
            self.sizes.clear()
        for offset, written in self.unsynced[: round(len(self.unsynced) * part)]:
            self._grow(offset + len(written))
            self.durable[offset : offset + len(written)] = written
        self.unsynced.clear()

    def _grow(self, size: int) -> None:
        self.durable.extend(bytes(max(size - len(self.durable), 0)))

    def evict(self) -> None:
        data = bytearray(self.durable.ljust(len(self.data), b"\0"))
        for offset, written in self.unsynced:
            data[offset : offset + len(written)] = written
        self.data[:] = data

    def overwrite(self, offset: int, data: bytes) -> None:
        """Changes bytes everywhere: in memory, on the disk, and in unsynced writes."""
        end = offset + len(data)
        for there in (self.data, self.durable):
            stop = min(end, len(there))
            there[offset:stop] = data[: max(stop - offset, 0)]
        for number, (at, written) in enumerate(self.unsynced):
            first, last = max(at, offset), min(at + len(written), end)
            if first < last:
                changed = written[: first - at] + data[first - offset : last - offset] + written[last - at :]
                self.unsynced[number] = at, changed

    def is_readable(self, size: int, offset: int) -> bool:
        sectors = range(offset // SECTOR, -(-min(offset + size, len(self.data)) // SECTOR))
        return not self.bad or self.bad.isdisjoint(sectors)

    def after_kill(self) -> "Inode":
        return Inode(
            bytearray(self.data),
            bytearray(self.durable),
            list(self.unsynced),
            list(self.sizes),
            set(self.pages),
            set(self.bad),
        )

    def after_power_loss(self, chance: random.Random) -> "Inode":
        size = chance.choice([len(self.durable), *self.sizes]) if self.sizes else len(self.durable)
        data = bytearray(self.durable[:size].ljust(size, b"\0"))
        for offset, written in self.unsynced:
            for at, piece in _sectors(offset, written):
                if chance.random() < 0.5:
                    data[at : at + len(piece)] = piece[: max(size - at, 0)]
        return Inode(data, bytearray(data), [], [], set(self.pages), set(self.bad))


DIRECTORY = Inode()  # the one inode that stands for every directory
Change = list[tuple[Path, Inode | None]]  # names of one directory that change or vanish together (a rename)


@dataclass
class Fault:
    """Fails the `nth` call of one kind from now on, and with `for_good` all later ones.  A failing write has first
    written a `part` of its bytes, between 0.0 and 1.0.
    """

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
    def __init__(self, capacity: int = BOUNDLESS) -> None:
        self.capacity = capacity
        self.usage: DiskUsage | None = None  # the result of disk_usage, if a test sets it
        self.calls = 0
        self.log: list[str] = []  # every call that changed something
        self.stop_at: int | None = None  # the number of the call at which the power is lost
        self.faults: list[Fault] = []
        self.unread: list[Path] = []  # files of which a read has failed
        self.failed: Counter[str] = Counter()  # failed calls, by name and error
        self.before: Callable[[str, Path], None] | None = None
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        # Changes of names, each with the directory whose sync brings the change to the disk.
        self._pending: list[tuple[Path, Change]] = []
        self._directories: set[Path] = set()
        self._durable_directories: set[Path] = set()
        self._handles: dict[int, tuple[Path, Inode]] = {}
        self._next_handle = 100
        self._locks: dict[int, Path] = {}
        self._off = False
        self._off_in_write = False

    # --- trouble --------------------------------------------------------------------------------------------------

    def fail(
        self, call: str, error: int, *, nth: int = 1, for_good: bool = False, part: float = 0.0, matching: str = ""
    ) -> Fault:
        """Fails the nth call of this kind, from now on, on a path that contains `matching`."""
        fault = Fault(call, nth, error, for_good, part, matching)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        self.faults.clear()

    def fill(self) -> None:
        """Lets another program use all the free space."""
        self.capacity = self._used()

    def make_room(self, size: int = BOUNDLESS) -> None:
        self.capacity = self._used() + size

    def evict(self) -> None:
        """Drops every clean page, as the kernel does.  Pages that a failed sync did not write are then read from the
        disk.
        """
        self._evict(self._inodes())

    def evict_some(self, chance: random.Random) -> None:
        """Drops the clean pages of some files."""
        self._evict([inode for inode in dict.fromkeys(self._names.values()) if chance.random() < 0.3])

    def _evict(self, inodes: Iterable[Inode]) -> None:
        for inode in inodes:
            inode.evict()

    def kill(self) -> "MemoryFiles":
        """Returns the disk as the next process finds it: with all writes, of which unsynced ones are still unsynced."""
        return self.switched_off().as_killed()

    def power_loss(self, chance: random.Random) -> "MemoryFiles":
        """Returns the disk after a power loss: with what was synced, and a random part of the rest."""
        return self.switched_off().as_powerless(chance)

    def switched_off(self) -> "MemoryFiles":
        self._off = True  # processes that still have the old disk must not write to it
        return self

    def as_killed(self) -> "MemoryFiles":
        """Returns what `kill` would leave, without changing this disk."""
        reborn = self._like()
        copies: dict[Inode, Inode] = {DIRECTORY: DIRECTORY}

        def copy(inode: Inode) -> Inode:
            if inode not in copies:
                copies[inode] = inode.after_kill()
            return copies[inode]

        reborn._names = {path: copy(inode) for path, inode in self._names.items()}
        reborn._durable_names = {path: copy(inode) for path, inode in self._durable_names.items()}
        reborn._pending = [
            (parent, [(path, inode and copy(inode)) for path, inode in change]) for parent, change in self._pending
        ]
        reborn._directories, reborn._durable_directories = set(self._directories), set(self._durable_directories)
        return reborn

    def as_powerless(self, chance: random.Random) -> "MemoryFiles":
        """Returns what `power_loss` would leave, without changing this disk.

        The last kept change of a name counts, so changes may have reached the disk in any order.
        """
        names, directories = dict(self._durable_names), set(self._durable_directories)
        for _, change in self._pending:
            if chance.random() < 0.5:
                for path, inode in change:
                    if inode is DIRECTORY:
                        directories.add(path)
                    elif inode is None:
                        names.pop(path, None)
                    else:
                        names[path] = inode
        there = {path for path in directories if directories.issuperset(_above(path))}
        reborn = self._like()
        copies: dict[Inode, Inode] = {}
        for path, inode in names.items():
            if _parents(path)[0] not in there:
                continue
            if inode not in copies:
                copies[inode] = inode.after_power_loss(chance)
            reborn._names[path] = copies[inode]
        reborn._durable_names = dict(reborn._names)
        in_use = {directory for path in reborn._names for directory in _parents(path)}
        gone = {path for path in sorted(there - self._directories - in_use) if chance.random() < 0.5}
        reborn._directories = {path for path in there if gone.isdisjoint([path, *_parents(path)])} if gone else there
        reborn._durable_directories = set(reborn._directories)
        return reborn

    def _like(self) -> "MemoryFiles":
        reborn = MemoryFiles(self.capacity)
        reborn.usage = self.usage
        return reborn

    def _look(self, call: str, path: Path) -> None:
        """Does what each reading call needs.  Reading calls have no numbers, but a fault can hit them."""
        for fault in self.faults:
            if fault.hits(call, str(path)):
                self.unread.append(path)
                self._fail(call, fault.error, path)

    def _check_readable(self, inode: Inode, size: int, offset: int, path: Path) -> None:
        if not inode.is_readable(size, offset):
            self.unread.append(path)
            self._fail("read of a bad sector", errno.EIO, path)

    def _change(self, call: str, path: Path, act: Callable[[float], None]) -> None:
        """Does one numbered change.  `act(part)` does this share of the change, where 1.0 means the whole change."""
        if self._off:
            raise PowerCut
        if self.before is not None:
            self.before(call, path)
        self.calls += 1
        self.log.append(f"{call} {path}")
        if self.stop_at is not None and self.calls >= self.stop_at:
            # A sync that a crash interrupts has done nothing, and a write has done a part.
            if not call.startswith(("fdatasync", "sync")):
                self._off_in_write = True
                act(random.Random(self.calls).random())
            self._off = True
            raise PowerCut
        for fault in self.faults:
            if fault.hits(call, str(path)):
                act(fault.part)
                self._fail(call, fault.error, path)
        act(1.0)

    def _fail(self, call: str, error: int, path: Path) -> NoReturn:
        self.failed[f"{call} {errno.errorcode[error]}"] += 1
        raise OSError(error, "no room on the disk" if error == errno.ENOSPC else errno.errorcode[error], str(path))

    # --- Files ----------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, read_only: bool = False, private: bool = False) -> int:
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
                there = self._room_for(inode, 0, size)
                inode.resize(max(there, len(inode.data)))
                self._need_all(there, size, path)

        self._change("preallocate", path, act)

    def resize(self, handle: int, size: int) -> None:
        path, inode = self._handles[handle]
        self._change("resize", path, lambda part: inode.resize(size) if part == 1.0 else None)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        path, inode = self._handles[handle]
        written = bytes(data)

        def act(part: float) -> None:
            if self._off_in_write and offset // SECTOR == (offset + len(written) - 1) // SECTOR:
                part = round(part)  # no crash divides a sector
            size = int(len(written) * part)
            there = self._room_for(inode, offset, size)
            if there:
                inode.write(offset, written[:there])
            self._need_all(there, size, path)

        self._change("pwrite", path, act)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        path, inode = self._handles[handle]
        self._look("pread", path)
        self._check_readable(inode, size, offset, path)
        return bytes(inode.data[offset : offset + size])

    def pread_cached(self, handle: int, size: int, offset: int) -> bytes | None:
        return self.pread(handle, size, offset)

    def is_cached(self, handle: int, size: int, offset: int) -> bool:
        inode = self._handles[handle][1]
        return offset + size <= len(inode.data) and inode.is_readable(size, offset)

    def send(self, handle: int, size: int, offset: int, to: int) -> int:
        raise OSError(errno.EINVAL, "the kernel knows no file in memory")

    def map(self, handle: int) -> memoryview:
        return memoryview(self._handles[handle][1].data).toreadonly()

    def written_parts(self, handle: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the parts of the file that have blocks on the disk.  Holes are read as zeros."""
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

        self._change("fdatasync", path, inode.sync)

    def sync_directory(self, path: Path) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))

        def act(part: float) -> None:
            if part < 1.0:
                return
            for parent, change in self._pending:
                for name, inode in change if parent == path else ():
                    if inode is DIRECTORY:
                        self._durable_directories.add(name)
                    elif inode is None:
                        self._durable_names.pop(name, None)
                    else:
                        self._durable_names[name] = inode
            self._pending = [change for change in self._pending if change[0] != path]
            self._durable_directories -= {
                name for name in self._durable_directories - self._directories if name.parent == path
            }

        self._change("sync_directory", path, act)

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._directories

    def size(self, path: Path) -> int:
        self._look("size", path)
        return len(self._inode(path).data)

    def modified_ms(self, path: Path) -> int:
        """Returns 0, because these files keep no times."""
        self._look("size", path)
        return 0

    def names(self, directory: Path) -> list[str]:
        self._look("names", directory)
        inside = f"{directory}".rstrip("/") + "/"
        paths = map(str, chain(self._names, self._directories))
        below = (path[len(inside) :] for path in paths if path.startswith(inside))
        return sorted({name for name in below if "/" not in name})

    def make_directory(self, path: Path) -> None:
        for name in [*reversed(_parents(path)), path]:
            if name not in self._directories:
                self._change("make_directory", name, lambda part, name=name: self._make(name, part))  # type: ignore[misc]

    def _make(self, path: Path, part: float) -> None:
        if part < 1.0:
            return
        self._need_room(path)
        self._directories.add(path)
        if len(path.parts) <= 2:
            # A directory near the root counts as synced, because real ones are older than the broker.
            self._durable_directories.add(path)
        else:
            self._pending.append((path.parent, [(path, DIRECTORY)]))

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
                self._names[target] = inode
                self._pending.append((target.parent, [(target, inode), (source, None)]))

        self._change("rename", target, act)

    def make_private(self, path: Path) -> bool:
        if path not in self._directories:
            self._inode(path)
        return False  # files in memory have no modes

    def read(self, path: Path) -> bytes:
        self._look("read", path)
        inode = self._inode(path)
        self._check_readable(inode, len(inode.data), 0, path)
        return bytes(inode.data)

    def disk_usage(self, path: Path) -> DiskUsage:
        return self.usage or DiskUsage(self.capacity, self.capacity - self._used())

    def lock(self, path: Path, *, private: bool = False) -> int:
        if path in self._locks.values():
            raise BlockingIOError(errno.EAGAIN, "locked", str(path))
        handle = self.open(path, create=True)
        self._locks[handle] = path
        return handle

    # --- inside ---------------------------------------------------------------------------------------------------

    def overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Changes bytes without a write, as a failing disk does."""
        self._inode(path).overwrite(offset, data)

    def lose_sector(self, path: Path, sector: int) -> None:
        """Makes a sector unreadable until it is written again."""
        self._names[path].bad.add(sector)

    def repair_sectors(self) -> None:
        for inode in self._names.values():
            inode.bad.clear()

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    def _inodes(self) -> set[Inode]:
        return {*self._names.values(), *self._durable_names.values(), *(inode for _, inode in self._handles.values())}

    def _need_room(self, path: Path) -> None:
        """Raises ENOSPC if the disk has no room for another name in a directory."""
        if self.capacity < BOUNDLESS and self._used() >= self.capacity:
            self._fail("full disk", errno.ENOSPC, path)

    def _directory_of(self, path: Path) -> None:
        if path.parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))

    def _inode(self, path: Path) -> Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self._names[path]

    def _name(self, path: Path, inode: Inode) -> None:
        self._names[path] = inode
        self._pending.append((path.parent, [(path, inode)]))

    def _unname(self, path: Path) -> None:
        del self._names[path]
        self._pending.append((path.parent, [(path, None)]))

    def _used(self) -> int:
        return sum(len(inode.pages) for inode in set(self._names.values())) * PAGE

    def _room_for(self, inode: Inode, offset: int, size: int) -> int:
        """Allocates the blocks for a write, and returns for how many of its bytes there was room."""
        fresh = [page for page in range(offset // PAGE, -(-(offset + size) // PAGE)) if page not in inode.pages]
        room = max(self.capacity - self._used(), 0) // PAGE if fresh and self.capacity < BOUNDLESS else len(fresh)
        inode.pages.update(fresh[:room])
        return size if len(fresh) <= room else max(fresh[room] * PAGE - offset, 0)

    def _need_all(self, there: int, size: int, path: Path) -> None:
        if there < size:
            self._fail("full disk", errno.ENOSPC, path)


@cache
def _parents(path: Path) -> tuple[Path, ...]:
    """Returns the directories that contain the path, the innermost first.  The answers are cached, because new paths
    are slow to compare.
    """
    return tuple(path.parents)


def _above(path: Path) -> tuple[Path, ...]:
    """Returns the directories that contain the path, without the root."""
    return _parents(path)[:-1]


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    pieces = []
    at = 0
    while at < len(data):
        size = min(SECTOR - (offset + at) % SECTOR, len(data) - at)
        pieces.append((offset + at, data[at : at + size]))
        at += size
    return pieces
