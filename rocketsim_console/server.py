"""Serves the console over HTTP, in the foreground or in a thread."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rocketsim_console.app import Console

STOP_S = 2  # the time in which open streams must end at a stop


@dataclass(frozen=True, slots=True)
class Listen:
    """The address on which the console listens.  With `cert` and `key` (PEM files), the console uses TLS.  With
    `client_ca`, browsers need a certificate of that CA.
    """

    bind: str = "127.0.0.1"
    port: int = 0
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.cert is not None else "http"


def bound(listen: Listen) -> socket.socket:
    """Returns a socket that listens on this address and port.  Raises OSError."""
    family = socket.AF_INET6 if ":" in listen.bind else socket.AF_INET
    taken = socket.create_server((listen.bind, listen.port), family=family)
    taken.set_inheritable(False)
    return taken


def url_of(listen: Listen, taken: socket.socket) -> str:
    """Returns the URL for a browser on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen.bind, listen.bind)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{listen.scheme}://{host}:{taken.getsockname()[1]}/"


class Server(uvicorn.Server):
    """A server that ends the live streams of all viewers before it stops.  Otherwise it would wait STOP_S for them, and
    log an error for each.
    """

    def __init__(self, console: Console, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._console = console

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._console.end_streams()
        await super().shutdown(sockets)


def server_of(console: Console, listen: Listen) -> uvicorn.Server:
    """Returns a server for the console.  The server logs only warnings and errors, because an access log would contain
    message keys.
    """
    return Server(
        console,
        uvicorn.Config(
            console.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=listen.cert,
            ssl_keyfile=listen.key,
            ssl_ca_certs=str(listen.client_ca) if listen.client_ca is not None else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if listen.client_ca is not None else ssl.CERT_NONE,
        ),
    )


@contextlib.contextmanager
def serving(console: Console, listen: Listen) -> Iterator[str]:
    """Serves in a thread until the block ends, and yields the URL."""
    with bound(listen) as taken:
        server = server_of(console, listen)
        thread = threading.Thread(target=server.run, args=([taken],), name="console", daemon=True)
        thread.start()
        try:
            yield url_of(listen, taken)
        finally:
            server.should_exit = True
            thread.join()
