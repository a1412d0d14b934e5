"""Which transport a connection is used over: this is the one place that decides it."""

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace

from rocketsim_client import forks
from rocketsim_client import tls as tls_files
from rocketsim_client.connection import Connection
from rocketsim_client.errors import ClientClosed, TlsFailed
from rocketsim_client.transport.look import Speaks, look_at
from rocketsim_client.transport.transport import Transport

logger = logging.getLogger(__name__)

LOOKED_AGAIN_S = 1.0  # after a look at servers that were not there


def open_transport(connection: Connection) -> Transport:
    """Decides by the connection alone, so that every process that has an equal one decides alike.  `auto` stands for
    gRPC here: `decided` is for who may look."""
    transport: Transport
    if connection.protocol == "remoting":
        from rocketsim_client.transport.remoting.transport import RemotingTransport

        transport = RemotingTransport(connection)
    else:
        from rocketsim_client.transport.own.transport import GrpcTransport

        transport = GrpcTransport(connection)
    if not connection.brokers:
        return transport
    from rocketsim_client.transport.static_route import StaticRoute

    return StaticRoute(transport, connection.members)


def decided(connection: Connection) -> Connection:
    """With `protocol=auto` looks which one the servers speak, and returns a connection that says it; the same one if
    no server says anything, or if it is said already."""
    if connection.protocol != "auto":
        return connection
    context = None
    if connection.tls is not None:
        with suppress(TlsFailed):
            context = tls_files.read(connection.tls, connection.first_address)[1].context
        if context is None:
            return connection  # the first call says what is wrong with the files
    for address in connection.name_servers or [at for _, members in connection.brokers for _, at in members]:
        match look_at(address, context, connection.timeout_s):
            case Speaks.GRPC:
                return replace(connection, protocol="grpc")
            case Speaks.REMOTING:
                logger.info("%s speaks RocketMQ's remoting protocol, which is used from now on", address)
                return replace(connection, protocol="remoting")
    return connection


class LazyTransport:
    """The transport of a connection.  The first call makes it, which in Spark's workers is after their fork.
    Thread-safe."""

    def __init__(self, connection: Connection, transport: Transport | None = None) -> None:
        self.connection = connection
        self._transport = transport
        self._is_decided = transport is not None or connection.protocol != "auto"
        self._looked_at = 0.0
        self._closed = False
        self._lock = threading.Lock()
        forks.watch(self)

    def get(self) -> Transport:
        if self._transport is None or not self._is_decided:
            with self._lock:
                if self._closed:
                    raise ClientClosed("this client has been closed")
                if not self._is_decided:
                    self._decide()
                if self._transport is None:
                    self._transport = open_transport(self.connection)
        return self._transport

    def _decide(self) -> None:
        """By whom the lock is held.  While no server is there the connection is used over gRPC, whose errors say what
        is wrong with an address."""
        now = time.monotonic()
        if self._transport is not None and now - self._looked_at < LOOKED_AGAIN_S:
            return
        self.connection = decided(self.connection)
        self._looked_at = time.monotonic()
        self._is_decided = self.connection.protocol != "auto"
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
        """A transport that the parent has made is used on: it forgets by itself what is the parent's."""
        self._lock = threading.Lock()
