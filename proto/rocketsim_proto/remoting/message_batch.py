"""Encodes and decodes the body of a request with a batch of messages.  Pure.

For each message the body has:

    size 4 | magic 4 | crc 4 | flag 4 | body length 4 | body | properties length 2 | properties

Magic and CRC are 0, since the broker sets them.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

MAX_MESSAGES = 1_000  # brokers of 5.x count a batch in a signed 16-bit number, and break the queue above 32,767
MAX_DECODED = 0x7FFF  # a batch with more messages is refused, since each takes much more memory than its bytes
MAX_PROPERTIES_BYTES = 0x7FFF

_HEAD = struct.Struct(">iiiii")
_PROPERTIES = struct.Struct(">h")
OVERHEAD_BYTES = _HEAD.size + _PROPERTIES.size  # the size of a message without its body and its properties


class BatchError(ValueError):
    """Raised if the lengths in a batch are inconsistent, or if the batch has too many messages.  The error's message
    says at which byte a length is wrong.
    """


class BatchMessage(NamedTuple):
    """One message of a batch, with encoded properties."""

    flag: int
    body: bytes
    properties: bytes


def encode(messages: Iterable[BatchMessage]) -> bytes:
    parts = []
    for flag, body, properties in messages:
        size = OVERHEAD_BYTES + len(body) + len(properties)
        parts += [_HEAD.pack(size, 0, 0, flag, len(body)), body, _PROPERTIES.pack(len(properties)), properties]
    return b"".join(parts)


def decode(batch: bytes | bytearray | memoryview) -> list[BatchMessage]:
    """Decodes a batch.  Raises BatchError if the lengths in the batch are inconsistent, or if it has more than
    MAX_DECODED messages.
    """
    view, at = memoryview(batch), 0
    messages: list[BatchMessage] = []
    while at < len(view):
        if len(messages) == MAX_DECODED:
            raise BatchError(f"more than {MAX_DECODED} messages in {len(view)} bytes; send smaller batches")
        left = len(view) - at
        if left < OVERHEAD_BYTES:
            raise BatchError(f"{left} bytes at byte {at} are too short for a message")
        size, _, _, flag, body_bytes = _HEAD.unpack_from(view, at)
        if not OVERHEAD_BYTES <= size <= left or not 0 <= body_bytes <= size - OVERHEAD_BYTES:
            raise BatchError(f"a message of {size} bytes with a body of {body_bytes} at byte {at} of {len(view)}")
        body_at = at + _HEAD.size
        properties_at = body_at + body_bytes + _PROPERTIES.size
        (properties_bytes,) = _PROPERTIES.unpack_from(view, properties_at - _PROPERTIES.size)
        if properties_bytes != at + size - properties_at:
            raise BatchError(f"properties of {properties_bytes} bytes at byte {properties_at} do not end their message")
        body = bytes(view[body_at : body_at + body_bytes])
        messages.append(BatchMessage(flag, body, bytes(view[properties_at : at + size])))
        at += size
    return messages
