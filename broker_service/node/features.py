"""Features has the parts for delayed messages, for pops, and for committed offsets."""

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.traffic import Traffic
from broker_service.broker.reads.commits import Commits
from broker_service.broker.reads.read_checks import ReadChecks
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.node.storage import Storage
from broker_service.pop.consumption import Consumption
from broker_service.pop.deliveries import Counts
from broker_service.runtime.machine import Machine
from broker_service.transactions.producers import ConnectedProducers
from broker_service.wire.clients import Clients


class Features:
    def __init__(self, storage: Storage, broker: Broker, machine: Machine) -> None:
        self.schedule = ScheduleService(broker, storage.delay_file, storage.delay_position_file)
        self.commits = Commits(broker)
        self.checks = ReadChecks(broker, self.commits)
        self.clients = Clients(machine.monotonic)
        most = broker.config.metrics_otel_cardinality_limit
        counts = Counts(given=Traffic(most), retried=Traffic(most), dead_letters=Traffic(most))
        self.producers = ConnectedProducers(self.clients)
        self.consumption = Consumption(broker, self.checks, self.clients, self.producers, machine.chance, counts)
        self.clients.gone.append(self.consumption.client_gone)
        self.consumption.start()
