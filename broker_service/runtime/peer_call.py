"""Calls to other brokers and to name servers: whatever the other side does, the caller gets an answer or PeerLost.

gRPC by itself raises AioRpcError for a call that failed and InvalidStateError for a write to one that has ended, and
gives None for an answer that cannot be decoded.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import grpc

from broker_service.errors import RocketSimError

T = TypeVar("T")

# Of every channel to a peer that is tried again until it is back.  Where packets are lost, TCP sends the first one of a
# connection again after 1, 3, 7 and 15 s, and gRPC waits 20 s for it: a peer that can be reached again would wait for
# the rest of that.
TRIED_AGAIN: tuple[tuple[str, Any], ...] = (
    ("grpc.min_reconnect_backoff_ms", 2_000),  # in spite of its name the time for one try to connect
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel keeps the pause of others to this address
)


class PeerLost(RocketSimError):
    """The other side refused the call, ended it, is not there, or sent what is no such message."""

    v2_code = "PROXY_TIMEOUT"


async def ask(call: Awaitable[T]) -> T:
    """The answer of a call that has one.  Raises PeerLost."""
    try:
        return _decoded(await call)
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from error


async def read_stream(stream: Any) -> AsyncIterator[Any]:
    """The messages of the other side, until it ends the stream without an error.  Raises PeerLost."""
    try:
        async for message in stream:
            yield _decoded(message)
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from error


async def write_stream(stream: Any, message: Any) -> None:
    """Does nothing if the stream has ended already: its reader raises the reason.  Raises PeerLost if it ends
    meanwhile.
    """
    try:
        await stream.write(message)
    except asyncio.InvalidStateError:
        pass
    except grpc.aio.AioRpcError as error:
        raise _lost(error) from error


def _decoded(message: T | None) -> T:
    if message is None:
        raise PeerLost("it answers with what is no message of this service; is the address right, and the version?")
    return message


def _lost(error: grpc.aio.AioRpcError) -> PeerLost:
    return PeerLost(" ".join(part for part in (error.code().name, error.details()) if part))
