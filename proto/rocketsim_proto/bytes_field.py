"""Encodes and decodes a protobuf message with one large `bytes` field without copying that field.  Pure.

protobuf copies a `bytes` field when it is set, encoded, parsed and read.  For frames of a megabyte, copying is the
largest cost.  The bytes on the wire are the same as protobuf's.  Fields of a message may come in any order, so the
large field is encoded first, and protobuf encodes the other fields behind it:

    | tag 1 | length 1 to 10, seven bits a byte | the field's bytes | the other fields |
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

M = TypeVar("M")

_BYTES = 2  # the wire type of fields with a length
_MAX_LENGTH_BYTES = 10


class Received(NamedTuple, Generic[M]):
    """A message, and the bytes of its field `records` as a view of the bytes that gRPC received."""

    records: bytes | memoryview
    message: M  # the other fields


def deserializer(kind: type[M]) -> Callable[[bytes], Received[M]]:
    """Makes a deserializer for gRPC, for a kind of message that has a field `records`."""
    generated: Any = kind

    def read(data: bytes) -> Received[M]:
        records, others = split(generated.RECORDS_FIELD_NUMBER, data)
        message = generated.FromString(others)
        return Received(message.records or records, message)

    return read


def join(number: int, slices: Iterable[bytes | memoryview], others: bytes) -> bytes:
    """Encodes a message whose field `number` (below 16) is the joined slices.  `others` are the other fields, which are
    already encoded.
    """
    slices = list(slices)
    return b"".join((head(number, sum(map(len, slices))), *slices, others))


def head(number: int, length: int) -> bytes:
    """Returns the tag and length that stand before the large field's bytes."""
    return bytes((number << 3 | _BYTES,)) + _varint(length)


def split(number: int, data: bytes | memoryview) -> tuple[memoryview, bytes | memoryview]:
    """Splits a message of the form that `join` makes into a view of its field `number`, and the other fields.

    For a message of another form, returns an empty view and the whole message, and protobuf then finds the field as
    usual.
    """
    view = memoryview(data)
    if data[:1] == bytes((number << 3 | _BYTES,)):
        length = shift = 0
        for at, byte in enumerate(data[1 : 1 + _MAX_LENGTH_BYTES], 2):
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (view[at : at + length], data[at + length :]) if at + length <= len(data) else (view[:0], data)
    return view[:0], data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
