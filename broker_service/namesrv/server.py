"""Runs one name server process: its table, its port, and the periodic scan for silent brokers."""

import asyncio
import logging

from rocketsim_proto import namesrv_pb2, namesrv_pb2_grpc

from broker_service.access.gate import Gate, super_user
from broker_service.access.interceptor import AccessInterceptor
from broker_service.access.refusals import Refusals
from broker_service.access.remoting import NAMESRV_REMOTING_RIGHTS, RemotingGuard, by_method
from broker_service.access.rights import NAMESRV_RIGHTS
from broker_service.access.unsigned import UnsignedRequests
from broker_service.access.users import User
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.errors import UnknownUser
from broker_service.namesrv.remoting import NamesrvAnswers
from broker_service.namesrv.route_table import RouteTable
from broker_service.namesrv.servicer import NamesrvServicer
from broker_service.runtime.clocks import WallClock
from broker_service.runtime.machine import Machine
from broker_service.runtime.remoting.calls import Calls
from broker_service.runtime.remoting.server import RemotingServer
from broker_service.runtime.server import Network, Service, check_protobuf, host_port, start_server, warn_of_open_access

logger = logging.getLogger(__name__)

# A registration has every topic of a broker, about 100 bytes each.
MAX_MESSAGE_BYTES = 64 << 20
GRACE_S = 1.0
REMOTING_KEY = "remotingPort"
OFF = -1


class ConfiguredUsers:
    """The users of a name server, which has no table of users and knows only those in its configuration."""

    cluster_name = "*"

    def __init__(self, config: NamesrvConfig) -> None:
        self.brokers_user = super_user(config.inner_credentials)
        known = [user for user in (super_user(config.init_user), self.brokers_user) if user is not None]
        self._users = {user.username: user for user in known}

    def find_user(self, username: str) -> User:
        if (user := self._users.get(username)) is None:
            raise UnknownUser(
                f"User:{username[:127]} is not found: a name server knows only initAuthenticationUser and "
                "innerClientAuthenticationCredentials."
            )
        return user

    def policies_of(self, username: str) -> None:
        """Returns None, since users of a name server need no policies."""


def interceptors(config: NamesrvConfig, clock: WallClock | None = None) -> list[AccessInterceptor]:
    if not config.authentication_enabled:
        return []
    gate = Gate(NAMESRV_RIGHTS, ConfiguredUsers(config), clock or Machine())
    return [AccessInterceptor(gate, Refusals(), UnsignedRequests())]


def remoting_server(config: NamesrvConfig, table: RouteTable, machine: Machine) -> RemotingServer | None:
    """Opens the port for RocketMQ's remoting protocol; None if remotingPort is -1.  Raises ConfigError."""
    if config.remoting_port == OFF:
        return None
    guard = None
    if config.authentication_enabled:
        gate = Gate(by_method(NAMESRV_REMOTING_RIGHTS), ConfiguredUsers(config), machine)
        guard = RemotingGuard(gate, Refusals())
    network = machine.network
    listening, _ = network.listen_for_front(config.bind_address, config.remoting_port, REMOTING_KEY)
    calls = Calls(NamesrvAnswers(table).handlers(), guard=guard)
    client_auth = REMOTING_KEY in network.client_auth_ports
    return RemotingServer(REMOTING_KEY, [listening], calls, network.certificates, client_auth=client_auth)


async def run_namesrv(
    config: NamesrvConfig,
    shutdown: asyncio.Event,
    machine: Machine | None = None,
) -> None:
    """Serves until `shutdown` is set."""
    machine = machine or Machine(network=Network.of(config))
    check_protobuf()
    warn_of_open_access(config.bind_address, has_access_control=config.authentication_enabled)
    table = RouteTable(config.broker_expire_time_ms)
    service = Service(
        namesrv_pb2.DESCRIPTOR.services_by_name["NameServer"].full_name,
        namesrv_pb2_grpc.add_NameServerServicer_to_server,
        NamesrvServicer(table, machine),
    )
    remoting = remoting_server(config, table, machine)
    server, port = await start_server(
        [service],
        bind_address=config.bind_address,
        port=config.listen_port,
        address_file=config.address_file,
        max_message_bytes=MAX_MESSAGE_BYTES,
        network=machine.network,
        interceptors=interceptors(config, machine),
    )
    logger.info("name server listening on %s", host_port(config.bind_address, port))
    serving: asyncio.Task[None] | None = None
    try:
        if remoting is not None:
            serving = asyncio.create_task(remoting.run(), name="remoting")
            at = host_port(config.bind_address, remoting.port)
            logger.info("RocketMQ 4's clients and tools may use %s as a name server", at)
        while not shutdown.is_set():
            for member in table.expire(int(machine.monotonic() * 1000)):
                logger.warning("%s is gone: silent for %d s", member, config.broker_expire_time_ms // 1000)
            try:
                async with asyncio.timeout(config.scan_not_active_broker_interval / 1000):
                    await shutdown.wait()
            except TimeoutError:
                pass
    finally:
        if remoting is not None and serving is not None:
            await remoting.stop(GRACE_S)
            serving.cancel()
            await asyncio.wait([serving])
        await server.stop(GRACE_S)
        logger.info("name server stopped")
