"""The file `rocketsim/flushed` records up to which offset the log is known to be on disk.

The file has two slots of one sector each, which are written in turn, so that a torn write leaves the other slot intact:

    0          8          16            24           32
    | sequence | offset   | tail size   | tail CRC   | CRC of these four |

At a clean stop, tail size and CRC describe the last bytes of the log before `offset`.  If the next start finds the
bytes before `offset` unchanged, and nothing behind `offset`, the log need not be scanned.  While the store is open,
tail size and CRC are 0.

A new file is created under another name, with its first value in it, and then renamed, so a file without a valid slot
is damaged.
"""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from broker_service.errors import StoreCorrupt
from broker_service.store.files import Files

_SLOT = struct.Struct(">qqqqI")
_SLOT_DISTANCE = 512


@dataclass(frozen=True, slots=True)
class Flushed:
    offset: int
    tail_size: int = 0
    tail_crc: int = 0

    @property
    def is_of_an_open_store(self) -> bool:
        """True if this value was not written by a clean stop.

        For an empty log the result is always False, because the value of an empty log does not show how the store
        stopped.
        """
        return self.offset > 0 and not self.tail_size


class FlushedOffset:
    """Writes and reads the file `rocketsim/flushed`.

    A value is only in the page cache until `sync`.  After a power loss the file may have an older value, which only
    means that a smaller part of the log is known to be on disk.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._sequence = 0
        self._handle: int | None = None
        self._is_synced = True

    def load(self, *, log_is_empty: bool) -> Flushed | None:
        """Reads the newer valid slot.  Raises StoreCorrupt if no slot is valid.

        Returns None if no value was ever written, because the store is RocketMQ's, or because its creation was
        interrupted before it had a message.  (After such an interruption, version 9157579 and earlier ones left a file
        of zeros.)
        """
        try:
            data = self._files.read(self._path)
        except FileNotFoundError:
            return None
        if log_is_empty and not any(data):
            return None
        best = None
        for at in (0, _SLOT_DISTANCE):
            if len(data) < at + _SLOT.size:
                continue
            sequence, offset, tail_size, tail_crc, crc = _SLOT.unpack_from(data, at)
            if crc == zlib.crc32(data[at : at + _SLOT.size - 4]) and sequence > self._sequence:
                self._sequence, best = sequence, Flushed(offset, tail_size, tail_crc)
        if best is None:
            raise StoreCorrupt(
                f"{self._path} is damaged: it recorded how far the log is known to be on disk. Put a copy back, or "
                "remove it; without it, the next start relies on the file checkpoint, and cuts off damaged records "
                "that the checkpoint does not cover"
            )
        return best

    def save(self, flushed: Flushed) -> None:
        self._sequence += 1
        values = struct.pack(">qqqq", self._sequence, flushed.offset, flushed.tail_size, flushed.tail_crc)
        slot = values + struct.pack(">I", zlib.crc32(values))
        at = self._sequence % 2 * _SLOT_DISTANCE
        if self._handle is None:
            if not any(self._content()):
                self._files.write_atomically(self._path, (bytes(at) + slot).ljust(2 * _SLOT_DISTANCE, b"\0"))
            self._handle = self._files.open(self._path)
        self._files.pwrite(self._handle, slot, at)
        self._is_synced = False

    def sync(self) -> None:
        """Syncs the last value, unless it is on disk already."""
        if self._handle is not None and not self._is_synced:
            self._files.fdatasync(self._handle)
            self._is_synced = True

    def _content(self) -> bytes:
        return self._files.read(self._path) if self._files.exists(self._path) else b""

    def close(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None
