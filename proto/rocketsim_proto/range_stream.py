"""The protocol of PullRange, Send and Replicate over a plain socket instead of gRPC.  Pure.

gRPC copies each megabyte several times between the socket and its caller.  Over a plain socket, bytes are read directly
to the place where they are used.  A broker offers its sockets to clients that accept them (`PullFrame.stream`,
`SendResponse.stream`).  One connection carries one call:

    client  | magic 4 | length 4 | StreamRequest | records of a Send |
    broker  | kind 1 | 0 0 0 | message length 4 | records length 8 | message | records |   once or more

Numbers are little-endian.  Requests and answers mean the same as in the gRPC call.  An answer has one of these kinds:

- FRAME: the answer has a PullFrame, whose `records` follow the message.
- END: all ranges have ended.
- SENT: the answer has a SendResponse.
- REFUSED: the answer has a StreamRefusal, with the error that the gRPC call would have.
- NOT_HERE: the broker has done nothing, and the client must use gRPC for this call and later ones.
- NO_ROOM: the broker has done nothing, and the client must use gRPC for this call.

A slave uses the same sockets for its Replicate call (`StreamRequest.replication`).  Both sides then send the messages
of the call, in the same order as over gRPC.  The log bytes of a message follow it as its records:

    slave   | magic 4 | length 4 | StreamRequest |
    slave   | length 4 | SlaveMessage |                                                   once or more
    master  | FRAME 1 | 0 0 0 | message length 4 | log bytes 8 | MasterMessage | log bytes |   once or more

REFUSED ends the stream.  After NOT_HERE or NO_ROOM, the slave follows over gRPC until that stream ends.

NOT_HERE and NO_ROOM may arrive before the client has written the whole request.  If a connection ends before END, SENT
or REFUSED, the client does not know the outcome: it has only a part of the pulled ranges, or the broker may have stored
the sent records.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from rocketsim_proto.limits import FRAME_BYTES, MAX_RPC_BYTES

VERSION = 1
MAGIC = b"RSpr"
REQUEST_HEAD = struct.Struct("<4sI")
ANSWER_HEAD = struct.Struct("<B3xIQ")
MESSAGE_HEAD = struct.Struct("<I")  # of a slave's message
MAX_REQUEST_BYTES = 4 << 20  # gRPC's own limit by default; a call with a larger request uses gRPC
MAX_MESSAGE_BYTES = FRAME_BYTES  # enough for the sizes and segments of a frame
MAX_RECORDS_BYTES = MAX_RPC_BYTES
# Frames with fewer bytes of records are sent over gRPC instead, because its connection is open already.
MIN_TCP_SEND_BYTES = 64 << 10
# The largest frame that a broker takes over a plain socket.  Frames with a larger message use gRPC.
MAX_SEND_BYTES = 16 << 20


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
    """Raised if the received head is not of this protocol, or announces too many bytes.  When Illegal is raised,
    nothing behind the head has been read.
    """


def request(message: bytes) -> bytes:
    return REQUEST_HEAD.pack(MAGIC, len(message)) + message


def request_length(head: bytes | bytearray) -> int:
    """Returns the length of the StreamRequest that follows the head.  Raises Illegal for a wrong head."""
    magic, length = REQUEST_HEAD.unpack(head)
    if magic != MAGIC or length > MAX_REQUEST_BYTES:
        raise Illegal(f"{head.hex()} does not begin a request of at most {MAX_REQUEST_BYTES} bytes")
    return int(length)


def answer(kind: Kind, message: bytes = b"", records_bytes: int = 0) -> bytes:
    """Encodes an answer without its records, which the caller sends after it."""
    return ANSWER_HEAD.pack(kind, len(message), records_bytes) + message


def answer_of(head: bytes | bytearray) -> Answer:
    kind, message_bytes, records_bytes = ANSWER_HEAD.unpack(head)
    if kind > Kind.NO_ROOM or message_bytes > MAX_MESSAGE_BYTES or records_bytes > MAX_RECORDS_BYTES:
        raise Illegal(
            f"an answer of kind {kind} with {message_bytes} and {records_bytes} bytes; at most {MAX_MESSAGE_BYTES} and "
            f"{MAX_RECORDS_BYTES} are taken"
        )
    return Answer(Kind(kind), message_bytes, records_bytes)
