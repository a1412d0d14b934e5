"""NativeServer answers calls through `pygrpc-native`, a gRPC server in Rust that works outside Python's lock.

It offers what `Port` uses of `grpc.aio.Server`, without TLS and without interceptors.  The library receives and sends
calls with one request.  Calls whose requests are a stream (Telemetry) go to a `grpc.aio` server, which the library
connects to over a Unix socket.  The library is optional and young, so only its low-level interface is used, whose
names and arguments it promises to keep.
"""

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import grpc

from broker_service.errors import ConfigError
from broker_service.runtime.server import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, MAX_STREAMS_OF_CONNECTION, build_server

logger = logging.getLogger(__name__)

EVENTS_AT_ONCE = 64  # most calls that the event loop takes over at once
LIBRARY = "pygrpc_native"
# The library takes one message of a stream at a time, and does not say when it takes the next one.  For a client that
# reads, that is after a few turns of the event loop.  For others the pauses between attempts grow.
TURNS = 50
PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.1


def check_installed() -> None:
    """Raises ConfigError if the library is not installed."""
    if find_spec(LIBRARY) is None:
        raise ConfigError(
            "grpcServerLibrary=pygrpc_native: the package pygrpc-native is not installed for this Python; "
            "install it with pip install 'rocketsim[native]', or set grpcServerLibrary=grpcio"
        )


class NativeServer:
    """A server on one port without TLS.  Handlers are coroutines, as generated code adds them for a servicer.

    Requests of more than `max_message_bytes` are refused when they have been received.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._library: Any = import_module(LIBRARY)
        self._max_message_bytes = max_message_bytes
        self._handlers: list[tuple[str, Any]] = []  # path and handler of each method; the index is the library's id
        self._streams = build_server(max_message_bytes)
        self._front: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # has the Unix socket
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the library's id of the call
        self._ended: set[int] = set()  # calls that their client or their deadline has ended, while their task runs
        self.port = 0
        self.is_stopping = False

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: generated code adds the same methods with `add_registered_method_handlers`, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        streams = {method: handler for method, handler in handlers.items() if handler.request_streaming}
        self._streams.add_registered_method_handlers(service, streams)
        self._handlers += [
            (f"/{service}/{method}", handler) for method, handler in handlers.items() if method not in streams
        ]

    def add_insecure_port(self, address: str) -> int:
        """Binds the port, and returns its number.  Raises RuntimeError, as gRPC does."""
        try:
            self._front = self._library.NativeGrpcFront(
                address,
                [],
                call_details=True,
                delay_stream_headers=True,
                keepalive_time_ms=KEEPALIVE_MS,
                keepalive_timeout_ms=KEEPALIVE_TIMEOUT_MS,
                max_concurrent_streams=MAX_STREAMS_OF_CONNECTION,
            )
        except OSError as error:
            raise RuntimeError(f"cannot bind {address}: {error}") from error
        self.port = int(self._front.bound_port)
        return self.port

    async def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rocketsim-")
        path = f"{self._folder.name}/streams"
        self._streams.add_insecure_port(f"unix:{path}")
        await self._streams.start()
        self._front.add_methods([(path, handler.response_streaming) for path, handler in self._handlers])
        self._front.set_fallback(path)
        self._front.start()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._receive, args=(loop,), name="pygrpc-native", daemon=True).start()

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, and ends the others after `grace_s` seconds at the latest."""
        self.is_stopping = True
        streams = asyncio.ensure_future(self._streams.stop(grace_s))
        if tasks := list(self._tasks.values()):
            await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await streams
        await asyncio.to_thread(self._front.close)
        if self._folder is not None:
            self._folder.cleanup()

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Passes calls on to the event loop, on a thread of its own, until the server is closed."""
        while (events := self._front.recv_batch_details(EVENTS_AT_ONCE)) is not None:
            try:
                loop.call_soon_threadsafe(self._take, events)
            except RuntimeError:  # the event loop was closed without `stop`, so the process ends
                return

    def _take(self, events: Sequence[tuple[Any, ...]]) -> None:
        loop = asyncio.get_running_loop()
        for kind, call_id, method, payload, _, details in events:
            if kind == self._library.EVENT_CANCEL:
                if (running := self._tasks.get(call_id)) is not None:
                    self._ended.add(call_id)
                    running.cancel()
            elif self.is_stopping:
                self._fail(call_id, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            else:
                self._tasks[call_id] = loop.create_task(self._answer(call_id, method, payload, details))

    async def _answer(self, call_id: int, method: int, payload: bytes, details: tuple[Any, ...]) -> None:
        path, handler = self._handlers[method]
        try:
            if len(payload) > self._max_message_bytes:
                text = f"a request of {len(payload)} bytes; at most {self._max_message_bytes} are allowed"
                self._fail(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
                return
            try:
                request = handler.request_deserializer(payload)
            except Exception:  # protobuf's DecodeError, or whatever else a handler's decoder raises
                self._fail(call_id, grpc.StatusCode.INTERNAL, "the request cannot be decoded")
                return
            context = Context(self._library, self._front, call_id, details, handler.response_serializer)
            if handler.response_streaming:
                await handler.unary_stream(request, context)
                self._front.stream_end(call_id)
            else:
                answer = await handler.unary_unary(request, context)
                self._front.respond(call_id, handler.response_serializer(answer))
        except asyncio.CancelledError:
            if call_id not in self._ended:  # the client of an ended call has its status already
                self._fail(call_id, grpc.StatusCode.CANCELLED, "the call was cancelled")
        except Exception as error:
            logger.exception("a call of %s failed", path)
            self._fail(call_id, grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}: {error}")
        finally:
            self._tasks.pop(call_id, None)
            self._ended.discard(call_id)

    def _fail(self, call_id: int, code: grpc.StatusCode, text: str) -> None:
        self._front.fail(call_id, code.value[0], text)


class Context:
    """Offers the methods of `grpc.aio.ServicerContext` that the servicer calls for a call with one request.

    `details` is the library's tuple of the metadata, the peer and the seconds until the deadline.  The seconds are None
    for a call without a deadline.
    """

    __slots__ = ("_call_id", "_deadline", "_front", "_library", "_metadata", "_peer", "_serializer")

    def __init__(self, library: Any, front: Any, call_id: int, details: tuple[Any, ...], serializer: Any) -> None:
        self._library = library
        self._front = front
        self._call_id = call_id
        self._metadata: Sequence[tuple[str, str | bytes]] = details[0]
        self._peer: str = details[1]
        left_s: float | None = details[2]
        self._deadline = None if left_s is None else time.monotonic() + left_s
        self._serializer = serializer

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    async def write(self, message: Any) -> None:
        """Sends a message of a stream.  Waits while the client does not read.

        If the client has ended the call, this raises CancelledError, as the library's cancellation of the call will do
        in a moment.
        """
        data = self._serializer(message)
        turns, pause_s = 0, PAUSE_S
        while (sent := self._front.stream_try_send(self._call_id, data)) == self._library.STREAM_FULL:
            if turns < TURNS:
                turns += 1
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if sent == self._library.STREAM_CLOSED:
            raise asyncio.CancelledError
