"""Calls to other brokers and to name servers.  The caller gets an answer or PeerLost, whatever the peer does.

gRPC itself reports a failure in three ways: by AioRpcError for a failed call, by InvalidStateError for a write to a
call that has ended, and by None for an answer that it cannot decode.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from broker_service.errors import RocketSimError

T = TypeVar("T")

# Options of every channel that connects again until its peer answers.  If the first packet of a connection is lost, TCP
# repeats it only after 1, 3, 7 and 15 s, and by default gRPC waits 20 s for one attempt.  Without these options, a
# connection to a peer that can be reached again would begin up to 20 s late.
TRIED_AGAIN: tuple[tuple[str, Any], ...] = (
    ("grpc.min_reconnect_backoff_ms", 2_000),  # in spite of its name, this is the time for one attempt to connect
    # a new channel does not wait for the back-off of other channels to this address
    ("grpc.use_local_subchannel_pool", 1),
)


class PeerLost(RocketSimError):
    """The peer refused the call, ended it, cannot be reached, or sent an answer that cannot be decoded."""

    v2_code = "PROXY_TIMEOUT"


async def ask(call: Awaitable[T]) -> T:
    """Returns the answer of a unary call.  Raises PeerLost."""
    try:
        return _decoded(await call)
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from error


async def read_stream(stream: Any) -> AsyncIterator[Any]:
    """Yields the peer's messages until it ends the stream without an error.  Raises PeerLost."""
    try:
        async for message in stream:
            yield _decoded(message)
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from error


async def read_ahead(stream: Any, is_large: Callable[[Any], bool]) -> AsyncGenerator[Any, None]:
    """Yields messages as `read_stream` does.  Asks for the next message before it yields a large one, because gRPC
    receives a message that is larger than its window only after somebody has asked for it.  The message then arrives
    while the caller works on the one before it.
    """
    ahead: asyncio.Task[Any] | None = None
    try:
        while (received := await (ahead or stream.read())) is not grpc.aio.EOF:
            message, ahead = _decoded(received), None
            if is_large(message):
                ahead = asyncio.create_task(stream.read())
                await asyncio.sleep(0)  # lets the task begin
            yield message
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from error
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)


async def write_stream(stream: Any, message: Any) -> None:
    """Writes a message to a stream.  Raises PeerLost if the stream ends during the write.

    If the stream has ended before, the message is dropped, because the reader of the stream raises the reason.
    """
    try:
        await stream.write(message)
    except asyncio.InvalidStateError:
        pass
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from error


def _decoded(message: T | None) -> T:
    if message is None:
        raise PeerLost("the answer is not a message of this service; are the address and the version right?")
    return message


def _lost(error: grpc.aio.AioRpcError) -> PeerLost:
    return PeerLost(" ".join(part for part in (error.code().name, error.details()) if part))
