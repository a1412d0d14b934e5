"""Cuts ranges of queue offsets into Spark partitions.  Pure.

Starting a Spark task costs about 30 ms, so small backlogs of several queues share one task: 1,024 queues do not need
1,024 tasks.  A backlog gets one task for every 50,000 records or 32 MiB.  A queue is split into several ranges only if
`minPartitions` or `maxRecordsPerPartition` asks for it.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rocketsim_client.model import MessageQueue, OffsetRange, QueueBounds

# The versions of the rule by which `Parallelism` cuts ranges.  A change that cuts the same ranges differently needs a
# new version number.  The old rules have to stay, because a batch that is run again must be cut as before.  The sink's
# ids by place (sinkName), for example, stay the same only if the rows are in the same partitions as before.  Rule 1
# counts only records, and is also used for a batch whose size is not known.
RULE_WITHOUT_BYTES, RULE = 1, 2
# A task starts in 30 ms, and reads one to two million records or 1 GB a second.  With fewer records or bytes than these
# two constants, a task would take longer to start than to read.
RECORDS_WORTH_A_TASK = 50_000
BYTES_WORTH_A_TASK = 32 << 20


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How a batch is cut into partitions.  `batch_bytes` is the size of the batch's records in the brokers' logs, or 0
    if it is not known.
    """

    cores: int
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    batch_bytes: int = 0

    @property
    def rule(self) -> int:
        return RULE if self.batch_bytes else RULE_WITHOUT_BYTES

    def partitions(self, ranges: Iterable[OffsetRange]) -> list[list[OffsetRange]]:
        """Puts every record of `ranges` into exactly one partition.

        The largest partition comes first.  The ranges of a queue are in the order of their offsets.
        """
        filled = [queue_range for queue_range in ranges if count(queue_range) > 0]
        records = sum(map(count, filled))
        most = self.max_records_per_partition
        if not filled:
            return []
        if most is not None:
            filled = [part for whole in filled for part in cut(whole, -(-count(whole) // most))]
        if self.min_partitions is not None and self.min_partitions > len(filled):
            filled = split_up(filled, self.min_partitions)
        return pack(filled, self._how_many(filled, records), most)

    def _how_many(self, ranges: Sequence[OffsetRange], records: int) -> int:
        # Two tasks for each core even out ranges of unequal size.  More tasks would only cost the time of their start.
        worth = max(-(-records // RECORDS_WORTH_A_TASK), -(-self.batch_bytes // BYTES_WORTH_A_TASK))
        worthwhile = min(worth, 2 * self.cores)
        if self.max_records_per_partition is not None:
            worthwhile = max(worthwhile, -(-records // self.max_records_per_partition))
        return max(1, min(len(ranges), max(worthwhile, self.min_partitions or 0)))


def record_bytes(bounds: Mapping[MessageQueue, QueueBounds]) -> dict[MessageQueue, float]:
    """Returns the mean size of each queue's records, for the queues whose size the broker reports."""
    return {
        queue: found.size_bytes / (found.max_offset - found.min_offset)
        for queue, found in bounds.items()
        if found.max_offset > found.min_offset and found.size_bytes > 0
    }


def batch_bytes(ranges: Iterable[OffsetRange], bounds: Mapping[MessageQueue, QueueBounds]) -> int:
    """Estimates the size of the given ranges by the mean sizes of their queues' records."""
    means = record_bytes(bounds)
    return round(sum(count(queue_range) * means.get(queue_range.queue, 0) for queue_range in ranges))


def count(queue_range: OffsetRange) -> int:
    return queue_range.until_offset - queue_range.from_offset


def cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Returns `parts` consecutive ranges of nearly the same length, or fewer if the range has fewer records."""
    parts = max(1, min(parts, count(whole)))
    edges = [whole.from_offset + count(whole) * part // parts for part in range(parts + 1)]
    return [OffsetRange(whole.queue, start, end) for start, end in pairwise(edges)]


def split_up(ranges: Sequence[OffsetRange], at_least: int) -> list[OffsetRange]:
    """Returns at least `at_least` ranges, or one for each record if there are fewer records.  In each step, the
    range with the largest parts is cut into one more part."""
    parts = [1] * len(ranges)
    largest: list[tuple[float, int]] = [(-count(queue_range), index) for index, queue_range in enumerate(ranges)]
    heapq.heapify(largest)
    for _ in range(min(at_least, sum(map(count, ranges))) - len(ranges)):
        _, index = heapq.heappop(largest)
        parts[index] += 1
        heapq.heappush(largest, (-count(ranges[index]) / parts[index], index))
    return [part for whole, number in zip(ranges, parts, strict=True) for part in cut(whole, number)]


def pack(ranges: Sequence[OffsetRange], partitions: int, max_records: int | None) -> list[list[OffsetRange]]:
    """Puts each range, the largest first, into the partition with the fewest records.  Adds a partition if a range
    would make its partition larger than `max_records`."""
    bins: list[tuple[int, int, list[OffsetRange]]] = [(0, index, []) for index in range(partitions)]
    for queue_range in sorted(ranges, key=lambda queue_range: (-count(queue_range), queue_range)):
        filled, index, held = bins[0]
        if max_records is not None and held and filled + count(queue_range) > max_records:
            heapq.heappush(bins, (count(queue_range), len(bins), [queue_range]))
            continue
        held.append(queue_range)
        heapq.heapreplace(bins, (filled + count(queue_range), index, held))
    return [sorted(held) for filled, _, held in sorted(bins, key=lambda one: (-one[0], one[1])) if held]
