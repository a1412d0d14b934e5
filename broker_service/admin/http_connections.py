"""HttpConnections: limits the connections to an HTTP server of the standard library, which uses a thread for each
connection.
"""

import logging
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from broker_service.runtime.clocks import Monotonic

logger = logging.getLogger(__name__)

BACKLOG = 128  # most connections that are not accepted yet
MOST = 16  # most connections; enough, because a scrape is answered within milliseconds
LONGEST_S = 10.0  # a connection is closed after this time
LOG_EVERY_S = 60.0  # shortest time between two log lines about failed connections


class HttpConnections:
    """Limits the connections of the server that was passed to `guard`.

    Closes the oldest connection when there are more than MOST, so that idle connections do not block others.  Closes
    every connection after LONGEST_S.
    """

    def __init__(self, key: str, clock: Monotonic = time) -> None:
        self._key = key
        self._clock = clock
        # connection -> the time at which the connection began, the oldest first
        self._begun: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._logged_at = -LOG_EVERY_S
        self._failed = 0

    def guard(self, server: Any) -> None:
        """Limits the connections of a socketserver.TCPServer that has a thread for each connection."""
        server.socket.listen(BACKLOG)  # the standard library's default is 5
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
        server.service_actions = self.end_old  # the server calls this function twice a second
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
        """Closes a connection.  The connection's thread then reads the end of the connection, and ends, too."""
        del self._begun[connection]
        with suppress(OSError):
            # SSLSocket.shutdown would also drop the TLS state, which the thread still uses.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _did_fail(self, _: Any, address: Any) -> None:
        self._failed += 1
        now = self._clock.monotonic()
        if now - self._logged_at < LOG_EVERY_S:
            return
        self._logged_at = now
        logger.warning(
            "a connection of %s to %s failed; %d have failed so far: %s",
            address[0],
            self._key,
            self._failed,
            sys.exception(),
        )
