"""One socket to a server, plaintext or TLS, from which one thread reads while others write.

The socket is non-blocking, and `poll` waits for it, so that writers have a deadline and the reader has none.  Calls
over TLS are made under a lock, because a TLS socket must not be used by two threads at once.
"""

import select
import socket
import ssl
import threading
import time
from contextlib import suppress

from rocketsim_client import addresses

CLOSED = b""
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Wire:
    """A socket from which one thread receives, while any thread may send and close."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._tls = threading.Lock() if isinstance(connected, ssl.SSLSocket) else None
        self._writing = threading.Lock()

    @classmethod
    def to(cls, address: str, timeout_s: float, context: ssl.SSLContext | None) -> "Wire":
        """Connects.  Raises OSError (also ssl.SSLError), or ValueError for a text that is not an address."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        plain = addresses.connected(host, int(port), timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return cls(plain if context is None else context.wrap_socket(plain, server_hostname=host))
        except BaseException:
            plain.close()
            raise

    def receive_into(self, room: memoryview) -> int:
        """Waits for bytes without a time limit.  Returns how many bytes came, or 0 if the connection has ended."""
        while True:
            try:
                if self._tls is None:
                    return self._socket.recv_into(room)
                with self._tls:
                    return self._socket.recv_into(room)
            except _AGAIN as error:
                self._wait(isinstance(error, ssl.SSLWantWriteError), None)

    def send(self, data: bytes | memoryview, deadline: float) -> None:
        """Sends all bytes.  Raises TimeoutError at the deadline (of `time.monotonic`), after which the connection
        cannot be used."""
        if not self._writing.acquire(timeout=max(deadline - time.monotonic(), 0.001)):
            raise TimeoutError("an earlier request is still being written")
        try:
            view = memoryview(data)
            while view:
                try:
                    if self._tls is None:
                        view = view[self._socket.send(view) :]
                    else:
                        with self._tls:
                            view = view[self._socket.send(view) :]
                except _AGAIN as error:
                    if not self._wait(not isinstance(error, ssl.SSLWantReadError), deadline):
                        raise TimeoutError("the server does not read the request") from None
        finally:
            self._writing.release()

    def shut(self) -> None:
        """Wakes the reader, which then sees the end of the connection."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket.  The reader thread calls this method when it ends."""
        self._socket.close()

    def _wait(self, for_writing: bool, deadline: float | None) -> bool:
        """Waits until the socket is ready.  Returns False if the socket is not ready before the deadline."""
        wanted = select.poll()
        wanted.register(self._socket, select.POLLOUT if for_writing else select.POLLIN)
        if deadline is None:
            wanted.poll()
            return True
        left_s = deadline - time.monotonic()
        return left_s > 0 and bool(wanted.poll(left_s * 1000))
