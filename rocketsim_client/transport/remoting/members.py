"""Keeps what routes say about brokers: which address belongs to which broker, and how many queues a topic has there."""

from rocketsim_client.errors import NotSupported
from rocketsim_client.model import MASTER_ID
from rocketsim_client.route import BrokerData, QueueData, TopicRoute
from rocketsim_client.transport.server_protocol import NAME_SERVER_ADVICE


class KnownMembers:
    """Finds a broker by its address, because RocketMQ's answers do not say which broker they come from.
    Thread-safe, because entries are only added or replaced."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, int]] = {}  # address -> broker name, broker id
        # topic -> address -> the brokers that have this address in the topic's newest route
        self._names: dict[str, dict[str, list[str]]] = {}
        self._queues: dict[tuple[str, str], QueueData] = {}  # (topic, broker name) -> the topic's numbers of queues
        self._refuse_reads: set[str] = set()  # addresses of slaves

    def learn(self, brokers: list[BrokerData]) -> None:
        for data in brokers:
            for broker_id, address in data.addresses.items():
                self._members[address] = data.broker_name, broker_id

    def learn_route(self, route: TopicRoute) -> None:
        self.learn(list(route.brokers.values()))
        names: dict[str, list[str]] = {}
        for broker in route.brokers.values():
            for address in broker.addresses.values():
                names.setdefault(address, []).append(broker.broker_name)
        self._names[route.topic] = names
        for data in route.queues:
            self._queues[route.topic, data.broker_name] = data

    def broker_id(self, address: str) -> int:
        """Returns the broker id of the address, or the master's id if the address is not known."""
        return self._members.get(address, ("", MASTER_ID))[1]

    def broker_name(self, address: str, topic: str) -> str:
        """Returns the broker name of the address in the topic's newest route, or an empty text if the address is not
        known.

        Raises NotSupported if the route gives several brokers this address, as that of a proxy in front of them,
        because a request with the wrong one of these names would get the messages or the offsets of another queue.
        """
        names = self._names.get(topic, {}).get(address)
        if names is None:
            return self._members.get(address, ("", MASTER_ID))[0]
        if len(names) > 1:
            raise NotSupported(
                f"topic {topic!r} is on the brokers {' and '.join(sorted(names))}, and {address} is the address of all "
                f"of them, as that of a proxy in front of several brokers: this client cannot tell their queues apart "
                f"there; {NAME_SERVER_ADVICE}, or correct addressMap",
                address=address,
            )
        return names[0]

    def queues(self, topic: str, address: str) -> QueueData | None:
        return self._queues.get((topic, self.broker_name(address, topic)))

    def note_refused_reads(self, address: str) -> None:
        """Notes that a slave refuses reads, as a slave of 5.x does without `slaveReadEnable`.  Later suggestions to
        read at this slave are ignored."""
        self._refuse_reads.add(address)

    def suggestion(self, address: str, suggested: int) -> int:
        """Returns the broker id that the broker at `address` suggests, or that broker's own id if the suggested
        broker refuses reads."""
        if not self._refuse_reads:
            return suggested
        name, own = self._members.get(address, ("", MASTER_ID))
        refusing = any(self._members.get(one) == (name, suggested) for one in self._refuse_reads.copy())
        return own if refusing else suggested
