"""Makes RocketMQ's message ids (UNIQ_KEY) for whole batches.  The client makes an id once and keeps it across retries.

    0         4       6         10                           14          16
    | IPv4 4  | pid 2 | random 4 | ms since the month began 4 | counter 2 |     as 32 upper-case hex digits

The random bytes distinguish processes on one host.  RocketMQ has a class loader's hash in the place of the random
bytes.  The last six bytes (time and counter) are one number that only rises.  If more than 65,536 ids are made per
millisecond, the time in the ids runs ahead of the clock.  In a new month the number starts again from a low value, so
new random bytes are drawn to keep the ids unique.  New random bytes are also drawn after a fork.
"""

import os
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketsim_proto.records.slices import Bytes

_DIGITS = np.array([f"{byte:02X}".encode() for byte in range(256)], dtype="S2").view(np.uint16)
_WRAP = 1 << 48  # the first number that six bytes cannot hold


def hex_strings(rows: Bytes) -> pa.StringArray:
    """Converts each row of a (count, width) byte array to upper-case hex digits."""
    return _strings(np.ascontiguousarray(_DIGITS[rows]))


def _strings(digits: npt.NDArray[np.uint16]) -> pa.StringArray:
    """Makes strings from rows of pairs of hex digits."""
    count, width = digits.shape
    offsets = np.arange(0, (count + 1) * 2 * width, 2 * width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def _month(now_ms: int) -> tuple[int, int]:
    """Returns the times at which the month of `now_ms` (UTC) begins and ends, in ms."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    began = datetime(now.year, now.month, 1, tzinfo=UTC)
    ends = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return int(began.timestamp() * 1000), int(ends.timestamp() * 1000)


class UniqIds:
    """Makes the ids of one producer process.  Any thread may use a UniqIds."""

    def __init__(self, address: bytes = b"\x7f\x00\x00\x01", random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        assert len(address) == 4, "an IPv4 address"
        self._address = address
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._month_began = self._month_ends = 0
        self._prefix = b""
        self._next = 0
        after_fork = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (alive := after_fork()) and alive())

    def next(self, count: int, now_ms: int) -> pa.StringArray:
        prefix, first = self._reserve(count, now_ms)
        numbers = np.arange(first, first + count).astype(">i8").view(np.uint8).reshape(count, 8)
        digits = np.empty((count, 16), np.uint16)
        digits[:, :10] = _DIGITS[np.frombuffer(prefix, np.uint8)]
        digits[:, 10:] = _DIGITS[numbers[:, 2:]]
        return _strings(digits)

    def one(self, now_ms: int) -> str:
        prefix, number = self._reserve(1, now_ms)
        return (prefix + number.to_bytes(6, "big")).hex().upper()

    def _reserve(self, count: int, now_ms: int) -> tuple[bytes, int]:
        """Reserves `count` consecutive numbers.  Returns the first ten bytes of the ids, and the first number."""
        with self._lock:
            if now_ms >= self._month_ends or self._next + count > _WRAP:
                self._month_began, self._month_ends = _month(now_ms)
                pid = (os.getpid() & 0xFFFF).to_bytes(2, "big")
                self._prefix = self._address + pid + self._random_bytes(4)
                self._next = 0
            first = max(self._next, (now_ms - self._month_began) << 16)
            self._next = first + count
            return self._prefix, first

    def _after_fork(self) -> None:
        """Gives a forked child a new prefix, and a new lock, because a thread of the parent may hold the old lock."""
        self._lock = threading.Lock()
        self._month_ends = 0
