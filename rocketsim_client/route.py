"""Routes as values: which queues a topic has, on which brokers, and how old our knowledge of it is.  Pure: `now` is an
argument."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketsim_client.model import MessageQueue

PERM_READ = 4
PERM_WRITE = 2
MASTER_ID = 0
DEFAULT_TOPIC = "TBW102"  # Its route names the brokers that create topics on demand.


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker name has."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The members of one broker name: broker id -> address; 0 is the master.  `epoch` is the newest known."""

    cluster_name: str
    broker_name: str
    addresses: Mapping[int, str]
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    topic: str
    queues: tuple[QueueData, ...]
    brokers: Mapping[str, BrokerData]

    def readable_queues(self) -> list[MessageQueue]:
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in sorted(self.queues, key=lambda data: data.broker_name)
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        ]

    def writable_queues(self) -> list[MessageQueue]:
        """Only brokers with write permission and a live master, as RocketMQ's producers do.  Neighbours are of
        different brokers, so that a producer that goes round them spreads its load."""
        queues = [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & PERM_WRITE and MASTER_ID in self.addresses(data.broker_name)
            for queue_id in range(data.write_queue_nums)
        ]
        return sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))

    def addresses(self, broker_name: str) -> Mapping[int, str]:
        broker = self.brokers.get(broker_name)
        return broker.addresses if broker else {}

    def epoch(self, broker_name: str) -> int:
        broker = self.brokers.get(broker_name)
        return broker.epoch if broker else 0

    def for_new_topic(self, topic: str, queue_nums: int) -> "TopicRoute":
        """This is the default topic's route: what `topic` will look like once a broker has made it."""
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


@dataclass(slots=True)
class _Known:
    route: TopicRoute
    asked_at: float


@dataclass(slots=True)
class RouteTable:
    """What was learned, and whether to ask again: every `poll_interval_s`, and after a failure, but not more than once
    in `retry_interval_s` a topic."""

    poll_interval_s: float = 30.0
    retry_interval_s: float = 0.2
    vain_interval_s: float = 3.0
    _routes: dict[str, _Known] = field(default_factory=dict)
    _refreshed_at: dict[str, float] = field(default_factory=dict)

    def get(self, topic: str) -> TopicRoute | None:
        known = self._routes.get(topic)
        return known.route if known else None

    def is_due(self, topic: str, now: float) -> bool:
        known = self._routes.get(topic)
        return known is None or now - known.asked_at >= self.poll_interval_s

    def may_refresh(self, topic: str, now: float) -> bool:
        """After a failure: yes, and remembered; no, if that was asked a moment ago."""
        last = self._refreshed_at.get(topic)
        if last is not None and now - last < self.retry_interval_s:
            return False
        self._refreshed_at[topic] = now
        return True

    def refreshed_in_vain(self, topic: str, now: float) -> None:
        """No name server, or not one that knows the topic: leave them alone for a while, each question may cost a
        timeout."""
        self._refreshed_at[topic] = now + self.vain_interval_s - self.retry_interval_s

    def learned(self, topic: str, route: TopicRoute, now: float) -> None:
        self._routes[topic] = _Known(route, now)

    def asked_in_vain(self, topic: str, now: float) -> None:
        """Keep the old route, as RocketMQ does; ask again at the next poll."""
        if known := self._routes.get(topic):
            known.asked_at = now
