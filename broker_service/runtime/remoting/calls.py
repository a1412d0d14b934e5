"""Calls passes each request of the remoting protocol to the handler of its code, and returns the handler's answer."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

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

    `user` is the name of the user who signed the request, or empty without access control.  `admitted_after` is for
    access control: it is the number of changes to users and policies that came before the request was admitted.
    """

    header: Header
    body: bytes
    connection: Peer
    user: str = ""
    admitted_after: int = 0

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

    def number(self, name: str, default: int | None = None) -> int:
        value = self.header.fields.get(name)
        if value is None:
            if default is None:
                raise InvalidParameter(f"request {self.header.code} has no field {name}")
            return default
        try:
            return int(value[:21])
        except ValueError:
            raise InvalidParameter(f"request {self.header.code}: {name}={value[:40]!r} is not a number") from None

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


class Guard(Protocol):
    """The access control of a port."""

    def admit(self, request: Request) -> None:
        """Checks the signature and the rights of a request, and sets its user.  Raises AccessDenied."""

    def check_again(self, request: Request) -> None:
        """Raises AccessDenied if a request that was admitted some time ago would not be admitted now."""


class Calls:
    """The handlers of a server, behind its access control.  `guard` is None without access control."""

    def __init__(self, handlers: Handlers, guard: Guard | None = None) -> None:
        self._handlers = handlers
        self._guard = guard

    async def answer(self, request: Request) -> Answer:
        """Returns the answer to a request.

        An unexpected exception is logged and answered, too, so that the connection with its other calls stays open.
        """
        code = request.header.code
        handler = self._handlers.get(code)  # type: ignore[call-overload]  # an IntEnum equals its number
        if handler is None:
            return Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")
        try:
            if self._guard is not None:
                self._guard.admit(request)
            answer: Answer = await handler(request)
            if self._guard is not None:
                self._guard.check_again(request)
            return answer
        except (RocketSimError, OSError) as error:
            refusal = refusal_of(error)
            log_server_failure(f"request {code} of {request.connection.address}", refusal)
            return Answer(code=refusal.code, remark=str(refusal))
        except Exception:
            logger.exception("request %d of %s failed", code, request.connection.address)
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark="the request failed here; the server's log says why")
