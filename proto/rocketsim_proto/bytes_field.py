"""A protobuf message whose one large `bytes` field is written and read by hand.  Pure; the bytes are protobuf's own.

protobuf copies such a field when it is set, written, parsed and read, which for frames of a megabyte is what they cost
most.  Fields may come in any order, so the large one goes first, and the others follow as protobuf writes them:

    | tag 1 | length 1 to 10, seven bits a byte | the field's bytes | the other fields |
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

M = TypeVar("M")

_BYTES = 2  # the wire type of what has a length
_MAX_LENGTH_BYTES = 10


class Received(NamedTuple, Generic[M]):
    """A message whose `records` are where gRPC left them."""

    records: bytes | memoryview
    message: M  # the other fields


def deserializer(kind: type[M]) -> Callable[[bytes], Received[M]]:
    """gRPC's deserializer for messages of this kind, which has a field `records`."""
    generated: Any = kind

    def read(data: bytes) -> Received[M]:
        records, others = split(generated.RECORDS_FIELD_NUMBER, data)
        message = generated.FromString(others)
        return Received(message.records or records, message)

    return read


def join(number: int, slices: Iterable[bytes | memoryview], others: bytes) -> bytes:
    """The message: field `number` (below 16) holds the slices back to back, `others` are its other fields."""
    slices = list(slices)
    return b"".join((head(number, sum(map(len, slices))), *slices, others))


def head(number: int, length: int) -> bytes:
    """What stands before the field's bytes."""
    return bytes((number << 3 | _BYTES,)) + _varint(length)


def split(number: int, data: bytes | memoryview) -> tuple[memoryview, bytes | memoryview]:
    """(the field, not copied, the other fields) of a message that `join` could have made.

    Of any other message it is (empty, the whole of it): then the field, if it is there, is where protobuf finds it.
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
