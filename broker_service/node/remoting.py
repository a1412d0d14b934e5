"""Remoting has a broker's port for RocketMQ's remoting protocol, and the handlers of its requests.

A broker with `remotingPort=-1` has no Remoting.
"""

import logging
import socket

from rocketsim_proto.remoting.codes import RequestCode

from broker_service.admin.remoting import AdminAnswers
from broker_service.broker.core.broker import Broker
from broker_service.node.access_control import AccessControl
from broker_service.node.administration import Administration
from broker_service.node.features import Features
from broker_service.node.wire import Wire
from broker_service.runtime.machine import Machine
from broker_service.runtime.remoting.calls import Calls, Handler
from broker_service.runtime.remoting.server import RemotingServer
from broker_service.runtime.server import host_port
from broker_service.runtime.tasks import OwnedTasks
from broker_service.wire.remoting.members import Members
from broker_service.wire.remoting.offsets import OffsetAnswers
from broker_service.wire.remoting.pulls import PullAnswers
from broker_service.wire.remoting.returns import Returns
from broker_service.wire.remoting.sends import SendAnswers
from broker_service.wire.remoting.transactions import TransactionAnswers

logger = logging.getLogger(__name__)

KEY = "remotingPort"
OFF = -1


class Remoting:
    """`listening` is the bound socket of the port."""

    def __init__(
        self,
        broker: Broker,
        listening: socket.socket,
        *,
        features: Features,
        wire: Wire,
        administration: Administration,
        access: AccessControl,
        machine: Machine,
    ) -> None:
        self._broker = broker
        self.members = Members(broker, features.commits, features.checks, machine.monotonic)
        features.producers.remoting = self.members
        parts = (
            SendAnswers(broker, wire.puts, features.consumption.transactions),
            TransactionAnswers(features.consumption.transactions),
            PullAnswers(broker, wire.pulls, self.members),
            OffsetAnswers(wire.lookup, features.commits),
            self.members,
            Returns(broker, wire.puts, features.commits, machine.monotonic),
            AdminAnswers(
                broker,
                administration.operations,
                administration.progress,
                administration.status,
                wire.lookup,
                self.members,
            ),
        )
        self.handlers: dict[RequestCode, Handler] = {}
        for part in parts:
            self.handlers |= part.handlers()
        network = machine.network
        self.server = RemotingServer(
            KEY,
            listening,
            Calls(self.handlers, access.remoting_guard()).answer,
            network.certificates,
            client_auth=KEY in network.client_auth_ports,
        )
        broker.groups.changed.append(lambda _: broker.description_changed.notify())

    def start(self, tasks: OwnedTasks) -> None:
        tasks.own("remoting", self.server.run())
        logger.info(
            "RocketMQ 4's clients and tools may connect to %s",
            host_port(self._broker.config.bind_address, self.server.port),
        )
