"""A network in memory below gRPC's own stubs and servicers: channels, servers and calls, message by message.

Messages are bytes.  A message arrives after a seeded delay, in order within its stream, and not while its direction is
cut.  A cut of one direction leaves streams half open, until a side with keepalive gives them up.  The connections of a
killed process are reset, while a machine that loses its power sends nothing.
"""

import asyncio
import contextvars
import inspect
import random
from asyncio import base_events
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, NoReturn

import grpc
from grpc.aio import AbortError, AioRpcError, Metadata

from broker_service.runtime.server import Network as RealNetwork
from tests.simulation.virtual_loop import Process, VirtualLoop, current_process

WINDOW = 8  # messages of a stream that may be on their way before its writer waits
SERVER_KEEPALIVE_S = 20.0
CONNECT_TIMEOUT_S = 5.0
END: Any = grpc.aio.EOF

Corrupt = Callable[[str, bytes], bytes]


class Wire:
    """The connections of all processes.  The wire knows which directions are cut, and how slow they are."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.delay_s = 0.002
        self.servers: dict[str, Server] = {}
        self.dark: set[str] = set()  # hosts without power: they send nothing, not even a reset
        self.cuts: set[tuple[str, str]] = set()  # (from host, to host)
        self.corruptions = 0  # a bit flips in this many of the next large messages
        self.calls: dict[int, _Connection] = {}
        self.numbers = count(1)
        # Called with (host, path, request, response) of each answer.
        self.answered: Callable[[str, str, Any, Any], None] = lambda *_: None
        # Called when a server takes a message of a stream.
        self.told: Callable[[str, ServerCall, Any], None] = lambda *_: None
        self.surprises: list[str] = []  # errors of servicers that are no refusals

    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))
        for connection in list(self.calls.values()):
            connection.watch(source, target)

    def mend(self, one: str, other: str) -> None:
        """Mends both directions between these two hosts."""
        self.cuts -= {(one, other), (other, one)}
        for connection in list(self.calls.values()):
            if {one, other} == {connection.client_host, connection.server_host}:
                connection.healed()

    def heal(self) -> None:
        self.cuts.clear()
        self.delay_s = 0.002
        self.corruptions = 0
        for connection in list(self.calls.values()):
            connection.healed()

    def delay(self) -> float:
        return self.chance.uniform(0.2, 1.0) * self.delay_s

    def may_corrupt(self, data: bytes) -> bytes:
        """Flips a bit in the middle of some large messages, which have log bytes or records with checksums there."""
        if not self.corruptions or len(data) < 300:
            return data
        self.corruptions -= 1
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1 << self.chance.randrange(8)
        return bytes(flipped)

    def died(self, host: str, *, silently: bool) -> None:
        """Ends the connections of a host whose process has ended.  Peers notice the end, unless the machine has lost
        its power (`silently`).
        """
        for address in [address for address in self.servers if host_of(address) == host]:
            del self.servers[address]
        if silently:
            self.dark.add(host)
        for connection in list(self.calls.values()):
            connection.end_died(host, silently=silently)

    def is_back(self, host: str) -> None:
        """Notes that the machine has power again, and that it does not know its former connections."""
        self.dark.discard(host)
        for connection in list(self.calls.values()):
            connection.reset_of_the_dead(host)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cuts


class Network(RealNetwork):
    """The network of one host."""

    def __init__(self, wire: Wire, host: str) -> None:
        self._wire = wire
        self._host = host

    def open_channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> Any:
        return Channel(self._wire, self._host, address, dict(options))

    def listen(
        self,
        bind_address: str,
        port: int,
        max_message_bytes: int,
        key: str = "listenPort",
        interceptors: Any = (),
        options: Any = (),
    ) -> tuple[Any, int]:
        process = current_process()
        assert process is not None
        return Server(self._wire, process, f"{self._host}:{port}"), port

    def listen_for_streams(self, unix_name: str, bind_address: str, port: int) -> list[Any]:
        return []  # everything goes over the simulated wire


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


# --- one side's way to the other --------------------------------------------------------------------------------------


class _Way:
    """One direction of a call: the items that are on the way, and those that have arrived and are still unread."""

    def __init__(self, connection: "_Connection", source: str, target: str) -> None:
        self._connection = connection
        self._wire = connection.wire
        self.source, self.target = source, target
        self._held: deque[Callable[[], None]] = deque()  # deliveries that a cut holds back
        self._last = 0.0
        self.arrived: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._under_way = 0

    def send(self, deliver: Callable[[], None]) -> None:
        """Delivers an item after everything that was sent before."""
        if self._held or self._wire.is_cut(self.source, self.target):
            self._held.append(deliver)
            return
        loop = self._wire.loop
        self._last = max(self._last + 1e-6, loop.now + self._wire.delay())
        base_call_at(loop, self._last, self._arrive, deliver)

    def _arrive(self, deliver: Callable[[], None]) -> None:
        if self._wire.is_cut(self.source, self.target):
            self._held.append(deliver)
        else:
            deliver()

    def release(self) -> None:
        held, self._held = self._held, deque()
        for deliver in held:
            self.send(deliver)

    async def write(self, data: bytes) -> None:
        while self._under_way >= WINDOW:
            future = self._wire.loop.create_future()
            self._writers.append(future)
            await future
        self._under_way += 1
        data = self._wire.may_corrupt(data)
        self.send(lambda: self.put(data))

    def put(self, item: Any) -> None:
        self.arrived.append(item)
        self.wake()

    def wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self, over: Callable[[], bool]) -> Any:
        """Returns the next item, or END when the call is `over` and no item is left."""
        while not self.arrived:
            if over():
                return END
            self._reader = self._wire.loop.create_future()
            await self._reader
        item = self.arrived.popleft()
        if item is not END:
            self._under_way -= 1
            self.let_write()
        else:
            self.arrived.append(END)
        return item

    def let_write(self) -> None:
        while self._writers and (self._under_way < WINDOW):
            future = self._writers.popleft()
            if not future.done():
                future.set_result(None)
                break

    def break_off(self) -> None:
        self.wake()
        self._under_way = 0
        while self._writers:
            future = self._writers.popleft()
            if not future.done():
                future.set_result(None)


def base_call_at(loop: VirtualLoop, when: float, callback: Callable[..., None], *args: Any) -> Any:
    """Starts a timer of the wire.  The timer belongs to no process, so it runs even if a process dies."""
    return base_events.BaseEventLoop.call_at(loop, when, callback, *args, context=_NOBODY)


_NOBODY = contextvars.Context()


# --- a call -----------------------------------------------------------------------------------------------------------


class _Connection:
    """One call between two hosts.  Each side decides for itself whether the call is still open."""

    def __init__(self, wire: Wire, client_host: str, address: str, path: str, keepalive_s: float | None) -> None:
        self.wire = wire
        self.number = next(wire.numbers)
        self.client_host, self.server_host = client_host, host_of(address)
        self.address, self.path = address, path
        self.to_server = _Way(self, client_host, self.server_host)
        self.to_client = _Way(self, self.server_host, client_host)
        self.keepalive_s = keepalive_s
        self.client: ClientCall | None = None
        self.server: ServerCall | None = None
        self.dead_hosts: set[str] = set()
        wire.calls[self.number] = self

    def watch(self, source: str, target: str) -> None:
        """Makes the side that sends pings give up some time after a cut, unless the cut heals earlier."""
        if {source, target} != {self.client_host, self.server_host}:
            return
        loop, chance = self.wire.loop, self.wire.chance
        if self.keepalive_s is not None:
            base_call_at(loop, loop.now + self.keepalive_s * chance.uniform(1.0, 1.5), self._give_up_client)
        base_call_at(loop, loop.now + SERVER_KEEPALIVE_S * chance.uniform(1.0, 1.5), self._give_up_server)

    def is_silent(self) -> bool:
        """Returns True if a direction is cut or the server has no power, so that neither side can get an answer."""
        return (
            self.wire.is_cut(self.client_host, self.server_host)
            or self.wire.is_cut(self.server_host, self.client_host)
            or self.server_host in self.wire.dark
            or bool(self.dead_hosts)
        )

    def _give_up_client(self) -> None:
        if self.is_silent() and self.client is not None:
            self.client.lost("keepalive: no answer")

    def _give_up_server(self) -> None:
        if self.is_silent() and self.server is not None:
            self.server.lost()

    def healed(self) -> None:
        self.to_server.release()
        self.to_client.release()

    def end_died(self, host: str, *, silently: bool) -> None:
        if host not in (self.client_host, self.server_host):
            return
        self.dead_hosts.add(host)
        if silently:
            self.watch(self.client_host, self.server_host)
        elif host == self.client_host:
            self.to_server.send(self._server_lost)
        else:
            self.to_client.send(lambda: (self.client is not None and self.client.lost("connection reset")) or None)

    def _client_lost(self) -> None:
        if self.client is not None:
            self.client.lost("connection reset")

    def _server_lost(self) -> None:
        if self.server is not None:
            self.server.lost()

    def reset_of_the_dead(self, host: str) -> None:
        """Resets the connection if it belongs to an earlier life of this machine, which does not know the connection
        after its restart.
        """
        if host in self.dead_hosts:
            self.end_died(host, silently=False)

    def forget(self) -> None:
        if (self.client is None or self.client.is_over) and (self.server is None or self.server.is_over):
            self.wire.calls.pop(self.number, None)


class ClientCall:
    """A call object like grpc.aio's, with the methods that brokers and clients use."""

    def __init__(self, channel: "Channel", method: "_Method", timeout: float | None) -> None:
        self._method = method
        self._wire = channel.wire
        self._process = current_process()
        self.connection = _Connection(channel.wire, channel.host, channel.address, method.path, channel.keepalive_s)
        self.connection.client = self
        self._status: tuple[grpc.StatusCode, str, tuple[Any, ...]] | None = None
        self._cancelled = False
        self._done_writing = False
        self.deadline = None if timeout is None else self._wire.loop.now + timeout
        self._timer = None if self.deadline is None else self._wire.loop.call_at(self.deadline, self._too_late)
        channel.calls.append(self)
        self._connect()

    @property
    def is_over(self) -> bool:
        return self._status is not None

    def done(self) -> bool:
        return self.is_over

    def cancelled(self) -> bool:
        return self._cancelled

    # --- events -------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        connection = self.connection
        if connection.is_silent():
            self._wire.loop.call_later(CONNECT_TIMEOUT_S, self._end, grpc.StatusCode.UNAVAILABLE, "connect: timed out")
        connection.to_server.send(self._accept)

    def _accept(self) -> None:
        """Lets a server of the host take the call, or refuses the connection."""
        if self.is_over or self.connection.server_host in self._wire.dark:
            return
        server = self._wire.servers.get(self.connection.address)
        if server is None or not server.is_serving:
            self.connection.to_client.send(lambda: self.lost("connection refused"))
        else:
            server.accept(self.connection, self._method, self.deadline)

    def lost(self, why: str) -> None:
        self._end(grpc.StatusCode.UNAVAILABLE, why)

    def _too_late(self) -> None:
        self._tell_cancelled()
        self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def finished(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...]) -> None:
        self._end(code, details, trailing)

    def _end(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...] = ()) -> None:
        if self._status is not None:
            return
        self._status = code, details, trailing
        if self._timer is not None:
            self._timer.cancel()
        self.connection.to_client.break_off()
        self.connection.to_server.break_off()
        self.connection.forget()

    def _tell_cancelled(self) -> None:
        if self._alive():
            self.connection.to_server.send(self.connection._server_lost)

    def _alive(self) -> bool:
        return self._process is None or self._process.is_alive

    # --- what the caller asks -------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        if self.is_over:
            return False
        self._cancelled = True
        self._tell_cancelled()
        self._end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    async def write(self, message: Any) -> None:
        if self.is_over:
            raise asyncio.InvalidStateError("RPC already finished.")
        try:
            await self.connection.to_server.write(self._method.serialize(message))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.is_over:
            await self.raise_for_status()

    async def done_writing(self) -> None:
        if not self._done_writing and not self.is_over:
            self._done_writing = True
            self.connection.to_server.send(lambda: self.connection.to_server.put(END))

    async def _next(self) -> Any:
        try:
            data = await self.connection.to_client.read(lambda: self.is_over)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is END:
            return END
        try:
            return self._method.parse(data)
        except Exception:
            self._tell_cancelled()
            self._end(grpc.StatusCode.INTERNAL, "Exception deserializing response!")
            return END

    async def raise_for_status(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        assert self._status is not None
        code, details, trailing = self._status
        if code is not grpc.StatusCode.OK:
            raise AioRpcError(code, Metadata(), Metadata(*trailing), details=details)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not END:
            yield message

    async def read(self) -> Any:
        message = await self._next()
        if message is END:
            if not self.is_over:  # the status follows the last message
                await self._until_over()
            await self.raise_for_status()
        return message

    async def _until_over(self) -> None:
        while not self.is_over:
            await self.connection.to_client.read(lambda: self.is_over)

    async def code(self) -> grpc.StatusCode:
        assert self._status is not None
        return self._status[0]

    async def details(self) -> str:
        assert self._status is not None
        return self._status[1]

    async def initial_metadata(self) -> Metadata:
        return Metadata()

    async def trailing_metadata(self) -> Metadata:
        assert self._status is not None
        return Metadata(*self._status[2])


class _Method:
    def __init__(self, path: str, kind: str, serialize: Any, parse: Any) -> None:
        self.path = path
        self.kind = kind
        self.serialize = serialize or (lambda message: message)
        self.parse = parse or (lambda data: data)


class Channel:
    def __init__(self, wire: Wire, host: str, address: str, options: dict[str, Any]) -> None:
        self.wire = wire
        self.host = host
        self.address = address
        keepalive_ms = options.get("grpc.keepalive_time_ms")
        self.keepalive_s = None if keepalive_ms is None else keepalive_ms / 1000
        self.calls: list[ClientCall] = []

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        for call in self.calls:
            call.cancel()
        self.calls.clear()

    def unary_unary(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        method = _Method(path, "unary_unary", request_serializer, response_deserializer)

        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:  # noqa: ASYNC109 - as in gRPC
            made = ClientCall(self, method, timeout)
            try:
                if not made.is_over:
                    await made.write(request)
                await made.done_writing()
                answer = await made.read()
                if not made.is_over:
                    await made._until_over()
            finally:
                if made in self.calls:
                    self.calls.remove(made)
            await made.raise_for_status()
            return answer

        return call

    def unary_stream(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        method = _Method(path, "unary_stream", request_serializer, response_deserializer)

        def call(request: Any, timeout: float | None = None, **_: Any) -> ClientCall:
            made = ClientCall(self, method, timeout)
            data = method.serialize(request)
            made.connection.to_server.send(lambda: made.connection.to_server.put(data))
            made.connection.to_server.send(lambda: made.connection.to_server.put(END))
            return made

        return call

    def stream_stream(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        method = _Method(path, "stream_stream", request_serializer, response_deserializer)

        def call(timeout: float | None = None, **_: Any) -> ClientCall:
            return ClientCall(self, method, timeout)

        return call

    stream_unary = stream_stream


# --- the server's side ------------------------------------------------------------------------------------------------


class HandlerCallDetails(NamedTuple):
    method: str


class Server(grpc.aio.Server):
    def __init__(self, wire: Wire, process: Process, address: str) -> None:
        self._wire = wire
        self._process = process
        self._address = address
        self._generic: list[Any] = []
        self._registered: dict[str, Any] = {}
        self._calls: set[int] = set()
        self._running: dict[int, ServerCall] = {}
        self.is_serving = False

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        for name, handler in method_handlers.items():
            self._registered[f"/{service_name}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        return int(address.rpartition(":")[2])

    def add_secure_port(self, address: str, server_credentials: Any) -> int:
        raise NotImplementedError

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        raise NotImplementedError

    async def start(self) -> None:
        self.is_serving = True
        self._wire.servers[self._address] = self

    async def stop(self, grace: float | None) -> None:
        self.is_serving = False
        if self._wire.servers.get(self._address) is self:
            del self._wire.servers[self._address]
        until = self._wire.loop.now + (grace or 0.0)
        while self._running and self._wire.loop.now < until:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(min(0.01, until - self._wire.loop.now))
        for call in list(self._running.values()):
            call.lost()
            call.connection.to_client.send(call.connection._client_lost)

    def accept(self, connection: _Connection, method: _Method, deadline: float | None) -> None:
        details = HandlerCallDetails(connection.path)
        handlers = (self._registered.get(connection.path), *(one.service(details) for one in self._generic))
        handler = next(filter(None, handlers), None)
        if handler is None:
            connection.to_client.send(
                lambda: (
                    (
                        connection.client is not None
                        and connection.client.finished(grpc.StatusCode.UNIMPLEMENTED, connection.path, ())
                    )
                    or None
                )
            )
            return
        call = ServerCall(self._wire, connection, handler, deadline, self._process)
        connection.server = call
        self._running[connection.number] = call
        self._process.call_soon(call.begin, self._process, lambda: self._running.pop(connection.number, None))


class ServerCall:
    """The context of a servicer, and the task that serves the call."""

    def __init__(
        self, wire: Wire, connection: _Connection, handler: Any, deadline: float | None, process: Process
    ) -> None:
        self.connection = connection
        self._wire = wire
        self._handler = handler
        self._deadline = deadline
        self._process = process
        self._task: asyncio.Task[Any] | None = None
        self._lost = False
        self._aborted: tuple[grpc.StatusCode, str, tuple[Any, ...]] | None = None
        self.is_over = False

    @property
    def is_ending(self) -> bool:
        """Returns True if the servicer has ended, or is about to hear that it must end."""
        return self._lost or self._task is None or self._task.done()

    def begin(self, process: Process, over: Callable[[], Any]) -> None:
        if self._lost:
            self._finish(over)
            return
        self._task = process.spawn(self._serve())
        self._task.add_done_callback(lambda _: self._finish(over))

    def _finish(self, over: Callable[[], Any]) -> None:
        self.is_over = True
        over()
        self.connection.forget()

    def lost(self) -> None:
        """Cancels the servicer's task, as gRPC does when the client hangs up or the connection is lost."""
        self._lost = True
        self.connection.to_server.break_off()
        self.connection.to_client.break_off()
        if self._task is not None and self._process.is_alive:
            self._process.call_soon(self._task.cancel)

    async def _serve(self) -> None:
        try:
            await self._answer()
        except AbortError:
            assert self._aborted is not None
            self._close(*self._aborted)
        except asyncio.CancelledError:
            self._close(grpc.StatusCode.CANCELLED, "", ())
        except Exception as error:
            self._wire.surprises.append(f"{self.connection.path} at {self._process}: {type(error).__name__}: {error}")
            self._close(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}", ())
        else:
            self._close(grpc.StatusCode.OK, "", ())

    async def _answer(self) -> None:
        handler = self._handler
        if handler.request_streaming:
            given: Any = self._requests()
        else:
            data = await self.connection.to_server.read(lambda: self._lost)
            if data is END:
                return
            given = self._parse(data)
        behaviour = (
            handler.stream_stream
            if handler.request_streaming and handler.response_streaming
            else handler.unary_stream
            if handler.response_streaming
            else handler.stream_unary
            if handler.request_streaming
            else handler.unary_unary
        )
        if not handler.response_streaming:
            response = await behaviour(given, self)
            if self._process.is_alive:
                self._wire.answered(self.connection.server_host, self.connection.path, given, response)
            await self.write(response)
        elif inspect.isasyncgenfunction(inspect.unwrap(behaviour)) or inspect.isasyncgenfunction(behaviour):
            async for message in behaviour(given, self):
                if self._process.is_alive:
                    self._wire.answered(self.connection.server_host, self.connection.path, given, message)
                await self.write(message)
        else:
            await behaviour(given, self)

    def _parse(self, data: bytes) -> Any:
        if self._handler.request_deserializer is None:
            return data
        try:
            return self._handler.request_deserializer(data)
        except Exception as error:
            self._aborted = grpc.StatusCode.INTERNAL, "Exception deserializing request!", ()
            raise AbortError from error

    async def _requests(self) -> AsyncIterator[Any]:
        while (data := await self.connection.to_server.read(lambda: self._lost)) is not END:
            message = self._parse(data)
            self._wire.told(self.connection.server_host, self, message)
            yield message

    def _close(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...]) -> None:
        client = self.connection.client
        if self._process.is_alive and client is not None:
            self.connection.to_client.send(lambda: client.finished(code, details, trailing))

    # --- grpc.aio.ServicerContext, as far as it is used -----------------------------------------------------------

    async def write(self, message: Any) -> None:
        if self._lost or not self._process.is_alive:
            await asyncio.sleep(0)
            return
        serialize = self._handler.response_serializer
        await self.connection.to_client.write(serialize(message) if serialize is not None else message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._aborted = code, details, tuple(trailing_metadata)
        raise AbortError

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._wire.loop.now)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return f"ipv4:{self.connection.client_host}:1"

    def cancelled(self) -> bool:
        return self._lost

    def done(self) -> bool:
        return self.is_over
