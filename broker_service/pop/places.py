"""Places: lists the queues that a pop scans, and finds the offset at which a group continues in each queue."""

import random

from rocketsim_proto.reserved import RETRY_PREFIX

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.state import moves
from broker_service.state.moves import retry_topic
from broker_service.state.transitions import Place
from broker_service.state.writer import StateWriter

RETRY_FIRST = 0.2  # share of pops that read the retry topic first, as in RocketMQ


class Places:
    def __init__(self, broker: Broker, writer: StateWriter, chance: random.Random) -> None:
        self._broker = broker
        self._writer = writer
        self._chance = chance

    def of(self, group: str, topic: TopicConfig) -> list[tuple[Place, bool]]:
        """Returns the queues in the order in which a pop scans them, each with True if it is a queue of a retry topic.

        A pop scans all queues of the topic, from a random one on, and then the retry topics.  A share `RETRY_FIRST` of
        the pops scans the retry topics first.
        """
        count = topic.read_queue_nums
        first = self._chance.randrange(count) if count else 0
        places = [(Place(group, topic.name, (first + number) % count), False) for number in range(count)]
        retry = [(Place(group, name, 0), True) for name in self.retry_topics(group, topic.name)]
        return [*retry, *places] if self._chance.random() < RETRY_FIRST else [*places, *retry]

    def retry_topics(self, group: str, topic: str) -> list[str]:
        """Returns the broker's own retry topic and the one that RocketMQ would use, unless the latter belongs to
        another group.
        """
        names = [retry_topic(group, topic)]
        old = moves.retry_topic_v1(group, topic)
        if old in self._broker.topics.entries:
            place = Place(group, old, 0)
            is_own = place in self._writer.state.queues or self._broker.offsets.get(*place).offset >= 0
            if is_own or old.removeprefix(RETRY_PREFIX) not in self._broker.groups.entries:
                names.append(old)
        return names

    def next(self, place: Place, first: int) -> int:
        """Returns the offset at which the group's next pop continues.

        A group continues after the last message that it has taken.  A group that has popped no message yet continues at
        the offset that it has committed as a pull consumer, or else at `first`.
        """
        if (taken := self._writer.next_of(place)) is not None:
            return taken
        committed = self._broker.offsets.get(*place).offset
        return committed if committed >= 0 else first
