"""The base classes and decorators of operators' commands.

A command is a method of a subject's `...Commands` class.  The method has the name that admin.proto gives the command,
and declares the right that the command needs.  Commands that change something call the subject's `...Operations`, which
`remoting.py` also calls for RocketMQ's tools.
"""

import functools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from broker_service.access.rights import Right, needs
from broker_service.admin.progress import Progress
from broker_service.admin.status import Status
from broker_service.broker.core.broker import Broker
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.leadership.leadership import Leadership
from broker_service.put_result import CommitStatus
from broker_service.runtime.deadlines import longest_wait_s
from broker_service.runtime.rpc_errors import maps_errors

if TYPE_CHECKING:
    from broker_service.admin.operations import Operations

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Response = TypeVar("Response")
Asked = Callable[[Any, Request], Awaitable[Response]]
Called = Callable[[Any, Request, Context], Awaitable[Response]]

START_WAIT_S = 3.0  # shorter than the deadline of any operator's call


class SubjectOperations:
    def __init__(self, broker: Broker, leadership: Leadership) -> None:
        self._broker = broker
        self._leadership = leadership

    async def past_start(self) -> None:
        """Waits until a master that has just started takes changes.  Each change must await this method first."""
        await self._leadership.settled(START_WAIT_S)

    async def shared(
        self,
        change: Callable[[], Awaitable[Response]],
        wait_s: float,
        *,
        past_start: bool = True,
        in_any_mode: bool = False,
    ) -> tuple[Response, CommitStatus]:
        """Makes a change that is replicated to slaves, and waits up to `wait_s` seconds for them.

        Returns the result of the change, and a status that says which brokers have the change.  With `past_start`, a
        master that has just started first waits until it takes writes.  `Broker.shared_change` describes `in_any_mode`.
        """
        if past_start:
            await self.past_start()
        changed = await change()
        return changed, await self._broker.shared_change(wait_s, in_any_mode=in_any_mode)


class Commands:
    def __init__(
        self, broker: Broker, operations: "Operations", progress: Progress, status: Status, queues: QueueLookup
    ) -> None:
        self._broker = broker
        self._operations = operations
        self._progress = progress
        self._status = status
        self._queues = queues


def command(right: Right) -> Callable[[Asked[Request, Response]], Called[Request, Response]]:
    """Makes a method that takes a request into a command that needs this right."""

    def decorated(method: Asked[Request, Response]) -> Called[Request, Response]:
        @needs(right)
        @maps_errors
        @functools.wraps(method)
        async def called(self: Commands, request: Request, context: Context) -> Response:
            return await method(self, request)

        return called

    return decorated


def change(
    right: Right, *, past_start: bool = True, in_any_mode: bool = False
) -> Callable[[Asked[Request, Response]], Called[Request, Response]]:
    """Makes a method into a command whose change is replicated to slaves.

    The `status` of the response says which brokers have the change.  `SubjectOperations.shared` describes the options.
    """

    def decorated(method: Asked[Request, Response]) -> Called[Request, Response]:
        @needs(right)
        @maps_errors
        @functools.wraps(method)
        async def changed(self: Commands, request: Request, context: Context) -> Response:
            response: Any
            response, status = await self._operations.shared(
                partial(method, self, request),
                longest_wait_s(context),
                past_start=past_start,
                in_any_mode=in_any_mode,
            )
            response.status = status
            return response  # type: ignore[no-any-return]

        return changed

    return decorated
