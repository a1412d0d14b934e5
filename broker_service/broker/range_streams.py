"""RangeStreams: PullRange over plain sockets, which range_stream.py of the contract describes.

What is read, checked and answered is RangePath's; only the carrying is other than gRPC's.  What a socket takes at once
goes into it out of the mapped log; the rest of a frame is copied before anything else is done with the store, so that a
slow client holds nothing of the log.  A connection has one frame under way, and there are at most MAX_STREAMS of them.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Sequence
from contextlib import aclosing

from google.protobuf.message import DecodeError
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.range_stream import Kind

from broker_service.broker.core.broker import Broker
from broker_service.broker.range_messages import ranges_of, without_records
from broker_service.broker.reads.pull_range import RangePath
from broker_service.broker.servicer import NO_DEADLINE_S
from broker_service.errors import RocketSimError
from broker_service.rpc_errors import log_ours, refusal_of, status_of

logger = logging.getLogger(__name__)

MAX_STREAMS = 64
MAX_CONNECTIONS = 2 * MAX_STREAMS  # with those that are only told to ask gRPC
REQUEST_S = 5.0  # for the request to arrive
LATE_S = 1.0  # a caller hears of his deadline by his own clock, not by a broken connection
STOP_S = 1.0  # for the frames that are under way when the broker stops
ACCEPT_PAUSE_S = 1.0  # when there are no handles left


class _Gone(Exception):
    """The client, or what it said was no request."""


class RangeStreams:
    def __init__(self, broker: Broker, ranges: RangePath) -> None:
        self._broker = broker
        self._ranges = ranges
        self._instance = secrets.token_bytes(16)
        self._offer: pb.StreamOffer | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.serving = 0  # streams
        self.unsent_bytes = 0  # of frames that wait for their clients

    @property
    def unix_name(self) -> str:
        """Nobody can know it who was not told."""
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
        self._offer = pb.StreamOffer(instance=self._instance, unix_name=self.unix_name if unix else "", port=port)
        try:
            await asyncio.gather(*(self._accept(one) for one in sockets))
        finally:
            for one in sockets:
                one.close()

    async def stop(self) -> None:
        """Streams end with their next frame, or within STOP_S."""
        self._offer, self._stopping = None, True
        if self._connections:
            await asyncio.wait(self._connections, timeout=STOP_S)
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
                connection.close()
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
                async with asyncio.timeout(REQUEST_S):
                    request = await self._request(connection)
                async with asyncio.timeout(min(request.timeout_ms / 1000, NO_DEADLINE_S) + LATE_S):
                    await self._answer(connection, request)
            except (_Gone, TimeoutError):
                pass

    async def _request(self, connection: socket.socket) -> pb.StreamRequest:
        try:
            length = range_stream.request_length(await _read(connection, range_stream.REQUEST_HEAD.size))
            return pb.StreamRequest.FromString(await _read(connection, length))
        except (range_stream.Illegal, DecodeError) as error:
            logger.warning("a connection for ranges is closed: %s", error)
            raise _Gone from error

    async def _answer(self, connection: socket.socket, request: pb.StreamRequest) -> None:
        is_known = request.version == range_stream.VERSION and request.instance == self._instance
        if not is_known or request.credentials or self.serving >= MAX_STREAMS:
            await self._send(connection, range_stream.answer(Kind.NOT_HERE))
            return
        self.serving += 1
        try:
            await self._send_frames(connection, request.pull)
            await self._send(connection, range_stream.answer(Kind.END))
        except (RocketSimError, OSError) as error:
            refusal = refusal_of(error)
            log_ours("a stream of ranges", refusal)
            status: int = status_of(refusal).value[0]
            message = pb.StreamRefusal(status=status, code=refusal.code, details=str(refusal)).SerializeToString()
            await self._send(connection, range_stream.answer(Kind.REFUSED, message))
        finally:
            self.serving -= 1

    async def _send_frames(self, connection: socket.socket, asked: pb.PullRangeRequest) -> None:
        frames = self._ranges.pull_range(
            asked.consumer_group, ranges_of(asked), asked.sub_expression, asked.expression_type, asked.max_frame_bytes
        )
        async with aclosing(frames):
            async for frame in frames:
                message = without_records(frame, self._broker.broker_id, self._broker.epoch)
                head = range_stream.answer(Kind.FRAME, message, sum(map(len, frame.records)))
                await self._send(connection, head, frame.records)

    async def _send(self, connection: socket.socket, head: bytes, records: Sequence[memoryview] = ()) -> None:
        """`records` are not looked at any more once this waits."""
        parts = [memoryview(head), *records]
        try:
            try:
                sent = connection.sendmsg(parts)
            except BlockingIOError:
                sent = 0
            rest = _behind(parts, sent)
            if not rest:
                return
            self.unsent_bytes += len(rest)
            try:
                await asyncio.get_running_loop().sock_sendall(connection, rest)
            finally:
                self.unsent_bytes -= len(rest)
        except OSError as error:
            raise _Gone from error


async def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        except OSError as error:
            raise _Gone from error
        if not piece:
            raise _Gone
        data += piece
    return bytes(data)


def _behind(parts: Sequence[memoryview], sent: int) -> bytes:
    """What of the parts is behind the first `sent` bytes, copied."""
    rest = []
    for part in parts:
        rest.append(part[sent:])
        sent = max(0, sent - len(part))
    return b"".join(rest)
