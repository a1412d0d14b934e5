"""Opens and keeps one gRPC channel for each address, and is the only module that turns gRPC's errors into the client's.

A channel is opened at the first call.  A channel that is open at a fork does not work in the child, so the child starts
without channels.
"""

import re
import threading
import time
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

import grpc
from rocketsim_proto.allocation import keep_freed_memory
from rocketsim_proto.limits import MAX_RPC_BYTES
from rocketsim_proto.pem import Pem, Stamps
from rocketsim_proto.signature import Credentials, SigningChannel

from rocketsim_client import forks
from rocketsim_client import tls as tls_files
from rocketsim_client.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CallTimeout,
    ClientClosed,
    MessageIllegal,
    RocketSimError,
    SystemBusy,
    TlsFailed,
    refusal,
)
from rocketsim_client.tls import Tls, why_not
from rocketsim_client.transport.own.server_kind import UNKNOWN, kind_without_call, protocol_now
from rocketsim_client.transport.server_protocol import SeenProtocols, ServerProtocol, advice_on
from rocketsim_client.transport.under_way import UnderWay

CODE_METADATA = "rocketsim-code"
OPTIONS = (
    # With gRPC's pool for the whole process, a forked child would use its parent's sockets.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_RPC_BYTES),
    ("grpc.max_send_message_length", MAX_RPC_BYTES),
    # gRPC's own back-off grows to two minutes, but the client has to notice within a second that a broker is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)
# gRPC's error for a server that accepts a connection and closes it before it has sent anything.
_CLOSED_AT_ONCE = re.compile(
    "failed to connect.*(handshake|verification|Socket closed|reset by peer|Broken pipe|Cannot check peer)", re.I | re.S
)

# A forked child keeps its parent's channels here and does not use them.  Destroying a channel in the child could wait
# for ever for threads that only the parent has.
_inherited: list[Any] = []


class Channels:
    """One gRPC channel for each address.  `options` are gRPC's channel arguments.  With `credentials` the calls are
    signed.  Without `tls` the channels are plaintext.  If a server cannot be called, the error says what `seen` has at
    its address.  Thread-safe.

    A channel keeps the certificates that the files had when it was opened.  If a server refuses the channel's
    certificates, and the files have changed since, the next call opens a new channel.
    """

    def __init__(
        self,
        options: Mapping[str, int | str] | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        seen: SeenProtocols | None = None,
    ) -> None:
        self._credentials = credentials
        self._seen = seen or SeenProtocols()
        self._options = tuple({**dict(OPTIONS), **(options or {})}.items())
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[tuple[str, type], Any] = {}
        self._tls = tls
        self._pems: dict[str, tuple[Stamps, Pem]] = {}
        self._closed = False
        self._closed_why: RocketSimError | None = None
        keep_freed_memory()
        forks.watch(self)

    def call(self, address: str, stub_type: type, method: str, request: Any, timeout_s: float) -> Any:
        """Makes one unary call with a deadline."""
        deadline = time.monotonic() + timeout_s
        try:
            return getattr(self._stub(address, stub_type), method)(request, timeout=max(timeout_s, 0.001))
        except (grpc.RpcError, ValueError) as error:
            raise self._translate(error, address, stub_type, method, timeout_s, deadline) from error

    def held(
        self,
        address: str,
        stub_type: type,
        method: str,
        request: Any,
        timeout_s: float,
        under_way: UnderWay,
    ) -> Any:
        """Makes a call that another thread may cancel through `under_way`.  Raises ClientClosed if another thread
        cancels the call."""
        deadline = time.monotonic() + timeout_s
        try:
            call = getattr(self._stub(address, stub_type), method).future(request, timeout=max(timeout_s, 0.001))
            under_way.add(call)
            try:
                return call.result()
            finally:
                under_way.discard(call)
                call.cancel()
        except grpc.FutureCancelledError:
            raise ClientClosed(f"{method}: this client was closed during the call") from None
        except (grpc.RpcError, ValueError) as error:
            raise self._translate(error, address, stub_type, method, timeout_s, deadline) from error

    def stream(
        self,
        address: str,
        stub_type: type,
        method: str,
        request: Any,
        timeout_s: float,
        under_way: UnderWay | None = None,
    ) -> Generator[Any, None, None]:
        """Yields the answers of a server stream.  The deadline is for the whole stream.  Closing the generator
        cancels the call, and another thread may cancel it through `under_way`."""
        deadline = time.monotonic() + timeout_s
        try:
            call = getattr(self._stub(address, stub_type), method)(request, timeout=max(timeout_s, 0.001))
        except ValueError as error:
            raise self._translate(error, address, stub_type, method, timeout_s, deadline) from error
        under_way = UnderWay() if under_way is None else under_way
        under_way.add(call)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._translate(error, address, stub_type, method, timeout_s, deadline) from error
        finally:
            under_way.discard(call)
            call.cancel()

    def close(self, why: RocketSimError | None = None) -> None:
        """Closes the connections.  Calls that are under way and all later calls raise `why`, or ClientClosed if it is
        None."""
        with self._lock:
            self._closed_why = why
            self._closed = True
            channels, self._channels, self._stubs = list(self._channels.values()), {}, {}
        for channel in channels:
            channel.close()

    def forget_parent(self) -> None:
        """Drops the parent's channels after a fork, because they do not work in the child."""
        _inherited.append((self._channels, self._stubs))
        self._lock, self._channels, self._stubs, self._pems = threading.Lock(), {}, {}, {}

    def _stub(self, address: str, stub_type: type) -> Any:
        stub = self._stubs.get((address, stub_type))
        if stub is None:
            with self._lock:
                if self._closed:
                    raise self._after_close("this client has been closed")
                channel = self._channels.get(address)
                if channel is None:
                    channel = self._channels[address] = self._opened(address)
                signing = channel if self._credentials is None else SigningChannel(channel, self._credentials)
                stub = self._stubs.setdefault((address, stub_type), stub_type(signing))
        return stub

    def _after_close(self, message: str) -> RocketSimError:
        return ClientClosed(message) if self._closed_why is None else self._closed_why.again()

    def _opened(self, address: str) -> grpc.Channel:
        """Opens a channel.  The caller holds the lock."""
        if self._tls is None:
            return grpc.insecure_channel(address, options=self._options)
        _, pem = self._pems[address] = tls_files.read(self._tls, address)
        credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
        return grpc.secure_channel(address, credentials, options=self._options)

    def _tls_failure(self, address: str, method: str, deadline: float) -> RocketSimError | None:
        stamps, pem = self._pems.get(address, (None, None))
        why = why_not(address, self._tls, pem, deadline)
        if not why:
            return None
        if self._tls is not None and stamps != tls_files.files_of(self._tls).stamps():
            self._drop(address, stamps)
            return BrokerUnavailable(f"{method} at {address}: {why}; the files have changed meanwhile", address=address)
        return TlsFailed(f"{method} at {address}: {why}", address=address)

    def _unknown_call(self, address: str, stub_type: type, method: str, deadline: float) -> RocketSimError:
        service = stub_type.__name__.removesuffix("Stub")
        channel = self._channels.get(address)
        stub = partial(self._stub, address)
        kind = UNKNOWN if channel is None else kind_without_call(stub, channel, service, deadline)
        return BrokerRefused(f"{method} at {address}: {kind}", address=address, code=3)

    def _drop(self, address: str, stamps: Stamps | None) -> None:
        """Drops the address's channel, so that the next call opens a new one.  A channel that was opened with other
        certificate files than those of `stamps` stays, because another thread has opened it meanwhile."""
        with self._lock:
            if self._pems.get(address, (None,))[0] != stamps:
                return
            channel = self._channels.pop(address, None)
            self._stubs = {key: stub for key, stub in self._stubs.items() if key[0] != address}
            self._pems.pop(address, None)
        if channel is not None:
            channel.close()

    def _translate(
        self, error: Exception, address: str, stub_type: type, method: str, timeout_s: float, deadline: float
    ) -> RocketSimError:
        """Returns the client's error.  Finding out why a server cannot be called ends by the deadline."""
        if self._closed:
            return self._after_close(f"{method}: this client was closed during the call")
        # gRPC raises ValueError for a closed channel, and for a request that it cannot serialise.
        if not isinstance(error, grpc.RpcError):
            return RocketSimError(f"{method} at {address}: {error}", address=address)
        if _rocketmq_code(error) is None:
            match error.code():
                case grpc.StatusCode.UNIMPLEMENTED:
                    return self._unknown_call(address, stub_type, method, deadline)
                case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
                    return self._not_called(error, address, method, timeout_s, deadline)
        return translate(error, address, method, timeout_s)

    def _not_called(
        self, error: grpc.RpcError, address: str, method: str, timeout_s: float, deadline: float
    ) -> RocketSimError:
        """Returns the error for a server that has not answered.  The error says what the server is instead, as far as
        that is known."""
        found = self._seen.at(address)
        if error.code() == grpc.StatusCode.UNAVAILABLE and _CLOSED_AT_ONCE.search(error.details() or ""):
            # A client that uses TLS first looks for the reason why TLS fails.  A client without TLS first checks
            # whether this is a server of RocketMQ, which takes plaintext and TLS on one port, so that looking at TLS
            # would only show that the server speaks TLS.
            if self._tls is not None and (failure := self._tls_failure(address, method, deadline)):
                return failure
            if found in (ServerProtocol.NONE, ServerProtocol.GRPC):
                found = protocol_now(address, deadline)
            if self._tls is None and found not in (ServerProtocol.REMOTING, ServerProtocol.TLS):
                if failure := self._tls_failure(address, method, deadline):
                    return failure
        advice = advice_on(found, ServerProtocol.GRPC)
        if found is ServerProtocol.REMOTING:
            return BrokerRefused(f"{method} at {address}: {advice}", address=address, code=3)
        if found is not ServerProtocol.TLS:
            return translate(error, address, method, timeout_s, advice)
        if self._tls is None:
            return TlsFailed(f"{method} at {address}: {advice}", address=address)
        return translate(error, address, method, timeout_s)  # both speak TLS, so that is not the reason


def translate(error: grpc.RpcError, address: str, method: str, timeout_s: float, advice: str = "") -> RocketSimError:
    """Returns the client's error for RocketMQ's code in the trailing metadata, or for gRPC's status if the metadata
    has no code.  The `advice` ends the error for a server that has not answered."""
    details = error.details() or ""
    status = error.code()
    code = _rocketmq_code(error)
    if code is not None:
        return refusal(code, details, address, status.name)
    where, end = f"{method} at {address}", f"; {advice}" if advice else ""
    match status:
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return BrokerUnavailable(f"{where}: not reachable ({details}){end}", address=address)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimeout(f"{where}: no answer within {timeout_s:.3g} s{end}", address=address)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return MessageIllegal(f"{where}: {details}", address=address)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return SystemBusy(f"{where}: {details}", address=address)
        case grpc.StatusCode.UNIMPLEMENTED:
            return BrokerRefused(f"{where}: {UNKNOWN}", address=address, code=3)
        case _:
            return BrokerRefused(f"{where}: {status.name} {details}", address=address)


def _rocketmq_code(error: grpc.RpcError) -> int | None:
    metadata: Any = error.trailing_metadata() or ()  # the metadata are pairs, but gRPC's type stubs do not say so
    for name, value in metadata:
        if name == CODE_METADATA and str(value).lstrip("-").isdigit():
            return int(value)
    return None
