"""Tests of `tests.support.asyncio_servers`."""

import asyncio
import socket

import pytest

from tests.support.asyncio_servers import stop_accepting


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_accepted_at_any_moment_is_given_to_the_server_or_refused(turns: int) -> None:
    """`Server.close` alone leaves a socket open if it is called after two turns, which pytest reports as an error."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop_accepting(server)
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        client.settimeout(60)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            assert not writers
