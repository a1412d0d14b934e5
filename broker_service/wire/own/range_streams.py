"""RangeStreams: serves PullRange and Send over plain sockets, which cost less than gRPC for large frames.

`range_stream.py` of the contract describes the protocol.  A client opens a connection for each call and sends one
request.  A *pull* is then answered with frames of records, until its ranges are read.  With a *send* the client sends
one frame of records, and gets one answer.  RangePath and PutPath read, check and store, as they do for gRPC.

Pulls: the next frame is read from the store when the client has read most of the frame before.  The frame's bytes go
from the mapped log directly into the socket, as far as the kernel has room for them.  The rest is copied at once, so
that a slow client does not keep files of the log open.

Sends: a frame is received into the memory in which it is checked and stamped.  The store gets it when it is complete.

A connection has one frame at a time.  The constants below limit the connections, and the bytes of all of them together.
A request that does not fit is answered with NO_ROOM, and its client uses gRPC instead.
"""

import asyncio
import fcntl
import logging
import secrets
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress

import numpy as np
from google.protobuf.message import DecodeError
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.range_stream import MAX_SEND_BYTES, Kind

from broker_service.broker.core.broker import Broker
from broker_service.broker.put import PutPath, Send
from broker_service.broker.reads.pull_range import RangePath
from broker_service.errors import RocketSimError
from broker_service.runtime.deadlines import NO_DEADLINE_S, wait_s
from broker_service.runtime.figures import Figure, gauge
from broker_service.runtime.rpc_errors import log_server_failure, refusal_of, status_of
from broker_service.wire.own.range_messages import ranges_of, without_records
from broker_service.wire.own.send_messages import send_of, send_response

logger = logging.getLogger(__name__)

MAX_STREAMS = 64  # pulls
MAX_SENDS = 64
MAX_TAKEN_BYTES = 128 << 20  # frames that are being received, or wait for disk and slave
MAX_UNSENT_BYTES = 256 << 20  # one frame of each pull: the bytes that would be copied if no client read
MAX_BUFFER_BYTES = 128 << 20  # send buffers of SEND_BUFFER bytes; further pulls keep the kernel's default
# The send buffer of a Unix socket.  Linux doubles the size for its bookkeeping, as far as net.core.wmem_max allows, and
# reports the socket as writable when three quarters are free.  That is room for the frames of 3 MiB that clients want.
SEND_BUFFER = 5 << 19
MAX_CONNECTIONS = MAX_STREAMS + MAX_SENDS + 64  # the last 64 are for clients that are sent to gRPC
MAX_REQUESTED_BYTES = 16 << 20  # requests, from the announcement of their size until their calls end
REQUEST_S = 5.0  # time for the request to arrive
SILENCE_S = 5.0  # longest time without a byte of a frame that a client sends
SLOWEST_BYTES_S = 1 << 20  # a client that sends more slowly has to use gRPC, which has no such limit
RECEIVE_AT_ONCE = 1 << 20  # bytes of a frame after which the event loop has a turn
LONGEST_CALL_S = 3600.0  # a client that does not read keeps one of MAX_STREAMS places until its deadline
LATE_S = 1.0  # the connection ends this long after the deadline, which the client notices by its own clock
STOP_S = 1.0  # time for pulls to send their current frame when the broker stops
ACCEPT_PAUSE_S = 1.0  # after a connection could not be accepted, as for lack of open files


class ClientLost(Exception):
    """The client has closed the connection, or has sent something that is no request."""


class RangeStreams:
    def __init__(self, broker: Broker, ranges: RangePath, puts: PutPath) -> None:
        self._broker = broker
        self._ranges = ranges
        self._puts = puts
        self._instance = secrets.token_bytes(16)
        self._offer: pb.StreamOffer | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._putting: set[asyncio.Task[None] | None] = set()  # connections whose frame is being stored
        self._stopping = False
        self._giving: set[socket.socket] = set()
        self.frame_bytes = 0  # of one frame of each pull
        self.buffer_bytes = 0  # of the pulls' large send buffers
        self.unsent_bytes = 0  # in this process, of pulls' frames that clients have not read yet
        self.sends = 0
        self.taken_bytes = 0  # of sends' frames, from the announcement of their size until they are answered
        self.requested_bytes = 0  # of all requests

    def figures(self) -> Iterator[Figure]:
        yield gauge("rocketsim_range_streams", "Pulls of ranges whose answers plain sockets carry.", self.serving)
        help_text = "Bytes of ranges that wait in this process for clients of plain sockets to read."
        yield gauge("rocketsim_range_stream_unsent_bytes", help_text, self.unsent_bytes)
        help_text = "Bytes of ranges that wait in the kernel for clients of plain sockets to read."
        yield gauge("rocketsim_range_stream_queued_bytes", help_text, self.queued_bytes)
        help_text = "Bytes of requests that come over plain sockets."
        yield gauge("rocketsim_stream_request_bytes", help_text, self.requested_bytes)
        yield gauge("rocketsim_send_streams", "Frames of producers that plain sockets carry.", self.sends)
        help_text = "Bytes of producers' frames from plain sockets that have not been answered yet."
        yield gauge("rocketsim_send_stream_bytes", help_text, self.taken_bytes)

    @property
    def serving(self) -> int:
        """Returns the number of pulls."""
        return len(self._giving)

    @property
    def queued_bytes(self) -> int:
        """Returns the bytes in the kernel that the clients of pulls have not read yet."""
        return sum(map(_queued_bytes, self._giving))

    @property
    def unix_name(self) -> str:
        """Returns the name of this broker's abstract Unix socket.

        It is no secret: /proc/net/unix shows it to everybody in this network namespace.
        """
        return f"rocketsim-{self._instance.hex()}"

    def offer(self) -> pb.StreamOffer | None:
        """Returns where clients may open streams; None while there is no room, and they have to use gRPC."""
        return self._offer if self.serving < MAX_STREAMS else None

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accepts connections on listening sockets until it is cancelled, and then closes the sockets."""
        if not sockets:
            return
        unix = any(one.family == socket.AF_UNIX for one in sockets)
        port = next((one.getsockname()[1] for one in sockets if one.family != socket.AF_UNIX), 0)
        self._offer = pb.StreamOffer(
            instance=self._instance,
            unix_name=self.unix_name if unix else "",
            port=port,
            max_send_bytes=MAX_SEND_BYTES,
        )
        try:
            await asyncio.gather(*(self._accept(one) for one in sockets))
        finally:
            for one in sockets:
                one.close()

    async def stop(self, grace_s: float) -> None:
        """Ends all calls.

        Pulls end after their current frame, or after STOP_S.  Sends whose frame is not complete end then, too.  Sends
        that wait for disk and slave may take `grace_s`.
        """
        self._offer, self._stopping = None, True
        if self._connections:
            await asyncio.wait(self._connections, timeout=min(STOP_S, grace_s))
        putting = [task for task in self._connections if task in self._putting]
        for task in self._connections.difference(putting):
            task.cancel()
        if putting:
            await asyncio.wait(putting, timeout=max(0.0, grace_s - STOP_S))
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                logger.warning("a connection for ranges was not accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if self._stopping or len(self._connections) >= MAX_CONNECTIONS:
                with connection, suppress(OSError):  # without an answer a client would not know if its frame is stored
                    connection.send(range_stream.answer(Kind.NOT_HERE if self._stopping else Kind.NO_ROOM))
                continue
            task = loop.create_task(self._connected(connection), name="range-stream")
            self._connections.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a stream of ranges failed", exc_info=error)

    async def _connected(self, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await self._call(connection)
            except (ClientLost, TimeoutError):
                pass

    async def _call(self, connection: socket.socket) -> None:
        until = asyncio.get_running_loop().time() + REQUEST_S
        async with asyncio.timeout_at(until):
            size = await self._request_size(connection)
        if not _fits(size, self.requested_bytes, MAX_REQUESTED_BYTES):
            await self._send(connection, range_stream.answer(Kind.NO_ROOM))
            return
        self.requested_bytes += size
        try:
            async with asyncio.timeout_at(until):
                request = await self._request(connection, size)
            timeout_s = min(request.timeout_ms / 1000, LONGEST_CALL_S)
            async with asyncio.timeout(timeout_s + LATE_S):
                await self._answer(connection, request, asyncio.get_running_loop().time() + timeout_s)
        finally:
            self.requested_bytes -= size

    async def _request_size(self, connection: socket.socket) -> int:
        head = bytearray(range_stream.REQUEST_HEAD.size)
        await _fill(connection, memoryview(head))
        try:
            return range_stream.request_length(head)
        except range_stream.Illegal as error:
            logger.warning("a connection for ranges is closed: %s", error)
            raise ClientLost from error

    async def _request(self, connection: socket.socket, size: int) -> pb.StreamRequest:
        data = bytearray(size)
        await _fill(connection, memoryview(data))
        try:
            return pb.StreamRequest.FromString(bytes(data))
        except DecodeError as error:
            logger.warning("a connection for ranges is closed: %s", error)
            raise ClientLost from error

    async def _answer(self, connection: socket.socket, request: pb.StreamRequest, deadline: float) -> None:
        is_known = request.version == range_stream.VERSION and request.instance == self._instance
        if not is_known or request.credentials or request.records_bytes > MAX_SEND_BYTES:
            await self._send(connection, range_stream.answer(Kind.NOT_HERE))
            return
        is_send = request.HasField("send")
        if not (self._takes(request.records_bytes) if is_send else self._gives(request.pull)):
            await self._send(connection, range_stream.answer(Kind.NO_ROOM))
            return
        try:
            if is_send:
                await self._take_frame(connection, request, deadline)
            else:
                await self._give_frames(connection, request.pull)
        except (RocketSimError, OSError) as error:
            refusal = refusal_of(error)
            log_server_failure("a stream of ranges", refusal)
            status: int = status_of(refusal).value[0]
            message = pb.StreamRefusal(status=status, code=refusal.code, details=str(refusal)).SerializeToString()
            await self._send(connection, range_stream.answer(Kind.REFUSED, message))

    def _takes(self, size: int) -> bool:
        """Returns True if there is room for the frame of a send, of which nothing has been received yet."""
        return self.sends < MAX_SENDS and _fits(size, self.taken_bytes, MAX_TAKEN_BYTES)

    async def _take_frame(self, connection: socket.socket, request: pb.StreamRequest, deadline: float) -> None:
        self.sends += 1
        self.taken_bytes += request.records_bytes
        try:
            records = await self._records(connection, request.records_bytes)
            if _has_hung_up(connection):  # the client may have sent the frame again over another connection
                raise ClientLost
            response = await self._put(send_of(request.send, records, request.send.count), deadline)
            await self._send(connection, range_stream.answer(Kind.SENT, response.SerializeToString()))
        finally:
            self.taken_bytes -= request.records_bytes
            self.sends -= 1

    async def _put(self, send: Send, deadline: float) -> pb.SendResponse:
        task = asyncio.current_task()
        self._putting.add(task)
        try:
            placed = await self._puts.append(send)
            left_s = min(max(0.0, deadline - asyncio.get_running_loop().time()), NO_DEADLINE_S)
            status = await self._puts.safe(placed, wait_s(left_s))
        finally:
            self._putting.discard(task)
        return send_response(placed.appended, status, self._broker)

    async def _records(self, connection: socket.socket, size: int) -> memoryview:
        """Receives the frame of a send, into memory that can be written to."""
        loop = asyncio.get_running_loop()
        records = np.empty(size, np.uint8).data  # not filled with zeros, which takes time
        latest = loop.time() + receive_s(size)
        try:
            async with asyncio.timeout(SILENCE_S) as silence:
                await _fill(connection, records, lambda: silence.reschedule(min(loop.time() + SILENCE_S, latest)))
        except TimeoutError:
            raise ClientLost from None
        return records

    def _gives(self, asked: pb.PullRangeRequest) -> bool:
        """Returns True if there is room for a pull with frames of this size."""
        size = self._ranges.frame_bytes(asked.max_frame_bytes)
        return self.serving < MAX_STREAMS and _fits(size, self.frame_bytes, MAX_UNSENT_BYTES)

    async def _give_frames(self, connection: socket.socket, asked: pb.PullRangeRequest) -> None:
        frame_bytes = self._ranges.frame_bytes(asked.max_frame_bytes)
        buffer_bytes = self._large_buffer(connection)
        self._giving.add(connection)
        self.frame_bytes += frame_bytes
        self.buffer_bytes += buffer_bytes
        try:
            await self._send_frames(connection, asked)
            await self._send(connection, range_stream.answer(Kind.END))
        finally:
            self.buffer_bytes -= buffer_bytes
            self.frame_bytes -= frame_bytes
            self._giving.discard(connection)

    def _large_buffer(self, connection: socket.socket) -> int:
        """Gives a Unix socket a large send buffer and returns its size; 0 if there is no room for one.

        The buffers of TCP sockets grow by themselves, beyond wmem_max.
        """
        if connection.family != socket.AF_UNIX or self.buffer_bytes + 2 * SEND_BUFFER > MAX_BUFFER_BYTES:
            return 0
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    async def _send_frames(self, connection: socket.socket, asked: pb.PullRangeRequest) -> None:
        self._ranges.calls.note(asked.consumer_group, {one.topic for one in asked.ranges}, is_stream=True)
        frames = self._ranges.pull_range(
            asked.consumer_group, ranges_of(asked), asked.sub_expression, asked.expression_type, asked.max_frame_bytes
        )
        async with aclosing(frames):
            async for frame in frames:
                message = without_records(frame, self._broker.broker_id, self._broker.epoch)
                head = range_stream.answer(Kind.FRAME, message, sum(map(len, frame.records)))
                await self._send(connection, head, frame.records)
                await _has_room(connection)

    async def _send(self, connection: socket.socket, head: bytes, records: list[memoryview] | None = None) -> None:
        """Sends `head` and `records`.  Empties `records` before it waits, so that no deleted log file stays open."""
        parts = [memoryview(head), *(records or ())]
        try:
            try:
                sent = connection.sendmsg(parts)
            except BlockingIOError:
                sent = 0
            rest = _behind(parts, sent)
            parts.clear()
            if records:
                records.clear()
            if not rest:
                return
            self.unsent_bytes += len(rest)
            try:
                await asyncio.get_running_loop().sock_sendall(connection, rest)
            finally:
                self.unsent_bytes -= len(rest)
        except OSError as error:
            raise ClientLost from error


async def _has_room(connection: socket.socket) -> None:
    """Waits until the kernel reports the socket as writable."""
    room = select.poll()
    room.register(connection, select.POLLOUT)
    if room.poll(0):
        return
    loop = asyncio.get_running_loop()
    has_some = asyncio.Event()
    loop.add_writer(connection, has_some.set)
    try:
        await has_some.wait()
    finally:
        loop.remove_writer(connection)


def _queued_bytes(connection: socket.socket) -> int:
    """Returns the bytes that the other side has not read; for a Unix socket their memory, which is a little more."""
    try:
        (size,) = struct.unpack("@i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    except OSError:  # no Linux, or the connection is gone
        return 0
    return int(size)


def _has_hung_up(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


async def _fill(connection: socket.socket, view: memoryview, progressed: Callable[[], None] = lambda: None) -> None:
    """Receives until `view` is full.  Calls `progressed` after each read."""
    loop = asyncio.get_running_loop()
    at_once = RECEIVE_AT_ONCE
    while view:
        try:
            got = await loop.sock_recv_into(connection, view[:at_once])
        except OSError as error:
            raise ClientLost from error
        if not got:
            raise ClientLost
        view = view[got:]
        progressed()
        at_once -= got
        if not at_once:  # reads from a socket that always has bytes never pause
            await asyncio.sleep(0)
            at_once = RECEIVE_AT_ONCE


def receive_s(size: int) -> float:
    """Returns how long the receiving of a frame may take, during which it keeps one of MAX_SENDS places."""
    return SILENCE_S + size / SLOWEST_BYTES_S


def _fits(size: int, taken: int, most: int) -> bool:
    """Returns True if `size` bytes fit beside `taken` ones.  One frame or request of any size always fits."""
    return not taken or taken + size <= most


def _behind(parts: Sequence[memoryview], sent: int) -> bytes:
    """Returns a copy of the parts without their first `sent` bytes."""
    rest = []
    for part in parts:
        rest.append(part[sent:])
        sent = max(0, sent - len(part))
    return b"".join(rest)
