"""Calls passes each request of the remoting protocol to the handler of its code, and returns the handler's answer.

Most requests need no waiting: a send to an ASYNC_MASTER, or a pull that finds messages in memory.  Plain functions
answer these requests, so that they need no task.  Such a function gets all requests of its codes that came together,
because a put costs nearly the same for one message as for fifty.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby, repeat
from typing import Any, NamedTuple, Protocol

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Header

from broker_service.errors import InvalidParameter, RocketSimError
from broker_service.runtime.rpc_errors import log_server_failure, refusal_of

logger = logging.getLogger(__name__)


class Reply(NamedTuple):
    """A client's answer to a request of the server."""

    header: Header
    body: bytes


class Unanswered(Enum):
    """The reason why a client has not answered a request of the server."""

    LATE = auto()  # the client has not answered in time
    GONE = auto()  # the client's connection has ended
    BUSY = auto()  # the request was not sent: the client has to read or to answer too many earlier ones


class Peer(Protocol):
    """The connection over which a request came."""

    @property
    def address(self) -> str:
        """The client's address as host:port."""

    @property
    def peer(self) -> str:
        """The client's address in gRPC's form: `ipv4:127.0.0.1:4711`."""

    @property
    def is_open(self) -> bool: ...

    @property
    def gone(self) -> list[Callable[[], None]]:
        """The functions to call when the connection has ended."""

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        """Sends the client a request that needs no answer, and never waits.

        Returns False if the client does not read its connection.
        """

    async def ask(self, code: int, fields: Mapping[str, str], body: bytes, timeout_s: float) -> Reply | Unanswered:
        """Sends the client a request, and waits at most `timeout_s` for the client's answer."""


@dataclass(slots=True)
class Request:
    """A request of a client.

    `user` is the name of the user who signed the request, or empty without access control.  `is_admitted`,
    `admitted_after` and `guard` are for access control: `admitted_after` is the number of changes to users and policies
    that came before the request was admitted, and `guard` has admitted it.
    """

    header: Header
    body: bytes
    connection: Peer
    user: str = ""
    is_admitted: bool = False
    admitted_after: int = 0
    guard: "Guard | None" = None

    @property
    def fields(self) -> dict[str, str]:
        return self.header.fields

    def text(self, name: str, default: str | None = None) -> str:
        """Returns the value of a field.  Raises InvalidParameter if the field is missing and has no default."""
        value = self.header.fields.get(name)
        if value is not None:
            return value
        if default is None:
            raise InvalidParameter(f"request {self.header.code} has no field {name}")
        return default

    def number(self, name: str, default: int | None = None, *, bits: int = 64) -> int:
        """Returns the value of a field.  Raises InvalidParameter if it is no signed number of this many bits."""
        value = self.header.fields.get(name)
        if value is None:
            if default is None:
                raise InvalidParameter(f"request {self.header.code} has no field {name}")
            return default
        try:
            number = int(value[:21])
        except ValueError:
            raise InvalidParameter(f"request {self.header.code}: {name}={value[:40]!r} is not a number") from None
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise InvalidParameter(f"request {self.header.code}: {name}={number} is no number of {bits} bits")
        return number

    def boolean(self, name: str, *, default: bool = False) -> bool:
        value = self.header.fields.get(name)
        return default if value is None else value == "true"


@dataclass(slots=True)
class Answer:
    """The answer to a request.  `code` is a number of ResponseCode."""

    body: bytes = b""
    fields: dict[str, str] = field(default_factory=dict)
    code: int = ResponseCode.SUCCESS
    remark: str = ""


Handler = Callable[[Request], Awaitable[Answer]]
Handlers = Mapping[RequestCode, Handler]
# The result of a HandlerAtOnce for one request.  An exception becomes an answer, as an exception of a Handler does.
# None means that the answer has to wait and that nothing has been changed, so the code's Handler has to answer.
Outcome = Answer | Exception | None
HandlerAtOnce = Callable[[Sequence[Request]], Sequence[Outcome]]
HandlersAtOnce = Mapping[RequestCode, HandlerAtOnce]


class Guard(Protocol):
    """The access control of a port."""

    def admit(self, request: Request) -> None:
        """Checks the signature and the rights of a request, and sets its user.  Raises AccessDenied."""

    def check_again(self, request: Request) -> None:
        """Raises AccessDenied if a request that was admitted some time ago would not be admitted now."""

    def require(self, request: Request, need: Any) -> None:
        """Raises AccessDenied unless the user of an admitted request also has this right."""


class Calls:
    """The handlers of a server, behind its access control.  `guard` is None without access control.

    An unexpected exception is logged and answered, too, so that the connection with its other calls stays open.
    """

    def __init__(self, handlers: Handlers, at_once: HandlersAtOnce | None = None, guard: Guard | None = None) -> None:
        self._handlers: Mapping[int, Handler] = {int(code): one for code, one in handlers.items()}
        self._at_once: Mapping[int, HandlerAtOnce] = {int(code): one for code, one in (at_once or {}).items()}
        self._guard = guard

    def answers_at_once(self, requests: Sequence[Request]) -> list[Answer | None]:
        """Returns, for each request, the answer, or None if `answer` must be called.

        So that requests begin in their order, all requests behind a request that waits wait, too, unless they have the
        same handler.
        """
        answers: list[Answer | None] = []
        for handler, group in groupby(requests, self._handler_at_once):
            if handler is None:
                break
            found = self._answers(handler, list(group))
            answers += found
            if any(answer is None for answer in found):
                break
        return answers + [None] * (len(requests) - len(answers))

    def _handler_at_once(self, request: Request) -> HandlerAtOnce | None:
        return self._at_once.get(request.header.code)

    def _answers(self, handler: HandlerAtOnce, requests: Sequence[Request]) -> list[Answer | None]:
        refusals = [self._refusal(request) for request in requests]
        admitted = [request for request, refusal in zip(requests, refusals, strict=True) if refusal is None]
        try:
            outcomes = iter(handler(admitted))
        except Exception as error:
            outcomes = repeat(error)
        return [
            refusal or _answer_of(request, next(outcomes)) for request, refusal in zip(requests, refusals, strict=True)
        ]

    def _refusal(self, request: Request) -> Answer | None:
        try:
            self._admit(request)
        except Exception as error:
            return _failed(request, error)
        return None

    async def answer(self, request: Request) -> Answer:
        """Returns the answer to a request."""
        code = request.header.code
        handler = self._handlers.get(code)
        if handler is None:
            return Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")
        try:
            self._admit(request)
            answer = await handler(request)
            if self._guard is not None:
                self._guard.check_again(request)
            return answer
        except Exception as error:
            return _failed(request, error)

    def _admit(self, request: Request) -> None:
        if self._guard is not None and not request.is_admitted:
            self._guard.admit(request)
            request.is_admitted, request.guard = True, self._guard


def _answer_of(request: Request, outcome: Outcome) -> Answer | None:
    return _failed(request, outcome) if isinstance(outcome, Exception) else outcome


def _failed(request: Request, error: Exception) -> Answer:
    code, address = request.header.code, request.connection.address
    if isinstance(error, RocketSimError | OSError):
        refusal = refusal_of(error)
        log_server_failure(f"request {code} of {address}", refusal)
        return Answer(code=refusal.code, remark=str(refusal))
    logger.error("request %d of %s failed", code, address, exc_info=error)
    return Answer(code=ResponseCode.SYSTEM_ERROR, remark="the request failed here; the server's log says why")
