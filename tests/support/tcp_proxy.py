"""A connection that can be delayed, cut and reset: a TCP proxy on loopback, for as long as the context lasts.

    with TcpProxy(master.address) as wire:
        ...                                  # give wire.address to a client
        wire.delay(0.3)                      # each way
        wire.cut()                           # nothing gets through, without an error: a half-open connection
        wire.cut(FROM_CLIENT)                # one way only
        wire.heal()                          # held bytes continue, in order
        wire.reset()                         # all connections are closed

The server's address may be set later, when its port is known.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.support.asyncio_servers import stop_accepting

FROM_CLIENT, FROM_SERVER = "from the client", "from the server"
_CHUNK = 64 << 10


class TcpProxy:
    """A proxy that runs on an event loop in a thread of its own.  Other threads call its methods."""

    def __init__(self, target: str | Callable[[], str]) -> None:
        self._target = target if callable(target) else lambda: target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._delay_s = 0.0
        self._open: dict[str, asyncio.Event] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.carried = 0  # bytes, in both directions
        self.accepted = 0  # connections of clients

    def __enter__(self) -> "TcpProxy":
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30.0)

    # --- faults ------------------------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Delays every byte from now on, in each direction."""
        self._delay_s = seconds

    def cut(self, *directions: str) -> None:
        """Holds all bytes of these directions (by default both) from now on.  Connections stay, and new ones can be
        opened.
        """

        async def close() -> None:
            for direction in directions or (FROM_CLIENT, FROM_SERVER):
                self._open[direction].clear()

        self._call(close())

    def heal(self) -> None:
        """Removes all faults."""
        self._delay_s = 0.0

        async def reopen() -> None:
            for event in self._open.values():
                event.set()

        self._call(reopen())

    def reset(self) -> None:
        """Closes every connection, as a router does that has lost its table."""

        async def abort() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._call(abort())

    # --- forwarding ---------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        for direction in (FROM_CLIENT, FROM_SERVER):
            self._open[direction] = asyncio.Event()
            self._open[direction].set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        ends = [writer]
        self._writers.add(writer)
        try:
            host, _, port = self._target().rpartition(":")
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
            ends.append(server_writer)
            self._writers.add(server_writer)
            await asyncio.gather(
                self._pump(reader, server_writer, FROM_CLIENT), self._pump(server_reader, writer, FROM_SERVER)
            )
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the server does not run, or has no address yet, or the proxy ends
        finally:
            for end in ends:
                end.transport.abort()
                self._writers.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(due - self._loop.time())
                await self._open[direction].wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()
                self.carried += len(data)

        delivering = asyncio.ensure_future(deliver())
        try:
            while data := await reader.read(_CHUNK):
                late.put_nowait((self._loop.time() + self._delay_s, data))
            late.put_nowait((self._loop.time() + self._delay_s, b""))
            await delivering
        except OSError:
            pass
        finally:
            delivering.cancel()
            # When one end is closed, the other end is closed after the bytes between them have arrived.
            writer.transport.abort() if delivering.cancelled() else writer.close()

    async def _close(self) -> None:
        assert self._server is not None
        await stop_accepting(self._server)
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
