"""The stream of RocketMQ's plain HA protocol, with which its slaves copy the log of a master.  Pure.

    slave to master:  log offset 8                      the first offset says where to begin, later ones acknowledge
    master to slave:  log offset 8 | size 4 | bytes     a frame without bytes is a heartbeat

Numbers are big-endian.  The protocol has no handshake, no version and no checksum.
"""

import struct
from typing import NamedTuple

from broker_service.replication.refusals import ProtocolViolation

REPORT = struct.Struct(">q")
HEAD = struct.Struct(">qi")
# RocketMQ's own slave has a buffer of this size, so no master sends a larger frame.
MAX_DATA_BYTES = 4 << 20


class HaFrame(NamedTuple):
    """Log bytes that begin at this log offset; a heartbeat has none."""

    offset: int
    data: bytes


class HaFrames:
    """Splits received bytes into frames, and keeps an incomplete frame until the rest of it arrives."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[HaFrame]:
        """Returns the frames that are complete now; raises ProtocolViolation for impossible numbers."""
        data = self._rest + received if self._rest else received
        frames: list[HaFrame] = []
        at = 0
        while len(data) - at >= HEAD.size:
            offset, size = HEAD.unpack_from(data, at)
            if offset < 0 or not 0 <= size <= MAX_DATA_BYTES:
                raise ProtocolViolation(
                    f"a frame of RocketMQ's HA protocol with {size} bytes from log offset {offset}; at most "
                    f"{MAX_DATA_BYTES} bytes from 0 on are possible. Does haListenPort of this master speak the plain "
                    "HA protocol (enableControllerMode=false)?"
                )
            end = at + HEAD.size + size
            if end > len(data):
                break
            frames.append(HaFrame(offset, data[at + HEAD.size : end]))
            at = end
        self._rest = data[at:]
        return frames


def joined(frames: list[HaFrame]) -> list[HaFrame]:
    """Joins frames that continue one another, because one large append costs less than many small ones."""
    parts: list[tuple[int, list[bytes]]] = []
    end = -1
    for frame in frames:
        if parts and frame.offset == end:
            parts[-1][1].append(frame.data)
        else:
            parts.append((frame.offset, [frame.data]))
        end = frame.offset + len(frame.data)
    return [HaFrame(offset, b"".join(data)) for offset, data in parts]


def report(offset: int) -> bytes:
    """Encodes a slave's message: first the offset at which the master is to begin, later the offset that is on disk."""
    return REPORT.pack(offset)
