"""Finds out which protocol a server speaks, for `protocol=auto` and for errors that say which kind of server is at a
wrong address.

A gRPC server sends the first bytes (HTTP/2's SETTINGS) by itself.  RocketMQ's servers send nothing until they are
asked.  Over TLS a gRPC server agrees on the protocol `h2`, and RocketMQ's servers agree on no protocol.
"""

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum, auto

from rocketsim_proto.remoting import frame
from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import FrameError, Header

from rocketsim_client.addresses import connected
from rocketsim_client.tls import SPEAKS_TLS

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
    """Connects to the server and returns its protocol, or ServerProtocol.NONE if that fails or takes longer than
    `timeout_s`.  Never raises.  Without a `context` the connection is plaintext.  The `context` is changed so that it
    accepts any certificate, and must therefore be used for nothing else.  Nothing secret is sent.  The first real call
    checks the certificate, and its error says what is wrong with it."""
    deadline = time.monotonic() + timeout_s
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with suppress(OSError, ValueError), connected(host, int(port), timeout_s) as plain:
        if context is not None:
            context.set_alpn_protocols(["h2"])
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with context.wrap_socket(plain, server_hostname=host) as secured:
                return (
                    ServerProtocol.GRPC if secured.selected_alpn_protocol() == "h2" else _protocol_on(secured, deadline)
                )
        return _protocol_on(plain, deadline)
    return ServerProtocol.NONE


def _protocol_on(server: socket.socket, deadline: float) -> ServerProtocol:
    first = _first_bytes(server, min(time.monotonic() + SPEAKS_FIRST_S, deadline))
    if first is None:
        fields = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
        server.sendall(frame.encode(Header(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, fields=fields)))
        first = _first_bytes(server, deadline)
    return protocol_of(first or b"")


def _first_bytes(server: socket.socket, deadline: float) -> bytes | None:
    """Returns the first eight bytes that the server sends, or fewer if the connection or the time ends before.
    Returns None if no byte comes in time."""
    data = b""
    while len(data) < frame.HEAD.size:
        server.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            piece = server.recv(frame.HEAD.size - len(data))
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
    if first[:2] in (b"\x16\x03", b"\x15\x03"):  # a handshake or an alert of any version
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


class SeenProtocols:
    """What `protocol=auto` has found at the servers' addresses, for the errors of later calls to them.  Thread-safe."""

    def __init__(self) -> None:
        self._by_address: Mapping[str, ServerProtocol] = {}

    def replace(self, by_address: Mapping[str, ServerProtocol]) -> None:
        """Forgets all that was seen before."""
        self._by_address = by_address

    def at(self, address: str) -> ServerProtocol:
        """Returns the protocol that was found at the address, or ServerProtocol.NONE if none was found."""
        return self._by_address.get(address, ServerProtocol.NONE)


NAME_SERVER_ADVICE = "give the address of a name server, whose port is 9876 by default"
_SERVER_ADVICE = f"{NAME_SERVER_ADVICE}, or a broker's address if you give brokers"
GRPC_PORT_ADVICE = (
    "the port for RocketMQ 5's clients, which is the grpcServerPort of a RocketSim broker or the gRPC port of a "
    "RocketMQ proxy. Give the address of RocketSim's or RocketMQ's name server instead (its port is 9876 by default), "
    "or the listenPort of a RocketSim broker, or the remoting port of the proxy (8080 by default)"
)
_ADVICE = {
    ServerProtocol.GRPC: (
        "it speaks gRPC. If it is a server of RocketSim, leave out protocol=remoting. Otherwise it may be "
        f"{GRPC_PORT_ADVICE}"
    ),
    ServerProtocol.REMOTING: (
        "this is a name server or broker of RocketMQ itself: it answers in RocketMQ's remoting protocol. Leave out "
        "protocol=grpc, or give the address of a RocketSim server"
    ),
    ServerProtocol.TLS: SPEAKS_TLS,
    ServerProtocol.HTTP: f"it is a web server: {_SERVER_ADVICE}",
    ServerProtocol.UNKNOWN: f"it is no server of RocketSim or RocketMQ: {_SERVER_ADVICE}",
}


def advice_on(found: ServerProtocol, own: ServerProtocol) -> str:
    """Returns the end of an error about an address, for a client that uses the protocol `own`.  The text says what was
    found at the address, and what to write instead.  It is empty if nothing else than `own` was found there."""
    return "" if found is own else _ADVICE.get(found, "")
