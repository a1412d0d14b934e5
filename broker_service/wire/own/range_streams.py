"""RangeStreams: PullRange and Send over plain sockets, which range_stream.py of the contract describes.

What is read, checked, stored and answered is RangePath's and PutPath's; only the carrying is other than gRPC's.

A frame is read from the store when its client has read most of the one before.  What a socket takes at once goes into
it out of the mapped log, all of a frame where the kernel gives the socket room for it; the rest is copied before
anything else is done with the store, so that a slow client holds nothing of the log.  A frame that a client sends is
received to where it is checked and stamped, and nothing of the store knows of it before it is there as a whole.  A
connection has one frame under way; at most MAX_STREAMS give frames, of MAX_UNSENT_BYTES together, with MAX_BUFFER_BYTES
in the kernel, and at most MAX_SENDS take one, of MAX_TAKEN_BYTES together.  All requests together have at most
MAX_REQUESTED_BYTES.
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

MAX_STREAMS = 64
MAX_SENDS = 64
MAX_TAKEN_BYTES = 128 << 20  # of frames that are being received, or wait for disk and slave
MAX_UNSENT_BYTES = 256 << 20  # of one frame for each stream: what would be copied if no client read
MAX_BUFFER_BYTES = 128 << 20  # of send buffers of SEND_BUFFER; a further stream has what the kernel gives every socket
# Of a Unix socket.  Linux takes it twice, for its bookkeeping, as far as net.core.wmem_max allows, and says that the
# socket can be written to when three quarters are free: room for a frame of 3 MiB, which clients ask for.
SEND_BUFFER = 5 << 19
MAX_CONNECTIONS = MAX_STREAMS + MAX_SENDS + 64  # with those that are only told to ask gRPC
MAX_REQUESTED_BYTES = 16 << 20  # of requests, from before they come until their calls end
REQUEST_S = 5.0  # for the request to arrive
SILENCE_S = 5.0  # without a byte of a frame that is being sent
SLOWEST_BYTES_S = 1 << 20  # of a frame that is being sent; a slower client's sends go over gRPC, which bounds none
RECEIVE_AT_ONCE = 1 << 20  # then the event loop has a turn
LONGEST_CALL_S = 3600.0  # a caller that does not read keeps one of MAX_STREAMS places until his deadline
LATE_S = 1.0  # a caller hears of his deadline by his own clock, not by a broken connection
STOP_S = 1.0  # for the frames that are under way when the broker stops
ACCEPT_PAUSE_S = 1.0  # when there are no handles left


class _Gone(Exception):
    """The client, or what it said was no request."""


class RangeStreams:
    def __init__(self, broker: Broker, ranges: RangePath, puts: PutPath) -> None:
        self._broker = broker
        self._ranges = ranges
        self._puts = puts
        self._instance = secrets.token_bytes(16)
        self._offer: pb.StreamOffer | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._putting: set[asyncio.Task[None] | None] = set()  # connections whose frame is the put path's
        self._stopping = False
        self._giving: set[socket.socket] = set()
        self.frame_bytes = 0  # of one frame of each pull
        self.buffer_bytes = 0  # of their send buffers, where those are large
        self.unsent_bytes = 0  # of frames that wait for their clients, in this process
        self.sends = 0
        self.taken_bytes = 0  # of their frames, from before they come until they are answered
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
        """Pulls."""
        return len(self._giving)

    @property
    def queued_bytes(self) -> int:
        """Memory of the kernel's with what pulls' clients have not read yet."""
        return sum(map(_queued_bytes, self._giving))

    @property
    def unix_name(self) -> str:
        """Another broker's is another one.  It is no secret: /proc/net/unix shows it to everybody in this network
        namespace, as it shows the ports."""
        return f"rocketsim-{self._instance.hex()}"

    def offer(self) -> pb.StreamOffer | None:
        """What a caller is told that accepts a stream; None: he gets his frames over gRPC."""
        return self._offer if self.serving < MAX_STREAMS else None

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Takes connections on listening sockets, which it closes when it is cancelled."""
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
        """Pulls end with their next frame, or within STOP_S; so does what has not been received as a whole.  Puts that
        wait for disk and slave have `grace_s`."""
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
                logger.warning("a connection for ranges was not taken: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if self._stopping or len(self._connections) >= MAX_CONNECTIONS:
                with connection, suppress(OSError):  # a client that hears nothing cannot know what became of its frame
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
            except (_Gone, TimeoutError):
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
            raise _Gone from error

    async def _request(self, connection: socket.socket, size: int) -> pb.StreamRequest:
        data = bytearray(size)
        await _fill(connection, memoryview(data))
        try:
            return pb.StreamRequest.FromString(bytes(data))
        except DecodeError as error:
            logger.warning("a connection for ranges is closed: %s", error)
            raise _Gone from error

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
        """Whether there is room for a frame of so many bytes: nothing of it has been read."""
        return self.sends < MAX_SENDS and _fits(size, self.taken_bytes, MAX_TAKEN_BYTES)

    async def _take_frame(self, connection: socket.socket, request: pb.StreamRequest, deadline: float) -> None:
        self.sends += 1
        self.taken_bytes += request.records_bytes
        try:
            records = await self._records(connection, request.records_bytes)
            if _has_hung_up(connection):  # it may have sent the frame again meanwhile
                raise _Gone
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
        """They can be written to."""
        loop = asyncio.get_running_loop()
        records = np.empty(size, np.uint8).data  # memory as it is, without zeros
        latest = loop.time() + receive_s(size)
        try:
            async with asyncio.timeout(SILENCE_S) as silence:
                await _fill(connection, records, lambda: silence.reschedule(min(loop.time() + SILENCE_S, latest)))
        except TimeoutError:
            raise _Gone from None
        return records

    def _gives(self, asked: pb.PullRangeRequest) -> bool:
        """Whether there is room for a stream of such frames."""
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
        """Gives it one, if there is room; 0: it keeps its own.  TCP's grow by themselves, whatever wmem_max is."""
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
        """Empties `records` before it waits: a client that does not read keeps no deleted file on the disk."""
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
            raise _Gone from error


async def _has_room(connection: socket.socket) -> None:
    """Returns when the socket can be written to, as the kernel sees it."""
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
    """Not read by the other side; of a Unix socket what its memory takes, which is a little more."""
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
    """Calls `progressed` whenever something has come."""
    loop = asyncio.get_running_loop()
    at_once = RECEIVE_AT_ONCE
    while view:
        try:
            got = await loop.sock_recv_into(connection, view[:at_once])
        except OSError as error:
            raise _Gone from error
        if not got:
            raise _Gone
        view = view[got:]
        progressed()
        at_once -= got
        if not at_once:  # a socket that always has something does not wait
            await asyncio.sleep(0)
            at_once = RECEIVE_AT_ONCE


def receive_s(size: int) -> float:
    """How long a frame of so many bytes may be on its way: it keeps one of MAX_SENDS places meanwhile."""
    return SILENCE_S + size / SLOWEST_BYTES_S


def _fits(size: int, taken: int, most: int) -> bool:
    """One is always taken."""
    return not taken or taken + size <= most


def _behind(parts: Sequence[memoryview], sent: int) -> bytes:
    """What of the parts is behind the first `sent` bytes, copied."""
    rest = []
    for part in parts:
        rest.append(part[sent:])
        sent = max(0, sent - len(part))
    return b"".join(rest)
