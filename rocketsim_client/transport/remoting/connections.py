"""Makes signed calls, each with a deadline, over one connection to each address, which the first call opens.

A forked child opens connections of its own.  A connection that has been idle for a minute is not used any more, because
the server ends it after two minutes, perhaps at the moment when a request is written.
"""

import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocketsim_proto.remoting import acl, frame
from rocketsim_proto.remoting.frame import FrameError, Header

from rocketsim_client import forks
from rocketsim_client import tls as tls_files
from rocketsim_client.connection import Connection as Settings
from rocketsim_client.errors import (
    BadAnswer,
    BrokerUnavailable,
    CallTimeout,
    ClientClosed,
    MessageIllegal,
    RocketSimError,
    TlsFailed,
)
from rocketsim_client.tls import Tls
from rocketsim_client.transport.remoting.answers import error_of
from rocketsim_client.transport.remoting.connection import Answer, Connection, Inbox
from rocketsim_client.transport.remoting.wire import Wire

IDLE_S = 60.0  # servers close a connection after 120 s without a request


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the client.  `what` names the request in errors, in words for users.  Fields with empty values are
    not sent."""

    code: int
    what: str
    fields: Mapping[str, str]
    body: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request, whatever its code."""

    header: Header
    body: bytes
    address: str


class Connections:
    """The connections of one client.  `close` ends all calls that are under way, and leaves no thread and no socket
    behind.  Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._credentials = settings.credentials
        self._security_token = settings.security_token
        self._namespace = {"nsd": "true", "ns": settings.namespace_v2} if settings.namespace_v2 else {}
        self._tls = settings.tls
        self._address_map = settings.address_map
        self._given = {
            *settings.name_servers,
            *(at for members in settings.members.values() for at in members.values()),
        }
        self._open: dict[str, Connection] = {}
        # A signal handler or the garbage collector may call `close` in a thread that holds the lock.
        self._lock = threading.RLock()
        self._opening: dict[str, threading.Lock] = {}
        self._closed = False
        self._closed_why: RocketSimError | None = None
        forks.watch(self)

    @property
    def signs(self) -> bool:
        return self._credentials is not None

    def call(self, address: str, request: Request, timeout_s: float, also: Sequence[int] = ()) -> Reply:
        """Makes one call.  Raises the error for the answer's code, unless the code is 0 or one of `also`."""
        (reply,) = self.calls(address, [request], timeout_s)
        return checked(reply, request, also)

    def calls(self, address: str, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        """Sends the requests together.  Returns the answers in the order of the requests, whatever their codes."""
        deadline = time.monotonic() + timeout_s
        connection = self.to(address, timeout_s)
        inbox = Inbox()
        try:
            numbers = connection.numbers(inbox, len(requests))
            frames = [self.encoded(request, number) for request, number in zip(requests, numbers, strict=True)]
            connection.send(frames, deadline)
            answers: dict[int, Answer] = {}
            while len(answers) < len(numbers):
                answer = inbox.get(deadline - time.monotonic())
                if answer is None:
                    raise CallTimeout(
                        f"{requests[0].what} at {address}: no answer within {timeout_s:.3g} s", address=address
                    )
                answers[answer.opaque] = answer
            return [Reply(header_of(answers[number], address), answers[number].body, address) for number in numbers]
        finally:
            connection.forget(inbox)

    def encoded(self, request: Request, opaque: int) -> bytes:
        """Encodes the request, signed if this client has credentials."""
        fields = self.signed(request.fields, request.body)
        try:
            return frame.encode(Header(request.code, opaque, fields=fields), request.body)
        except FrameError as error:
            raise MessageIllegal(f"{request.what}: {error}") from error

    def signed(self, fields: Mapping[str, str], body: bytes | memoryview = b"") -> dict[str, str]:
        """Returns the fields that have a value, with the namespace of RocketMQ 5, and with a signature if this client
        has credentials."""
        fields = {**fields, **self._namespace}
        if self._credentials is None:
            return {name: value for name, value in fields.items() if value}
        keys = self._credentials.access_key, self._credentials.secret_key
        return acl.signed(fields, body, *keys, self._security_token)

    def to(self, address: str, timeout_s: float) -> Connection:
        """Returns an open connection to the address.  Ends within `timeout_s`, which includes the time that another
        thread takes to connect to the same address."""
        deadline = time.monotonic() + timeout_s
        found = self._usable(address)
        if found is not None:
            return found
        with self._lock:
            opening = self._opening.setdefault(address, threading.Lock())
        if not opening.acquire(timeout=max(timeout_s, 0.0)):
            raise self._not_in_time(address, timeout_s)
        try:
            found = self._usable(address)
            if found is not None:
                return found
            made = Connection(address, self._connected(address, timeout_s, deadline), self._tls)
            with self._lock:
                # The thread that holds the lock may itself close the client, so the entry is made before the check.
                self._open[address] = made
                if not self._closed:
                    return made
                self._open.pop(address, None)
        finally:
            opening.release()
        made.fail(self._after_close("this client has been closed"))
        made.join()
        raise self._after_close("this client has been closed")

    def close(self, why: RocketSimError | None = None) -> None:
        """Closes the connections.  Calls that are under way and all later calls raise `why`, or ClientClosed if it is
        None."""
        with self._lock:
            self._closed_why = why
            self._closed = True
            closing, self._open = list(self._open.values()), {}
        for connection in closing:
            connection.fail(self._after_close("this client was closed during the call"))
        for connection in closing:
            connection.join()

    def forget_parent(self) -> None:
        """Drops the parent's connections after a fork."""
        self._lock, self._open, self._opening = threading.RLock(), {}, {}

    def _after_close(self, message: str) -> RocketSimError:
        return ClientClosed(message) if self._closed_why is None else self._closed_why.again()

    def _usable(self, address: str) -> Connection | None:
        with self._lock:
            if self._closed:
                raise self._after_close("this client has been closed")
            found = self._open.get(address)
            if found is None or not found.is_open:
                return None
            if not found.is_idle or time.monotonic() - found.used_at < IDLE_S:
                return found
            self._open.pop(address, None)
        found.fail(BrokerUnavailable(f"{address}: the connection was idle", address=address))
        return None

    def _connected(self, address: str, timeout_s: float, deadline: float) -> Wire:
        context = tls_context(self._tls, address)
        try:
            return Wire.to(address, max(deadline - time.monotonic(), 0.001), context)
        except ssl.SSLCertVerificationError as error:
            by = f"tlsCa={self._tls.ca}" if self._tls and self._tls.ca else "the public CAs, without tlsCa"
            raise TlsFailed(
                f"{address}: the server's certificate is not valid: {error.verify_message} (checked with {by})",
                address=address,
            ) from error
        except ssl.SSLError as error:
            raise TlsFailed(f"{address}: no TLS with this server ({error.reason or error})", address=address) from error
        except TimeoutError as error:
            raise self._not_in_time(address, timeout_s) from error
        except (OSError, ValueError) as error:
            raise BrokerUnavailable(
                f"{address}: not reachable ({error}){self._hint(address)}", address=address
            ) from error

    def _not_in_time(self, address: str, timeout_s: float) -> CallTimeout:
        return CallTimeout(f"{address}: no connection within {timeout_s:.3g} s{self._hint(address)}", address=address)

    def _hint(self, address: str) -> str:
        """Returns the end of an error text, which says where an address comes from that the user did not give, and
        what to do if it is wrong."""
        if address in self._given:
            return ""
        if self._address_map:
            return f"; it is what addressMap={self._address_map} makes of the address that the broker advertises"
        return (
            "; the broker gave this address to the name server (its brokerIP1): if this machine reaches the broker at "
            "another address, set addressMap (address_map in Python, --address-map before a command of rocketsim)"
        )


def header_of(answer: Answer, address: str) -> Header:
    try:
        return answer.header
    except FrameError as error:
        raise BadAnswer(f"{address} sent an answer that cannot be read: {error}", address=address) from error


def checked(reply: Reply, request: Request, also: Sequence[int] = ()) -> Reply:
    """Returns the reply, or raises the error for its code."""
    if reply.header.code and reply.header.code not in also:
        raise error_of(reply.header, request.what, reply.address)
    return reply


def tls_context(tls: Tls | None, address: str) -> ssl.SSLContext | None:
    """Reads the files for each new connection, so that new certificates are used without a restart."""
    return None if tls is None else tls_files.read(tls, address)[1].context
