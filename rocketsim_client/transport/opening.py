"""Decides which protocol a connection uses, and opens the transport for it."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from rocketsim_client import forks
from rocketsim_client import tls as tls_files
from rocketsim_client.connection import Connection
from rocketsim_client.errors import BrokerUnavailable, ClientClosed, InvalidParameter, TlsFailed
from rocketsim_client.transport.server_protocol import SeenProtocols, ServerProtocol, protocol_at
from rocketsim_client.transport.transport import Transport

logger = logging.getLogger(__name__)

DETECTION_PAUSE_S = 1.0  # the pause after no server has answered, before the protocol is detected again
LEAST_SHARE_S = 1.0
DETECTION_SHARE = 0.75  # the part of a call's timeout that detecting the protocol may take


def open_transport(connection: Connection, seen: SeenProtocols | None = None) -> Transport:
    """Makes the transport for the connection's protocol without asking a server, so that all processes with equal
    connections use the same protocol.  A connection with `protocol=auto` gets the transport of `_first_protocol`.  Over
    gRPC its errors say what `seen` has found at the servers' addresses."""
    transport: Transport
    if _first_protocol(connection) == "remoting":
        from rocketsim_client.transport.remoting.transport import RemotingTransport

        transport = RemotingTransport(connection)
        if connection.namespace:
            from rocketsim_client.transport.remoting.namespaces import NamespacedTransport

            transport = NamespacedTransport(transport, connection.namespace)
    else:
        if connection.protocol == "grpc" and (connection.namespace or connection.namespace_v2):
            raise InvalidParameter("namespace: RocketSim's own servers have no namespaces; leave the option out")
        from rocketsim_client.transport.own.transport import GrpcTransport

        transport = GrpcTransport(connection, seen)
    if not connection.brokers:
        return transport
    from rocketsim_client.transport.static_route import StaticRoute

    return StaticRoute(transport, connection.members)


def _first_protocol(connection: Connection) -> str:
    """Returns the protocol that a connection uses first.  While no server has answered, `protocol=auto` uses gRPC,
    whose errors say what is wrong with an address.  With a namespace it uses the remoting protocol, because a call over
    gRPC would reach the topic without the namespace."""
    if connection.protocol != "auto":
        return connection.protocol
    return "remoting" if connection.namespace or connection.namespace_v2 else "grpc"


def with_detected_protocol(connection: Connection) -> Connection:
    """Replaces `protocol=auto` by the protocol that the servers speak.  Returns `connection` unchanged if it names a
    protocol, or if no server answers.  Ends within the connection's timeout."""
    if connection.protocol != "auto":
        return connection
    return replace(connection, protocol=detected(connection, connection.timeout_s).protocol)


class Detected(NamedTuple):
    """The protocol of a connection, which is `auto` if no server has answered, and what was found at the addresses that
    were asked.  `goes_on_at` is the number of the address at which the next attempt begins."""

    protocol: str
    by_address: Mapping[str, ServerProtocol]
    goes_on_at: int = 0


def detected(connection: Connection, timeout_s: float, begins_at: int = 0) -> Detected:
    """Asks one server after the other until one of them speaks gRPC or RocketMQ's protocol.  All of them together take
    at most `timeout_s` seconds.  Each server gets an equal share of the time that is left, so that a silent server
    leaves time for the others, but not less than LEAST_SHARE_S, which a distant server needs to answer.

    Begins at the address number `begins_at`.  The next attempt goes on at the first address for which less than
    LEAST_SHARE_S was left, so that after some attempts every server has had enough time, however many are silent."""
    deadline = time.monotonic() + timeout_s
    found: dict[str, ServerProtocol] = {}
    context = None
    if connection.tls is not None:
        with suppress(TlsFailed):
            context = tls_files.read(connection.tls, connection.first_address)[1].context
        if context is None:
            # The first call reads the certificates again, and its error names what is wrong with them.
            return Detected("auto", found, begins_at)
    addresses = _addresses(connection)
    goes_on_at = begins_at
    for number in range(len(addresses)):
        at = (begins_at + number) % len(addresses)
        address = addresses[at]
        left_s = max(deadline - time.monotonic(), 0.001)
        if left_s < LEAST_SHARE_S and number and goes_on_at == begins_at:
            goes_on_at = at
        share_s = max(left_s / (len(addresses) - number), LEAST_SHARE_S)
        found[address] = protocol_at(address, context, min(share_s, left_s))
        match found[address]:
            case ServerProtocol.GRPC:
                return Detected("grpc", found)
            case ServerProtocol.REMOTING:
                logger.info("%s speaks RocketMQ's remoting protocol, which this client uses from now on", address)
                return Detected("remoting", found)
    return Detected("auto", found, goes_on_at)


def _addresses(connection: Connection) -> Sequence[str]:
    return connection.name_servers or [at for _, members in connection.brokers for _, at in members]


class LazyTransport:
    """Makes the transport of a connection at the first call, because Spark's workers are forked before that call.
    Thread-safe."""

    def __init__(self, connection: Connection, transport: Transport | None = None) -> None:
        self.connection = connection
        self._transport = transport
        self._knows_protocol = transport is not None or connection.protocol != "auto"
        self._seen = SeenProtocols()
        self._detected_at = 0.0
        self._goes_on_at = 0
        self._closed = False
        # A signal handler or the garbage collector may close the client in a thread that holds the lock.
        self._lock = threading.RLock()
        forks.watch(self)

    def get(self) -> Transport:
        transport, _ = self.within(self.connection.timeout_s)
        return transport

    def within(self, timeout_s: float, *, in_turn: bool = False) -> tuple[Transport, float]:
        """Returns the transport for a call, and how many of the call's `timeout_s` seconds are left for it.  The whole
        timeout is left if the protocol is known already, and at least a quarter of it if the protocol was detected now.

        A call that asks one server after the other has `in_turn`.  While no server has answered, such a call gets for
        each server an equal part of the time, so that it ends within `timeout_s` even if all servers are silent."""
        # `_detect_protocol` replaces the transport before it sets this flag, so the flag is read before the transport.
        knows_protocol = self._knows_protocol
        transport = self._transport
        if transport is not None and knows_protocol:
            return transport, timeout_s
        began = time.monotonic()
        with self._lock:
            if self._closed:
                raise ClientClosed("this client has been closed")
            left_s = timeout_s
            if not self._knows_protocol:
                self._detect_protocol(timeout_s * DETECTION_SHARE)
            if not knows_protocol:
                left_s = max(timeout_s - (time.monotonic() - began), timeout_s * (1 - DETECTION_SHARE))
            if in_turn and not self._knows_protocol:
                left_s /= len(_addresses(self.connection))
            transport = self._transport
            if transport is None:
                transport = self._transport = open_transport(self.connection, self._seen)
            if self._closed:  # by this thread, during the call
                transport.close()
                raise ClientClosed("this client was closed during the call")
            return transport, left_s

    def _detect_protocol(self, timeout_s: float) -> None:
        """Detects the protocol.  The caller holds the lock.  While no server answers, the connection uses its
        `_first_protocol`.  If the servers turn out to speak another protocol, calls of other threads that are under way
        end with an error after which they are made again, over that protocol."""
        now = time.monotonic()
        if self._transport is not None and now - self._detected_at < DETECTION_PAUSE_S:
            return
        protocol, found, goes_on_at = detected(self.connection, timeout_s, self._goes_on_at)
        if self._knows_protocol:
            return  # a signal handler has made a call in this thread, and that call has detected the protocol
        self._goes_on_at = goes_on_at
        self._detected_at = time.monotonic()
        # Once the protocol is known, a server's errors must not depend on what was seen at its address long ago.
        self._seen.replace(found if protocol == "auto" else {})
        first = _first_protocol(self.connection)
        self.connection = replace(self.connection, protocol=protocol)
        if self._transport is not None and protocol not in ("auto", first):
            replaced, self._transport = self._transport, None
            replaced.close(
                BrokerUnavailable(f"the call went over {first}, and the servers speak {protocol}: make the call again")
            )
        self._knows_protocol = protocol != "auto"

    def close(self) -> None:
        """Ends all calls that are under way."""
        with self._lock:
            self._closed = True
        if self._transport is not None:
            self._transport.close()

    def forget_parent(self) -> None:
        """Replaces the lock after a fork.  The transport stays in use after the fork, because it replaces its own locks
        and connections."""
        self._lock = threading.RLock()
