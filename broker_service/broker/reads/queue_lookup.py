"""QueueLookup: finds the first and last offsets of queues, and the offset at a given time, on masters and slaves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from rocketsim_proto.limits import MAX_QUEUE_NUMS
from rocketsim_proto.model import LogEpoch

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import InvalidParameter, ServiceNotAvailable, TopicNotExist
from broker_service.runtime import cold_reads


@dataclass(frozen=True, slots=True)
class Bounds:
    queue_id: int
    min_offset: int
    max_offset: int
    last_store_timestamp: int = 0
    size_bytes: int = 0  # an estimate


class QueueLookup:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def bounds(self, topic_name: str, queue_ids: Iterable[int], *, closed: bool = False) -> list[Bounds]:
        """Returns the bounds (first and last offset) of the queues in `queue_ids`, or of all queues if it is empty.
        With `closed`, queues that the topic no longer has are allowed, too.
        """
        topic = self._existing(topic_name)
        wanted = list(queue_ids) or range(max(topic.read_queue_nums, topic.write_queue_nums))
        return [await cold_reads.read(self._broker.store, partial(self._bounds, topic, one, closed)) for one in wanted]

    async def wait_for_records(self, topic_name: str, ends: Mapping[int, int], hold_s: float) -> bool:
        """Waits until one of the queues has a record beyond the end that `ends` names.  Returns False if no record
        comes within `hold_s`.
        """
        topic = self._existing(topic_name)
        for queue_id in ends:
            self._check(topic, queue_id)
        if any(self._broker.store.queues.bounds(topic_name, queue_id)[1] > end for queue_id, end in ends.items()):
            return True
        queues = {(topic_name, queue_id): end for queue_id, end in ends.items()}
        return await self._broker.long_polling.wait(queues, self._broker.hold_s(hold_s))

    def ends_in(self, topic_name: str, queue_ids: Iterable[int], epoch: LogEpoch) -> list[int] | None:
        """Returns the end of each queue at the moment when `epoch` ended, beyond which a client cannot have read in
        this epoch.

        Returns None if the epoch has not ended, or if this broker does not know where it ended.
        """
        log_end = self._broker.end_of(epoch)
        if log_end is None:
            return None
        return [self._broker.store.queues.end_at(topic_name, queue_id, log_end) for queue_id in queue_ids]

    async def search(self, topic_name: str, queues: Iterable[tuple[int, int]]) -> list[int]:
        """Returns, for each pair (queue id, timestamp), the first offset stored at or after this time, or the queue's
        end.
        """
        topic = self._existing(topic_name)
        offsets = []
        for queue_id, timestamp in queues:
            self._check(topic, queue_id)
            store = self._broker.store
            search = partial(store.queues.search_offset_by_time, topic_name, queue_id, timestamp)
            offsets.append(await cold_reads.read(store, search))
        return offsets

    async def first_timestamp(self, topic_name: str, queue_id: int) -> int:
        """Returns the store time of the queue's first message, or -1 if the queue is empty."""
        self._check(self._existing(topic_name), queue_id)
        store = self._broker.store
        first, end = store.queues.bounds(topic_name, queue_id)
        if first >= end:
            return -1
        return await cold_reads.read(store, partial(store.queues.store_timestamp_of, topic_name, queue_id, first))

    def _existing(self, topic_name: str) -> TopicConfig:
        """Returns the topic.  If the topic is missing, only a master that takes writes may say that it does not exist.

        A master that has just started may not know its slave's topics yet, and a fenced master does not learn of new
        topics.
        """
        mastership = self._broker.mastership
        if mastership.is_master and mastership.standing is not Standing.WRITABLE:
            try:
                return self._broker.topics.existing(topic_name)
            except TopicNotExist as error:
                raise ServiceNotAvailable(
                    f"{error}; but this master takes no writes now, and may not know the topic"
                ) from None
        return self._broker.topics.existing(topic_name)

    def _bounds(self, topic: TopicConfig, queue_id: int, closed: bool) -> Bounds:
        store = self._broker.store
        min_offset, max_offset = store.queues.bounds(topic.name, queue_id)
        if closed and max(topic.read_queue_nums, topic.write_queue_nums) <= queue_id < MAX_QUEUE_NUMS:
            # The end of a removed queue counts all its stored records, even those that readers do not see yet.
            return Bounds(queue_id, min_offset, store.queues.end(topic.name, queue_id))
        self._check(topic, queue_id)
        if max_offset <= min_offset:
            return Bounds(queue_id, min_offset, max_offset)
        size, timestamp = store.queues.size_and_time_of(topic.name, queue_id, max_offset - 1)
        return Bounds(queue_id, min_offset, max_offset, timestamp, size * (max_offset - min_offset))

    def _check(self, topic: TopicConfig, queue_id: int) -> None:
        queue_nums = max(topic.read_queue_nums, topic.write_queue_nums)
        if not 0 <= queue_id < queue_nums:
            raise InvalidParameter(f"queue {queue_id} does not exist: topic {topic.name} has {queue_nums} queues")
