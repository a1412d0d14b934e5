"""Which transport a connection is used over: this is the one place that decides it."""

import threading

from rocketsim_client import forks
from rocketsim_client.connection import Connection
from rocketsim_client.errors import ClientClosed
from rocketsim_client.transport.transport import Transport


def open_transport(connection: Connection) -> Transport:
    """Decides by the connection alone, so that every process that has an equal one decides alike."""
    from rocketsim_client.transport.own.transport import GrpcTransport
    from rocketsim_client.transport.static_route import StaticRoute

    transport = GrpcTransport(connection)
    return StaticRoute(transport, connection.members) if connection.brokers else transport


class LazyTransport:
    """The transport of a connection.  The first call makes it, which in Spark's workers is after their fork.
    Thread-safe."""

    def __init__(self, connection: Connection, transport: Transport | None = None) -> None:
        self._connection = connection
        self._transport = transport
        self._closed = False
        self._lock = threading.Lock()
        forks.watch(self)

    def get(self) -> Transport:
        if self._transport is None:
            with self._lock:
                if self._closed:
                    raise ClientClosed("this client has been closed")
                if self._transport is None:
                    self._transport = open_transport(self._connection)
        return self._transport

    def close(self) -> None:
        """Ends all calls that are under way."""
        with self._lock:
            self._closed = True
        if self._transport is not None:
            self._transport.close()

    def forget_parent(self) -> None:
        """A transport that the parent has made is used on: it forgets by itself what is the parent's."""
        self._lock = threading.Lock()
