"""Progress: returns the offsets of groups, and how many messages the groups have yet to acknowledge."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from rocketsim_proto.lag import goes_on_at, lag

from broker_service.broker.core.broker import Broker
from broker_service.errors import SubscriptionGroupNotExist
from broker_service.names import check_group_name
from broker_service.pop.consumption import Consumption
from broker_service.runtime import cold_reads
from broker_service.state.moves import original_topic
from broker_service.state.transitions import Place

ENTRIES_A_TURN = 64  # entries of a long list after which other tasks of the event loop have a turn


class QueueProgress(NamedTuple):
    """A group's progress in one queue.

    The group continues at `consumer_offset`.  `lag` is the number of messages from `consumer_offset` on that the group
    must still acknowledge or give up.  Messages that the group has popped and acknowledged already do not count in
    `lag`.
    """

    place: Place
    broker_offset: int
    consumer_offset: int
    lag: int
    generation: int


def check_known_group(broker: Broker, name: str) -> None:
    check_group_name(name)
    if name not in broker.groups.entries and name not in broker.offsets.groups():
        raise SubscriptionGroupNotExist(f"consumer group {name!r} is not known here")


class Progress:
    def __init__(self, broker: Broker, consumption: Consumption) -> None:
        self._broker = broker
        self._consumption = consumption

    async def of(self, group: str, topic: str) -> list[tuple[QueueProgress, int]]:
        """Returns the progress in each queue of `places`, with the store time of the last consumed message.

        The store time is 0 if nothing was consumed.
        """
        if group:
            check_known_group(self._broker, group)
        store, found = self._broker.store, []
        async for place in _taking_turns(self.places(group, topic)):
            one = self.of_queue(place)
            last = one.consumer_offset - 1
            read = partial(store.queues.store_timestamp_of, place.topic, place.queue_id, last)
            found.append((one, await cold_reads.read(store, read) if last >= 0 else 0))
        return found

    def places(self, group: str = "", topic: str = "") -> Iterator[Place]:
        """Yields every queue of each topic that a group has read, and of the topic's retry topics.  Without a group,
        yields the queues of all groups.

        A topic's settings are read only when the caller reaches the topic's queues, so the caller may run other tasks
        between two queues.
        """
        read = self._broker.offsets.topics_by_group()
        for name in [group] if group else sorted(read):
            topics = read.get(name, set())
            originals = {original_topic(Place(name, one, 0)) for one in topics}
            topics = topics.union(*(self._consumption.places.retry_topics(name, one) for one in originals))
            for topic_name in sorted(topics):
                config = self._broker.topics.get(topic_name)
                if config is None or topic not in ("", topic_name, original_topic(Place(name, topic_name, 0))):
                    continue
                yield from (Place(name, topic_name, queue_id) for queue_id in range(config.read_queue_nums))

    def of_queue(self, place: Place) -> QueueProgress:
        first, end = self._broker.store.queues.bounds(place.topic, place.queue_id)
        committed = self._broker.offsets.progress(*place)
        queue = self._consumption.state.queues.get(place)
        position, pending = (committed.offset, 0) if queue is None else (queue.next, queue.pending_from(first))
        return QueueProgress(
            place=place,
            broker_offset=end,
            consumer_offset=goes_on_at(committed.offset, first),
            lag=lag(position, first, end, pending),
            generation=committed.generation,
        )


async def _taking_turns(places: Iterable[Place]) -> AsyncIterator[Place]:
    for number, place in enumerate(places, start=1):
        yield place
        if number % ENTRIES_A_TURN == 0:
            await asyncio.sleep(0)
