"""Makes one call, PullRange or Send, over a plain socket.  Frames are read without a copy.

`rocketsim_proto/range_stream.py` describes the bytes on the socket.  The socket is blocking, because the kernel then
receives a whole frame in one call.
"""

import errno
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.bytes_field import Received
from rocketsim_proto.range_stream import Kind

from rocketsim_client.errors import BadAnswer, BrokerUnavailable, CallTimeout, ClientClosed, RocketSimError, refusal
from rocketsim_client.transport.own.stream_offers import StreamOffers
from rocketsim_client.transport.own.stream_sockets import StreamSockets

CONNECT_S = 1.0  # short, because a firewall may drop packets to the port silently
RECEIVE_BUFFER = 4 << 20  # bytes, enough for a frame; Linux gives at most net.core.rmem_max
SEND_BUFFER = 4 << 20

_STATUS = {int(status.value[0]): status.name for status in grpc.StatusCode}


class _Broken(Exception):
    """The connection has ended."""


class NotThisCall(Exception):
    """The broker has done nothing for this call, which has to go over gRPC, but the next call may use a stream."""


class StreamCall:
    """One call over a socket of its own."""

    def __init__(
        self,
        offers: StreamOffers,
        sockets: StreamSockets,
        call: str,
        address: str,
        deadline: float,
        timeout_s: float,
    ) -> None:
        self._offers = offers
        self._sockets = sockets
        self._call = call
        self._address = address
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._first: range_stream.Answer | None = None

    def begin(self, offer: pb.StreamOffer, request: pb.PullRangeRequest) -> bool:
        """Connects, sends the request and reads the head of the first answer.  Returns False if the stream does not
        work, or if the broker does not serve the request over it.  The broker has done nothing when False is
        returned."""
        asked = self._request(offer, pull=request)
        if len(asked) > range_stream.MAX_REQUEST_BYTES:
            raise NotThisCall
        try:
            self._connect(offer)
            self._write_all([memoryview(range_stream.request(asked))])
            self._first = self._first_head()
        except range_stream.Illegal as error:
            raise self._illegal(error) from error
        except BlockingIOError:
            raise self._timed_out() from None
        except (OSError, _Broken):
            if self._sockets.is_closed:
                raise self._client_closed() from None
            return False
        return self._first.kind is not Kind.NOT_HERE

    def send(
        self, offer: pb.StreamOffer, request: pb.SendRequest, records: bytes | memoryview
    ) -> pb.SendResponse | None:
        """Sends the records and returns the answer.  Returns None if the broker did not get the whole request, or does
        not serve it over a stream.  The broker has stored nothing when None is returned."""
        asked = self._request(offer, send=request, records_bytes=len(records))
        try:
            self._connect(offer)
            if self._connected_socket.family == socket.AF_UNIX:
                self._connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            self._write_all([memoryview(range_stream.request(asked)), memoryview(records)])
        except BlockingIOError:
            raise self._timed_out() from None
        except OSError:
            if self._sockets.is_closed:
                raise self._client_closed() from None
            return None
        with self._translating_errors("the connection ended before the answer"):
            answer = self._first_head()
            if answer.kind is Kind.NOT_HERE:
                return None
            _, message = self._body(answer)
            if answer.kind is Kind.REFUSED:
                raise self._refusal(message)
            if answer.kind is not Kind.SENT:
                raise range_stream.Illegal(f"unexpected answer of kind {answer.kind.name}")
            return pb.SendResponse.FromString(message)

    def frames(self) -> Iterator[Received[pb.PullFrame]]:
        """Yields the frames of a call that has begun.  Closing the iterator ends the call."""
        try:
            with self._translating_errors("the stream broke off"):
                answer = self._first
                while True:
                    answer = answer or self._head()
                    if answer.kind is Kind.END:
                        return
                    records, message = self._body(answer)
                    if answer.kind is Kind.REFUSED:
                        raise self._refusal(message)
                    if answer.kind is not Kind.FRAME:
                        raise range_stream.Illegal(f"unexpected answer of kind {answer.kind.name}")
                    yield Received(records.toreadonly(), pb.PullFrame.FromString(message))
                    answer = None
        finally:
            self.close()

    @contextmanager
    def _translating_errors(self, how: str) -> Iterator[None]:
        """Raises the client's error for an exception in a call that has begun.  `how` is the error's text for a
        broken connection."""
        try:
            yield
        except (range_stream.Illegal, DecodeError) as error:
            raise self._illegal(error) from error
        except BlockingIOError:
            raise self._timed_out() from None
        except (OSError, _Broken) as error:
            if self._sockets.is_closed:
                raise self._client_closed() from error
            self._offers.failed(self._address)
            raise BrokerUnavailable(
                f"{self._call} at {self._address}: {how} ({error})", address=self._address
            ) from error

    def close(self) -> None:
        if self._socket is not None:
            self._sockets.ended(self._socket)

    def _connect(self, offer: pb.StreamOffer) -> None:
        """Connects to the broker's Unix socket, or over TCP if this machine has no such socket."""
        failure: OSError | None = None
        if offer.unix_name and sys.platform == "linux":
            self._socket = self._sockets.opened(socket.AF_UNIX)
            try:
                self._limit(socket.SO_SNDTIMEO)
                self._socket.connect(f"\0{offer.unix_name}")
                return
            except ConnectionRefusedError as error:
                self._sockets.ended(self._socket)
                failure = error
        if not offer.port:
            raise failure or OSError(errno.ENOTSUP, "no stream that this machine could use")
        self._offers.is_elsewhere(self._address, offer)
        self._connect_tcp(offer.port)

    def _connect_tcp(self, port: int) -> None:
        host = self._address.rpartition(":")[0].strip("[]")
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = self._sockets.opened(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(max(0.001, min(CONNECT_S, self._deadline - time.monotonic())))
        self._socket.connect(where)
        self._socket.setblocking(True)

    def _request(self, offer: pb.StreamOffer, **call: Any) -> bytes:
        return pb.StreamRequest(
            version=range_stream.VERSION,
            instance=offer.instance,
            timeout_ms=max(1, int((self._deadline - time.monotonic()) * 1000)),
            **call,
        ).SerializeToString()

    @property
    def _connected_socket(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def _limit(self, option: int) -> None:
        """Limits the socket's next read or write to the time that is left until the deadline.  The limit is set as the
        kernel's timeout.  Python's own timeout would make reads slower: each read would call `poll` first, and return
        fewer bytes."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._timed_out()
        seconds = int(left)
        value = struct.pack("@ll", seconds, max(1, int((left - seconds) * 1e6)))
        self._connected_socket.setsockopt(socket.SOL_SOCKET, option, value)

    def _write_all(self, parts: list[memoryview]) -> None:
        """Writes all parts.  If an OSError is raised, the broker cannot have received all parts."""
        while parts:
            self._limit(socket.SO_SNDTIMEO)
            try:
                sent = self._connected_socket.sendmsg(parts, [], socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                if self._was_told_no_room():
                    raise NotThisCall from None
                raise
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]

    def _was_told_no_room(self) -> bool:
        """True if the broker has answered NO_ROOM before it closed the connection."""
        head = bytearray(range_stream.ANSWER_HEAD.size)
        try:
            got = self._connected_socket.recv_into(head, 0, socket.MSG_DONTWAIT)
            return got == len(head) and range_stream.answer_of(head).kind is Kind.NO_ROOM
        except (OSError, range_stream.Illegal):
            return False

    def _first_head(self) -> range_stream.Answer:
        answer = self._head()
        if answer.kind is Kind.NO_ROOM:
            raise NotThisCall
        return answer

    def _head(self) -> range_stream.Answer:
        head = bytearray(range_stream.ANSWER_HEAD.size)
        self._read_all(memoryview(head))
        return range_stream.answer_of(head)

    def _body(self, answer: range_stream.Answer) -> tuple[memoryview, bytes]:
        """Reads the rest of an answer, and returns (records, message)."""
        message = bytearray(answer.message_bytes)
        records = np.empty(answer.records_bytes, np.uint8).data  # memory that is not filled with zeros
        parts = [part for part in (memoryview(message), records) if part]
        if parts:
            self._limit(socket.SO_RCVTIMEO)
            got = self._connected_socket.recvmsg_into(parts, 0, socket.MSG_WAITALL)[0]
            if not got:
                raise _Broken("the connection was closed")
            self._read_all(memoryview(message)[got:])
            self._read_all(records[max(0, got - len(message)) :])
        return records, bytes(message)

    def _refusal(self, message: bytes) -> RocketSimError:
        told = pb.StreamRefusal.FromString(message)
        return refusal(told.code, told.details, self._address, _STATUS.get(told.status, ""))

    def _read_all(self, view: memoryview) -> None:
        """Reads until the whole view is filled."""
        while view:
            self._limit(socket.SO_RCVTIMEO)
            size = self._connected_socket.recv_into(view, 0, socket.MSG_WAITALL)
            if not size:
                raise _Broken("the connection was closed")
            view = view[size:]

    def _illegal(self, error: Exception) -> RocketSimError:
        self._offers.failed(self._address)
        return BadAnswer(f"{self._call} at {self._address}: {error}", address=self._address)

    def _timed_out(self) -> RocketSimError:
        return CallTimeout(
            f"{self._call} at {self._address}: no answer within {self._timeout_s:.3g} s", address=self._address
        )

    def _client_closed(self) -> RocketSimError:
        return ClientClosed(f"{self._call}: this client was closed during the call")
