"""Port: keeps the port for RocketMQ 5's clients open while this broker is a master that takes writes, and closed
otherwise.

A client that has both addresses of a pair connects to whichever broker listens, so a slave must not listen.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
from rocketmq_v2 import service_pb2, service_pb2_grpc
from rocketsim_proto.limits import MAX_RPC_BYTES

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.errors import ConfigError
from broker_service.modes import TlsMode
from broker_service.runtime.figures import Figure, counter, gauge
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import MethodTable, Service, bind, build_server, host_port, write_address_file
from broker_service.store.files import open_file_limit
from broker_service.wire.clients import Clients
from broker_service.wire.v2.endpoint import Endpoint
from broker_service.wire.v2.front import Front, most_connections
from broker_service.wire.v2.native_server import NativeServer
from broker_service.wire.v2.servicer import V2Servicer

logger = logging.getLogger(__name__)

KEY = "grpcServerPort"
OFF = -1
TRY_AGAIN_S = 2.0
IDLE_MS = 120_000  # a connection without a call is closed after this time, as by RocketMQ's proxy
FREQUENT = "SendMessage", "ReceiveMessage", "AckMessage", "QueryRoute", "Telemetry"
CLOSE_GRACE_S = 2.0  # time that calls have to end when this broker stops being the master


class Port:
    """Opens and closes the port.  Each time the port opens, `opened` is called before the port takes calls."""

    def __init__(
        self,
        broker: Broker,
        endpoint: Endpoint,
        servicer: V2Servicer,
        clients: Clients,
        machine: Machine,
        address_file: Path,
        opened: Callable[[], None],
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._broker = broker
        self.servicer = servicer
        self._clients = clients
        self._machine = machine
        self._address_file = address_file
        self._opened = opened
        self.endpoint = endpoint
        self._interceptors = interceptors
        self._server: grpc.aio.Server | NativeServer | None = None
        self._closing: asyncio.Task[None] | None = None
        self._port = broker.config.grpc_server_port
        self._notified = broker.members_changed.waiter()
        broker.description_changed.wakes(self._notified)
        self._is_failure_logged = False
        self._refused = 0  # connections that were refused by earlier fronts, which are closed now

    @property
    def connections(self) -> int:
        """Returns the number of connections through the front; 0 if clients connect to gRPC directly."""
        return self.endpoint.front.connections if self.endpoint.front is not None else 0

    @property
    def connections_refused(self) -> int:
        """Returns the number of connections that fronts have refused since the broker's start."""
        return self._refused + (self.endpoint.front.refused if self.endpoint.front is not None else 0)

    def figures(self) -> Iterator[Figure]:
        yield gauge("rocketsim_client_streams", "Open streams of clients.", self._clients.stream_count)
        help_text = "Connections to a grpcServerPort that takes both plaintext and TLS."
        yield gauge("rocketsim_front_connections", help_text, self.connections)
        help_text = "Connections to a grpcServerPort that were closed because there were too many."
        yield counter("rocketsim_front_connections_refused", help_text, self.connections_refused)

    @property
    def address(self) -> str:
        """Returns the port's address as host:port; empty while the port is closed."""
        return self.endpoint.address

    async def run(self) -> None:
        """Opens and closes the port until it is cancelled.  The caller must call `close` afterwards."""
        while self._port != OFF:
            self._notified.clear()
            failed = False
            if self._may_be_open and self._server is None:
                failed = not await self._open()
            elif not self._may_be_open and self._server is not None:
                await self.close(CLOSE_GRACE_S)
                logger.info("the port for RocketMQ 5's clients is closed: %s", self._broker)
                self._broker.description_changed.notify()
            try:
                async with asyncio.timeout(TRY_AGAIN_S if failed else None):
                    await self._notified.wait()
            except TimeoutError:
                pass

    @property
    def _may_be_open(self) -> bool:
        broker = self._broker
        return broker.mastership.standing is Standing.WRITABLE and not broker.stopping and broker.failure is None

    async def _open(self) -> bool:
        """Opens the port.  Returns False if another process uses the port's number, for example a former master that is
        stopping.
        """
        config = self._broker.config
        try:
            server, port, front = self._listen()
        except ConfigError as error:
            if not self._is_failure_logged:
                logger.error(
                    "RocketMQ 5's clients cannot connect to this broker until its port is free; the broker tries again "
                    "every %g s: %s Give each broker of a machine a port of its own, or 0 for any free one, or -1 if "
                    "no such clients are to connect; all other clients use listenPort",
                    TRY_AGAIN_S,
                    error,
                )
            self._is_failure_logged = True
            return False
        self._is_failure_logged = False
        # if the system chose the number (port 0), the port gets the same number when it is opened again
        self._port = port
        if isinstance(server, NativeServer):
            service_pb2_grpc.add_MessagingServiceServicer_to_server(self.servicer, server)
        else:
            MethodTable(server).add(_service(self.servicer))
        self.endpoint.own_address = host_port(config.advertised_host, port)
        self.endpoint.front = front
        self._opened()
        self._server = server  # set before the start, so that `close` finds the server after a cancellation
        await server.start()
        if front is not None:
            await front.start()
        self.endpoint.is_open = True
        try:
            private = config.is_private(self._address_file)
            write_address_file(self._address_file, config.advertised_host, port, self._machine.files, private=private)
        except OSError as error:
            logger.error("the address file %s could not be written: %s", self._address_file, error)
        logger.info("RocketMQ 5's clients may connect to %s", host_port(config.bind_address, port))
        if self._machine.network.self_signed is not None:
            logger.info(
                "RocketMQ 5's clients may also use TLS, with a certificate that this broker has made for itself. "
                "This certificate does not protect against somebody who can take over the port; tlsCert and tlsKey do"
            )
        self._broker.description_changed.notify()
        return True

    def _listen(self) -> tuple[grpc.aio.Server | NativeServer, int, Front | None]:
        """Creates the server, and a `Front` if clients may choose between TLS and plaintext.  Raises ConfigError."""
        config, network = self._broker.config, self._machine.network
        if config.serves_natively:
            native = NativeServer(MAX_RPC_BYTES)
            return native, bind(native.add_insecure_port, config.bind_address, self._port, KEY), None
        options = [("grpc.max_connection_idle_ms", IDLE_MS)]
        beside_plaintext = self._credentials_beside_plaintext()
        if beside_plaintext is None:
            return (
                *network.listen(config.bind_address, self._port, MAX_RPC_BYTES, KEY, self._interceptors, options),
                None,
            )
        listening, port = network.listen_for_front(config.bind_address, self._port, KEY)
        front = Front(listening, most_connections(open_file_limit()))
        server = build_server(MAX_RPC_BYTES, self._interceptors, options)
        server.add_insecure_port(f"unix-abstract:{front.plaintext}")
        server.add_secure_port(f"unix-abstract:{front.tls}", beside_plaintext)
        return server, port, front

    def _credentials_beside_plaintext(self) -> grpc.ServerCredentials | None:
        """Returns the TLS credentials if clients may choose between TLS and plaintext, else None."""
        network = self._machine.network
        if network.certificates is not None:
            is_tls_only = self._broker.config.grpc_server_tls_mode is TlsMode.ENFORCING
            return None if is_tls_only else network.certificates.server_credentials(client_auth=False)
        return network.self_signed.server_credentials() if network.self_signed is not None else None

    async def close(self, grace_s: float) -> None:
        """Closes the port, and returns when it is closed.  Calls under way have `grace_s` seconds to end.

        A caller that is cancelled stops waiting, and the port still closes.  The caller does not wait in gRPC's `stop`
        itself, because `stop` may swallow the cancellation in Python 3.11.
        """
        server, self._server = self._server, None
        self.endpoint.is_open = False
        if server is not None:
            self._closing = asyncio.ensure_future(self._close(server, self.endpoint.front, grace_s))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self, server: grpc.aio.Server | NativeServer, front: Front | None, grace_s: float) -> None:
        if front is not None:
            front.stop_listening()
        stopping = asyncio.ensure_future(server.stop(grace_s))
        # lets `stop` begin, so that no client opens a stream after `close` below has ended all streams
        await asyncio.sleep(0)
        self._clients.close()
        await stopping
        if front is not None:
            await front.close()
            if self.endpoint.front is front:
                self._refused += front.refused
                self.endpoint.front = None


def _service(servicer: V2Servicer) -> Service:
    name = service_pb2.DESCRIPTOR.services_by_name["MessagingService"].full_name
    return Service(name, service_pb2_grpc.add_MessagingServiceServicer_to_server, servicer, FREQUENT)
