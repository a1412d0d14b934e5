"""PullRange and Send over a plain socket: what is written to it.  Pure.

gRPC copies each megabyte several times between a socket and the bytes that it hands over; here it is read to where it
is used.  A broker offers it to a caller who accepts it (`PullFrame.stream`, `SendResponse.stream`).  A connection is
one call:

    client  | magic 4 | length 4 | StreamRequest | records of a Send |
    broker  | kind 1 | 0 0 0 | message length 4 | records length 8 | message | records |   once or more

What is asked and answered, and when it ends, are the call's.  FRAME: a PullFrame whose `records` follow it.  END: all
ranges have ended.  SENT: a SendResponse.  REFUSED: a StreamRefusal, as the call would have failed.  NOT_HERE: nothing
was done, and gRPC is to be asked, by later calls, too.  NO_ROOM: nothing was done, and gRPC is to be asked this time.
Both may come before all of the call is written.  A connection that ends otherwise has broken off: what was pulled is
not all, and what was sent may be stored if the broker could have all of it.  Numbers are little-endian.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from rocketsim_proto.limits import FRAME_BYTES, MAX_RPC_BYTES

VERSION = 1
MAGIC = b"RSpr"
REQUEST_HEAD = struct.Struct("<4sI")
ANSWER_HEAD = struct.Struct("<B3xIQ")
MAX_REQUEST_BYTES = 4 << 20  # gRPC's own default; a call with more ranges is made over gRPC
MAX_MESSAGE_BYTES = FRAME_BYTES  # sizes and segments of a frame
MAX_RECORDS_BYTES = MAX_RPC_BYTES
MIN_TCP_SEND_BYTES = 64 << 10  # of records; smaller frames go over gRPC, whose connection is there already
MAX_SEND_BYTES = 16 << 20  # that a broker takes; larger ones, which have a message of that size, go over gRPC


class Kind(IntEnum):
    FRAME = 0
    END = 1
    REFUSED = 2
    NOT_HERE = 3
    SENT = 4
    NO_ROOM = 5


class Answer(NamedTuple):
    kind: Kind
    message_bytes: int
    records_bytes: int


class Illegal(ValueError):
    """What came is not of this protocol, or larger than it may be; nothing of it has been read."""


def request(message: bytes) -> bytes:
    return REQUEST_HEAD.pack(MAGIC, len(message)) + message


def request_length(head: bytes | bytearray) -> int:
    """Of the StreamRequest that follows."""
    magic, length = REQUEST_HEAD.unpack(head)
    if magic != MAGIC or length > MAX_REQUEST_BYTES:
        raise Illegal(f"{head.hex()} begins no request of at most {MAX_REQUEST_BYTES} bytes")
    return int(length)


def answer(kind: Kind, message: bytes = b"", records_bytes: int = 0) -> bytes:
    """All of it but the records."""
    return ANSWER_HEAD.pack(kind, len(message), records_bytes) + message


def answer_of(head: bytes | bytearray) -> Answer:
    kind, message_bytes, records_bytes = ANSWER_HEAD.unpack(head)
    if kind > Kind.NO_ROOM or message_bytes > MAX_MESSAGE_BYTES or records_bytes > MAX_RECORDS_BYTES:
        raise Illegal(
            f"an answer of kind {kind} with {message_bytes} and {records_bytes} bytes; at most {MAX_MESSAGE_BYTES} and "
            f"{MAX_RECORDS_BYTES} are taken"
        )
    return Answer(Kind(kind), message_bytes, records_bytes)
