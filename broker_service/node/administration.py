"""Administration has the parts for operators: status, commands and metrics."""

import logging

from rocketsim_proto import admin_pb2, admin_pb2_grpc

from broker_service.admin.group_figures import GroupFigures, Passed
from broker_service.admin.lags import Lags
from broker_service.admin.metrics import Metrics
from broker_service.admin.operations import Operations
from broker_service.admin.progress import Progress
from broker_service.admin.sampling import Sampling
from broker_service.admin.servicer import AdminServicer
from broker_service.admin.status import Status
from broker_service.broker.core.broker import Broker
from broker_service.errors import ConfigError
from broker_service.node.access_control import AccessControl
from broker_service.node.features import Features
from broker_service.node.replication import Replication
from broker_service.node.wire import Wire
from broker_service.pop.figures import ConsumptionFigures
from broker_service.replication.flusher import Flusher
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import Service, host_port
from broker_service.runtime.tasks import OwnedTasks

logger = logging.getLogger(__name__)


class Administration:
    def __init__(
        self,
        broker: Broker,
        features: Features,
        wire: Wire,
        replication: Replication,
        access: AccessControl,
        machine: Machine,
        flusher: Flusher,
    ) -> None:
        self._broker = broker
        self._lookup = wire.lookup
        self._machine = machine
        self.status = Status(
            broker,
            replication.following,
            replication.promises,
            replication.master,
            replication.slave,
            wire.taken,
            wire.given,
            features.schedule,
        )
        self.progress = Progress(broker, features.consumption)
        self.lags = Lags(broker, features.consumption, self.progress)
        self.operations = Operations(broker, replication.leadership)
        consumption = ConsumptionFigures(features.consumption)
        config, counts = broker.config, features.consumption.counts
        groups = GroupFigures(
            config.broker_cluster_name,
            config.broker_name,
            config.metrics_otel_cardinality_limit,
            Passed(wire.taken, wire.given, counts.retried, counts.dead_letters),
        )
        self.metrics = Metrics(
            (self.status, consumption, wire.puts, access.refusals, wire.v2_port, wire.range_streams),
            groups,
            (wire.puts.seconds, wire.pulls.seconds, wire.ranges.seconds, flusher.seconds),
        )
        self._sampling = Sampling(broker, replication.following, self.status, self.metrics, self.lags)

    def start(self, tasks: OwnedTasks) -> None:
        self._sampling.start(tasks)

    def services(self) -> list[Service]:
        servicer = AdminServicer(self._broker, self.operations, self.progress, self.status, self._lookup)
        name = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name
        return [Service(name, admin_pb2_grpc.add_AdminServicer_to_server, servicer)]

    def serve_metrics(self) -> None:
        """Serves the metrics on `metricsPort`; does nothing if `metricsPort` is 0."""
        config, network = self._broker.config, self._machine.network
        if not config.metrics_port:
            return
        self.metrics.take_snapshot()
        try:
            port = self.metrics.serve(
                config.bind_address,
                config.metrics_port,
                network.certificates,
                client_auth="metricsPort" in network.client_auth_ports,
            )
        except OSError as error:
            raise ConfigError(f"metricsPort={config.metrics_port}: {error}") from error
        scheme = "http" if network.certificates is None else "https"
        logger.info("metrics on %s://%s/metrics", scheme, host_port(config.bind_address, port))
