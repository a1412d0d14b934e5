"""A relay forwards TCP connections to a server, so that a test can cut the network between two servers."""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

CONNECT_S = 5.0
CHUNK = 64 << 10


class Relay:
    """A context manager: while the context lasts, `address` leads to the server at the address that `target` returns.

    `target` is called for each connection, because the server's address may be known only later.  All work is done by
    threads.
    """

    def __init__(self, target: Callable[[], str]) -> None:
        self._target = target
        self._lock = threading.Lock()  # guards the following two
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._accepting = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._pumping: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        _shut_down(self._listener)
        for thread in (self._accepting, *self._pumping):
            if thread.ident is not None:
                thread.join()
        self._listener.close()

    def cut(self) -> None:
        """Closes all connections.  Until `heal` is called, each new connection is closed at once."""
        with self._lock:
            self._is_cut = True
            for end in self._open:
                _shut_down(end)

    def heal(self) -> None:
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the context has ended
                return
            server = self._connected()
            with self._lock:
                if server is not None and not self._is_cut:
                    self._open |= {client, server}
                    self._start_pumps(client, server)
                    continue
            client.close()
            if server is not None:
                server.close()

    def _connected(self) -> socket.socket | None:
        host, _, port = self._target().rpartition(":")
        if not port or self._is_cut:
            return None
        try:
            connection = socket.create_connection((host, int(port)), CONNECT_S)
        except OSError:  # the server does not run
            return None
        connection.settimeout(None)
        return connection

    def _start_pumps(self, client: socket.socket, server: socket.socket) -> None:
        pumps = [
            threading.Thread(target=_pump, args=ends, name="relay", daemon=True)
            for ends in ((client, server), (server, client))
        ]
        closing = threading.Thread(target=self._close, args=(client, server, pumps), name="relay", daemon=True)
        for thread in (*pumps, closing):
            thread.start()
        self._pumping = [thread for thread in self._pumping if thread.is_alive()] + [closing]

    def _close(self, client: socket.socket, server: socket.socket, pumps: list[threading.Thread]) -> None:
        """Closes both ends of a connection after both directions have ended."""
        for pump in pumps:
            pump.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Forwards bytes until one end closes, and then ends the other direction, too."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    _shut_down(source)
    _shut_down(target)


def _shut_down(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has closed it already
        end.shutdown(socket.SHUT_RDWR)
