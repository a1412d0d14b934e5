"""Keeps the sockets of the calls that are under way, so that closing the client can end these calls."""

import socket
import threading

from rocketsim_client import forks
from rocketsim_client.errors import ClientClosed


class StreamSockets:
    """The open sockets of one client.  A socket belongs to the process that opened it, and a forked child closes its
    copies.  Thread-safe."""

    def __init__(self) -> None:
        self.open: set[socket.socket] = set()  # the sockets that this process has opened
        self._lock = threading.Lock()
        self._closed = False
        forks.watch(self)

    def opened(self, family: socket.AddressFamily) -> socket.socket:
        """Makes a socket, which the caller then connects.  Raises ClientClosed after `close`."""
        made = socket.socket(family, socket.SOCK_STREAM)
        with self._lock:
            if self._closed:
                made.close()
                raise ClientClosed("this client has been closed")
            self.open.add(made)
        return made

    def ended(self, one: socket.socket) -> None:
        """Closes a socket whose call has ended."""
        with self._lock:
            self.open.discard(one)
        _shut(one)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends the calls that are under way."""
        with self._lock:
            self._closed = True
            for one in self.open:
                try:
                    one.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from the socket, which then closes it
                except OSError:
                    pass

    def forget_parent(self) -> None:
        """Closes the child's copies of the parent's sockets after a fork."""
        self._lock = threading.Lock()
        inherited, self.open = self.open, set()
        for one in inherited:
            one.close()  # closes only this process's copy; the parent goes on reading


def _shut(one: socket.socket) -> None:
    """Ends the connection at once, even if a forked child still has a copy of the socket."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
