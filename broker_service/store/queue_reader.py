"""QueueReader reads the queues of a store: their bounds, and the messages that readers see in them."""

from collections.abc import Iterable

from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.pull import GetMessageResult, get_message, memory_size, size_and_time
from broker_service.store.queue_table import QueueKey, QueueTable
from broker_service.store.ranges import RangesResult, Span, TagsCodes, read_ranges


class QueueReader:
    """Reads within the limits of `config`.

    Readers see the records that end at or before `confirm_offset`; None means all records.
    """

    def __init__(self, log: CommitLog, table: QueueTable, config: StoreConfig) -> None:
        self.config = config
        self.confirm_offset: int | None = None
        self._log = log
        self._table = table

    def keys(self) -> list[QueueKey]:
        return self._table.keys()

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns the (min, max) queue offsets that readers see; max is exclusive.

        If the queue has no messages, min and max are the offset of its next message, which is 0, or larger if the topic
        was deleted and created again.
        """
        queue = self._table.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_at(self.confirm_offset))

    def first_offset_ever(self, topic: str, queue_id: int) -> int | None:
        """Returns the queue's minimum if none of its messages has expired since the topic was created; else None."""
        min_offset = self.bounds(topic, queue_id)[0]
        return min_offset if min_offset <= self._table.began_at(topic, queue_id) else None

    def end_at(self, topic: str, queue_id: int, log_offset: int) -> int:
        """Returns the queue's end when the log ended at `log_offset`, or its current minimum if that is larger."""
        queue = self._table.get(topic, queue_id)
        return 0 if queue is None else queue.max_at(log_offset)

    def end(self, topic: str, queue_id: int) -> int:
        """Returns the queue's end, including messages that readers do not see yet."""
        queue = self._table.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def ends(self, topic: str) -> dict[int, int]:
        """Returns, for each queue of the topic, the offset of its next message."""
        return {queue_id: self.end(topic, queue_id) for name, queue_id in self.keys() if name == topic}

    def log_offsets(self, topic: str, queue_id: int, queue_offset: int) -> list[int]:
        """Returns the log offsets of the queue's records from `queue_offset` on, also of those not yet visible."""
        queue = self._table.get(topic, queue_id)
        if queue is None:
            return []
        first = max(queue_offset, queue.min_offset)
        offsets: list[int] = queue.read(first, queue.max_offset - first)["commit_log_offset"].tolist()
        return offsets

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
        """Returns the log offset and size of a message's record; None if the queue does not have the message."""
        queue = self._table.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        one = queue.read(queue_offset, 1)[0]
        return int(one["commit_log_offset"]), int(one["size"])

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_msg_nums: int,
        max_msg_bytes: int,
        tags_codes: TagsCodes,
        correct_offset: bool = True,
    ) -> GetMessageResult:
        """Reads one queue by RocketMQ's rules (tables D2b and D3 of docs/decision_tables.md).

        With `correct_offset`, an offset outside the queue is answered with the nearest valid one.
        """
        queue, end = self._table.get(topic, queue_id), self.bounds(topic, queue_id)[1]
        return get_message(
            self._log,
            self.config,
            queue,
            queue_offset,
            end,
            max_msg_nums,
            max_msg_bytes,
            tags_codes,
            correct_offset,
        )

    def read_ranges(
        self,
        ranges: Iterable[tuple[str, int, int, int]],
        max_bytes: int,
        tags_codes: TagsCodes = None,
        entries: int = 0,
    ) -> RangesResult:
        """Reads (topic, queue id, from, until) ranges one after the other: up to `max_bytes`, but at least one record.

        The statuses are those of table D3, and offsets outside a queue are corrected.  `entries` is an estimate of how
        many messages fit; 0 means unknown.
        """
        spans = (
            Span(self._table.get(topic, queue_id), first, until, self.bounds(topic, queue_id)[1])
            for topic, queue_id, first, until in ranges
        )
        return read_ranges(self._log, spans, max_bytes, tags_codes, memory_size(self.config), entries)

    def size_and_time_of(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int]:
        """Returns the size in bytes and store time in ms of a message's record; (0, 0) if it does not exist."""
        queue = self._table.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return 0, 0
        return size_and_time(self._log, queue, queue_offset)

    def store_timestamp_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Returns the store time in ms of a message; 0 if it does not exist."""
        return self.size_and_time_of(topic, queue_id, queue_offset)[1]

    def search_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the offset of the queue's first message stored at or after this time; its end if there is none."""
        low, high = self.bounds(topic, queue_id)
        queue = self._table.get(topic, queue_id)
        while queue is not None and low < high:
            middle = (low + high) // 2
            if size_and_time(self._log, queue, middle)[1] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low
