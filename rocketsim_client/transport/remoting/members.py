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
        self._addresses: dict[str, frozenset[str]] = {}  # broker name -> its addresses in the newest route
        self._queues: dict[tuple[str, str], QueueData] = {}  # (topic, broker name) -> the topic's numbers of queues
        self._refuse_reads: set[str] = set()  # addresses of slaves

    def learn(self, brokers: list[BrokerData]) -> None:
        # One update changes all, so that no other thread sees an address at two brokers while it moves between them.
        self._addresses.update({data.broker_name: frozenset(data.addresses.values()) for data in brokers})
        for data in brokers:
            for broker_id, address in data.addresses.items():
                self._members[address] = data.broker_name, broker_id

    def learn_route(self, route: TopicRoute) -> None:
        self.learn(list(route.brokers.values()))
        for data in route.queues:
            self._queues[route.topic, data.broker_name] = data

    def broker_id(self, address: str) -> int:
        """Returns the broker id of the address, or the master's id if the address is not known."""
        return self._members.get(address, ("", MASTER_ID))[1]

    def broker_name(self, address: str) -> str:
        """Returns the broker name of the address, or an empty text if the address is not known.

        Raises NotSupported for the address of a proxy in front of several broker names, because a request with the
        wrong one of these names would get the messages or the offsets of another queue.
        """
        name, _ = self._members.get(address, ("", MASTER_ID))
        names = sorted(one for one, addresses in list(self._addresses.items()) if address in addresses)
        if len(names) > 1:
            raise NotSupported(
                f"{address} is the address of the brokers {' and '.join(names)}, as that of a proxy in front of "
                f"several brokers: this client cannot tell their queues apart there; {NAME_SERVER_ADVICE}, or correct "
                "addressMap",
                address=address,
            )
        return name

    def queues(self, topic: str, address: str) -> QueueData | None:
        return self._queues.get((topic, self.broker_name(address)))

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
        refusing = any(self._members.get(one) == (name, suggested) for one in self._refuse_reads)
        return own if refusing else suggested
