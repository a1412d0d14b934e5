"""Ends a call with the gRPC status of our exception.  RocketMQ's response code travels with it as trailing metadata."""

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
FIRST_WRITE_S = 5.0  # a first message is small: only a connection that is stuck does not take it

Request = TypeVar("Request")
Response = TypeVar("Response")


def status_of(error: errors.RocketSimError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]


def refusal_of(error: Exception) -> errors.RocketSimError:
    """What a caller gets for it: a disk that fails is our trouble, and may be another broker's luck."""
    if isinstance(error, errors.RocketSimError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.DiskFull(f"no room on the disk: {error}")
    return errors.ServiceNotAvailable(f"the disk refuses: {error}")


def log_ours(what: str, error: errors.RocketSimError) -> None:
    """A failure that is not the caller's."""
    if status_of(error) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS):
        logger.error("%s failed: %s", what, error)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.RocketSimError) -> NoReturn:
    log_ours(f"a call of {context.peer()}", error)
    await context.abort(status_of(error), str(error), ((CODE_KEY, str(error.code)),))


async def write_first(context: grpc.aio.ServicerContext[Any, Any], message: Any) -> None:
    """The first write of a stream that this process may cancel: it ends, or FIRST_WRITE_S are over, before
    CancelledError is raised.

    gRPC sends the metadata of a call with its first message.  If that write is cancelled, gRPC sends them again with
    the status, which fails: the client would wait for ever.
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
    """For a unary method of a servicer."""

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
    """For a method that answers with a stream."""

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
