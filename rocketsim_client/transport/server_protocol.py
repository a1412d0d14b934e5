"""Finds out which protocol a server speaks, for `protocol=auto` and for errors that say which kind of server is at a
wrong address.

A gRPC server sends the first bytes (HTTP/2's SETTINGS) by itself.  RocketMQ's servers send nothing until they are
asked.  Over TLS a gRPC server agrees on the protocol `h2`, and RocketMQ's servers agree on no protocol.
"""

import socket
import ssl
import time
from contextlib import suppress
from enum import Enum, auto

from rocketsim_proto.remoting import frame
from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import FrameError, Header

DETECTION_S = 1.0
SPEAKS_FIRST_S = 0.05  # a gRPC server sends its first bytes within two milliseconds


class ServerProtocol(Enum):
    GRPC = auto()
    REMOTING = auto()
    TLS = auto()  # the server speaks TLS, and this client does not
    HTTP = auto()
    UNKNOWN = auto()
    NONE = auto()  # no server listens, or it sends nothing


def protocol_at(address: str, context: ssl.SSLContext | None, timeout_s: float = DETECTION_S) -> ServerProtocol:
    """Connects to the server and returns its protocol, or ServerProtocol.NONE if that fails.  Never raises.  Without
    a `context` the connection is plaintext.  The `context` is changed so that it accepts any certificate, and must
    therefore be used for nothing else.  Nothing secret is sent.  The first real call checks the certificate, and its
    error says what is wrong with it."""
    deadline = time.monotonic() + timeout_s
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with suppress(OSError, ValueError), socket.create_connection((host, int(port)), timeout_s) as plain:
        if context is not None:
            context.set_alpn_protocols(["h2"])
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with context.wrap_socket(plain, server_hostname=host) as connected:
                return (
                    ServerProtocol.GRPC
                    if connected.selected_alpn_protocol() == "h2"
                    else _protocol_on(connected, deadline)
                )
        return _protocol_on(plain, deadline)
    return ServerProtocol.NONE


def _protocol_on(connected: socket.socket, deadline: float) -> ServerProtocol:
    first = _first_bytes(connected, min(time.monotonic() + SPEAKS_FIRST_S, deadline))
    if first is None:
        fields = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
        connected.sendall(frame.encode(Header(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, fields=fields)))
        first = _first_bytes(connected, deadline)
    return protocol_of(first or b"")


def _first_bytes(connected: socket.socket, deadline: float) -> bytes | None:
    """Returns the first eight bytes that the server sends, or fewer if the connection or the time ends before.
    Returns None if no byte comes in time."""
    data = b""
    while len(data) < frame.HEAD.size:
        connected.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            piece = connected.recv(frame.HEAD.size - len(data))
        except TimeoutError:
            return data or None
        if not piece:
            break
        data += piece
    return data


def protocol_of(first: bytes) -> ServerProtocol:
    """Recognises the protocol by the first eight bytes that a server has sent."""
    if not first:
        return ServerProtocol.NONE
    if first[:3] in (b"\x16\x03\x01", b"\x16\x03\x03", b"\x15\x03\x01", b"\x15\x03\x03"):
        return ServerProtocol.TLS
    if first.startswith(b"HTTP"):
        return ServerProtocol.HTTP
    if len(first) >= 4 and first[0] == 0 and first[3] == 4:
        return ServerProtocol.GRPC
    with suppress(FrameError):
        if len(first) == frame.HEAD.size:
            frame.lengths(first)
            return ServerProtocol.REMOTING
    return ServerProtocol.UNKNOWN


NAME_SERVER_ADVICE = "give the address of RocketMQ's name server, whose port is 9876 by default"
# The end of an error about a wrong address, for a client that uses the remoting protocol.
ADVICE = {
    ServerProtocol.GRPC: (
        "it speaks gRPC: a RocketSim server (leave out protocol=remoting), or the gRPC port of a RocketMQ proxy, which "
        f"serves no pulls ({NAME_SERVER_ADVICE})"
    ),
    ServerProtocol.TLS: "it speaks TLS, and this client uses plaintext: set the option tls, and tlsCa",
    ServerProtocol.HTTP: f"it is a web server: {NAME_SERVER_ADVICE}",
    ServerProtocol.UNKNOWN: f"it is no server of RocketMQ: {NAME_SERVER_ADVICE}",
}
