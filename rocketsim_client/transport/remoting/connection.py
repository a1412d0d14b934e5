"""One connection to a server: any thread sends requests, and one thread reads answers and passes them to the callers.

A server also sends requests over the connection.  Only a flag in the header tells a server's request from an answer.  A
request and an answer can have the same number, because server and client both number their own requests.
"""

import itertools
import re
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from rocketsim_proto.remoting import frame
from rocketsim_proto.remoting.frame import Form, FrameError, Header

from rocketsim_client.errors import BrokerUnavailable, CallTimeout, RocketSimError, TlsFailed
from rocketsim_client.tls import Tls, needs_certificate
from rocketsim_client.transport.remoting.wire import Wire
from rocketsim_client.transport.server_protocol import ServerProtocol, advice_on, protocol_of

ROOM_BYTES = 256 << 10  # the size of the receive buffer; a longer frame gets a buffer of its own
ALERT_S = 1.0  # how long a failed write waits for the reader thread to find a TLS alert
_FLAG = re.compile(rb'"flag":"?(\d+)')
_OPAQUE = re.compile(rb'"opaque":"?(-?\d+)')


class Answer(NamedTuple):
    """An answer whose header is not decoded yet.  The property `header` decodes the header."""

    opaque: int
    form: Form
    head: bytes
    body: bytes

    @property
    def header(self) -> Header:
        return frame.decode_header(self.form, self.head)


class Inbox:
    """The answers to one caller's requests, in the order in which they come."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self._arrived: SimpleQueue[Answer | RocketSimError] = SimpleQueue()

    def put(self, item: Answer | RocketSimError) -> None:
        self._arrived.put(item)

    def get(self, timeout_s: float) -> Answer | None:
        """Returns the next answer, or None if none has come within `timeout_s`.  If the connection has ended, raises
        the error that ended it."""
        try:
            item = self._arrived.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return None
        if isinstance(item, Answer):
            return item
        raise item.again()


class Connection:
    """A connection is open until it fails, or until the server or `fail` ends it.  When a connection ends, every
    waiting caller gets the reason as an error, and the thread that reads ends.

    Thread-safe, and without a lock, because a signal handler or the garbage collector may call `fail` and `join` in a
    thread that is in any of the methods, and would wait there for a lock that this thread or the reader waits for.
    Each step is one operation of a dict, a list or a set, which no other thread can interrupt."""

    def __init__(self, address: str, wire: Wire, tls: Tls | None) -> None:
        self.address = address
        self._tls = tls
        self.used_at = time.monotonic()
        self._wire = wire
        self._opaques = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}
        self._failures: list[RocketSimError] = []  # the first one counts
        self._senders: set[int] = set()  # the threads that are in `send`
        self._reader = threading.Thread(target=self._read, name=f"rocketsim-remoting-{address}", daemon=True)
        self._reader.start()

    @property
    def is_open(self) -> bool:
        return not self._failures

    @property
    def is_idle(self) -> bool:
        return not self._inboxes

    def numbers(self, inbox: Inbox, count: int) -> list[int]:
        """Returns numbers for `count` requests, whose answers are then put into `inbox`.  If the connection has ended,
        raises the error that ended it."""
        taken = [next(self._opaques) & 0x7FFFFFFF for _ in range(count)]
        inbox.waiting.update(taken)
        self._inboxes.update(dict.fromkeys(taken, inbox))
        # `fail` notes the failure before it takes the inboxes, so a failure at this moment is seen here or reaches the
        # inbox.
        if self._failures:
            self.forget(inbox)
            raise self._ended()
        return taken

    def send(self, frames: Sequence[bytes | memoryview], deadline: float) -> None:
        """Sends requests, encoded with numbers that `numbers` has returned.  Raises BrokerUnavailable or
        CallTimeout."""
        self.used_at = time.monotonic()
        try:
            self._senders.add(threading.get_ident())
            try:
                self._wire.send(b"".join(frames), deadline)
            finally:
                self._senders.discard(threading.get_ident())
        except TimeoutError as error:
            self.fail(CallTimeout(f"{self.address}: {error}", address=self.address))
            raise self._ended() from error
        except OSError as error:
            if self._tls is not None:
                # The server may have sent a TLS alert with its reason for ending the connection.  If so, the reader
                # thread gets the alert, which becomes the error of the calls.
                self._wire.shut()
                self._reader.join(ALERT_S)
            self.fail(BrokerUnavailable(f"{self.address}: not reachable any more ({error})", address=self.address))
            raise self._ended() from error

    def forget(self, inbox: Inbox) -> None:
        """Makes the connection drop later answers to the requests of this inbox."""
        with suppress(KeyError):  # at the end: the reader removes the numbers of answers meanwhile
            while True:
                self._inboxes.pop(inbox.waiting.pop(), None)

    def fail(self, why: RocketSimError) -> None:
        """Ends the connection, and raises `why` in all callers that wait.  If the connection fails more than once, the
        first reason counts."""
        self._failures.append(why)
        inboxes: set[Inbox] = set()
        with suppress(KeyError):  # at the end: the reader removes the numbers of answers meanwhile
            while True:
                inboxes.add(self._inboxes.popitem()[1])
        for inbox in inboxes:
            inbox.put(self._failures[0])
        self._wire.shut()

    def join(self) -> None:
        """Waits for the thread that reads, after `fail`.  Does not wait in that thread itself, and neither in a signal
        handler that has interrupted a send, because the reader may need the wire, which this thread then holds."""
        if self._reader is not threading.current_thread() and threading.get_ident() not in self._senders:
            self._reader.join()

    def _ended(self) -> RocketSimError:
        return self._failures[0].again()

    # --- the reader ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        why: RocketSimError
        try:
            self._receive()
            why = BrokerUnavailable(f"{self.address} closed the connection", address=self.address)
        except FrameError as error:
            found = protocol_of(error.first)
            what = f"{self.address} sent bytes that are not an answer"
            why = BrokerUnavailable(
                f"{what}: {advice_on(found, ServerProtocol.REMOTING) or error}", address=self.address
            )
            if found is ServerProtocol.TLS:
                why = TlsFailed(str(why), address=self.address)
        except OSError as error:
            why = BrokerUnavailable(f"{self.address}: the connection broke ({error})", address=self.address)
            # A TLS 1.3 server checks the client's certificate after the client's handshake has ended, so a refused
            # certificate is seen only here, by a read.
            if self._tls is not None and isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                why = TlsFailed(f"{self.address}: {needs_certificate(self._tls)}", address=self.address)
        self.fail(why)
        self._wire.close()

    def _receive(self) -> None:
        """Reads answers until the connection ends."""
        usual = room = bytearray(ROOM_BYTES)
        view = memoryview(room)
        begin = end = 0  # the part of the buffer that is received and not used yet
        while got := self._wire.receive_into(view[end:]):
            end += got
            needed = ROOM_BYTES
            while end - begin >= frame.HEAD.size:
                form, header_bytes, body_bytes = frame.lengths(view[begin : begin + frame.HEAD.size])
                head_at = begin + frame.HEAD.size
                body_at = head_at + header_bytes
                if end < body_at + body_bytes:
                    needed = max(ROOM_BYTES, body_at + body_bytes - begin)
                    break
                self._arrived(form, bytes(view[head_at:body_at]), view[body_at : body_at + body_bytes])
                begin = body_at + body_bytes
            if 0 < end - begin < frame.HEAD.size and protocol_of(first := bytes(view[begin:end])) is ServerProtocol.TLS:
                # A TLS alert has seven bytes, and no frame can begin with them.
                raise FrameError(f"{first!r} is TLS", first)
            if begin or needed > len(room):
                rest = bytes(view[begin:end])
                room = usual if needed == ROOM_BYTES else bytearray(needed)
                view = memoryview(room)
                view[: len(rest)] = rest
                begin, end = 0, len(rest)

    def _arrived(self, form: Form, head: bytes, body: memoryview) -> None:
        flag, opaque = _numbers(form, head)
        if not flag & frame.IS_ANSWER:
            return  # the server's own requests need no answer from a client that is in no group
        inbox = self._inboxes.pop(opaque, None)
        if inbox is not None:  # None if the caller has given up
            inbox.waiting.discard(opaque)
            inbox.put(Answer(opaque, form, head, bytes(body)))


def _numbers(form: Form, head: bytes) -> tuple[int, int]:
    """Returns the flag and the request's number (opaque).  The two numbers are searched in the header's bytes, and the
    whole header is decoded only if the search does not find them."""
    if form is Form.JSON and head.count(b'"flag"') == 1 == head.count(b'"opaque"'):
        flag, opaque = _FLAG.search(head), _OPAQUE.search(head)
        if flag and opaque:
            return int(flag[1]), int(opaque[1])
    header = frame.decode_header(form, head)
    return header.flag, header.opaque
