"""Lags: measures for the metrics how far each group is behind in each topic, and how old its oldest message is.

Measuring ten thousand queues takes the event loop a tenth of a second, so `take` measures only the groups and topics
that have changed since its last call.  Every `FULL_EVERY` calls, `take` measures all groups and topics, because some
changes, such as the expiry of messages, are not announced.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from broker_service.admin.progress import ENTRIES_A_TURN, Progress, QueueProgress
from broker_service.broker.core.broker import Broker
from broker_service.errors import RocketSimError
from broker_service.pop.consumption import Consumption
from broker_service.runtime import cold_reads
from broker_service.state.transitions import Place
from broker_service.store.dispatch import QueueExtent
from broker_service.store.offset_journal import OffsetEntry

FULL_EVERY = 20

Key = tuple[str, str]  # group and topic


class GroupLag(NamedTuple):
    """Says how far a group is behind in a topic.

    `messages` wait to be acknowledged, and `under_way` of these are delivered.  `oldest_ms` is the
    age of the oldest message that is left.  The age is 0 if no message is left, and None if the oldest message cannot
    be read.
    """

    messages: int
    under_way: int
    oldest_ms: int | None


class _Found(NamedTuple):
    """A GroupLag with the store time of the oldest message instead of its age.  The store time is 0 if no message is
    left.
    """

    messages: int = 0
    under_way: int = 0
    stored_ms: int | None = 0


class Lags:
    def __init__(self, broker: Broker, consumption: Consumption, progress: Progress) -> None:
        self._broker = broker
        self._consumption = consumption
        self._progress = progress
        self._found: dict[Key, _Found] = {}
        self._groups: dict[str, set[str]] = {}  # topic -> groups in `_found`
        # place -> the group's next offset, and the store time of the message at this offset
        self._times: dict[Place, tuple[int, int]] = {}
        self._topics_with_news: set[str] = set()
        self._commits: set[Key] = set()
        self._until_full = 0
        broker.store.dispatched.append(self._arrived)
        broker.offsets.changed.append(self._committed)
        broker.topics.changed.append(self._topic_changed)

    async def take(self) -> dict[Key, GroupLag]:
        """Returns the lags by group and topic.  Retry topics have lags of their own."""
        topics, commits = self._topics_with_news, self._commits
        changed = commits | self._broker.offsets.kept.keys()
        is_full = self._until_full <= 0 or not changed <= self._found.keys()
        self._until_full = FULL_EVERY - 1 if is_full else self._until_full - 1
        self._topics_with_news, self._commits = set(), set()
        if is_full:
            self._found, self._groups = await self._measure(self._progress.places()), {}
            for group, topic in self._found:
                self._groups.setdefault(topic, set()).add(group)
            self._times = {place: at for place, at in self._times.items() if (place.group, place.topic) in self._found}
        else:
            changed |= {(group, topic) for topic in topics for group in self._groups.get(topic, ())}
            self._found |= await self._measure(
                Place(*key, queue_id) for key in sorted(changed) for queue_id in range(self._queues_of(key[1]))
            )
        store = self._broker.store
        if store.queues.confirm_offset is not None and store.queues.confirm_offset < store.end_offset:
            # these topics are measured again next time, because lags do not count messages that no slave has yet
            self._topics_with_news |= topics
        now_ms = self._broker.now_ms()
        return {key: _as_of(found, now_ms) for key, found in self._found.items()}

    def skip(self) -> None:
        """Forgets the changes.  A broker without metrics calls `skip` instead of `take`."""
        self._topics_with_news.clear()
        self._commits.clear()
        self._until_full = 0

    async def _measure(self, places: Iterable[Place]) -> dict[Key, _Found]:
        """Measures the lags of these queues, with pauses for other tasks of the event loop."""
        found: dict[Key, _Found] = {}
        queues = self._consumption.state.queues
        for number, place in enumerate(places, start=1):
            one = self._progress.of_queue(place)
            key = place.group, place.topic
            messages, under_way, stored_ms = found.get(key, _NOTHING)
            if (queue := queues.get(place)) is not None:
                under_way += len(queue.under_way)
            if one.lag and stored_ms is not None:
                known = self._times.get(place)
                if known is None or known[0] != one.consumer_offset:
                    known = await self._read_time(one)
                stored_ms = None if known is None else min(stored_ms or known[1], known[1])
            found[key] = _Found(messages + one.lag, under_way, stored_ms)
            if number % ENTRIES_A_TURN == 0:
                await asyncio.sleep(0)
        return found

    async def _read_time(self, one: QueueProgress) -> tuple[int, int] | None:
        """Returns the group's next offset, and the store time of the message at this offset.  Returns None if the
        message cannot be read.
        """
        place, offset = one.place, one.consumer_offset
        read = partial(self._broker.store.queues.store_timestamp_of, place.topic, place.queue_id, offset)
        try:
            stored_ms = await cold_reads.read(self._broker.store, read)
        except (RocketSimError, OSError):  # this error is logged only when a consumer reads the message
            return None
        if not stored_ms:  # the message has expired since
            return None
        self._times[place] = offset, stored_ms
        return offset, stored_ms

    def _queues_of(self, topic: str) -> int:
        config = self._broker.topics.get(topic)
        return 0 if config is None else config.read_queue_nums

    # --- what changes -------------------------------------------------------------------------------------------------

    def _arrived(self, extents: Sequence[QueueExtent]) -> None:
        self._topics_with_news.update([extent.topic for extent in extents])

    def _committed(self, change: tuple[str, str, Mapping[int, OffsetEntry]]) -> None:
        group, topic, entries = change
        self._commits.add((group, topic))
        # a negative offset means that the topic or group was deleted
        if any(entry.offset < 0 for entry in entries.values()):
            self._until_full = 0

    def _topic_changed(self, _: str) -> None:
        self._until_full = 0


_NOTHING = _Found()


def _as_of(found: _Found, now_ms: int) -> GroupLag:
    age = found.stored_ms and max(0, now_ms - found.stored_ms)
    return GroupLag(found.messages, found.under_way, age)
