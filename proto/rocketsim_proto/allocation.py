"""Memory for frames, kept by the process between one frame and the next.

gRPC and protobuf take a few MiB for each frame from malloc and give them back.  glibc returns such memory to the
kernel at once, and the next frame pays a page fault for every 4 KiB: six times what copying its bytes takes.  But glibc
learns: whatever size it has seen freed, it keeps from then on, up to twice that at the top of a heap.
"""

import ctypes
import sys

_LEARNED_BYTES = 16 << 20  # more than a usual frame and its copies; glibc learns up to 32 MiB
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
