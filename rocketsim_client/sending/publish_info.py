"""Chooses the queue for a message, like RocketMQ's table of TopicPublishInfo.

The queues of a topic are used in turn.  A queue is skipped while its broker is at an address that recently did not
answer this client.  With `send_latency_fault_enable`, only fault avoidance (`latency_fault.py`) decides which queues
are skipped.  If all brokers would have to be skipped, a message still goes to one of them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import BrokerNotExist, TopicNotExist
from rocketsim_client.model import MASTER_ID, MessageQueue
from rocketsim_client.route import DEFAULT_TOPIC, TopicRoute
from rocketsim_client.sending.latency_fault import LatencyFaultTolerance
from rocketsim_client.sending.options import ProducerOptions
from rocketsim_client.sending.selection import RoundRobin

# A route is looked up again after this time, because a new topic begins with the default topic's route.
NEW_TOPIC_FOR_S = 1.0
NEWER_ROUTE_WAIT_S = 0.5  # how long a caller waits for a newer route at most


@dataclass(slots=True)
class TopicPublishInfo:
    route: TopicRoute
    queues: list[MessageQueue]  # queues that can be written to; never empty
    turn: RoundRobin
    until: float  # the route is looked up again at this time, by the clock of the table


class PublishTable:
    """The queues of each topic to which this producer sends.  Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        *,
        clock: Callable[[], float],
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._default_topic_queue_nums = options.default_topic_queue_nums
        self._faults = LatencyFaultTolerance() if options.send_latency_fault_enable else None
        self._clock = clock
        self._chance = chance
        self._infos: dict[str, TopicPublishInfo] = {}

    def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the queues that messages of the topic can go to now."""
        return self.info(topic).queues

    def choose(self, topic: str) -> MessageQueue:
        """Returns the next queue in turn, but leaves out queues whose brokers are skipped."""
        info = self._infos.get(topic)
        if info is None or self._clock() >= info.until:
            info = self.info(topic)
        if self._faults is not None:
            return info.turn.next_available(info.queues, self._faults, self._clock())
        if not self._cluster.has_bad_addresses:
            return info.turn.next(info.queues)
        unreachable = self._cluster.bad_addresses()
        names = (name for name, data in info.route.brokers.items() if data.addresses.get(MASTER_ID) in unreachable)
        return info.turn.next(info.queues, frozenset(names))

    def info(self, topic: str) -> TopicPublishInfo:
        info = self._infos.get(topic)
        now = self._clock()
        if info is None or now >= info.until:
            info = self._look_up(topic, info, now)
        return info

    def forget(self, topic: str) -> None:
        """Makes the next message look up the route again."""
        self._infos.pop(topic, None)

    def note_send(self, broker_name: str, began: float, *, failed: bool) -> None:
        """Tells fault avoidance that a send to the broker has ended.  `began` is the time when the send began."""
        if self._faults is not None:
            now = self._clock()
            self._faults.update(broker_name, (now - began) * 1000, now, isolation=failed)

    def _look_up(self, topic: str, old: TopicPublishInfo | None, now: float) -> TopicPublishInfo:
        until = now + NEW_TOPIC_FOR_S
        try:
            route = self._cluster.route_within(NEWER_ROUTE_WAIT_S, topic)
        except TopicNotExist as missing:
            try:
                route = self._cluster.route_within(NEWER_ROUTE_WAIT_S, DEFAULT_TOPIC)
            except TopicNotExist:
                raise missing from None
            route = route.for_new_topic(topic, self._default_topic_queue_nums)
        queues = route.writable_queues()
        if not queues:
            refreshed = self._cluster.refresh_within(NEWER_ROUTE_WAIT_S, topic)
            queues = refreshed.writable_queues() if refreshed else []
            if not queues:
                raise BrokerNotExist(
                    f"topic {topic!r} has no queue to write to: no live master, no write queue, or a permission that"
                    " forbids sends (rocketsim admin clusterList shows which brokers run)"
                )
        turn = old.turn if old else RoundRobin(self._chance.randrange(1 << 16))
        info = self._infos[topic] = TopicPublishInfo(route, queues, turn, until)
        return info
