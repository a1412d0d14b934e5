"""Front: offers one port for both plaintext and TLS, which a gRPC server cannot do.

The gRPC server listens on two sockets of this process, one for plaintext and one for TLS.  The front accepts clients'
connections, chooses the socket by the first byte, and then copies bytes in both directions without interpreting them.
Each side of a connection is read only as fast as the other side is written.
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
TLS_HANDSHAKE = 0x16  # first byte of TLS, by RFC 8446; plaintext begins with HTTP/2's preface, `PRI`
FIRST_BYTE_S = 10.0  # longest time for a client to send its first byte
MAX_SILENT = 1000  # most connections without a first byte; if there are more, the oldest is closed
MAX_CONNECTIONS = 20_000
HANDLES_SHARE = 6  # a connection takes three open files, and half of all files are for the store and other ports
LOG_EVERY_S = 60.0  # shortest time between two log lines that say that the front is full
LINGER_S = 10.0  # longest time between the end of a connection's first direction and the end of the other
CONNECT_S = 10.0
CONNECT_PAUSE_S = 0.01  # pause between attempts to connect while the server's queue of connections is full
FORGET_S = 60.0
BUFFER_BYTES = 256 << 10  # while more bytes wait to be written to one side, the other side is not read


def most_connections(handles: int) -> int:
    """Returns the most connections of a front in a process that may have `handles` open files (below 0: no limit)."""
    return MAX_CONNECTIONS if handles < 0 else max(1, min(MAX_CONNECTIONS, handles // HANDLES_SHARE))


class Front:
    """Accepts connections from `start` until `close`.

    gRPC sees only the front's own (inner) socket, and takes that socket's name for the client's address.  `client_of`
    and `sender_of` return the true address.  If there are `most` connections already, a new connection replaces the
    oldest one that has sent nothing.  If every connection has sent something, the new connection is closed.
    """

    def __init__(self, listening: socket.socket, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._connected: set[_Client] = set()
        self.refused = 0  # connections refused since the start
        self._logged_at = -LOG_EVERY_S
        self._name = f"rocketsim-{secrets.token_hex(16)}"
        # The names of the abstract Unix sockets that the server binds.
        self.plaintext, self.tls = f"{self._name}-plaintext", f"{self._name}-tls"
        self._listening = listening
        self._server: asyncio.Server | None = None
        self._silent: dict[_Client, None] = {}  # connections without a first byte, the oldest first
        self.ends: set[_End] = set()
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._clients: dict[str, str] = {}  # unique name of an inner socket -> client's address
        # name -> address of a connection that has just ended; a new connection may take the name
        self._former: dict[str, str] = {}

    @property
    def connections(self) -> int:
        return len(self._connected)

    async def start(self) -> None:
        """Begins to accept connections.  The server must listen on both inner sockets already."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), sock=self._listening)

    def client_of(self, peer: str) -> str:
        """Returns a client's address in gRPC's form.  `peer` is the value of `context.peer()`.

        Returns loopback for a connection that the front has not made, because it comes from a process of this machine.
        Returns an empty string if the connection has ended, because a process of this machine may use the socket's name
        now.
        """
        kind, _, name = peer.partition(":")
        if kind != "unix-abstract":
            return peer
        return self._clients.get(name, "" if name in self._former else LOOPBACK)

    def sender_of(self, peer: str) -> str:
        """Returns a client's address for a record, even for a moment after the client's connection has ended."""
        return self.client_of(peer) or self._former.get(peer.partition(":")[2], LOOPBACK)

    def stop_listening(self) -> None:
        if self._server is None:
            self._listening.close()
        else:
            self._server.close()

    async def close(self) -> None:
        """Ends all connections, including those that are just being accepted."""
        self._is_closing = True
        self.stop_listening()
        while self.ends:
            for end in list(self.ends):
                end.abort()
            self._ended.clear()
            await self._ended.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- for its connections ----------------------------------------------------------------------------------------

    def began(self, end: "_End") -> None:
        self.ends.add(end)
        if self._is_closing:
            end.abort()

    def ended(self, end: "_End") -> None:
        self.ends.discard(end)
        self._ended.set()

    def admit(self, client: "_Client", address: str) -> bool:
        """Adds a connection.  Returns False if the limit allows no further connection."""
        if self.connections < self._most or self._close_oldest_silent():
            self._connected.add(client)
            return True
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            logger.warning(
                "a connection of %s is closed, because RocketMQ 5's clients have %d already, the most that are "
                "allowed; %d were closed so far. To allow up to %d, raise the limit of open files (ulimit -n)",
                address,
                self._most,
                self.refused,
                MAX_CONNECTIONS,
            )
        return False

    def note_silent(self, client: "_Client") -> None:
        self._silent[client] = None
        if len(self._silent) > MAX_SILENT:
            self._close_oldest_silent()

    def _close_oldest_silent(self) -> bool:
        """Closes the oldest connection that has sent nothing.  Returns False if every connection has sent something."""
        if not self._silent:
            return False
        next(iter(self._silent)).abort()
        return True

    def remove(self, client: "_Client") -> None:
        self._connected.discard(client)
        self._silent.pop(client, None)

    def note_first_byte(self, client: "_Client") -> None:
        self._silent.pop(client, None)

    def connecting(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="front")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def name_for(self, client: str) -> str:
        """Returns a new name for the inner socket of a client.  Call `forget` when the client's connection ends."""
        name = f"{self._name}-{secrets.token_hex(8)}"  # random, so that no other process can bind the name first
        self._clients[name] = client
        return name

    def forget(self, name: str) -> None:
        """Forgets which client has the inner socket with this name.

        `sender_of` still knows the client's address for a while, because calls may outlive their connection.
        """
        if (client := self._clients.pop(name, None)) is not None:
            self._former[name] = client
            asyncio.get_running_loop().call_later(FORGET_S, self._former.pop, name, None)


class _End(asyncio.Protocol):
    """One of the two sockets of a connection.  The bytes that this socket reads are written to the socket `other`."""

    transport: asyncio.Transport

    def __init__(self, front: Front) -> None:
        self._front = front
        self.other: _End | None = None
        self._has_ended = False  # True when the peer sends nothing more
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
        """After the peer has ended this direction, keeps the other direction open, but not longer than LINGER_S.

        LINGER_S cuts off no call, because gRPC and its clients end both directions of a connection together.
        """
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
            self.other.transport.close()  # this `close` first writes the bytes that this side has read
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
    """The socket to the client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting: asyncio.Task[None] | None = None
        self._silence = asyncio.get_running_loop().call_later(FIRST_BYTE_S, self.abort)
        if self._front.admit(self, _grpc_peer(transport.get_extra_info("peername"))):
            self._front.note_silent(self)
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
            return
        self._silence.cancel()
        self._front.note_first_byte(self)
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
            if error.errno != errno.ECONNREFUSED:  # ECONNREFUSED is expected: the server has stopped listening
                logger.warning("a connection of RocketMQ 5's clients is closed: %s", error or "the server is busy")
            self.abort()
            return
        finally:
            if self.other is None:
                front.forget(name)
        # reading resumes before the write, because the write pauses reading again if the server is slow
        self.transport.resume_reading()
        server.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._silence.cancel()
        self._front.remove(self)
        if self._connecting is not None and self.other is None:
            self._connecting.cancel()
        super().connection_lost(error)

    def abort(self) -> None:
        self._front.remove(self)  # frees the place at once for another connection
        super().abort()


class _Server(_End):
    """The socket to the gRPC server for one client."""

    def __init__(self, front: Front, client: _Client, name: str) -> None:
        super().__init__(front)
        self.other = client
        self._name = name

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._front.forget(self._name)


async def _connected(name: str, to: str) -> socket.socket:
    """Returns a socket that has this name, and is connected to the server's inner socket with the name `to`.  Raises
    OSError.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.bind(f"\0{name}")
        while True:
            try:
                made.connect(f"\0{to}")
                return made
            except BlockingIOError:  # the server's queue of connections is full, and no event tells when it has room
                await asyncio.sleep(CONNECT_PAUSE_S)
    except BaseException:
        made.close()
        raise


def _grpc_peer(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """Returns a socket address in the form of `context.peer()`."""
    host, port = address[:2]
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
