"""SlaveSocket and MasterSocket carry a Replicate call over a plain socket, which costs both brokers less than gRPC.

`range_stream.py` in `rocketsim_proto` describes the bytes.  The two classes have those methods of a gRPC call that
`master.py` and `slave.py` use.
"""

import asyncio
import errno
import socket
import sys
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from rocketsim_proto import range_stream
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.broker_pb2 import StreamOffer, StreamRefusal, StreamRequest
from rocketsim_proto.limits import FRAME_BYTES
from rocketsim_proto.range_stream import ANSWER_HEAD, MESSAGE_HEAD, Kind

from broker_service.errors import RocketSimError
from broker_service.replication.master_frame import MasterFrame
from broker_service.replication.refusals import ProtocolViolation, status_of
from broker_service.runtime.message_socket import MessageSocket
from broker_service.runtime.peer_call import PeerLost

MAX_MASTER_BYTES = 64 << 20  # the largest message of a master, as with gRPC: a snapshot of the metadata
MAX_SLAVE_BYTES = FRAME_BYTES  # the largest message of a slave, which sends offsets and lost log bytes in parts
CONNECT_S = 1.0  # short, because a firewall may drop packets to the port silently
REFUSE_S = 2.0  # how long a slave that does not read may delay the end of its stream
_STATUS = {int(status.value[0]): status.name for status in grpc.StatusCode}


class SlaveSocket:
    """Implements the master's end of a stream.  Iterating over it gives the slave's messages."""

    def __init__(self, connection: socket.socket) -> None:
        self._messages = MessageSocket(connection, MESSAGE_HEAD.size, _slave_message_size)

    def __aiter__(self) -> "SlaveSocket":
        return self

    async def __anext__(self) -> pb.SlaveMessage:
        received = await self._messages.read()
        if received is None:
            raise PeerLost("it has closed the connection")
        try:
            return pb.SlaveMessage.FromString(bytes(received[MESSAGE_HEAD.size :]))
        except DecodeError as error:
            raise ProtocolViolation(f"a message that cannot be decoded: {error}") from error

    async def write(self, frame: MasterFrame) -> None:
        message = frame.message.SerializeToString()
        await self._messages.write(range_stream.answer(Kind.FRAME, message, len(frame.data)), frame.data)

    async def refuse(self, refusal: RocketSimError) -> None:
        """Tells the slave why the stream ends, after the messages before it."""
        message = StreamRefusal(status=status_of(refusal).value[0], details=str(refusal)).SerializeToString()
        try:
            async with asyncio.timeout(REFUSE_S):
                await self._messages.write(range_stream.answer(Kind.REFUSED, message))
                await self._messages.flush()
        except (PeerLost, TimeoutError):
            pass

    def close(self) -> None:
        self._messages.close()


class MasterSocket:
    """Implements the slave's end of a stream."""

    def __init__(self, connection: socket.socket) -> None:
        self._messages = MessageSocket(connection, ANSWER_HEAD.size, _master_message_size)

    async def begin(self, offer: StreamOffer) -> None:
        """Says for what this connection is; the messages of the slave follow."""
        request = StreamRequest(version=range_stream.VERSION, instance=offer.instance, replication=True)
        await self._messages.write(range_stream.request(request.SerializeToString()))

    async def read(self) -> Any:
        """Returns the master's next MasterFrame, or `grpc.aio.EOF`.  Raises PeerLost."""
        received = await self._messages.read()
        if received is None:
            return grpc.aio.EOF
        kind, size, _ = ANSWER_HEAD.unpack_from(received)
        message, data = received[ANSWER_HEAD.size :][:size], received[ANSWER_HEAD.size + size :]
        try:
            if kind == Kind.FRAME:
                return MasterFrame(pb.MasterMessage.FromString(bytes(message)), data)
            if kind == Kind.REFUSED:
                refusal = StreamRefusal.FromString(bytes(message))
                raise PeerLost(f"{_STATUS.get(refusal.status, refusal.status)} {refusal.details}")
        except DecodeError as error:
            raise PeerLost(f"a message of the master cannot be decoded: {error}") from error
        raise PeerLost("the master serves no slave over this socket")

    async def write(self, message: pb.SlaveMessage) -> None:
        """Sends a message.  If the connection has broken, the message is dropped, because `read` raises the reason."""
        data = message.SerializeToString()
        with suppress(PeerLost):
            await self._messages.write(MESSAGE_HEAD.pack(len(data)) + data)

    def cancel(self) -> None:
        self._messages.close()


async def connect(address: str, offer: StreamOffer, *, tcp: bool) -> MasterSocket | None:
    """Connects to the socket that the master at this address has offered.  Without `tcp` only a Unix socket is used.

    Returns None if that is not possible.
    """
    offered = StreamOffer(unix_name=offer.unix_name, port=offer.port if tcp and offer.port < 1 << 16 else 0)
    try:
        async with asyncio.timeout(CONNECT_S):
            connection = await _connected(address, offered)
    except (OSError, TimeoutError):
        return None
    call = MasterSocket(connection)
    try:
        await call.begin(offer)
    except PeerLost:
        call.cancel()
        return None
    except BaseException:
        call.cancel()
        raise
    return call


async def _connected(address: str, offer: StreamOffer) -> socket.socket:
    """Connects to the Unix socket, or over TCP if this machine has no such socket."""
    if offer.unix_name and sys.platform == "linux":
        try:
            return await _connected_to(socket.AF_UNIX, f"\0{offer.unix_name}")
        except ConnectionRefusedError:
            if not offer.port:
                raise
    if not offer.port:
        raise OSError(errno.ENOTSUP, "no socket that this machine could use")
    host = address.rpartition(":")[0].strip("[]")
    found = await asyncio.get_running_loop().getaddrinfo(host, offer.port, type=socket.SOCK_STREAM)
    family, _, _, _, where = found[0]
    return await _connected_to(family, where)


async def _connected_to(family: int, where: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, where)
        if family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        made.close()
        raise
    return made


def _slave_message_size(head: memoryview) -> int:
    (size,) = MESSAGE_HEAD.unpack(head)
    return _checked(MESSAGE_HEAD.size + size, MAX_SLAVE_BYTES)


def _master_message_size(head: memoryview) -> int:
    kind, message_bytes, data_bytes = ANSWER_HEAD.unpack(head)
    if kind > Kind.NO_ROOM:
        raise ProtocolViolation(f"a message of the unknown kind {kind}")
    return _checked(ANSWER_HEAD.size + message_bytes + data_bytes, MAX_MASTER_BYTES)


def _checked(size: int, most: int) -> int:
    if size > most:
        raise ProtocolViolation(f"a message of {size} bytes; at most {most} are possible")
    return int(size)
