"""Makes routes without name servers.  The user gives the brokers' addresses, and the brokers say which queues they
have and which of them is the master."""

from typing import TYPE_CHECKING

from rocketsim_client.addresses import Brokers
from rocketsim_client.errors import BrokerNotExist, MasterNotExist, NoRoute, NotSupported, RocketSimError, TopicNotExist
from rocketsim_client.model import MASTER_ID
from rocketsim_client.route import PERM_READ, PERM_WRITE, BrokerData, QueueData, TopicRoute
from rocketsim_client.transport.reads import ReadCalls
from rocketsim_client.transport.transport import Transport

if TYPE_CHECKING:
    from rocketsim_client.transport.admin import AdminCalls
    from rocketsim_client.transport.consumption import ConsumptionCalls
    from rocketsim_client.transport.sends import SendCalls
    from rocketsim_client.transport.transactions import TransactionCalls


class StaticRoute:
    """A transport whose routes come from the broker addresses that the user gave.  Calls for anything but routes go to
    the wrapped transport."""

    def __init__(self, transport: Transport, brokers: Brokers) -> None:
        self._transport = transport
        self.reads = transport.reads
        self.routes = StaticRoutes(brokers, self.reads)

    @property
    def sends(self) -> "SendCalls":
        return self._transport.sends

    @property
    def consumption(self) -> "ConsumptionCalls":
        return self._transport.consumption

    @property
    def transactions(self) -> "TransactionCalls":
        return self._transport.transactions

    @property
    def admin(self) -> "AdminCalls":
        return self._transport.admin

    def close(self, why: RocketSimError | None = None) -> None:
        self._transport.close(why)


class StaticRoutes:
    """Implements `RouteCalls` without a name server.  After a promotion the new master gets the broker id 0 in the
    route, and the former master gets the id that the new master had."""

    def __init__(self, brokers: Brokers, reads: ReadCalls) -> None:
        self._brokers = {name: dict(members) for name, members in brokers.items()}
        self._reads = reads
        self._known: dict[tuple[str, str], QueueData] = {}

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute:
        """Asks every broker for the topic's queues.  For a broker that does not answer, the queues in its last answer
        count.  Only a master can say that a topic does not exist, because a slave may not know the topic yet."""
        failure: RocketSimError | None = None
        for name in self._brokers:
            try:
                self._known[topic, name] = self._count(topic, name, timeout_s)
            except TopicNotExist:
                self._known.pop((topic, name), None)
            except RocketSimError as error:
                failure = error
        queues = tuple(self._known[topic, name] for name in self._brokers if (topic, name) in self._known)
        if not queues:
            raise failure or NoRoute(f"topic {topic!r}: none of the brokers {', '.join(self._brokers)} has it")
        return TopicRoute(topic, queues, {data.broker_name: self._members(data.broker_name) for data in queues})

    def topic_list(self, timeout_s: float) -> list[str]:
        raise NotSupported("without a name server there is no list of topics")

    def cluster_list(self, timeout_s: float) -> list[BrokerData]:
        return [self._members(name) for name in self._brokers]

    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        raise NotSupported("without a name server there is no write permission to wipe or add")

    def _members(self, name: str) -> BrokerData:
        return BrokerData("", name, dict(self._brokers[name]))

    def _count(self, topic: str, name: str, timeout_s: float) -> QueueData:
        """Counts the topic's queues at the present master, or at a slave while no master answers."""
        failure: RocketSimError = BrokerNotExist(f"broker {name!r} has no address")
        slaves: QueueData | None = None
        for broker_id, address in sorted(self._brokers[name].items()):
            try:
                found = self._reads.queue_bounds(address, topic, [], timeout_s).values()
            except TopicNotExist as error:
                if broker_id == MASTER_ID:
                    raise
                failure = MasterNotExist(
                    f"broker {name!r} has no master now, and its slave may not know the topic: {error}"
                )
            except RocketSimError as error:
                failure = error
            else:
                read, write = sum(queue.readable for queue in found), sum(queue.writable for queue in found)
                counted = QueueData(name, read, write, PERM_READ | PERM_WRITE)
                if any(queue.is_master for queue in found):
                    self._set_master(name, broker_id, address)
                    return counted
                slaves = slaves or counted
        if slaves is None:
            raise failure
        return slaves

    def _set_master(self, name: str, broker_id: int, address: str) -> None:
        """Gives the master's broker id to this member, and this member's former id to the former master."""
        members = dict(self._brokers[name])
        former = members.pop(MASTER_ID, address)
        self._brokers[name] = members | {broker_id: former, MASTER_ID: address}
