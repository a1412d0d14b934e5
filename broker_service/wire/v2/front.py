"""Front: one port for plaintext and TLS, which a gRPC server cannot have: connections are passed on, by their first
byte, to one of two sockets on which the server listens, where nothing is looked at.

Each side of a connection is read only as fast as the other one is written.
"""

import asyncio
import errno
import logging
import secrets
import socket
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

LOOPBACK = "ipv4:127.0.0.1:0"
TLS_HANDSHAKE = 0x16  # of RFC 8446's record types; plaintext begins with HTTP/2's preface, `PRI`
FIRST_BYTE_S = 10.0  # for a client to say anything
MAX_SILENT = 1000  # connections that have not said anything; the oldest one goes
MAX_CONNECTIONS = 20_000
HANDLES_SHARE = 6  # a connection has three open files, of which half are for the store and other ports
TELL_S = 60.0  # between two lines that the front is full
LINGER_S = 10.0  # for the other side, once one has ended
CONNECT_S = 10.0
CONNECT_PAUSE_S = 0.01  # while as many connections wait for the server as may
FORGET_S = 60.0
BUFFER_BYTES = 256 << 10  # of one side, which the other one waits for


def most_connections(handles: int) -> int:
    """Of a process that may have so many files open; below 0: any number."""
    return MAX_CONNECTIONS if handles < 0 else max(1, min(MAX_CONNECTIONS, handles // HANDLES_SHARE))


class Front:
    """`close` ends what `start` began.  A connection has a socket of this process behind it, whose name gRPC takes for
    the client's address: `client_of` and `sender_of` know better.  With `most` connections the oldest one that has
    not said anything is closed for a new one, else the new one."""

    def __init__(self, listening: socket.socket, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._there: set[_Client] = set()
        self.refused = 0  # since the start
        self._told_at = -TELL_S
        self._name = f"rocketsim-{secrets.token_hex(16)}"
        # Abstract Unix sockets, for the server to bind.
        self.plaintext, self.tls = f"{self._name}-plaintext", f"{self._name}-tls"
        self._listening = listening
        self._server: asyncio.Server | None = None
        self._silent: dict[_Client, None] = {}  # the oldest first
        self._ends: set[_End] = set()
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._clients: dict[str, str] = {}  # by the name of the socket behind them, which no other socket can have
        self._former: dict[str, str] = {}  # of connections that ended a moment ago, whose names are free

    @property
    def connections(self) -> int:
        return len(self._there)

    async def start(self) -> None:
        """The server has to listen on both names already."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), sock=self._listening)

    def client_of(self, peer: str) -> str:
        """The client's address as gRPC says it, by what gRPC says of the connection's other end.  A connection that is
        not the front's own comes from a process of this machine.  Empty once the connection has ended: such a process
        may have its name now, and is not to pass for the client."""
        kind, _, name = peer.partition(":")
        if kind != "unix-abstract":
            return peer
        return self._clients.get(name, "" if name in self._former else LOOPBACK)

    def sender_of(self, peer: str) -> str:
        """As `client_of`, for records, also for a moment after the connection has ended."""
        return self.client_of(peer) or self._former.get(peer.partition(":")[2], LOOPBACK)

    def stop_listening(self) -> None:
        if self._server is None:
            self._listening.close()
        else:
            self._server.close()

    async def close(self) -> None:
        """Connections that are still there break off, and one that was being taken does."""
        self._is_closing = True
        self.stop_listening()
        while self._ends:
            for end in list(self._ends):
                end.abort()
            self._ended.clear()
            await self._ended.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- for its connections ----------------------------------------------------------------------------------------

    def began(self, end: "_End") -> None:
        self._ends.add(end)
        if self._is_closing:
            end.abort()

    def ended(self, end: "_End") -> None:
        self._ends.discard(end)
        self._ended.set()

    def takes(self, client: "_Client", address: str) -> bool:
        """Whether there is room for one more connection."""
        if self.connections < self._most or self._drops_a_silent_one():
            self._there.add(client)
            return True
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            logger.warning(
                "a connection of %s is closed: RocketMQ 5's clients have %d, the most that there may be; %d were "
                "closed so far. More need a higher limit of open files (ulimit -n), %d at most",
                address,
                self._most,
                self.refused,
                MAX_CONNECTIONS,
            )
        return False

    def is_silent(self, client: "_Client") -> None:
        self._silent[client] = None
        if len(self._silent) > MAX_SILENT:
            self._drops_a_silent_one()

    def _drops_a_silent_one(self) -> bool:
        """The oldest one; False if there is none."""
        if not self._silent:
            return False
        next(iter(self._silent)).abort()
        return True

    def left(self, client: "_Client") -> None:
        self._there.discard(client)
        self._silent.pop(client, None)

    def has_spoken(self, client: "_Client") -> None:
        self._silent.pop(client, None)

    def connecting(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="front")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def name_for(self, client: str) -> str:
        """One that no other connection has or will have; `forget` follows in any case."""
        name = f"{self._name}-{secrets.token_hex(8)}"  # by chance: another process cannot take it before
        self._clients[name] = client
        return name

    def forget(self, name: str) -> None:
        """The address stays a while: a call may be looked at after its connection has ended."""
        if (client := self._clients.pop(name, None)) is not None:
            self._former[name] = client
            asyncio.get_running_loop().call_later(FORGET_S, self._former.pop, name, None)


class _End(asyncio.Protocol):
    """One end of a connection; what it reads goes to `other`."""

    transport: asyncio.Transport

    def __init__(self, front: Front) -> None:
        self._front = front
        self.other: _End | None = None
        self._has_ended = False  # nothing more comes from here
        self._is_lost = False
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._front.began(self)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def eof_received(self) -> bool:
        """The other direction goes on, for a while: gRPC and its clients end both."""
        self._has_ended = True
        other = self.other
        if other is None or other._has_ended:
            return False
        if other.transport.can_write_eof() and not other.transport.is_closing():
            other.transport.write_eof()
        self._linger()
        return True

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if self._lingering is not None:
            self._lingering.cancel()
        if self.other is not None and not self.other._is_lost:
            self.other.transport.close()  # once it has what was read here
            self.other._linger()
        self._front.ended(self)

    def abort(self) -> None:
        self.transport.abort()

    def _linger(self) -> None:
        if self._lingering is None:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._give_up)

    def _give_up(self) -> None:
        self.abort()
        if self.other is not None:
            self.other.abort()


class _Client(_End):
    """The end that came to the port."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting: asyncio.Task[None] | None = None
        self._silence = asyncio.get_running_loop().call_later(FIRST_BYTE_S, self.abort)
        if self._front.takes(self, _grpc_peer(transport.get_extra_info("peername"))):
            self._front.is_silent(self)
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
            return
        self._has_spoken()
        self.transport.pause_reading()
        self._connecting = self._front.connecting(self._connect(data))

    async def _connect(self, data: bytes) -> None:
        front = self._front
        name = front.name_for(_grpc_peer(self.transport.get_extra_info("peername")))
        server = _Server(front, self, name)
        try:
            async with asyncio.timeout(CONNECT_S):
                inner = await _connected(name, front.tls if data[0] == TLS_HANDSHAKE else front.plaintext)
            await asyncio.get_running_loop().create_unix_connection(lambda: server, sock=inner)
            self.other = server
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:  # that the server has stopped listening is no news
                logger.warning("a connection of RocketMQ 5's clients is closed: %s", error or "the server is busy")
            self.abort()
            return
        finally:
            if self.other is None:
                front.forget(name)
        self.transport.resume_reading()  # first: the server may be slow to take what there is
        server.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._silence.cancel()
        self._front.left(self)
        if self._connecting is not None and self.other is None:
            self._connecting.cancel()
        super().connection_lost(error)

    def abort(self) -> None:
        self._front.left(self)  # at once: the place is another one's from here on
        super().abort()

    def _has_spoken(self) -> None:
        self._silence.cancel()
        self._front.has_spoken(self)


class _Server(_End):
    """The end behind the port, for one client."""

    def __init__(self, front: Front, client: _Client, name: str) -> None:
        super().__init__(front)
        self.other = client
        self._name = name

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._front.forget(self._name)


async def _connected(name: str, to: str) -> socket.socket:
    """Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.bind(f"\0{name}")
        while True:
            try:
                made.connect(f"\0{to}")
                return made
            except BlockingIOError:  # its queue is full; nothing tells when it is not
                await asyncio.sleep(CONNECT_PAUSE_S)
    except BaseException:
        made.close()
        raise


def _grpc_peer(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """As `context.peer()` has it."""
    host, port = address[:2]
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
