"""Memory for frames, kept by the process between one frame and the next.

gRPC and protobuf take a few MiB for each frame from malloc and give them back.  glibc returns such memory to the
kernel at once, and the next frame pays a page fault for every 4 KiB: six times what copying its bytes takes.  But glibc
learns: whatever size it has seen freed, it keeps from then on, up to twice that at the top of a heap.
"""

import ctypes
import os
import sys
from typing import Any

_LEARNED_BYTES = 16 << 20  # more than a usual frame and its copies; glibc learns up to 32 MiB
_KEPT_BYTES = 128 << 20  # of freed memory, that is no burden
_M_ARENA_MAX = -8  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Costs nothing: the pages are never touched.  Another malloc than glibc's is not impressed."""
    bytes(_LEARNED_BYTES)


def share_freed_memory() -> None:
    """Threads made from now on share a heap.

    Otherwise glibc gives nearly each its own, and what was freed in one is of no use to the others: a reader whose
    frames pass through three threads kept twice as much memory as it needs.  Threads of Python rarely allocate at the
    same moment, so that sharing costs nothing.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)


class FreedMemory:
    """What was freed and is still this process's: after a burst glibc would keep it for good."""

    def __init__(self) -> None:
        libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        if hasattr(libc, "mallinfo2") and hasattr(libc, "malloc_trim"):  # musl has neither
            libc.mallinfo2.restype = _MallocInfo
            self._libc = libc
        else:
            self._libc = None
        self._left = 0  # resident bytes after the last time

    def is_much(self) -> bool:
        """Whether it is worth while to give it back: this asks nothing of the kernel that takes long."""
        if self._libc is None or _resident_bytes() - self._left < _KEPT_BYTES:
            return False
        return bool(self._libc.mallinfo2().fordblks > _KEPT_BYTES)

    def give_back(self) -> None:
        """Returns it to the kernel.  This takes a fifth of a second for each GiB: for a thread of its own."""
        self._libc.malloc_trim(0)
        self._left = _resident_bytes()


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]
