"""Decides which protocol a connection uses, and opens the transport for it."""

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace

from rocketsim_client import forks
from rocketsim_client import tls as tls_files
from rocketsim_client.connection import Connection
from rocketsim_client.errors import ClientClosed, InvalidParameter, TlsFailed
from rocketsim_client.transport.server_protocol import ServerProtocol, protocol_at
from rocketsim_client.transport.transport import Transport

logger = logging.getLogger(__name__)

DETECTION_PAUSE_S = 1.0  # the pause after no server has answered, before the protocol is detected again


def open_transport(connection: Connection) -> Transport:
    """Makes the transport for the connection's protocol without asking a server, so that all processes with equal
    connections use the same protocol.  A connection with `protocol=auto` gets a transport over gRPC."""
    transport: Transport
    if connection.protocol == "remoting":
        from rocketsim_client.transport.remoting.transport import RemotingTransport

        transport = RemotingTransport(connection)
        if connection.namespace:
            from rocketsim_client.transport.remoting.namespaces import NamespacedTransport

            transport = NamespacedTransport(transport, connection.namespace)
    else:
        if connection.protocol == "grpc" and (connection.namespace or connection.namespace_v2):
            raise InvalidParameter("namespace: RocketSim's own servers have no namespaces; leave the option out")
        from rocketsim_client.transport.own.transport import GrpcTransport

        transport = GrpcTransport(connection)
    if not connection.brokers:
        return transport
    from rocketsim_client.transport.static_route import StaticRoute

    return StaticRoute(transport, connection.members)


def with_detected_protocol(connection: Connection) -> Connection:
    """Replaces `protocol=auto` by the protocol that the servers speak.  Returns `connection` unchanged if it names a
    protocol, or if no server answers."""
    if connection.protocol != "auto":
        return connection
    context = None
    if connection.tls is not None:
        with suppress(TlsFailed):
            context = tls_files.read(connection.tls, connection.first_address)[1].context
        if context is None:
            return (
                connection  # the first call reads the certificates again, and its error names what is wrong with them
            )
    for address in connection.name_servers or [at for _, members in connection.brokers for _, at in members]:
        match protocol_at(address, context, connection.timeout_s):
            case ServerProtocol.GRPC:
                return replace(connection, protocol="grpc")
            case ServerProtocol.REMOTING:
                logger.info("%s speaks RocketMQ's remoting protocol, which this client uses from now on", address)
                return replace(connection, protocol="remoting")
    return connection


class LazyTransport:
    """Makes the transport of a connection at the first call, because Spark's workers are forked before that call.
    Thread-safe."""

    def __init__(self, connection: Connection, transport: Transport | None = None) -> None:
        self.connection = connection
        self._transport = transport
        self._knows_protocol = transport is not None or connection.protocol != "auto"
        self._detected_at = 0.0
        self._closed = False
        self._lock = threading.Lock()
        forks.watch(self)

    def get(self) -> Transport:
        if self._transport is None or not self._knows_protocol:
            with self._lock:
                if self._closed:
                    raise ClientClosed("this client has been closed")
                if not self._knows_protocol:
                    self._detect_protocol()
                if self._transport is None:
                    self._transport = open_transport(self.connection)
        return self._transport

    def _detect_protocol(self) -> None:
        """Detects the protocol.  The caller holds the lock.  While no server answers, the connection uses gRPC,
        whose errors say what is wrong with an address."""
        now = time.monotonic()
        if self._transport is not None and now - self._detected_at < DETECTION_PAUSE_S:
            return
        self.connection = with_detected_protocol(self.connection)
        self._detected_at = time.monotonic()
        self._knows_protocol = self.connection.protocol != "auto"
        if self.connection.protocol == "remoting" and self._transport is not None:
            self._transport.close()
            self._transport = None

    def close(self) -> None:
        """Ends all calls that are under way."""
        with self._lock:
            self._closed = True
        if self._transport is not None:
            self._transport.close()

    def forget_parent(self) -> None:
        """Replaces the lock after a fork.  The transport stays in use after the fork, because it replaces its own locks
        and connections."""
        self._lock = threading.Lock()
