"""Commits: lets consumers commit offsets and query them (tables D6 and D7 of docs/decision_tables.md)."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rocketsim_proto.model import GetMessageStatus

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.errors import InvalidParameter, ServiceNotAvailable
from broker_service.put_result import CommitStatus
from broker_service.runtime import cold_reads
from broker_service.state.transaction_changes import MAX_TEXT

logger = logging.getLogger(__name__)

NOT_FOUND = -1


@dataclass(frozen=True, slots=True)
class CommitEntry:
    topic: str
    queue_id: int
    offset: int  # the offset of the next message that the group has to read


@dataclass(frozen=True, slots=True)
class Committed:
    topic: str
    queue_id: int
    offset: int  # -1: QUERY_NOT_FOUND
    generation: int = 0


class Commits:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def make_group(self, name: str) -> None:
        """Creates a group for its first consumer, if this broker may create groups."""
        broker = self._broker
        if broker.config.auto_create_subscription_group and not broker.is_slave:
            await broker.groups.make_for_consumer(name, broker.now_ms())

    def has_group(self, name: str) -> bool:
        """Returns True if `make_group` has nothing to do for this group."""
        broker = self._broker
        return name in broker.groups.entries or not broker.config.auto_create_subscription_group or broker.is_slave

    def group(self, name: str) -> SubscriptionGroup:
        """Returns the group of a consumer.  The caller must await `make_group` first."""
        return self._broker.groups.consuming(name, auto_create=self._broker.config.auto_create_subscription_group)

    async def commit_and_share(
        self, group: str, entries: Sequence[CommitEntry], timeout_s: float, client_id: str = ""
    ) -> tuple[list[int], CommitStatus]:
        """Commits offsets, and waits at most `timeout_s` until other brokers have the commits.  Operators see a
        non-empty `client_id` among the group's consumers.

        Returns the offsets that are now committed, and which brokers have the commits.  Even a commit that changes
        nothing waits for the slave, because the slave may not have got an earlier commit yet.
        """
        self._broker.acknowledgements.check_room()
        self._broker.check_answers_for_offsets()
        if len(client_id.encode()) > MAX_TEXT:
            raise InvalidParameter(f"client id {client_id[:40]!r}… is longer than {MAX_TEXT} bytes")
        await self.make_group(group)
        before = [self._broker.offsets.progress(group, one.topic, one.queue_id).offset for one in entries]
        standing = self.commit(group, entries)
        if client_id:
            moved = sum(now - max(0, then) for then, now in zip(before, standing, strict=True))
            self._broker.consumers.committed(group, client_id, moved, self._broker.clock())
        return standing, await self._broker.shared_changes(timeout_s)

    def commit(self, group: str, entries: Sequence[CommitEntry]) -> list[int]:
        """Commits either all entries or none.  Returns the offsets that are now committed, in the order of the entries.

        A slave also takes commits, because the master may be gone (table D6 of docs/decision_tables.md).  A slave hands
        its commits to the master later.
        """
        self._broker.check_answers_for_offsets()
        self.group(group)
        for entry in entries:
            self._check(group, entry)
            if (group, entry.topic) in self._broker.offsets.kept:
                raise InvalidParameter(
                    f"the broker keeps the offsets of group {group} for topic {entry.topic}, which pops and "
                    "acknowledges its messages; move them with `rocketsim admin resetOffsetByTime`"
                )
        by_topic: dict[str, dict[int, int]] = {}
        for entry in entries:
            queues = by_topic.setdefault(entry.topic, {})
            queues[entry.queue_id] = max(entry.offset, queues.get(entry.queue_id, 0))
        standing = {topic: self._broker.offsets.commit(group, topic, queues) for topic, queues in by_topic.items()}
        return [standing[entry.topic][entry.queue_id] for entry in entries]

    def commit_on_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commits the offset that came with a pull request.  The pull continues even if the offset is refused, and does
        not wait until slaves have the commit.
        """
        try:
            self.commit(group, [CommitEntry(topic, queue_id, offset)])
        except (InvalidParameter, ServiceNotAvailable) as error:
            logger.warning("the offset that came with a pull is not committed: %s", error)

    async def query(
        self, group: str, queues: Iterable[tuple[str, int]], *, zero_for_new_group: bool
    ) -> list[Committed]:
        """Returns the group's committed offsets in `queues`, or, if `queues` is empty, in all queues where the group
        has one.
        """
        self._broker.check_answers_for_offsets()
        offsets = self._broker.offsets
        queues = list(queues)
        if not queues:
            found = sorted(offsets.of_group(group), key=lambda item: item[:2])
            return [Committed(topic, queue_id, entry.offset, entry.generation) for topic, queue_id, entry in found]
        starts = {}
        for topic, queue_id in queues:
            if zero_for_new_group and offsets.progress(group, topic, queue_id).offset < 0:
                start = await cold_reads.read(self._broker.store, partial(self._start, topic, queue_id))
                starts[topic, queue_id] = start
        self._broker.check_answers_for_offsets()  # the broker's role may have changed while the disk was read
        answers = []
        for topic, queue_id in queues:
            entry = offsets.progress(group, topic, queue_id)
            offset = entry.offset if entry.offset >= 0 else starts.get((topic, queue_id), NOT_FOUND)
            answers.append(Committed(topic, queue_id, offset, entry.generation))
        return answers

    def _start(self, topic: str, queue_id: int) -> int:
        """Returns the offset at which a new group starts in this queue (table D7 of docs/decision_tables.md).

        If the queue has never had a message, a new group starts at the queue's first offset.  If the queue still has
        its very first message, and this message is in memory by RocketMQ's 40 % rule, a new group also starts at the
        queue's first offset.  In all other cases the result is NOT_FOUND.
        """
        store = self._broker.store
        first = store.queues.first_offset_ever(topic, queue_id)
        if first is None:
            return NOT_FOUND
        found = store.queues.get_message(topic, queue_id, first, 1, 1, None, correct_offset=False)
        on_disk = found.status is GetMessageStatus.FOUND and found.suggest_pull_from_slave
        return NOT_FOUND if on_disk else first

    def _check(self, group: str, entry: CommitEntry) -> None:
        topic = self._broker.topics.existing(entry.topic)
        queue_nums = max(topic.read_queue_nums, topic.write_queue_nums)
        if not 0 <= entry.queue_id < queue_nums and not self._had_queue(group, entry):
            raise InvalidParameter(
                f"queue {entry.queue_id} does not exist: topic {entry.topic} has {queue_nums} queues"
            )
        if entry.offset < 0:
            raise InvalidParameter(f"offset {entry.offset} for queue {entry.queue_id} of {entry.topic} is negative")
        if self._broker.is_slave:
            return  # A slave's log may be behind the master's, so only a master checks the end.
        end = self._broker.store.queues.end(entry.topic, entry.queue_id)
        if entry.offset > end:
            raise InvalidParameter(
                f"offset {entry.offset} is beyond the end {end} of queue {entry.queue_id} of {entry.topic}"
            )

    def _had_queue(self, group: str, entry: CommitEntry) -> bool:
        """Returns True if the topic has ever had this queue.  A group that has read a removed queue to its end must
        still be able to commit that end.
        """
        queue = entry.topic, entry.queue_id
        return self._broker.store.queues.end(*queue) > 0 or self._broker.offsets.get(group, *queue).offset >= 0
