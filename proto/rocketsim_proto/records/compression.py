"""Uncompresses bodies that a producer compressed, up to a size that the reader allows.  Pure.

Bits 8 to 10 of the system flag (`record.SYS_FLAG_COMPRESSION_TYPE`) have the type of compression.  0 means ZLIB, as
older clients write it, or GZIP, as RocketMQ's proxy writes it.  The first bytes of the body tell ZLIB from GZIP.
Arrow's codecs read the other types, LZ4 frames and ZSTD.

The output is limited to `limits.MAX_BODY_BYTES`.  A limit for the ratio of compression would not help: a few KB of a
hostile body can expand to gigabytes, but an honest body that repeats itself can have the same ratio.  All bodies are
uncompressed piece by piece, so that a hostile body gets no more memory than the limit.
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
    """Raised if the body is damaged, or is larger than allowed once it is uncompressed."""


def decompress(body: bytes, sys_flag: int, max_size: int = MAX_BODY_BYTES) -> bytes:
    """Uncompresses a body.  Raises CompressionError if the body is damaged, of an unknown type, or larger than
    `max_size`."""
    kind = sys_flag & SYS_FLAG_COMPRESSION_TYPE or ZLIB
    if kind != ZLIB and kind not in _CODECS:
        raise CompressionError(f"unknown compression type {kind >> 8}")
    try:
        unpacked = _inflate(body, max_size + 1) if kind == ZLIB else _stream(body, _CODECS[kind], max_size + 1)
    except (zlib.error, OSError) as error:
        raise CompressionError(f"compressed body of {len(body)} bytes: {error}") from error
    if len(unpacked) > max_size:
        raise CompressionError(f"compressed body of {len(body)} bytes unpacks to more than {max_size}")
    return unpacked


def _inflate(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: detect ZLIB or GZIP by the header
    unpacked = stream.decompress(body, limit)
    if len(unpacked) < limit and not stream.eof:
        raise zlib.error("cut short")
    return unpacked


def _stream(body: bytes, codec: str, limit: int) -> bytes:
    if not body:
        raise OSError("cut short")  # Arrow would accept an empty body without an error
    pieces: list[bytes] = []
    wanted = max(_FIRST_READ, 4 * len(body))  # Arrow allocates the requested size before it reads, so begin small
    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        while limit:
            wanted = min(wanted, limit)
            pieces.append(stream.read(wanted))
            limit -= len(pieces[-1])
            if len(pieces[-1]) < wanted:
                break
            wanted *= 4
    return b"".join(pieces)
