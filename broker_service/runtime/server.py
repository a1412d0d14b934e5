"""The gRPC server of a process: its port, its limits, its reflection and health services, and its address file.

All code that listens or connects does so through a `Network`, which the simulation replaces.

`start_server` does all steps of a server's start.  A process whose services must know the port before they are added
does these steps itself.
"""

import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.internal import api_implementation
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from broker_service.config.broker_config import BrokerConfig
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.errors import ConfigError
from broker_service.runtime.certificates import Certificates
from broker_service.runtime.self_signed_certificate import SelfSignedCertificate
from broker_service.store.files import Files, open_file_limit

logger = logging.getLogger(__name__)

_BACKLOG = 128
HANDSHAKE_TIMEOUT_MS = 30_000  # the time limit for TLS and the first frames of HTTP/2
# Calls with gRPC's compression are answered with UNIMPLEMENTED, because 100 KiB may unpack to 100 MiB.  No known client
# compresses its calls in this way.
UNCOMPRESSED = ("grpc.compression_enabled_algorithms_bitset", 1)
KEEPALIVE_MS = 20_000  # time between two pings to a client
KEEPALIVE_TIMEOUT_MS = 10_000  # time for the answer to a ping
MAX_STREAMS_OF_CONNECTION = 10_000
MAX_CONNECTIONS = 20_000  # the limit for one port, if the process may have enough open files
HANDLES_SHARE = 3 / 8  # the part of the process's file handles for one port; a broker has two ports and its store
UNREAD_BYTES = 65_535  # bytes of a request that a client may send before the server asks for it
# By default gRPC lets a client send 4 MiB in advance, or 64 MiB if it is fast, even of a call that will be refused.
SENT_AHEAD = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", UNREAD_BYTES))

OpenChannel = Callable[[str, Sequence[tuple[str, Any]]], grpc.aio.Channel]


class Network:
    """The network of a process: gRPC over TCP, or over TLS if the process has certificates."""

    certificates: Certificates | None = None
    self_signed: SelfSignedCertificate | None = None  # used for RocketMQ 5's clients if no certificate is configured
    client_auth_ports: frozenset[str] = frozenset()  # keys of the ports on which clients need a certificate

    @classmethod
    def of(cls, config: BrokerConfig | NamesrvConfig) -> "Network":
        """Makes the network for a process with this configuration.

        Raises ConfigError if the certificates cannot be used.
        """
        made = cls()
        if config.tls_cert is not None and config.tls_key is not None:
            made.certificates = Certificates(config.tls_cert, config.tls_key, config.tls_ca)
            made.client_auth_ports = config.client_auth_ports
        elif isinstance(config, BrokerConfig) and config.makes_certificate:
            made.self_signed = _self_signed(config)
        return made

    def open_channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        """Returns a channel, which the caller closes.

        The channel connects with its first call.  A channel keeps its certificates even if their files change.
        """
        if self.certificates is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self.certificates.channel_credentials(), options=options)

    def listen(
        self,
        bind_address: str,
        port: int,
        max_message_bytes: int,
        key: str = "listenPort",
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        options: Sequence[tuple[str, Any]] = (),
    ) -> tuple[grpc.aio.Server, int]:
        """Returns a server that is bound but not started, and its port.

        `port` is the value of the configuration key `key`; with 0 the system chooses a free port.
        """
        server = build_server(max_message_bytes, interceptors, options)
        credentials = self.server_credentials(key)
        add_port = (
            server.add_insecure_port
            if credentials is None
            else partial(server.add_secure_port, server_credentials=credentials)
        )
        return server, bind(add_port, bind_address, port, key)

    def listen_for_front(self, bind_address: str, port: int, key: str) -> tuple[socket.socket, int]:
        """Returns a listening socket and its port, for code that accepts connections without gRPC."""
        try:
            made = _listening(_bound_tcp(bind_address, port))
        except OSError as error:
            raise _cannot_listen(key, bind_address, port, error) from error
        return made, int(made.getsockname()[1])

    def server_credentials(self, key: str) -> grpc.ServerCredentials | None:
        """Returns the credentials of the port with this key, or None for plaintext."""
        if self.certificates is None:
            return None
        return self.certificates.server_credentials(client_auth=key in self.client_auth_ports)

    def listen_for_streams(self, unix_name: str, bind_address: str, port: int) -> list[socket.socket]:
        """Returns listening sockets: an abstract Unix socket on Linux, and a TCP socket unless `port` is 0."""
        if "listenPort" in self.client_auth_ports:
            return []  # these sockets do not check certificates of clients
        sockets = []
        if sys.platform == "linux":
            sockets.append(_listening(_bound(socket.AF_UNIX, f"\0{unix_name}")))
        if port and self.certificates is not None:
            logger.warning("pullRangeStreamPort=%d is not opened: with TLS ranges, frames and slaves use gRPC", port)
        elif port:
            try:
                sockets.append(_listening(_bound_tcp(bind_address, port)))
            except OSError as error:
                raise ConfigError(f"pullRangeStreamPort={port}: cannot listen on {bind_address}: {error}") from error
        return sockets


def _self_signed(config: BrokerConfig) -> SelfSignedCertificate | None:
    """Returns None, and logs what to do, if no certificate can be made."""
    hosts = [host for host in (config.bind_address, config.broker_ip1) if host and not is_unspecified(host)]
    try:
        return SelfSignedCertificate(hosts)
    except ModuleNotFoundError as error:
        logger.warning(
            "RocketMQ 5's clients can connect to grpcServerPort=%d only if TLS is switched off in them: "
            "tlsCert is not set, and the broker cannot make a certificate for itself (%s). Run `pip install "
            "cryptography`, or set tlsCert and tlsKey, or tlsTestModeEnable=false if no client is to use TLS",
            config.grpc_server_port,
            error,
        )
        return None


def _listening(made: socket.socket) -> socket.socket:
    try:
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _bound_tcp(bind_address: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(bind_address.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    return _bound(family, address)


def _bound(family: socket.AddressFamily, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


class Service(NamedTuple):
    """A servicer, and the generated function that adds it to a server.  `frequent` has the methods whose calls gRPC
    awaits separately (see `MethodTable`).
    """

    name: str  # the full name with the package, as in `rocketsim.NameServer`
    add_to_server: Callable[[Any, Any], Any]
    servicer: Any
    frequent: Collection[str] = ()


class MethodTable(grpc.GenericRpcHandler):
    """The methods of a server's services.  Generated code adds methods to a MethodTable as if the table were the
    server.

    gRPC's asyncio server awaits the calls of each registered method separately.  A flood of calls of one registered
    method therefore does not delay the calls of another one, but each registered method makes every call 1.3 µs slower.
    Only the `frequent` methods of a service are registered, and the server awaits the calls of all other methods
    together.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._handlers: dict[str, Any] = {}  # by path
        self._frequent: Collection[str] = ()
        server.add_generic_rpc_handlers((self,))

    def add(self, service: Service) -> None:
        self._frequent = service.frequent
        service.add_to_server(service.servicer, self)

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Does nothing: generated code adds the same methods with `add_registered_method_handlers`, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self._handlers.update({f"/{service}/{method}": handler for method, handler in handlers.items()})
        frequent = {method: handler for method, handler in handlers.items() if method in self._frequent}
        self._server.add_registered_method_handlers(service, frequent)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns the handler of a called method, or None if the table does not have the method."""
        return self._handlers.get(str(handler_call_details.method))


async def start_server(
    services: Iterable[Service],
    *,
    bind_address: str,
    port: int,
    address_file: Path | None,
    max_message_bytes: int,
    network: Network | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> tuple[grpc.aio.Server, int]:
    """Returns a started server and its port.  The caller must stop the server."""
    server, bound_port = (network or Network()).listen(bind_address, port, max_message_bytes, interceptors=interceptors)
    await add_services(server, services)
    await server.start()
    if address_file is not None:
        write_address_file(address_file, bind_address, bound_port, Files())
    return server, bound_port


def most_connections(handles: int) -> int:
    """Returns the limit of connections to one port.

    `handles` is the number of files that the process may have open, or less than 0 for no limit.
    """
    return MAX_CONNECTIONS if handles < 0 else max(1, min(MAX_CONNECTIONS, int(handles * HANDLES_SHARE)))


def build_server(
    max_message_bytes: int,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Server:
    """Returns a server without a port.

    `max_message_bytes` limits a message including gRPC's overhead, so callers pass more than their own limit.

    `interceptors` are those of access control.  With interceptors a client may send only UNREAD_BYTES of a call until
    the server knows the user.  Once the user is known, the client may be up to 1 MiB ahead of what the server has
    received.
    """
    return grpc.aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            # A second process with the same port must fail instead of sharing the port.
            ("grpc.so_reuseport", 0),
            # The server notices within half a minute that a client, or the client's machine, has died.
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # gRPC's default of one minute would override `grpc.keepalive_timeout_ms`
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            # Clients send pings, too; the server must not end their connections because of that.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.max_concurrent_streams", MAX_STREAMS_OF_CONNECTION),
            # By default a connection that sends nothing holds its file handles for two minutes.
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
            # gRPC would keep statistics of each connection, which nothing here reads.
            ("grpc.enable_channelz", 0),
            ("grpc.max_allowed_incoming_connections", most_connections(open_file_limit())),
            UNCOMPRESSED,
            *(SENT_AHEAD if interceptors else ()),
            *options,
        ],
    )


def bind(add_port: Callable[[str], int], bind_address: str, port: int, key: str) -> int:
    """Binds a server and returns its port; with `port` 0 the system chooses a free one.  Raises ConfigError.

    `add_port` is a method of the server, which takes an address and may raise RuntimeError.
    """
    try:  # the port is tried first, because gRPC writes to standard error if the port is in use
        _bound_tcp(bind_address, port).close()
    except OSError as error:
        raise _cannot_listen(key, bind_address, port, error) from error
    address = host_port(bind_address, port)
    try:
        bound_port = add_port(address)
    except RuntimeError as error:
        raise _cannot_listen(key, bind_address, port, error) from error
    if bound_port == 0:
        raise _cannot_listen(key, bind_address, port, None)
    return bound_port


def _cannot_listen(key: str, bind_address: str, port: int, error: Exception | None) -> ConfigError:
    why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return ConfigError(
        f"{key}={port}: cannot listen on {host_port(bind_address, port)}{why}; "
        "is another process using the port, and is bindAddress an address of this machine?"
    )


async def add_services(server: grpc.aio.Server, services: Iterable[Service]) -> health.aio.HealthServicer:
    """Adds the services, the reflection service, which grpcurl uses, and the standard health service.

    Returns the health service, so that the caller can report NOT_SERVING before it stops the server.
    """
    health_servicer = health.aio.HealthServicer()
    table = MethodTable(server)
    names = []
    for service in services:
        table.add(service)
        names.append(service.name)
    table.add(Service(health.SERVICE_NAME, health_pb2_grpc.add_HealthServicer_to_server, health_servicer))
    for name in (*names, health.OVERALL_HEALTH):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return health_servicer


def check_protobuf() -> None:
    """Raises ConfigError for protobuf in pure Python, which is slow and does not limit the depth of messages."""
    implementation = api_implementation.Type()
    if implementation != "upb":
        raise ConfigError(f"protobuf runs as {implementation!r}, not upb: install its binary wheel for this Python")


def warn_of_open_access(bind_address: str, *, has_access_control: bool) -> None:
    if not has_access_control and not is_loopback(bind_address):
        logger.warning(
            "NO ACCESS CONTROL: bindAddress=%s and authenticationEnabled=false: everybody who reaches this port may "
            "read, change and delete everything",
            bind_address,
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_unspecified(host: str) -> bool:
    """Returns True for 0.0.0.0 and ::, with which a server listens on all addresses of its machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def write_address_file(path: Path, host: str, port: int, files: Files, *, private: bool = False) -> None:
    """Writes `host:port` to a file, so that the starter of a process with port 0 can find it.

    No reader sees an incomplete file.
    """
    files.make_directory(path.parent)
    files.write_atomically(path, f"{host_port(host, port)}\n".encode(), private=private)


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
