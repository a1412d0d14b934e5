"""Ends calls with the gRPC status of an exception.  The trailing metadata contain RocketMQ's response code."""

import asyncio
import errno
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc

from broker_service import errors

logger = logging.getLogger(__name__)

CODE_KEY = "rocketsim-code"
FIRST_WRITE_S = 5.0  # a first message is small, so only a stuck connection needs longer for it

Request = TypeVar("Request")
Response = TypeVar("Response")


def status_of(error: errors.RocketSimError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]


def refusal_of(error: Exception) -> errors.RocketSimError:
    """Returns the refusal for an exception.

    A failure of this broker's disk becomes a refusal that tells the client to try another broker.
    """
    if isinstance(error, errors.RocketSimError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.DiskFull(f"no room on the disk: {error}")
    return errors.ServiceNotAvailable(f"the disk refuses: {error}")


def log_server_failure(what: str, error: errors.RocketSimError) -> None:
    """Logs a failure unless the caller has caused it."""
    if status_of(error) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS):
        logger.error("%s failed: %s", what, error)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.RocketSimError) -> NoReturn:
    log_server_failure(f"a call of {context.peer()}", error)
    await context.abort(status_of(error), str(error), ((CODE_KEY, str(error.code)),))


async def write_first(context: grpc.aio.ServicerContext[Any, Any], message: Any) -> None:
    """Writes the first message of a stream that this process may cancel.

    A cancellation takes effect only after the write has ended, or after FIRST_WRITE_S.  The metadata of a call go out
    with its first message.  After a cancelled first write, gRPC would send the metadata again with the status, which
    fails, so that the client would wait for ever.
    """
    write = asyncio.ensure_future(context.write(message))
    try:
        await asyncio.shield(write)
    except asyncio.CancelledError:
        await asyncio.wait([write], timeout=FIRST_WRITE_S)
        raise


def maps_errors(
    method: Callable[[Any, Request, grpc.aio.ServicerContext[Any, Any]], Awaitable[Response]],
) -> Callable[[Any, Request, grpc.aio.ServicerContext[Any, Any]], Awaitable[Response]]:
    """Decorates a unary method of a servicer: its exceptions end the call with their gRPC status."""

    @functools.wraps(method)
    async def mapped(self: Any, request: Request, context: grpc.aio.ServicerContext[Any, Any]) -> Response:
        try:
            return await method(self, request, context)
        except (errors.RocketSimError, OSError) as error:
            await abort(context, refusal_of(error))

    return mapped


def maps_stream_errors(
    method: Callable[[Any, Request, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Response]],
) -> Callable[[Any, Request, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Response]]:
    """Decorates a method that answers with a stream: its exceptions end the call with their gRPC status."""

    @functools.wraps(method)
    async def mapped(
        self: Any, request: Request, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Response]:
        try:
            async for response in method(self, request, context):
                yield response
        except (errors.RocketSimError, OSError) as error:
            await abort(context, refusal_of(error))

    return mapped
