"""BrokerNode puts the parts of a broker's process together, starts them in order, and stops them in reverse."""

import socket
from collections.abc import Sequence

import grpc

from broker_service.config.broker_config import BrokerConfig
from broker_service.node.access_control import AccessControl
from broker_service.node.administration import Administration
from broker_service.node.channels import Channels
from broker_service.node.core import Core
from broker_service.node.features import Features
from broker_service.node.masters_work import MastersWork
from broker_service.node.remoting import Remoting
from broker_service.node.replication import Replication
from broker_service.node.retention import Retention
from broker_service.node.saving import Saving
from broker_service.node.stopping import stop
from broker_service.node.storage import Storage
from broker_service.node.tick import Tick
from broker_service.node.wire import Wire
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import add_services, host_port
from broker_service.runtime.tasks import OwnedTasks


class BrokerNode:
    """`open` locks the store's directory.  `start` needs a bound server.  `stop` removes the store's `abort` file."""

    def __init__(self, storage: Storage, machine: Machine) -> None:
        self.storage = storage
        self.machine = machine
        self.config = storage.config
        self.store = storage.store
        self.epochs = storage.epochs
        self.topics, self.groups, self.offsets, self.known_slaves, self.access = storage.tables
        self.access_control = AccessControl(storage.config, self.access, machine)

    @classmethod
    def open(cls, config: BrokerConfig, machine: Machine | None = None) -> "BrokerNode":
        machine = machine or Machine()
        return cls(Storage.open(config, machine), machine)

    async def start(
        self, server: grpc.aio.Server, address: str, store_host: bytes, remoting: Sequence[socket.socket] = ()
    ) -> None:
        """Makes all parts and starts them.  `remoting` has the bound sockets of `remotingPort`."""
        self.server = server
        self.assemble(address, store_host, remoting)
        services = (part.services() for part in (self.wire, self.replication, self.administration))
        self.health = await add_services(server, [service for part in services for service in part])
        self.administration.serve_metrics()
        self.wire.listen_for_streams()
        self.flusher.start()
        await server.start()
        self.replication.start()
        self.wire.start(self.tasks)
        if self.remoting is not None:
            self.remoting.start(self.tasks)
        self.tasks.own("tick", self.tick.run())
        self.administration.start(self.tasks)
        self.tasks.own("expire", self.retention.run())
        self.saving.start(self.tasks)

    def assemble(self, address: str, store_host: bytes, remoting: Sequence[socket.socket] = ()) -> None:
        """Makes all parts, but starts none of them."""
        storage, machine = self.storage, self.machine
        self.address = address
        self.tasks = OwnedTasks()
        channels = Channels(machine, self.config.inner_credentials)

        core = self.core = Core(storage, machine, address, store_host)
        self.broker, self.mastership = core.broker, core.mastership
        self.flusher, self.acknowledgements = core.flusher, core.acknowledgements

        features = Features(storage, self.broker, machine)
        self.schedule, self.consumption, self.commits = features.schedule, features.consumption, features.commits

        wire = self.wire = Wire(self.broker, features, self.access_control, machine, channels)
        self.puts, self.range_streams = wire.puts, wire.range_streams
        self.clients, self.v2_port = wire.clients, wire.v2_port

        replication = self.replication = Replication(
            storage,
            core,
            features,
            wire.v2_endpoint,
            address=address,
            machine=machine,
            channels=channels,
            tasks=self.tasks,
            masters_work=MastersWork(self.broker, self.schedule, self.consumption, self.tasks),
            range_streams=wire.range_streams,
            remoting_address=self._remoting_address(remoting),
        )
        self.replication_master, self.registration = replication.master, replication.registration
        self.leadership, self.following = replication.leadership, replication.following

        administration = self.administration = Administration(
            self.broker, features, wire, replication, self.access_control, machine, core.flusher
        )
        self.status, self.metrics = administration.status, administration.metrics

        self.remoting: Remoting | None = None
        if remoting:
            self.remoting = Remoting(
                self.broker,
                remoting,
                features=features,
                wire=wire,
                administration=administration,
                access=self.access_control,
                machine=machine,
            )
            self.metrics.add(self.remoting.server)

        self.tick = Tick(self.broker, replication.slave)
        self.retention = Retention(self.broker, self.consumption, replication.slave)
        self.saving = Saving(self.broker, self.schedule, self.consumption)

    def _remoting_address(self, remoting: Sequence[socket.socket]) -> str:
        """Returns the host:port of `remotingPort` that name servers give to clients; empty if the port is not open."""
        if not remoting:
            return ""
        return host_port(self.config.advertised_host, remoting[0].getsockname()[1])

    async def stop(self) -> None:
        await stop(self)
