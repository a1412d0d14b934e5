"""Progress: how far groups have come and what they have yet to settle, for consumerProgress and the metrics."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from rocketsim_proto.lag import goes_on_at, lag

from broker_service.broker.core.broker import Broker
from broker_service.errors import RocketSimError, SubscriptionGroupNotExist
from broker_service.names import check_group_name
from broker_service.pop.consumption import Consumption
from broker_service.runtime import cold_reads
from broker_service.state.moves import original_topic
from broker_service.state.transitions import Place

ENTRIES_A_TURN = 64  # of a long list, before other calls get their turn


class GroupLag(NamedTuple):
    """`messages`: that the group has yet to settle; `under_way` of these are delivered and not acknowledged.
    `oldest_ms`: the age of the oldest one, 0 if there is none, None if it cannot be read."""

    messages: int
    under_way: int
    oldest_ms: int | None


_NO_LAG = GroupLag(0, 0, 0)


class QueueProgress(NamedTuple):
    """`consumer_offset`: where the group goes on.  `lag`: the messages that it has yet to settle, which are those from
    there on, but for messages that a group which pops has settled out of turn."""

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
        self._oldest: dict[Place, tuple[int, int]] = {}

    async def of(self, group: str, topic: str) -> list[tuple[QueueProgress, int]]:
        """Every queue of each topic that the group has read from, and of the retry topics that belong to these; of all
        groups and topics if none is named.  With each the store time of the last message that was consumed; 0: none."""
        if group:
            check_known_group(self._broker, group)
        store, found = self._broker.store, []
        async for place in _taking_turns(self._places(group, topic)):
            one = self._of_queue(place)
            last = one.consumer_offset - 1
            read = partial(store.store_timestamp_of, place.topic, place.queue_id, last)
            found.append((one, await cold_reads.read(store, read) if last >= 0 else 0))
        return found

    async def lags(self) -> dict[tuple[str, str], GroupLag]:
        """By group and topic; retry topics have their own."""
        lags: dict[tuple[str, str], GroupLag] = {}
        kept, self._oldest = self._oldest, {}
        now_ms, queues = self._broker.now_ms(), self._consumption.state.queues
        async for place in _taking_turns(self._places("", "")):
            key = place.group, place.topic
            messages, under_way, oldest_ms = lags.get(key, _NO_LAG)
            one = self._of_queue(place)
            if (queue := queues.get(place)) is not None:
                under_way += len(queue.under_way)
            if one.lag and oldest_ms is not None:
                known = kept.get(place)
                if known is None or known[0] != one.consumer_offset:
                    known = await self._read_time(one)
                if known is not None:
                    self._oldest[place] = known
                oldest_ms = None if known is None else max(oldest_ms, now_ms - known[1])
            lags[key] = GroupLag(messages + one.lag, under_way, oldest_ms)
        return lags

    async def _read_time(self, one: QueueProgress) -> tuple[int, int] | None:
        """Returns the offset at which the group goes on, and when that message was stored; None if it cannot be read.
        The result holds as long as the group stands there."""
        place, offset = one.place, one.consumer_offset
        read = partial(self._broker.store.store_timestamp_of, place.topic, place.queue_id, offset)
        try:
            stored_ms = await cold_reads.read(self._broker.store, read)
        except (RocketSimError, OSError):  # who reads the message gets the error, and the log has it
            return None
        return (offset, stored_ms) if stored_ms else None  # 0: it has expired since

    def _places(self, group: str, topic: str) -> Iterator[Place]:
        """May be read over several turns of the event loop: what changes meanwhile is told as it is then."""
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

    def _of_queue(self, place: Place) -> QueueProgress:
        first, end = self._broker.store.queue_bounds(place.topic, place.queue_id)
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
