"""Wire has the services for clients, in our own protocol and in that of RocketMQ 5's clients."""

import socket

from rocketsim_proto import (
    broker_pb2,
    consumption_pb2,
    consumption_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
)

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.traffic import Traffic
from broker_service.broker.put import PutPath
from broker_service.broker.reads.pull import PullPath
from broker_service.broker.reads.pull_range import RangePath
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.node.access_control import AccessControl, LostRights
from broker_service.node.channels import Channels
from broker_service.node.features import Features
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import Service
from broker_service.runtime.tasks import OwnedTasks
from broker_service.wire.own.broker_servicer import BrokerServicer, add_to_server
from broker_service.wire.own.consumption_servicer import ConsumptionServicer
from broker_service.wire.own.range_streams import RangeStreams
from broker_service.wire.own.transaction_servicer import TransactionServicer
from broker_service.wire.v2.endpoint import Endpoint
from broker_service.wire.v2.port import Port
from broker_service.wire.v2.receiving import Receiving
from broker_service.wire.v2.sends import SendPath
from broker_service.wire.v2.servicer import V2Servicer
from broker_service.wire.v2.topic_routes import TopicRoutes
from broker_service.wire.v2.transaction_calls import TransactionCalls


class Wire:
    """`taken` counts the messages from producers, `given` those to consumers, over all protocols."""

    def __init__(
        self, broker: Broker, features: Features, access: AccessControl, machine: Machine, channels: Channels
    ) -> None:
        self._broker = broker
        self._features = features
        self._machine = machine
        self._stream_sockets: list[socket.socket] = []
        most = broker.config.metrics_otel_cardinality_limit
        self.taken, self.given = Traffic(most), features.consumption.counts.given
        consumption, commits = features.consumption, features.commits
        self.lookup = QueueLookup(broker)
        self.puts = PutPath(broker, self.taken, timers=lambda: consumption.state.timers.weight)
        self.pulls = PullPath(broker, features.checks, commits, self.given)
        self.ranges = RangePath(broker, features.checks, self.given)
        self.range_streams = RangeStreams(broker, self.ranges, self.puts)
        self.clients = features.clients
        LostRights(broker, consumption, self.clients)
        self.v2_routes = TopicRoutes(broker, channels.open, channels.open_unsigned)
        sends = SendPath(broker, self.puts, consumption.transactions)
        endpoint = self.v2_endpoint = Endpoint()
        servicer = V2Servicer(
            broker,
            endpoint,
            sends=sends,
            routes=self.v2_routes,
            commits=commits,
            queues=self.lookup,
            clients=self.clients,
            receiving=Receiving(broker, consumption, self.clients),
            transactions=TransactionCalls(broker, consumption.transactions),
        )
        self.v2_port = Port(
            broker,
            endpoint,
            servicer,
            self.clients,
            machine,
            broker.config.grpc_address_path,
            opened=sends.opened,
            interceptors=access.guards_of_v2(endpoint),
        )

    def services(self) -> list[Service]:
        """Returns the services of our own protocol, each with its name for reflection and health checks."""
        broker, consumption = self._broker, self._features.consumption
        servicer = BrokerServicer(
            broker,
            self.puts,
            self.pulls,
            self.ranges,
            self._features.commits,
            self.lookup,
            self.range_streams.offer,
        )
        return [
            Service(
                broker_pb2.DESCRIPTOR.services_by_name["Broker"].full_name,
                add_to_server,
                servicer,
                frequent=("Send", "Pull", "PullRange"),
            ),
            Service(
                consumption_pb2.DESCRIPTOR.services_by_name["Consumption"].full_name,
                consumption_pb2_grpc.add_ConsumptionServicer_to_server,
                ConsumptionServicer(broker, consumption),
                frequent=("Pop", "Ack"),
            ),
            Service(
                transactions_pb2.DESCRIPTOR.services_by_name["Transactions"].full_name,
                transactions_pb2_grpc.add_TransactionsServicer_to_server,
                TransactionServicer(broker, self.puts, consumption.transactions, self.clients),
            ),
        ]

    def listen_for_streams(self) -> None:
        """Opens the plain sockets for streams, unless access control is on, since plain sockets do not authenticate."""
        config = self._broker.config
        if config.pull_range_stream_enable and not config.authentication_enabled:
            self._stream_sockets = self._machine.network.listen_for_streams(
                self.range_streams.unix_name, config.bind_address, config.pull_range_stream_port
            )

    def start(self, tasks: OwnedTasks) -> None:
        tasks.own("v2-port", self.v2_port.run())
        tasks.own("range-streams", self.range_streams.serve(self._stream_sockets))
