"""Runs a broker: opens its store and its ports, starts its node, and stops the node at the end."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from rocketsim_proto.limits import MAX_RPC_BYTES
from rocketsim_proto.records import kernels
from rocketsim_proto.records.record import encode_host

from broker_service.config.broker_config import BrokerConfig
from broker_service.errors import ConfigError
from broker_service.node.node import BrokerNode
from broker_service.node.remoting import OFF, listen
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import Network, check_protobuf, host_port, warn_of_open_access, write_address_file
from broker_service.wire.v2 import native_server

logger = logging.getLogger(__name__)


async def run_broker(config: BrokerConfig, shutdown: asyncio.Event) -> None:
    """Runs a broker until `shutdown` is set."""
    async with broker(config) as node:
        # Importing `pyarrow.compute` takes 60 ms of CPU.  A thread does the import, so that neither the start nor the
        # first batch waits for it.
        node.tasks.own("arrow", asyncio.to_thread(import_module, "pyarrow.compute"))
        await node.tasks.run_until(shutdown)


@asynccontextmanager
async def broker(config: BrokerConfig, machine: Machine | None = None) -> AsyncIterator[BrokerNode]:
    """A context in which a broker serves; the broker stops cleanly when the context is left."""
    check_protobuf()
    if config.serves_natively:
        native_server.check_installed()
    warn_of_open_access(config.bind_address, has_access_control=config.authentication_enabled)
    machine = machine or Machine(network=Network.of(config))
    # The store is opened first, so that a second process on one directory reports the directory and not the port.
    node = BrokerNode.open(config, machine)
    remoting: list[socket.socket] = []
    try:
        # The limit here is MAX_RPC_BYTES and not `maxMessageSize`, which may be changed at run time and is checked for
        # each frame.
        server, port = machine.network.listen(
            config.bind_address, config.listen_port, MAX_RPC_BYTES, interceptors=node.access_control.guards()
        )
        if config.remoting_port != OFF:
            remoting = listen(machine.network, config)
        # RocketMQ's tools ask for a message at the address in the message's id.  The address in an id is therefore that
        # of the remoting port, if the remoting port is open.
        found = remoting[0].getsockname()[1] if remoting else port
        store_host = encode_host(ip_of(config.advertised_host), found)
        await node.start(server, host_port(config.advertised_host, port), store_host, remoting)
    except BaseException:
        for listening in remoting:
            listening.close()
        node.store.close()
        raise
    try:
        try:
            path, private = config.address_path, config.is_private(config.address_path)
            # The file with the remoting address is written first, so that a process that waits for the other file finds
            # both.
            if remoting:
                path = config.remoting_address_path
                write_address_file(path, config.advertised_host, found, machine.files, private=private)
                path = config.address_path
            write_address_file(path, config.advertised_host, port, machine.files, private=private)
        except OSError as error:
            logger.error("%s cannot be written: %s", path, error)
        logger.info(
            "broker %s id %d listening on %s, recordKernels=%s",
            config.broker_name,
            node.broker.broker_id,
            host_port(config.bind_address, port),
            kernels.in_use(),
        )
        yield node
    finally:
        await node.stop()


def ip_of(host: str) -> str:
    """Resolves a host name, since records have an IP address and no name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"brokerIP1={host}: {error}") from error
    return str(sorted(found)[0][4][0])
