"""Unpacks bodies that a producer compressed, never to more than the reader allows.  Pure.

The type is in bits 8 to 10 of the system flag (`record.SYS_FLAG_COMPRESSION_TYPE`); 0 is ZLIB, as older clients
wrote it.
"""

import zlib
from collections.abc import Callable

import lz4.frame
import zstandard

from rocketsim_proto.record import SYS_FLAG_COMPRESSION_TYPE

LZ4 = 0x100
ZSTD = 0x200
ZLIB = 0x300

# A ZSTD frame names the window its reader has to hold; the levels that RocketMQ uses stay below this.
_MAX_ZSTD_WINDOW = 1 << 27


class CompressionError(ValueError):
    """A body that is not what its system flag says, or that unpacks to more than is allowed."""


def decompress(body: bytes, sys_flag: int, max_size: int) -> bytes:
    """The body before compression; CompressionError if it is damaged, of an unknown type or larger than `max_size`."""
    kind = sys_flag & SYS_FLAG_COMPRESSION_TYPE or ZLIB
    if kind not in _UNPACK:
        raise CompressionError(f"compression type {kind >> 8}")
    try:
        unpacked = _UNPACK[kind](body, max_size + 1)
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise CompressionError(f"compressed body of {len(body)} bytes: {error}") from error
    if len(unpacked) > max_size:
        raise CompressionError(f"compressed body of {len(body)} bytes unpacks to more than {max_size}")
    return unpacked


def _unpack_zlib(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    unpacked = stream.decompress(body, limit)
    if len(unpacked) < limit and not stream.eof:
        raise EOFError("cut short")
    return unpacked


def _unpack_lz4(body: bytes, limit: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    unpacked: bytes = stream.decompress(body, max_length=limit)
    if len(unpacked) < limit and not stream.eof:
        raise EOFError("cut short")
    return unpacked


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW).stream_reader(body) as stream:
        unpacked: bytes = stream.read(limit)
    # The reader ends quietly where its input does, so a frame that declares its size has to keep its word.
    declared = zstandard.frame_content_size(body)
    if 0 <= declared != len(unpacked) < limit:
        raise EOFError("cut short")
    return unpacked


_UNPACK: dict[int, Callable[[bytes, int], bytes]] = {LZ4: _unpack_lz4, ZSTD: _unpack_zstd, ZLIB: _unpack_zlib}
