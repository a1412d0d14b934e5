"""RangeStreams: serves PullRange and Send over plain sockets, which cost less than gRPC for large frames.

A slave connects to the same sockets.  Its connection is passed on to `take_slave`.

The module `range_stream` in `rocketsim_proto` describes the protocol.  A client opens a connection for each call and
sends one request.  The broker answers a *pull* with frames of records, until all ranges are read.  For a *send* the
client sends one frame of records, and gets one answer.  RangePath and PutPath read, check and store the records, as
they do for gRPC.

Pulls: the next frame is read from the store when the client has read most of the previous frame.  The frame's bytes go
from the log directly into the socket, as far as the kernel has room for them.  Bytes for which the kernel has no room
are copied at once, so that a slow client does not keep log files open.  If the records lie in the log in large pieces,
a master lets its Unix sockets refer to the page cache (sendfile), and the bytes are copied only by the client.  A slave
copies them into the socket, because it may cut its log before the client has read them.

Sends: a frame is received into the memory in which it is later checked and stamped.  The store gets a frame when the
frame is complete.

A connection carries one frame at a time.  The constants below limit the connections, and the bytes of all connections
together.  A request that exceeds a limit is answered with NO_ROOM, and its client uses gRPC instead.
"""

import asyncio
import errno
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
from broker_service.broker.reads.pull_range import Frame, RangePath
from broker_service.errors import RocketSimError
from broker_service.runtime.deadlines import NO_DEADLINE_S, wait_s
from broker_service.runtime.figures import Figure, gauge
from broker_service.runtime.message_socket import without_first
from broker_service.runtime.rpc_errors import log_server_failure, refusal_of, status_of
from broker_service.wire.own.range_messages import ranges_of, without_records
from broker_service.wire.own.send_messages import send_of, send_response

logger = logging.getLogger(__name__)

MAX_STREAMS = 64  # most pulls at a time
MAX_SENDS = 64
MAX_TAKEN_BYTES = 128 << 20  # most bytes of frames that are being received, or that wait for disk and slave
# most bytes of the pulls' current frames; all of these bytes are copied into memory if no client reads
MAX_UNSENT_BYTES = 256 << 20
# most bytes of enlarged send buffers; beyond this limit, pulls keep the kernel's default buffer
MAX_BUFFER_BYTES = 128 << 20
# The size of a Unix socket's send buffer.  Linux doubles this size for its bookkeeping, as far as net.core.wmem_max
# allows.  Linux reports the socket as writable when three quarters are free, which is room for the 3 MiB frames of our
# clients.
SEND_BUFFER = 5 << 19
# Pieces of the log of at least this mean size are sent with sendfile, which has a fixed cost for each piece.  A piece
# of 32 KiB takes three fifths of the CPU of a copy, and one of 16 KiB as much as a copy.
SENDFILE_BYTES = 32 << 10
MAX_CONNECTIONS = MAX_STREAMS + MAX_SENDS + 64  # the last 64 connections are only told to use gRPC
MAX_REQUESTED_BYTES = 16 << 20  # most bytes of requests, from the announcement of their size until their calls end
REQUEST_S = 5.0  # longest time for a request to arrive
SILENCE_S = 5.0  # longest time without a further byte while a client sends a frame
SLOWEST_BYTES_S = 1 << 20  # bytes a second; a client that sends more slowly has to use gRPC, which has no such limit
RECEIVE_AT_ONCE = 1 << 20  # bytes of a frame after which other tasks of the event loop have a turn
LONGEST_CALL_S = 3600.0  # longest deadline of a call; a client that does not read keeps its place until the deadline
LATE_S = 1.0  # a connection is closed this long after its deadline, because the client ends the call by its own clock
STOP_S = 1.0  # time that pulls have to send their current frame when the broker stops
ACCEPT_PAUSE_S = 1.0  # pause after a connection could not be accepted, for example for lack of open files


# The errors of sendfile after which the rest of a frame is copied: the socket has no room, or the log's file system has
# no such call.
NO_SENDFILE = frozenset({errno.EAGAIN, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class ClientLost(Exception):
    """The client has closed the connection, or has sent something that is not a valid request."""


class RangeStreams:
    def __init__(self, broker: Broker, ranges: RangePath, puts: PutPath) -> None:
        self._broker = broker
        self._ranges = ranges
        self._puts = puts
        self._instance = secrets.token_bytes(16)
        self._offer: pb.StreamOffer | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._putting: set[asyncio.Task[None] | None] = set()  # tasks of connections whose frame is being stored
        self._stopping = False
        self._pulling: set[socket.socket] = set()
        # takes over the connection of a slave that wants its Replicate call; None: slaves are not served here
        self.take_slave: Callable[[socket.socket], None] | None = None
        self.frame_bytes = 0  # the frame sizes of all pulls, added up
        self.buffer_bytes = 0  # the pulls' enlarged send buffers, added up
        self.unsent_bytes = 0  # bytes of pulls' frames that wait in this process until clients read them
        self.sends = 0
        self.taken_bytes = 0  # bytes of sends' frames, from the announcement of their size until the answer
        self.requested_bytes = 0  # bytes of all requests under way

    def figures(self) -> Iterator[Figure]:
        yield gauge("rocketsim_range_streams", "Range pulls under way over plain sockets.", self.serving)
        help_text = "Bytes queued in this process for range-stream clients."
        yield gauge("rocketsim_range_stream_unsent_bytes", help_text, self.unsent_bytes)
        help_text = "Bytes queued in the kernel for range-stream clients."
        yield gauge("rocketsim_range_stream_queued_bytes", help_text, self.queued_bytes)
        help_text = "Bytes of requests over plain sockets whose calls are under way."
        yield gauge("rocketsim_stream_request_bytes", help_text, self.requested_bytes)
        yield gauge("rocketsim_send_streams", "Sends of producers under way over plain sockets.", self.sends)
        help_text = "Bytes of producers' frames over plain sockets that are not answered yet."
        yield gauge("rocketsim_send_stream_bytes", help_text, self.taken_bytes)

    @property
    def serving(self) -> int:
        """Returns the number of pulls under way."""
        return len(self._pulling)

    @property
    def queued_bytes(self) -> int:
        """Returns how many bytes of pulls wait in the kernel until clients read them."""
        return sum(map(_queued_bytes, self._pulling))

    @property
    def unix_name(self) -> str:
        """Returns the name of this broker's abstract Unix socket.

        The name is no secret, because /proc/net/unix shows the name to everybody in this network namespace.
        """
        return f"rocketsim-{self._instance.hex()}"

    def offer(self) -> pb.StreamOffer | None:
        """Returns where clients may open streams; None if no further stream is possible, and clients must use gRPC."""
        return self._offer if self.serving < MAX_STREAMS else None

    def offer_to_slave(self) -> pb.StreamOffer | None:
        """Returns where slaves may connect, also while no further pull is possible; None if there are no sockets."""
        return self._offer

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accepts connections on the listening sockets until cancelled, and then closes the sockets."""
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

        Pulls may still send their current frame, within STOP_S.  A send whose frame is not complete within STOP_S ends,
        too.  A send that waits for disk and slave may take `grace_s`.
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
                logger.warning("a plain-socket connection was not accepted: %s", error)
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
            logger.error("a plain-socket call failed", exc_info=error)

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
            if request.replication and self._is_known(request) and self.take_slave is not None and not self._stopping:
                self.take_slave(socket.socket(fileno=connection.detach()))
                return
            timeout_s = min(request.timeout_ms / 1000, LONGEST_CALL_S)
            async with asyncio.timeout(timeout_s + LATE_S):
                await self._answer(connection, request, asyncio.get_running_loop().time() + timeout_s)
        finally:
            self.requested_bytes -= size

    async def _request_size(self, connection: socket.socket) -> int:
        head = bytearray(range_stream.REQUEST_HEAD.size)
        await fill(connection, memoryview(head))
        try:
            return range_stream.request_length(head)
        except range_stream.Illegal as error:
            logger.warning("a plain-socket connection is closed: %s", error)
            raise ClientLost from error

    async def _request(self, connection: socket.socket, size: int) -> pb.StreamRequest:
        data = bytearray(size)
        await fill(connection, memoryview(data))
        try:
            return pb.StreamRequest.FromString(bytes(data))
        except DecodeError as error:
            logger.warning("a plain-socket connection is closed: %s", error)
            raise ClientLost from error

    async def _answer(self, connection: socket.socket, request: pb.StreamRequest, deadline: float) -> None:
        if not self._is_known(request) or request.replication or request.records_bytes > MAX_SEND_BYTES:
            await self._send(connection, range_stream.answer(Kind.NOT_HERE))
            return
        is_send = request.HasField("send")
        if not (self._has_room_for_send(request.records_bytes) if is_send else self._has_room_for_pull(request.pull)):
            await self._send(connection, range_stream.answer(Kind.NO_ROOM))
            return
        try:
            if is_send:
                await self._receive_send(connection, request, deadline)
            else:
                await self._serve_pull(connection, request.pull)
        except (RocketSimError, OSError) as error:
            refusal = refusal_of(error)
            log_server_failure("a plain-socket call", refusal)
            status: int = status_of(refusal).value[0]
            message = pb.StreamRefusal(status=status, code=refusal.code, details=str(refusal)).SerializeToString()
            await self._send(connection, range_stream.answer(Kind.REFUSED, message))

    def _is_known(self, request: pb.StreamRequest) -> bool:
        is_for_us = request.version == range_stream.VERSION and request.instance == self._instance
        return is_for_us and not request.credentials

    def _has_room_for_send(self, size: int) -> bool:
        """Returns True if the limits allow a further send, with a frame of `size` bytes."""
        return self.sends < MAX_SENDS and _fits(size, self.taken_bytes, MAX_TAKEN_BYTES)

    async def _receive_send(self, connection: socket.socket, request: pb.StreamRequest, deadline: float) -> None:
        self.sends += 1
        self.taken_bytes += request.records_bytes
        try:
            records = await self._records(connection, request.records_bytes)
            # the client may be gone, and may have sent the same frame again over another connection
            if _has_hung_up(connection):
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
        """Receives the frame of a send into writable memory."""
        loop = asyncio.get_running_loop()
        records = np.empty(size, np.uint8).data  # np.empty saves the time to fill the memory with zeros
        latest = loop.time() + receive_s(size)
        try:
            async with asyncio.timeout(SILENCE_S) as silence:
                await fill(connection, records, lambda: silence.reschedule(min(loop.time() + SILENCE_S, latest)))
        except TimeoutError:
            raise ClientLost from None
        return records

    def _has_room_for_pull(self, asked: pb.PullRangeRequest) -> bool:
        """Returns True if the limits allow a further pull, with frames of the size that it asks for."""
        size = self._ranges.frame_bytes(asked.max_frame_bytes)
        return self.serving < MAX_STREAMS and _fits(size, self.frame_bytes, MAX_UNSENT_BYTES)

    async def _serve_pull(self, connection: socket.socket, asked: pb.PullRangeRequest) -> None:
        frame_bytes = self._ranges.frame_bytes(asked.max_frame_bytes)
        buffer_bytes = self._large_buffer(connection)
        self._pulling.add(connection)
        self.frame_bytes += frame_bytes
        self.buffer_bytes += buffer_bytes
        try:
            await self._send_frames(connection, asked)
            await self._send(connection, range_stream.answer(Kind.END))
        finally:
            self.buffer_bytes -= buffer_bytes
            self.frame_bytes -= frame_bytes
            self._pulling.discard(connection)

    def _large_buffer(self, connection: socket.socket) -> int:
        """Gives a Unix socket a large send buffer, and returns the buffer's size in bytes.  Returns 0 if the limit for
        enlarged buffers is reached.

        A TCP socket gets no enlarged buffer, because TCP buffers grow by themselves, even beyond wmem_max.
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
                await self._send(connection, head, frame.records, self._runs_to_send(connection, frame))
                await _until_writable(connection)

    def _runs_to_send(self, connection: socket.socket, frame: Frame) -> Sequence[tuple[int, int]]:
        """Returns the frame's pieces of the log if they should be sent with sendfile.  Otherwise returns nothing."""
        if self._broker.is_slave or connection.family != socket.AF_UNIX or not frame.runs:
            return ()
        size = sum(end - begin for begin, end in frame.runs)
        return frame.runs if size >= SENDFILE_BYTES * len(frame.runs) else ()

    async def _send(
        self,
        connection: socket.socket,
        head: bytes,
        records: list[memoryview] | None = None,
        runs: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Sends `head` and `records`.  Empties `records` before it waits, so that no deleted log file stays open.  If
        `runs` is not empty, it has the places of `records` in the log, from which they are sent.
        """
        parts = [memoryview(head), *(records or ())]
        try:
            try:
                sent = self._send_runs(connection, head, runs) if runs else connection.sendmsg(parts)
            except BlockingIOError:
                sent = 0
            rest = without_first(parts, sent)
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

    def _send_runs(self, connection: socket.socket, head: bytes, runs: Sequence[tuple[int, int]]) -> int:
        """Sends `head` and then these pieces of the log, until the kernel has no more room.  Returns how many bytes
        were sent.  Raises BlockingIOError if the kernel has no room at all.
        """
        log, to = self._broker.store.log, connection.fileno()
        sent = connection.send(head)
        if sent < len(head):
            return sent
        for begin, end in runs:
            while begin < end:
                try:
                    taken = log.send(begin, end - begin, to)
                except OSError as error:
                    if error.errno not in NO_SENDFILE:
                        raise
                    return sent
                if not taken:
                    return sent
                sent += taken
                begin += taken
        return sent


async def _until_writable(connection: socket.socket) -> None:
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
    """Returns the number of sent bytes that the other side has not read.

    For a Unix socket Linux counts the memory of these bytes, which is a little more than their number.
    """
    try:
        (size,) = struct.unpack("@i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    except OSError:  # the system is not Linux, or the connection is gone
        return 0
    return int(size)


def _has_hung_up(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


async def fill(connection: socket.socket, view: memoryview, progressed: Callable[[], None] = lambda: None) -> None:
    """Receives bytes until `view` is full.  `progressed` is called after each read."""
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
        if not at_once:  # reading from a socket that always has bytes lets no other task run
            await asyncio.sleep(0)
            at_once = RECEIVE_AT_ONCE


def receive_s(size: int) -> float:
    """Returns how many seconds a frame may take to arrive.  The time is limited, because an arriving frame takes one of
    the MAX_SENDS places.
    """
    return SILENCE_S + size / SLOWEST_BYTES_S


def _fits(size: int, taken: int, most: int) -> bool:
    """Returns True if `size` more bytes fit while `taken` bytes are in use.  If no bytes are in use, any size fits."""
    return not taken or taken + size <= most
