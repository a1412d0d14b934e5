"""Remoting has a broker's port for RocketMQ's remoting protocol, and the handlers of its requests.

A broker with `remotingPort=-1` has no Remoting.
"""

import logging
import socket
from collections.abc import Sequence

from rocketsim_proto.remoting.codes import RequestCode

from broker_service.admin.remoting import AdminAnswers
from broker_service.admin.remoting_users import UserAnswers
from broker_service.broker.core.broker import Broker
from broker_service.config.broker_config import BrokerConfig
from broker_service.errors import ConfigError
from broker_service.node.access_control import AccessControl
from broker_service.node.administration import Administration
from broker_service.node.features import Features
from broker_service.node.wire import Wire
from broker_service.runtime.machine import Machine
from broker_service.runtime.remoting.calls import Calls, Handler
from broker_service.runtime.remoting.server import RemotingServer
from broker_service.runtime.server import Network, host_port
from broker_service.runtime.tasks import OwnedTasks
from broker_service.wire.remoting.members import Members
from broker_service.wire.remoting.offsets import OffsetAnswers
from broker_service.wire.remoting.pulls import PullAnswers
from broker_service.wire.remoting.questions import ConsumerQuestions
from broker_service.wire.remoting.resets import Resets
from broker_service.wire.remoting.returns import Returns
from broker_service.wire.remoting.sends import SendAnswers
from broker_service.wire.remoting.transactions import TransactionAnswers

logger = logging.getLogger(__name__)

KEY = "remotingPort"
VIP_KEY = "remotingVipChannel, the port two below remotingPort"  # as errors name it
OFF = -1
VIP_DISTANCE = 2  # the distance between the two ports, as in RocketMQ
ATTEMPTS = 20


def listen(network: Network, config: BrokerConfig) -> list[socket.socket]:
    """Returns the listening socket of `remotingPort`, and the one two ports below it with `remotingVipChannel`.

    If `remotingPort` is 0, the port is chosen so that the port two below it is free, too.  Raises ConfigError if a port
    cannot be opened.
    """
    for attempt in range(1, ATTEMPTS + 1):
        first, port = network.listen_for_front(config.bind_address, config.remoting_port, KEY)
        if not config.remoting_vip_channel:
            break
        try:
            second, _ = network.listen_for_front(config.bind_address, port - VIP_DISTANCE, VIP_KEY)
        except ConfigError:
            first.close()
            if config.remoting_port or attempt == ATTEMPTS:
                raise
        else:
            return [first, second]
    return [first]


class Remoting:
    """`listening` has the bound sockets of `listen`."""

    def __init__(
        self,
        broker: Broker,
        listening: Sequence[socket.socket],
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
        resets = Resets(broker, self.members, features.checks.push, machine.monotonic)
        sends = SendAnswers(broker, wire.puts, features.consumption.transactions)
        pulls = PullAnswers(broker, wire.pulls, self.members, resets)
        parts = (
            sends,
            TransactionAnswers(features.consumption.transactions),
            pulls,
            OffsetAnswers(broker, wire.lookup, features.commits, resets),
            self.members,
            ConsumerQuestions(broker, self.members, administration.operations),
            Returns(broker, wire.puts, features.commits, machine.monotonic),
            AdminAnswers(
                broker, administration.operations, administration.progress, administration.status, wire.lookup
            ),
            UserAnswers(broker, administration.operations),
        )
        self.handlers: dict[RequestCode, Handler] = {}
        for part in parts:
            self.handlers |= part.handlers()
        at_once = {**sends.handlers_at_once(), **pulls.handlers_at_once()}
        network = machine.network
        self.server = RemotingServer(
            KEY,
            listening,
            Calls(self.handlers, at_once, access.remoting_guard()),
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
