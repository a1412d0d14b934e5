"""One name server process: its table, its port, and the periodic scan for silent brokers."""

import asyncio
import logging
import time
from collections.abc import Callable

from rocketsim_proto import namesrv_pb2, namesrv_pb2_grpc

from broker_service.access.gate import Gate, super_user
from broker_service.access.interceptor import AccessInterceptor
from broker_service.access.model import User
from broker_service.access.refusals import Refusals
from broker_service.access.rights import NAMESRV_RIGHTS
from broker_service.access.unsigned import UnsignedRequests
from broker_service.config.process_config import NamesrvConfig
from broker_service.errors import UnknownUser
from broker_service.namesrv.route_table import RouteTable
from broker_service.namesrv.servicer import NamesrvServicer
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import Network, Service, check_protobuf, host_port, start_server, warn_of_open_access

logger = logging.getLogger(__name__)

# A registration carries every topic of a broker, some 100 bytes each.
MAX_MESSAGE_BYTES = 64 << 20
GRACE_S = 1.0


def interceptors(config: NamesrvConfig, now_s: Callable[[], float] = time.time) -> list[AccessInterceptor]:
    """It has no table of users: it knows those of its configuration."""
    if not config.authentication_enabled:
        return []
    known = [user for user in map(super_user, (config.init_user, config.inner_credentials)) if user is not None]
    users = {user.username: user for user in known}

    def find_user(name: str) -> User:
        if (user := users.get(name)) is None:
            raise UnknownUser(
                f"User:{name[:127]} is not found: a name server knows initAuthenticationUser and "
                "innerClientAuthenticationCredentials alone."
            )
        return user

    inner = config.inner_credentials
    gate = Gate(
        NAMESRV_RIGHTS,
        find_user=find_user,
        policies=None,
        cluster_name="*",
        now_s=now_s,
        brokers_user=users[inner.access_key] if inner is not None else None,
    )
    return [AccessInterceptor(gate, Refusals(), UnsignedRequests())]


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
    server, port = await start_server(
        [service],
        bind_address=config.bind_address,
        port=config.listen_port,
        address_file=config.address_file,
        max_message_bytes=MAX_MESSAGE_BYTES,
        network=machine.network,
        interceptors=interceptors(config),
    )
    logger.info("name server listening on %s", host_port(config.bind_address, port))
    try:
        while not shutdown.is_set():
            for member in table.expire(int(machine.monotonic() * 1000)):
                logger.warning("%s is gone: silent for %d s", member, config.broker_expire_time_ms // 1000)
            try:
                async with asyncio.timeout(config.scan_not_active_broker_interval / 1000):
                    await shutdown.wait()
            except TimeoutError:
                pass
    finally:
        await server.stop(GRACE_S)
        logger.info("name server stopped")
