"""MessageSocket sends and receives whole messages over a plain socket, and copies large messages only once."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np

from broker_service.errors import RocketSimError
from broker_service.runtime.peer_call import PeerLost

SMALL_BYTES = 64 << 10  # larger messages are received into memory of their own
UNSENT_BYTES = 16 << 20  # a writer waits while the kernel has not taken more bytes than this
QUEUED_BYTES = 8 << 20  # no more is received while this many bytes of whole messages wait for `read`
MESSAGE_BYTES = 400  # what a waiting message takes besides its bytes


class MessageSocket:
    """A connected socket, which this object owns.  One task reads from it, and one task writes to it.

    A message begins with a head of `head_size` bytes.  `size_of` returns the size of the whole message, with its head,
    and may raise a RocketSimError for an impossible head.
    """

    def __init__(self, connection: socket.socket, head_size: int, size_of: Callable[[memoryview], int]) -> None:
        connection.setblocking(True)  # for the sending thread; the event loop's own calls never wait
        self._socket = connection
        self._sender: ThreadPoolExecutor | None = None  # made when the kernel first has no room for a message
        self._head_size = head_size
        self._size_of = size_of
        self._loop = asyncio.get_running_loop()
        self._small = memoryview(bytearray(SMALL_BYTES))
        self._large: memoryview | None = None  # the memory of a large message of which a part has arrived
        self._filled = 0  # bytes in `_large`, or in `_small` if no large message is arriving
        self._messages: deque[memoryview] = deque()
        self.queued_bytes = 0  # bytes of `_messages`
        self._ended = False
        self._error: RocketSimError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._is_receiving = False
        self._unsent = 0  # bytes that were written, and that the kernel has not taken yet
        self._sent = asyncio.Event()
        self._write_error: BaseException | None = None
        self._receive(True)

    async def read(self) -> memoryview | None:
        """Returns the next message with its head.  Returns None if the peer has ended the stream after a whole message.

        Raises PeerLost if the connection has broken, or the error of `size_of`.  The messages that arrived before are
        returned first.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._messages.popleft()
        self.queued_bytes -= MESSAGE_BYTES + len(message)
        self._receive(not self._ended and self.queued_bytes < QUEUED_BYTES)
        return message

    async def write(self, *parts: bytes | memoryview) -> None:
        """Sends the parts of a message.  Raises PeerLost if the connection has broken.

        Before it waits, it copies what the kernel has no room for, so that the caller's memory may change then.  It
        waits only while the kernel has not taken more than UNSENT_BYTES.  A caller that is cancelled while it waits has
        still written the message.
        """
        self._check_sending()
        if self._unsent:
            rest = b"".join(parts)
        else:
            try:
                sent = self._socket.sendmsg(parts, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise PeerLost(f"the connection has broken: {error}") from error
            rest = without_first([memoryview(part) for part in parts], sent)
        if rest:
            self._send_in_thread(rest)
            await self._until_unsent(UNSENT_BYTES)

    async def flush(self) -> None:
        """Returns when the kernel has all that was written.  Raises PeerLost if the connection has broken."""
        await self._until_unsent(0)

    def _send_in_thread(self, rest: bytes) -> None:
        """Sends in a thread, which makes a single call to the kernel for each message.

        On the event loop, each turn could only send as much as the kernel has room for, some 200 KiB.  While the loop
        is busy with large messages of others, that would be too slow.
        """
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, "message-socket")
        self._unsent += len(rest)
        sending = self._loop.run_in_executor(self._sender, self._socket.sendall, rest)
        sending.add_done_callback(partial(self._on_sent, len(rest)))

    def _on_sent(self, size: int, sending: "asyncio.Future[None]") -> None:
        self._unsent -= size
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._write_error = self._write_error or error
        self._sent.set()

    async def _until_unsent(self, most: int) -> None:
        while self._unsent > most and self._write_error is None:
            self._sent.clear()
            await self._sent.wait()
        self._check_sending()

    def _check_sending(self) -> None:
        if self._write_error is not None:
            raise PeerLost(f"the connection has broken: {self._write_error}") from self._write_error

    def close(self) -> None:
        """Closes the socket.  Bytes that the kernel has not taken yet are not sent, and whoever waits for them gets
        PeerLost.
        """
        closed = PeerLost("this side has closed the connection")
        self._stop(closed)
        self._write_error = self._write_error or closed
        self._sent.set()
        if self._sender is not None:
            self._sender.shutdown(wait=False, cancel_futures=True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's call
        self._socket.close()

    def _receive(self, wanted: bool) -> None:
        if wanted != self._is_receiving:
            self._is_receiving = wanted
            if wanted:
                self._loop.add_reader(self._socket, self._on_readable)
            else:
                self._loop.remove_reader(self._socket)

    def _on_readable(self) -> None:
        """Receives once, so that other tasks have a turn between the parts of a large message."""
        try:
            into = self._small if self._large is None else self._large
            got = self._socket.recv_into(into[self._filled :], 0, socket.MSG_DONTWAIT)
            if not got:
                self._stop(PeerLost("the connection has ended within a message") if self._filled else None)
                return
            self._filled += got
            self._take_whole()
        except BlockingIOError:
            return
        except OSError as error:
            self._stop(PeerLost(f"the connection has broken: {error}"))
        except RocketSimError as error:
            self._stop(error)
        else:
            self._receive(self.queued_bytes < QUEUED_BYTES)

    def _take_whole(self) -> None:
        """Queues every message that has arrived completely."""
        if self._large is not None:
            if self._filled == len(self._large):
                message, self._large, self._filled = self._large, None, 0
                self._queue(message)
            return
        at = 0
        while self._filled - at >= self._head_size:
            size = self._size_of(self._small[at : at + self._head_size])
            if size > SMALL_BYTES:
                self._large = np.empty(size, np.uint8).data  # np.empty saves the time to fill the memory with zeros
                self._large[: self._filled - at] = self._small[at : self._filled]
                self._filled -= at
                return
            if size > self._filled - at:
                break
            self._queue(memoryview(bytes(self._small[at : at + size])))
            at += size
        if at:
            rest = bytes(self._small[at : self._filled])
            self._small[: len(rest)] = rest
            self._filled = len(rest)

    def _queue(self, message: memoryview) -> None:
        self._messages.append(message)
        self.queued_bytes += MESSAGE_BYTES + len(message)
        self._wake()

    def _stop(self, error: RocketSimError | None) -> None:
        self._ended = True
        self._error = self._error or error
        self._receive(False)
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def without_first(parts: Sequence[memoryview], sent: int) -> bytes:
    """Returns a copy of the parts without their first `sent` bytes."""
    rest = []
    for part in parts:
        rest.append(part[sent:])
        sent = max(0, sent - len(part))
    return b"".join(rest)
