"""Makes glibc keep freed memory for the next frame, or give it back to the kernel.

gRPC and protobuf allocate a few MiB for each frame and free them.  By default glibc returns large freed blocks to the
kernel at once.  If the kernel has the memory back, the next frame has a page fault for every 4 KiB, and these page
faults take six times as long as copying the frame's bytes.  After a process has freed one large block, however, glibc
no longer returns blocks of that size, and keeps free memory of up to twice that size at the top of a heap.
"""

import ctypes
import os
import sys
from typing import Any

_LEARNED_BYTES = 16 << 20  # a block of this size holds a usual frame and its copies; glibc adapts to at most 32 MiB
_KEPT_BYTES = 128 << 20  # an amount of freed memory that a process may keep
_M_ARENA_MAX = -8  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Frees one large block, so that glibc keeps blocks of that size.

    The block itself costs nothing, because its pages are never touched.  If malloc is not glibc's, the call has no
    effect.
    """
    bytes(_LEARNED_BYTES)


def share_freed_memory() -> None:
    """Makes all threads that start from now on share one heap.

    By default glibc gives nearly every thread its own heap, and no thread can reuse what another has freed.  Spark's
    reader kept twice the memory that it needed, because its frames passed through three threads.  Python threads rarely
    allocate at the same moment, so sharing costs nothing.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)


class FreedMemory:
    """The memory that this process has freed but not returned to the kernel, and that glibc could keep forever after
    many large frames.
    """

    def __init__(self) -> None:
        libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        if hasattr(libc, "mallinfo2") and hasattr(libc, "malloc_trim"):  # musl has neither
            libc.mallinfo2.restype = _MallocInfo
            self._libc = libc
        else:
            self._libc = None
        self._left = 0  # resident bytes after the last `give_back`

    def is_much(self) -> bool:
        """Returns True if it is worth giving the freed memory back.  `is_much` is fast, unlike `give_back`."""
        if self._libc is None or _resident_bytes() - self._left < _KEPT_BYTES:
            return False
        return bool(self._libc.mallinfo2().fordblks > _KEPT_BYTES)

    def give_back(self) -> None:
        """Returns the freed memory to the kernel.  The call takes 0.2 s per GiB, so a separate thread makes it."""
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
