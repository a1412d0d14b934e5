"""RemotingServer accepts connections that speak RocketMQ's remoting protocol, and limits the memory and time they use.

The server works on all requests of a connection at the same time, as RocketMQ does.  An answer carries the number of
its request.  All requests that have come together are handled together.  Those that need no waiting are answered at
once, and each other request gets a task, which is a call.

The request of a call stays in memory until the call has ended.  All requests of calls together may use
MAX_REQUEST_BYTES.  Large requests that are still arriving have a separate limit, MAX_ARRIVING_BYTES.  While a limit is
reached, the server reads no further request that would exceed it.  A large request counts as arriving until its call
has begun.

Answers that clients have not read yet may use MAX_UNSENT_BYTES, and those of one connection MAX_UNSENT_BYTES_OF_ONE.
A connection that would exceed a limit is closed.

The server also sends requests to clients.  The answer to such a request goes to the caller that waits for it.  An
answer for which no caller waits any more is dropped.

A slow or silent client also loses its connection:
- The connection is closed if the client has sent no complete request within FIRST_S.
- The connection is closed if the client needs more than FRAME_S, plus a second for each MiB, to send a request.
- The connection is closed if the client reads nothing of its answers for STALLED_S.
- The connection is closed if the client sends nothing for IDLE_S while none of its calls is under way.
"""

import asyncio
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from rocketsim_proto.remoting.frame import (
    HEAD,
    IS_ANSWER,
    IS_ONE_WAY,
    FrameError,
    Header,
    encode_without_body,
    lengths,
)
from rocketsim_proto.remoting.frame import decode_header as header_of

from broker_service.runtime.certificates import Certificates
from broker_service.runtime.figures import Figure, counter, gauge
from broker_service.runtime.remoting.calls import Answer, Calls, Reply, Request, Unanswered
from broker_service.runtime.remoting.memory_budget import MemoryBudget
from broker_service.runtime.server import HANDSHAKE_TIMEOUT_MS, host_port, most_connections
from broker_service.store.files import open_file_limit

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 128 << 20  # bytes of requests whose calls are under way
MAX_ARRIVING_BYTES = 64 << 20  # bytes of large requests that are still arriving
REQUEST_OVERHEAD_BYTES = 4096  # memory of a call in addition to its frame
MAX_CALLS_OF_ONE = 10_000  # most calls of one connection; a client may have one waiting pull for each queue
MAX_UNSENT_BYTES = 256 << 20
MAX_UNSENT_BYTES_OF_ONE = 64 << 20
MAX_UNREAD_COMMANDS_BYTES = 1 << 20  # a client that has more unread bytes gets no requests from the server
MAX_UNANSWERED = 16  # most requests of the server to one client that wait for the client's answer
FIRST_S = 10.0
FRAME_S = 10.0
IDLE_S = 120.0  # RocketMQ's serverChannelMaxIdleTimeSeconds
STALLED_S = 30.0
CHECK_TIMES_EVERY_S = 1.0
# The size of the largest small frame.  Small frames fit into the buffers that each connection has anyway.
# Larger frames have a separate budget.
SMALL_BYTES = 64 << 10
SLOWEST_BYTES_S = 1 << 20  # the lowest rate at which a client may send a request
ACCEPT_PAUSE_S = 1.0  # the pause after a failed accept, for example when the process has no file handles left
READ_BYTES = 2 * SMALL_BYTES  # asyncio's buffer of a connection holds about as many bytes
WRITTEN_BYTES = 256 << 10  # bytes of answers that are written before the end of a turn


class Connection:
    """One client's connection.

    The frames of one turn of the event loop are written together at its end, or earlier if they have WRITTEN_BYTES,
    because a write costs as much as all else that an answer needs.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, now_s: float) -> None:
        self.reader = reader
        self._writer = writer
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._opaque = itertools.count()
        # The requests that the server has sent to the client: opaque -> the future of the client's answer.
        self._asked: dict[int, asyncio.Future[Reply | Unanswered]] = {}
        host, port = writer.get_extra_info("peername")[:2]
        self.address = host_port(host, port)
        self.peer = f"ipv6:{self.address}" if ":" in host else f"ipv4:{self.address}"
        self.calls: set[asyncio.Task[None]] = set()
        self.call_ended = asyncio.Event()
        self.calls_to_begin = 0  # calls whose tasks have not run yet
        # the connection is closed at this time; None while calls are under way
        self.deadline_s: float | None = now_s + FIRST_S
        self.unsent_bytes = 0  # the unsent bytes that the last check found
        self.sent_at_s = now_s  # the time at which a check last found fewer unsent bytes than the check before it
        self.gone: list[Callable[[], None]] = []  # functions to call when the connection has ended

    @property
    def is_open(self) -> bool:
        return not self._writer.is_closing()

    @property
    def buffered_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size() + self._unwritten_bytes

    def send(self, header: Header, body: bytes = b"") -> None:
        """Sends a frame.  Raises FrameError if the frame is too long."""
        if not self.is_open:
            return
        pieces = [encode_without_body(header, len(body)), body]
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write)
        self._unwritten += pieces
        self._unwritten_bytes += len(pieces[0]) + len(body)
        if self._unwritten_bytes >= WRITTEN_BYTES:
            self._write()

    def _write(self) -> None:
        pieces, self._unwritten, self._unwritten_bytes = self._unwritten, [], 0
        if pieces and self.is_open:
            self._writer.writelines(pieces)

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        if not self.is_open or self.buffered_bytes > MAX_UNREAD_COMMANDS_BYTES:
            return False
        self.send(Header(int(code), next(self._opaque), IS_ONE_WAY, "", dict(fields), "JAVA"), body)
        return True

    async def ask(self, code: int, fields: Mapping[str, str], body: bytes, timeout_s: float) -> Reply | Unanswered:
        if not self.is_open:
            return Unanswered.GONE
        if len(self._asked) >= MAX_UNANSWERED or self.buffered_bytes > MAX_UNREAD_COMMANDS_BYTES:
            return Unanswered.BUSY
        opaque = next(self._opaque)
        answer: asyncio.Future[Reply | Unanswered] = asyncio.get_running_loop().create_future()
        self._asked[opaque] = answer
        try:
            self.send(Header(int(code), opaque, 0, "", dict(fields), "JAVA"), body)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return Unanswered.LATE
        finally:
            self._asked.pop(opaque, None)

    def answered(self, header: Header, body: bytes) -> None:
        """Passes a client's answer to the caller that waits for it.

        Without such a caller the answer is dropped: it is late, comes a second time, or belongs to a request that wants
        no answer.
        """
        answer = self._asked.pop(header.opaque, None)
        if answer is not None and not answer.done():
            answer.set_result(Reply(header, body))

    def end_asking(self) -> None:
        """Tells all callers that wait for an answer of the client that the connection has ended."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(Unanswered.GONE)

    def close(self) -> None:
        """Closes the connection after all answers have been sent."""
        self._write()
        self._writer.close()

    async def wait_sent(self) -> None:
        """Waits after `close` until the answers have been sent, or the connection is aborted.

        A client can end its side of a connection and read no answers.  Until all answers are sent, they take memory and
        the socket stays open, so the connection still counts.
        """
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()


class Frames:
    """The whole frames at the beginning of the bytes that have arrived.

    `end` is the position where the whole frames end.  `next_size` is the size of the frame that begins there, or 0 if
    too few of its bytes are known.  `error` is set if the bytes there are not a frame.
    """

    def __init__(self, arrived: bytes) -> None:
        self.requests: list[tuple[Header, bytes, int]] = []  # header, body, size of the frame
        self.end = self.next_size = 0
        self.error: FrameError | None = None
        try:
            self._read(arrived)
        except FrameError as error:
            self.error = error

    def _read(self, arrived: bytes) -> None:
        while len(arrived) - self.end >= HEAD.size:
            head_end = self.end + HEAD.size
            form, header_bytes, body_bytes = lengths(arrived[self.end : head_end])
            body_at = head_end + header_bytes
            frame_end = body_at + body_bytes
            if frame_end > len(arrived):
                self.next_size = frame_end - self.end
                return
            header = header_of(form, arrived[head_end:body_at])
            self.requests.append((header, arrived[body_at:frame_end], frame_end - self.end))
            self.end = frame_end


class RemotingServer:
    """The server of one port, or of several ports that clients use alike.  `port` is the first one.

    `key` is the configuration key of the port, which log lines name.  With certificates all clients must use TLS.
    """

    def __init__(
        self,
        key: str,
        listening: Sequence[socket.socket],
        calls: Calls,
        certificates: Certificates | None = None,
        *,
        client_auth: bool = False,
    ) -> None:
        self.port = int(listening[0].getsockname()[1])
        self._key = key
        self._listening = listening
        self._calls = calls
        self._certificates = certificates
        self._client_auth = client_auth
        self._requests = MemoryBudget(MAX_REQUEST_BYTES)
        self._arriving = MemoryBudget(MAX_ARRIVING_BYTES)
        self._most = most_connections(open_file_limit())
        # one task for each connection, which starts before the TLS handshake
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._stopping = False
        self._accepting: list[asyncio.Task[None]] = []
        self.refused = 0

    def figures(self) -> Iterator[Figure]:
        yield gauge("rocketsim_remoting_connections", "Connections to remotingPort.", len(self._connections))
        help_text = "Bytes of requests over remotingPort that have not been answered yet."
        yield gauge("rocketsim_remoting_request_bytes", help_text, self.request_bytes)
        help_text = "Bytes of answers that clients of remotingPort have not read yet."
        yield gauge("rocketsim_remoting_unsent_bytes", help_text, self.unsent_bytes)
        help_text = "Connections to remotingPort that were closed because of too many connections."
        yield counter("rocketsim_remoting_connections_refused", help_text, self.refused)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def request_bytes(self) -> int:
        return self._requests.taken_bytes + self._arriving.taken_bytes

    @property
    def unsent_bytes(self) -> int:
        return sum(one.buffered_bytes for one in self._connections)

    async def run(self) -> None:
        """Serves until cancelled.  The caller calls `stop` after `run` has ended."""
        async with asyncio.TaskGroup() as group:
            self._accepting = [
                group.create_task(self._accept(listening), name="remoting-accept") for listening in self._listening
            ]
            group.create_task(self._check_times(), name="remoting-times")

    async def stop(self, grace_s: float) -> None:
        """Stops reading requests, and ends all connections.  Calls under way may take `grace_s` more seconds."""
        self._stopping = True
        for task in self._accepting:
            task.cancel()
        if self._accepting:
            await asyncio.wait(self._accepting)
        for listening in self._listening:
            listening.close()
        for one in self._connections:
            one.end_asking()
        if calls := [call for one in self._connections for call in one.calls]:
            await asyncio.wait(calls, timeout=grace_s)
        for one in self._connections:
            one.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # gives the event loop the turn in which it closes the sockets

    # --- connections --------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                logger.warning("%s: a connection was not taken: %s", self._key, error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._tasks) >= self._most or self._stopping:
                self.refused += 1
                accepted.close()
                continue
            task = loop.create_task(self._connected(accepted), name="remoting-connection")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a connection to %s failed", self._key, exc_info=error)

    async def _connected(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            reader = asyncio.StreamReader(SMALL_BYTES, loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            context = self._tls_context()
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_MS / 1000 if context is not None else None,
            )
        except (OSError, ssl.SSLError) as error:
            logger.info("%s: a client did not get a connection: %s", self._key, error)
            accepted.close()
            return
        except BaseException:
            accepted.close()
            raise
        try:
            one = Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop), loop.time())
        except (TypeError, ValueError):  # the client has disconnected: the socket has no peer address
            transport.abort()
            return
        self._connections.add(one)
        try:
            await self._serve(one)
            await one.wait_sent()
        finally:
            self._connections.discard(one)

    async def _serve(self, one: Connection) -> None:
        """Reads and answers requests until the connection ends, and closes it."""
        try:
            await self._read(one)
        except (asyncio.IncompleteReadError, OSError, FrameError) as error:
            if isinstance(error, FrameError):
                logger.info("%s: the connection of %s is closed: %s", self._key, one.address, error)
        finally:
            one.close()
            one.end_asking()
            for call in one.calls:
                call.cancel()
            for listener in one.gone:
                listener()

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._certificates is None:
            return None
        context = self._certificates.newest().context
        context.verify_mode = ssl.CERT_REQUIRED if self._client_auth else ssl.CERT_NONE
        return context

    async def _read(self, one: Connection) -> None:
        """Reads the requests of a connection, and answers them or begins their calls, until the connection ends."""
        loop = asyncio.get_running_loop()
        arrived, is_begun = b"", False  # `is_begun` says that the time for the end of the first frame is set
        while not self._stopping:
            frames = Frames(arrived)
            if frames.end:
                await self._handle(one, frames.requests)
                arrived, is_begun = arrived[frames.end :], False
            if frames.error is not None:
                raise frames.error
            if frames.next_size > SMALL_BYTES:
                await self._room_for_a_call(one)
            if frames.next_size and not is_begun:
                is_begun = True
                one.deadline_s = loop.time() + FRAME_S + frames.next_size / SLOWEST_BYTES_S
            if frames.next_size > SMALL_BYTES:
                await self._handle_large(one, arrived, frames.next_size)
                arrived, is_begun = b"", False
                continue
            more = await one.reader.read(READ_BYTES)
            if not more:
                return
            arrived += more

    async def _handle_large(self, one: Connection, begun: bytes, size: int) -> None:
        """Reads a large frame, whose first bytes are `begun`, and handles it.

        The bytes of the frame are taken from a separate budget until its call has begun, so that clients that do not
        finish large frames do not delay small frames, and so that a frame whose call has to wait for memory counts.
        """
        await self._arriving.take(size)
        try:
            frames = Frames(begun + await one.reader.readexactly(size - len(begun)))
            if frames.error is not None:
                raise frames.error
            await self._handle(one, frames.requests)
        finally:
            self._arriving.give_back(size)

    async def _handle(self, one: Connection, frames: Sequence[tuple[Header, bytes, int]]) -> None:
        """Answers requests that need no waiting, begins the calls of the others, and passes the client's answers on."""
        one.deadline_s = None
        asked: list[tuple[Request, int]] = []  # requests and the sizes of their frames
        for header, body, size in frames:
            if header.is_answer:
                one.answered(header, body)
            else:
                asked.append((Request(header, body, one), size))
        requests = [request for request, _ in asked]
        # The calls of earlier requests have to begin first.
        answers = [None] * len(requests) if one.calls_to_begin else self._calls.answers_at_once(requests)
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None:
                self._send(one, request.header, answer)
        for (request, size), answer in zip(asked, answers, strict=True):
            if answer is None:
                await self._room_for_a_call(one)
                await self._requests.take(size + REQUEST_OVERHEAD_BYTES)
                self._begin(one, request, size + REQUEST_OVERHEAD_BYTES)
        one.deadline_s = None if one.calls else asyncio.get_running_loop().time() + IDLE_S

    async def _room_for_a_call(self, one: Connection) -> None:
        """Waits while the connection has MAX_CALLS_OF_ONE calls."""
        while len(one.calls) >= MAX_CALLS_OF_ONE:
            one.call_ended.clear()
            await one.call_ended.wait()

    def _begin(self, one: Connection, request: Request, taken: int) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(one, request), name="remoting-call")
        one.calls.add(task)
        one.calls_to_begin += 1

        def ended(task: "asyncio.Task[None]") -> None:
            self._requests.give_back(taken)
            one.calls.discard(task)
            one.call_ended.set()
            if not one.calls and one.deadline_s is None:
                one.deadline_s = asyncio.get_running_loop().time() + IDLE_S
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a call over %s failed", self._key, exc_info=error)

        task.add_done_callback(ended)

    async def _answer(self, one: Connection, request: Request) -> None:
        one.calls_to_begin -= 1
        self._send(one, request.header, await self._calls.answer(request))

    def _send(self, one: Connection, asked: Header, answer: Answer) -> None:
        if asked.is_one_way or not one.is_open:
            return
        header = Header(int(answer.code), asked.opaque, IS_ANSWER, answer.remark, answer.fields, "JAVA")
        try:
            one.send(header, answer.body)
        except FrameError as error:
            one.send(Header(1, asked.opaque, IS_ANSWER, f"the answer does not fit into a frame: {error}", {}, "JAVA"))
        if one.buffered_bytes > MAX_UNSENT_BYTES_OF_ONE or (
            one.buffered_bytes > SMALL_BYTES and self.unsent_bytes > MAX_UNSENT_BYTES
        ):
            logger.warning("%s: the connection of %s is closed: it does not read its answers", self._key, one.address)
            one.abort()

    async def _check_times(self) -> None:
        while True:
            await asyncio.sleep(CHECK_TIMES_EVERY_S)
            now = asyncio.get_running_loop().time()
            for one in [*self._connections]:
                self._check_times_of(one, now)

    def _check_times_of(self, one: Connection, now_s: float) -> None:
        unsent = one.buffered_bytes
        if not unsent or unsent < one.unsent_bytes:
            one.sent_at_s = now_s
        one.unsent_bytes = unsent
        is_late = one.deadline_s is not None and now_s > one.deadline_s and not unsent
        if is_late or now_s - one.sent_at_s > STALLED_S:
            with suppress(OSError):
                one.abort()
