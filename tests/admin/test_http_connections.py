"""Connections to metricsPort are bounded in number and time, whatever their clients send."""

import asyncio
import logging
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import pytest

from broker_service.admin import http_connections
from broker_service.admin.http_connections import LONGEST_S, MOST, HttpConnections
from testbed.polling import wait_until
from tests.support.brokers import running
from tests.support.tls import keys_of


@pytest.mark.parametrize("keys", [{}, keys_of()], ids=["http", "https"])
async def test_half_sent_requests_take_no_more_threads_and_keep_nobody_out(
    tmp_path: Path, keys: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:  # keeps the port from others, but not from the broker, since it does not listen
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

        def attack() -> None:
            before = threading.active_count()
            half = [socket.create_connection(("127.0.0.1", port)) for _ in range(5 * MOST)]
            for connection in half:
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" if not keys else b"\x16\x03\x01")
            wait_until(lambda: threading.active_count() - before <= MOST + 1, "the first connections are closed")
            if not keys:
                page = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
                assert "rocketsim_master 1.0" in page
            ended = 0
            for connection in half[:MOST]:
                connection.settimeout(60)
                try:
                    ended += not connection.recv(1 << 20).startswith(b"HTTP/1.0 200")
                except ConnectionResetError:
                    ended += 1
            assert ended == MOST
            for connection in half:
                connection.close()

        async with running(tmp_path, metrics_port=port, **keys):
            await asyncio.to_thread(attack)
    assert "Traceback" not in capfd.readouterr().err


class Server:
    """Behaves like the standard library's HTTP server, without threads."""

    def __init__(self, *accepted: socket.socket) -> None:
        self.waiting = list(accepted)
        self.socket = SimpleNamespace(listen=lambda backlog: None)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.waiting.pop(0), ("127.0.0.1", 1)

    def shutdown_request(self, connection: socket.socket) -> None:
        connection.close()


def test_a_slow_connection_is_closed_and_an_answered_one_is_forgotten() -> None:
    now = [0.0]
    (slow, its_client), (quick, other_client) = socket.socketpair(), socket.socketpair()
    server, connections = Server(slow, quick), HttpConnections("metricsPort", SimpleNamespace(monotonic=lambda: now[0]))
    connections.guard(server)
    server.get_request()
    now[0] = LONGEST_S / 2
    server.get_request()
    server.shutdown_request(quick)
    assert len(connections) == 1 and other_client.recv(1) == b""
    now[0] = LONGEST_S - 0.001
    connections.end_old()
    its_client.setblocking(False)
    with pytest.raises(BlockingIOError):
        its_client.recv(1)
    now[0] = LONGEST_S
    connections.end_old()
    assert its_client.recv(1) == b"" == slow.recv(1) and len(connections) == 0
    server.shutdown_request(slow)
    for one in (its_client, other_client):
        one.close()


def test_failed_connections_are_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    connections, server = HttpConnections("metricsPort", SimpleNamespace(monotonic=lambda: now[0])), Server()
    connections.guard(server)
    caplog.set_level(logging.WARNING)
    for seconds in (0, 1, http_connections.LOG_EVERY_S - 1, http_connections.LOG_EVERY_S):
        now[0] = seconds
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except OSError:
            server.handle_error(None, ("10.0.0.1", 1))  # type: ignore[attr-defined]
    assert [one.getMessage() for one in caplog.records] == [
        "a connection of 10.0.0.1 to metricsPort failed; 1 have failed so far: [Errno 104] Connection reset by peer",
        "a connection of 10.0.0.1 to metricsPort failed; 4 have failed so far: [Errno 104] Connection reset by peer",
    ]
