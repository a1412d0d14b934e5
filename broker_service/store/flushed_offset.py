"""`rocketsim/flushed`: up to which offset the log is known to be on disk, across restarts.

Two slots of a sector each, written in turn, so that a torn write leaves the other one:

    0          8          16            24           32
    | sequence | offset   | tail size   | tail CRC   | CRC of these four |

The tail is that of the log at a clean stop (its last bytes before `offset`), and 0 at any other time: if it still
matches, and nothing follows, the log need not be scanned.  The file is made with its first value and renamed to its
name, so that one that says nothing is damaged.
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
        """Whether something else than a clean stop wrote it; not known for an empty log."""
        return self.offset > 0 and not self.tail_size


class FlushedOffset:
    """Writes go to the page cache until `sync`: after a power loss an older value only protects less."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._sequence = 0
        self._handle: int | None = None
        self._is_synced = True

    def load(self, *, log_is_empty: bool) -> Flushed | None:
        """None if it was never written: a store of RocketMQ's, or one whose making was interrupted before anything was
        in it (9157579 and before left zeros then).  StoreCorrupt if neither slot is whole.
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
                f"{self._path} is damaged: it said how far the log is known to be on disk. Put a copy back; or remove "
                "it, then what the file checkpoint says counts, and damage behind that is cut off"
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
        """On return the last value is on disk; nothing is done where it was."""
        if self._handle is not None and not self._is_synced:
            self._files.fdatasync(self._handle)
            self._is_synced = True

    def _content(self) -> bytes:
        return self._files.read(self._path) if self._files.exists(self._path) else b""

    def close(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None
