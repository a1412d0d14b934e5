"""Files: every file-system operation that the store uses.

Tests replace it by a disk that tears writes, fills up, fails and loses power.  Methods raise OSError; `refusal` turns
one into the error that a caller of the store gets.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from broker_service.errors import DiskFull, FlushFailed, ServiceNotAvailable

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
Buffer = bytes | bytearray | memoryview
CANNOT_TELL = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))  # what a file system without RWF_NOWAIT says
_ZEROS = bytes(4096)
_scratch = bytearray(1 << 20)  # what is read to see whether it can be
_ODD = bytes(range(1, 256, 2))  # what mincore says of a page that is there: the other bits mean nothing
_mincore = getattr(ctypes.CDLL(None), "mincore", None) if sys.platform == "linux" else None
if _mincore is not None:
    _mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class DiskUsage:
    total: int  # used and free: without what the file system keeps for root, as df and RocketMQ count
    free: int  # what an ordinary user may still write

    @property
    def used_percent(self) -> float:
        return 100.0 * (self.total - self.free) / self.total if self.total else 0.0


def _all_resident(handle: int, size: int, offset: int) -> bool:
    """Whether the page cache has all of it; False also where the kernel does not say.  A hundredth of what reading
    takes.

    Who may not write the file is told that all is there: to be asked of own files only.
    """
    begin = offset - offset % mmap.PAGESIZE
    access = mmap.PROT_READ | mmap.PROT_WRITE  # ctypes tells the address of what can be written to only
    try:
        mapped = mmap.mmap(handle, offset + size - begin, flags=mmap.MAP_PRIVATE, prot=access, offset=begin)
    except (OSError, ValueError):  # it is not as long
        return False
    with mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        told = _mincore is not None and _mincore(ctypes.addressof(first), len(mapped), pages) == 0
        del first  # the mapping could not be closed
    return told and not bytes(pages).translate(None, delete=_ODD)


def used_size(data: bytes) -> int:
    """The size without the zeros at the end.  `rstrip` alone takes 3 ms per MiB of zeros, this takes 0.15 ms."""
    end = len(data)
    while data.endswith(_ZEROS, 0, end):
        end -= len(_ZEROS)
    begin = max(end - len(_ZEROS), 0)
    return begin + len(data[begin:end].rstrip(b"\0"))


def open_file_limit() -> int:
    """How many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def refusal(error: OSError, doing: str) -> ServiceNotAvailable:
    """The error for the caller of a failed write: DiskFull without room, else ServiceNotAvailable."""
    if isinstance(error, FlushFailed):
        return error
    if error.errno in NO_ROOM:
        return DiskFull(
            f"{doing}: no room on the disk ({error.strerror or error}); make room, writes go on by themselves"
        )
    return ServiceNotAvailable(f"{doing} failed: {error}; reads go on, writes are tried again")


class Files:
    """The real file system.  A handle is an int that `open` returned; writes go to a position."""

    def open(self, path: Path, *, create: bool = False, read_only: bool = False, private: bool = False) -> int:
        """`private`: a file that is created can be opened by its owner alone, else by whom the umask says."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        return os.open(path, flags | (os.O_CREAT if create else 0) | os.O_CLOEXEC, 0o600 if private else 0o666)

    def close(self, handle: int) -> None:
        os.close(handle)

    def preallocate(self, handle: int, size: int) -> None:
        """Sets the file's size and allocates its blocks, so that later writes need no room."""
        os.posix_fallocate(handle, 0, size)

    def resize(self, handle: int, size: int) -> None:
        """Sets the file's size without allocating blocks; new bytes read as zeros."""
        os.ftruncate(handle, size)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        """Writes all of `data`, or raises; what was written before the error stays."""
        written = os.pwrite(handle, data, offset)
        if written == len(data):
            return
        view = memoryview(data).cast("B")
        while written < len(view):
            written += os.pwrite(handle, view[written:], offset + written)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """`size` bytes; fewer only where the file ends."""
        data = os.pread(handle, size, offset)
        if len(data) == size or not data:
            return data
        chunks = [data]
        size -= len(data)
        while size:
            offset += len(data)
            data = os.pread(handle, size, offset)
            if not data:
                break
            chunks.append(data)
            size -= len(data)
        return b"".join(chunks)

    def pread_cached(self, handle: int, size: int, offset: int) -> bytes | None:
        """As `pread`, but None where that would wait for the disk, if the file system can tell."""
        data = bytearray(size)
        try:
            done = self._read_cached(handle, data, offset)
        except BlockingIOError:
            return None
        if done < size and offset + done < os.fstat(handle).st_size:
            return None
        return bytes(data[:done])

    def is_cached(self, handle: int, size: int, offset: int) -> bool:
        """Whether these bytes, which the file has, are in memory.  False for any that the disk cannot read."""
        if _all_resident(handle, size, offset):
            return True
        try:
            return self._read_cached(handle, memoryview(_scratch)[:size], offset) == size
        except OSError:
            return False

    @staticmethod
    def _read_cached(handle: int, into: bytearray | memoryview, offset: int) -> int:
        """How many bytes are in memory; BlockingIOError: not one.  Where the file system cannot tell, they are read."""
        try:
            return os.preadv(handle, [into], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in CANNOT_TELL:
                raise
        return os.preadv(handle, [into], offset)

    def map(self, handle: int) -> memoryview:
        """The whole file, read-only, showing later writes too.  It is unmapped when nobody refers to it any more."""
        size = os.fstat(handle).st_size
        return memoryview(mmap.mmap(handle, size, prot=mmap.PROT_READ)) if size else memoryview(b"")

    def written_parts(self, handle: int, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts of [begin, end) that may hold anything but zeros, found without reading.

        To be asked once, before reading: reading ahead makes allocated but unwritten parts look like written ones.
        """
        parts = []
        try:
            while begin < end:
                begin = os.lseek(handle, begin, os.SEEK_DATA)
                stop = min(os.lseek(handle, begin, os.SEEK_HOLE), end)
                if begin < stop:
                    parts.append((begin, stop))
                begin = stop
        except OSError as error:
            if error.errno != errno.ENXIO:  # which says that nothing follows
                parts.append((begin, end))
        return parts

    def fdatasync(self, handle: int) -> None:
        """Returns only when every byte written to the file is on disk."""
        os.fdatasync(handle)

    def sync_directory(self, path: Path) -> None:
        """Returns only when the names in the directory are on disk."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def names(self, directory: Path) -> list[str]:
        """What is in the directory, sorted; nothing if it is absent."""
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove(self, path: Path) -> None:
        """Removes a file; it may be gone already."""
        path.unlink(missing_ok=True)

    def discard(self, path: Path) -> None:
        """Removes a file, if that can be done."""
        with contextlib.suppress(OSError):
            self.remove(path)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def make_private(self, path: Path) -> bool:
        """Takes a file or directory from everybody but its owner; False if it was the owner's alone."""
        mode = path.stat().st_mode
        if not mode & 0o077:
            return False
        path.chmod(mode & 0o700)
        return True

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def read_synced(self, path: Path) -> bytes:
        """As `read`, after a sync of the file and its directory: a killed process may have created, replaced or
        removed the file without a sync, and a power loss must not undo what the caller has acted on.
        """
        if self.exists(path.parent):
            self.sync_directory(path.parent)
        handle = self.open(path, read_only=True)
        try:
            self.fdatasync(handle)
        finally:
            self.close(handle)
        return self.read(path)

    def write_atomically(self, path: Path, data: bytes, *, private: bool = False) -> None:
        """After a crash at any point the file has either the old or the new content; on return the new one is on
        disk.  `private`: only the owner may read it, from its first byte on.
        """
        fresh = path.with_name(path.name + ".tmp")
        self.remove(fresh)
        handle = self.open(fresh, create=True, private=private)
        try:
            self.pwrite(handle, data, 0)
            self.fdatasync(handle)
        except OSError:
            self.discard(fresh)  # what little room there is may be needed to undo what was to go with it
            raise
        finally:
            self.close(handle)
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def disk_usage(self, path: Path) -> DiskUsage:
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        return DiskUsage(total=(used + stat.f_bavail) * stat.f_frsize, free=stat.f_bavail * stat.f_frsize)

    def lock(self, path: Path, *, private: bool = False) -> int:
        """A handle that holds the file's lock until it is closed; BlockingIOError if another one holds it.

        The POSIX lock on the first byte is the one RocketMQ takes; it does not keep out a second store of this process,
        the other one does.
        """
        handle = self.open(path, create=True, private=private)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(handle)
            raise BlockingIOError(error.errno, "locked", str(path)) from error
        return handle
