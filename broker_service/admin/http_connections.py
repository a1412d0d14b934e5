"""HttpConnections: a bound on the connections to an HTTP server of the standard library, each of which has a thread."""

import logging
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from broker_service.runtime.clocks import Monotonic

logger = logging.getLogger(__name__)

BACKLOG = 128  # connections that are not accepted yet
MOST = 16  # who asks for metrics is answered within milliseconds
LONGEST_S = 10.0  # from its begin to the end of its answer
TELL_S = 60.0  # between two lines about connections that failed


class HttpConnections:
    """Of one server, from `guard` on.  For one more than MOST the oldest is closed, so that those who say nothing keep
    nobody out; one that is older than LONGEST_S is closed, too."""

    def __init__(self, key: str, clock: Monotonic = time) -> None:
        self._key = key
        self._clock = clock
        self._begun: dict[socket.socket, float] = {}  # the oldest first
        self._lock = threading.Lock()
        self._told_at = -TELL_S
        self._failed = 0

    def guard(self, server: Any) -> None:
        """`server`: a socketserver.TCPServer that has a thread for each connection."""
        server.socket.listen(BACKLOG)  # the standard library's five are filled at once
        accept, end = server.get_request, server.shutdown_request

        def get_request() -> Any:
            connection, address = accept()
            self._began(connection)
            return connection, address

        def shutdown_request(connection: socket.socket) -> None:
            with self._lock:
                self._begun.pop(connection, None)
            end(connection)

        server.get_request = get_request
        server.shutdown_request = shutdown_request
        server.service_actions = self.end_old  # twice a second
        server.handle_error = self._did_fail

    def __len__(self) -> int:
        return len(self._begun)

    def _began(self, connection: socket.socket) -> None:
        with self._lock:
            self._begun[connection] = self._clock.monotonic()
            if len(self._begun) > MOST:
                self._end(next(iter(self._begun)))

    def end_old(self) -> None:
        with self._lock:
            for connection, begun in list(self._begun.items()):
                if self._clock.monotonic() - begun < LONGEST_S:
                    return
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Its thread reads the end of the connection, and ends."""
        del self._begun[connection]
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # of TLS, too: what its thread uses stays

    def _did_fail(self, _: Any, address: Any) -> None:
        self._failed += 1
        now = self._clock.monotonic()
        if now - self._told_at < TELL_S:
            return
        self._told_at = now
        logger.warning(
            "a connection of %s to %s failed, %d so far: %s",
            address[0],
            self._key,
            self._failed,
            sys.exception(),
        )
