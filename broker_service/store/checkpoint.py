"""RocketMQ's file `checkpoint` records up to which store time and log offset everything is on disk.

Recovery starts from this checkpoint.  An outdated checkpoint only makes recovery take longer.

    0             8             16           24                    32                 40
    | log until   | queues until| index until| master flushed off.| confirm offset   | queues' log offset | zeros …

The values are big-endian longs; times are in ms.  RocketMQ 4's file has only the first three values.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from broker_service.store.files import Files

_LONGS = struct.Struct(">6q")
FILE_SIZE = 4096


@dataclass(slots=True)
class Checkpoint:
    log_timestamp: int = 0
    queues_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queues_log_offset: int = 0  # log offset before which all records have their queue entries on disk

    @classmethod
    def load(cls, files: Files, path: Path) -> "Checkpoint":
        """Reads the file.

        If the file is missing or invalid, all values are 0, and recovery starts at the first log file.
        """
        try:
            data = files.read(path)
        except FileNotFoundError:
            return cls()
        values = _LONGS.unpack_from(data) if len(data) >= _LONGS.size else (-1,)
        return cls() if min(values) < 0 else cls(*values)

    def save(self, files: Files, path: Path) -> None:
        values = _LONGS.pack(
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_log_offset,
        )
        files.write_atomically(path, values.ljust(FILE_SIZE, b"\0"))
