"""Routes as values: which queues a topic has, and on which brokers.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketsim_client.model import MASTER_ID, MessageQueue

PERM_READ = 4
PERM_WRITE = 2
DEFAULT_TOPIC = "TBW102"  # the topic whose route has the brokers that create topics on demand


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many read queues and write queues of a topic one broker name has."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The members of one broker name: broker id -> address, where 0 is the master.  `epoch` is the newest known leader
    epoch.  `roles` maps broker ids to ASYNC_MASTER, SYNC_MASTER or SLAVE, for members whose version reports the
    role."""

    cluster_name: str
    broker_name: str
    addresses: Mapping[int, str]
    epoch: int = 0
    roles: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's queues by broker name, and the addresses of these brokers."""

    topic: str
    queues: tuple[QueueData, ...]
    brokers: Mapping[str, BrokerData]

    def __str__(self) -> str:
        brokers = [
            f"{data.broker_name} ({data.read_queue_nums} queues to read, {data.write_queue_nums} to write, perm "
            f"{data.perm}, epoch {self.epoch(data.broker_name)}) at "
            + (", ".join(f"{key}@{at}" for key, at in sorted(self.addresses(data.broker_name).items())) or "no address")
            for data in self.queues
        ]
        return "; ".join(brokers)

    def readable_queues(self) -> list[MessageQueue]:
        """Returns all queues of brokers with read permission, sorted by broker name and queue id."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in sorted(self.queues, key=lambda data: data.broker_name)
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        ]

    def writable_queues(self) -> list[MessageQueue]:
        """Returns the queues of brokers with write permission and a registered master, as RocketMQ's producers
        choose them.  Neighbours in the list belong to different brokers, so that a producer that uses the queues in
        turn spreads its load."""
        queues = [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & PERM_WRITE and MASTER_ID in self.addresses(data.broker_name)
            for queue_id in range(data.write_queue_nums)
        ]
        return sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))

    def addresses(self, broker_name: str) -> Mapping[int, str]:
        """Returns the addresses by broker id (0 is the master), or an empty mapping for an unknown broker name."""
        broker = self.brokers.get(broker_name)
        return broker.addresses if broker else {}

    def epoch(self, broker_name: str) -> int:
        """Returns the newest known leader epoch of the broker name, or 0 if none is known."""
        broker = self.brokers.get(broker_name)
        return broker.epoch if broker else 0

    def for_new_topic(self, topic: str, queue_nums: int) -> "TopicRoute":
        """Returns the route that `topic` will have once a broker has created it.  The method is called on the route of
        the default topic."""
        queues = tuple(
            QueueData(
                data.broker_name,
                min(queue_nums, data.read_queue_nums),
                min(queue_nums, data.write_queue_nums),
                data.perm,
            )
            for data in self.queues
        )
        return TopicRoute(topic, queues, self.brokers)
