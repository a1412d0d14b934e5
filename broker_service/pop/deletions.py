"""Deletions: drops a topic's or a group's pop state when the topic or group is deleted, and moves it when offsets are
reset.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Set

from rocketsim_proto.reserved import RETRY_PREFIX

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker
from broker_service.errors import RocketSimError, ServiceNotAvailable
from broker_service.pop.places import Places
from broker_service.state.moves import original_topic, retry_topic
from broker_service.state.transitions import Drop, Place, Reset
from broker_service.state.writer import StateWriter
from broker_service.transactions.transactions import Transactions

logger = logging.getLogger(__name__)

_RESETS_OF_ONE_RECORD = 30  # one record of the state holds this many resets, even with the longest names


class Deletions:
    """Handles the deletions and resets that the broker's tables report.  A topic's deletion also ends the topic's open
    transactions.
    """

    def __init__(self, broker: Broker, writer: StateWriter, places: Places, transactions: Transactions) -> None:
        self._broker = broker
        self._writer = writer
        self._places = places
        self._transactions = transactions
        self._is_due = True  # a crash may have left pop state of a topic that was deleted
        self._due_at = 0.0
        broker.topics.changed.append(self._topic_changed)
        broker.group_dropped.append(self.drop_group)
        broker.offsets_reset.append(self.reset)

    def complete(self) -> None:
        """Tries failed deletions again if the retry time has come.  The caller calls this method periodically."""
        if self._is_due and self._broker.clock() >= self._due_at:
            self._try(self.drop_deleted)

    def _topic_changed(self, name: str) -> None:
        if not self._broker.is_slave and name not in self._broker.topics.entries:
            self._try(lambda: self._drop_topic(name))

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        """Makes the group's pops continue at these offsets.  Returns False if the group has never popped any of these
        queues.

        If the log refuses the change, an error is raised: either no queue was reset, or the error names the queues that
        were.
        """
        self._writer.flush()  # appends pending pops, so that the state has every queue that the group has popped
        places = [Place(group, topic, queue_id) for queue_id in offsets]
        self._writer.catch_up()
        resets = [Reset(place, offsets[place.queue_id]) for place in places if place in self._writer.state.queues]
        for first in range(0, len(resets), _RESETS_OF_ONE_RECORD):
            try:
                self._writer.append(*resets[first : first + _RESETS_OF_ONE_RECORD])
            except (RocketSimError, OSError) as error:
                if not first:
                    raise
                raise ServiceNotAvailable(
                    f"{error}; this reset of group {group} is half done: in topic {topic} only queues "
                    f"{_ranges(one.place.queue_id for one in resets[:first])} have moved; reset again"
                ) from error
        return bool(resets)

    def drop_deleted(self) -> None:
        """Drops the pop state that deleted topics still have because of a crash or a full disk."""
        topics = self._broker.topics
        named = {name for place in self._writer.state.queues for name in (place.topic, original_topic(place))}
        named |= {transaction.topic for transaction in self._writer.state.transactions.open}
        for topic in named:
            if topic in topics.tombstones and topic not in topics.entries:
                self._drop_topic(topic)
        self._is_due = False

    def _drop_topic(self, name: str) -> None:
        """Drops the pop state of a topic and deletes its groups' retry topics, so that a new topic of that name does
        not get the old messages.

        The retry topics are deleted first, because their names can be found only from the pop state of the topic.
        """
        self._writer.flush()  # appends pending pops, so that the state has every queue that the group has popped
        self._transactions.drop_topic(name)
        places = [place for place in self._writer.state.queues if name in (place.topic, original_topic(place))]
        self._delete_retries({retry for place in places for retry in self._places.retry_topics(place.group, name)})
        left = sorted({place.topic for place in places if place in self._writer.state.queues})
        self._writer.append(*(Drop(topic=topic) for topic in left))

    def drop_group(self, name: str) -> None:
        """Drops the pop state of a group and deletes its retry topics, so that a new group of that name does not get
        the old messages.

        The retry topics are deleted first, because their names can be found only from the pop state.  Raises if the
        disk or the log refuses the change; the caller may then call this method again.
        """
        self._writer.flush()  # appends pending pops, so that the state has every queue that the group has popped
        self._writer.check_writable()
        self._delete_retries(self._retry_topics_of(name))
        if any(place.group == name for place in self._writer.state.queues):
            self._writer.append(Drop(group=name))

    def _retry_topics_of(self, group: str) -> set[str]:
        """Returns the names of all retry topics of a group.

        The result has the broker's own retry topics, and those that RocketMQ has made for topics that the group has
        read.  The result also has the retry topic of the group's RocketMQ push consumers, unless another group reads
        that topic.
        """
        read = self._broker.offsets.topics_by_group()
        of_group = {place.topic for place in self._writer.state.queues if place.group == group} | read.get(group, set())
        own = retry_topic(group, "")
        names = {topic for topic in self._broker.topics.entries if topic.startswith(own)}
        for topic in of_group:
            names.update(self._places.retry_topics(group, original_topic(Place(group, topic, 0))))
        plain = f"{RETRY_PREFIX}{group}"
        is_anothers = any(place.topic == plain and place.group != group for place in self._writer.state.queues)
        return names if is_anothers else names | {plain}

    def _delete_retries(self, names: Set[str]) -> None:
        broker = self._broker
        names &= broker.topics.entries.keys()
        if names:
            ends = {name: broker.store.queues.ends(name) for name in names}
            broker.topics.delete_all(ends, broker.now_ms())
            broker.store.forget_before(ends)
            broker.offsets.delete_topics(names)

    def _try(self, change: Callable[[], None]) -> None:
        """Calls `change`.  The topic stays deleted even if `change` fails, so `complete` later drops the topic's pop
        state.
        """
        try:
            change()
        except (RocketSimError, OSError) as error:
            logger.warning(
                "the deliveries of a deleted topic could not be dropped yet, and will be tried again: %s", error
            )
            self._is_due, self._due_at = True, self._broker.clock() + master_loop.AFTER_TROUBLE_S


def _ranges(numbers: Iterable[int]) -> str:
    """Returns the numbers as text in which consecutive numbers are joined, such as `0-4, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
