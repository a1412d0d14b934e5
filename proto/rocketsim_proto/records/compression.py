"""Unpacks bodies that a producer compressed, never to more than the reader allows.  Pure.

The type is in bits 8 to 10 of the system flag (`record.SYS_FLAG_COMPRESSION_TYPE`); 0 is ZLIB, as older clients wrote
it, or GZIP, as RocketMQ's proxy writes it: the first bytes tell which.  Arrow's codecs read what RocketMQ writes (LZ4
frames and ZSTD), and read them as streams: a bounded read is all the memory that a hostile body gets.  A few KB can
claim to be gigabytes, and honest bodies that repeat themselves shrink a thousandfold: no ratio tells them apart, only
what comes out is capped, at `limits.MAX_BODY_BYTES`.
"""

import zlib

import pyarrow as pa

from rocketsim_proto.limits import MAX_BODY_BYTES
from rocketsim_proto.records.record import SYS_FLAG_COMPRESSION_TYPE

LZ4 = 0x100
ZSTD = 0x200
ZLIB = 0x300
_CODECS = {LZ4: "lz4", ZSTD: "zstd"}

_FIRST_READ = 64 << 10


class CompressionError(ValueError):
    """A body that is not what its system flag says, or that unpacks to more than is allowed."""


def decompress(body: bytes, sys_flag: int, max_size: int = MAX_BODY_BYTES) -> bytes:
    """The body before compression; CompressionError if it is damaged, of an unknown type or larger than `max_size`."""
    kind = sys_flag & SYS_FLAG_COMPRESSION_TYPE or ZLIB
    if kind != ZLIB and kind not in _CODECS:
        raise CompressionError(f"compression type {kind >> 8}")
    try:
        unpacked = _inflate(body, max_size + 1) if kind == ZLIB else _stream(body, _CODECS[kind], max_size + 1)
    except (zlib.error, OSError) as error:
        raise CompressionError(f"compressed body of {len(body)} bytes: {error}") from error
    if len(unpacked) > max_size:
        raise CompressionError(f"compressed body of {len(body)} bytes unpacks to more than {max_size}")
    return unpacked


def _inflate(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of either form
    unpacked = stream.decompress(body, limit)
    if len(unpacked) < limit and not stream.eof:
        raise zlib.error("cut short")
    return unpacked


def _stream(body: bytes, codec: str, limit: int) -> bytes:
    if not body:
        raise OSError("cut short")  # Arrow takes nothing for the end of a stream
    pieces: list[bytes] = []
    wanted = max(_FIRST_READ, 4 * len(body))  # Arrow makes room for all that is asked for before it looks
    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        while limit:
            wanted = min(wanted, limit)
            pieces.append(stream.read(wanted))
            limit -= len(pieces[-1])
            if len(pieces[-1]) < wanted:
                break
            wanted *= 4
    return b"".join(pieces)
