"""Decides how many records of each queue a batch takes.  Pure: the clock and the batch's `turn` are arguments."""

from collections.abc import Mapping
from dataclasses import dataclass

from rocketsim_client.model import MessageQueue


def share(backlogs: Mapping[MessageQueue, int], limit: int, turn: int = 0) -> dict[MessageQueue, int]:
    """Returns how many records of each queue a batch of at most `limit` records takes.  Each queue gets a share in
    proportion to its backlog, but at least one record.

    The shares add up to exactly min(limit, sum of the backlogs).  If there are more queues than `limit`, `turn` decides
    which queues are served.  The caller adds one to `turn` with each batch, so that no queue starves.
    """
    waiting = sorted(queue for queue, backlog in backlogs.items() if backlog > 0)
    if limit >= sum(backlogs[queue] for queue in waiting):
        return {queue: backlogs[queue] for queue in waiting}
    if limit <= len(waiting):
        first = turn * limit % len(waiting)
        return dict.fromkeys((waiting + waiting)[first : first + limit], 1)
    # Each queue gets one record, and the rest is divided by the largest remainder method.
    rest = {queue: backlogs[queue] - 1 for queue in waiting}
    spare, total = limit - len(waiting), sum(rest.values())
    shares = {queue: 1 + spare * left // total for queue, left in rest.items()}
    by_remainder = sorted(waiting, key=lambda queue: (-(spare * rest[queue] % total), queue))
    for queue in by_remainder[: limit - sum(shares.values())]:
        shares[queue] += 1
    return shares


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one trigger, where None means no limit."""

    max_offsets: int | None = None
    max_offsets_per_queue: int | None = None
    max_bytes: int | None = None

    def apply(
        self, backlogs: Mapping[MessageQueue, int], record_bytes: Mapping[MessageQueue, float], turn: int
    ) -> dict[MessageQueue, int]:
        """Returns how many records of each queue to take.  `record_bytes` is the mean size of a queue's records, if
        known.

        The byte limit is converted to a number of records of the backlog's mean size, so a batch can exceed the byte
        limit a little.  A batch always has at least one record.
        """
        taken = {queue: backlog for queue, backlog in backlogs.items() if backlog > 0}
        if self.max_offsets_per_queue is not None:
            taken = {queue: min(backlog, self.max_offsets_per_queue) for queue, backlog in taken.items()}
        limit = sum(taken.values())
        if self.max_offsets is not None:
            limit = min(limit, self.max_offsets)
        if self.max_bytes is not None and limit:
            backlog_bytes = sum(count * record_bytes.get(queue, 0.0) for queue, count in taken.items())
            if backlog_bytes > 0:
                mean = backlog_bytes / sum(taken.values())
                limit = max(1, min(limit, int(self.max_bytes / mean)))
        return share(taken, limit, turn)


class TriggerDelay:
    """Applies minOffsetsPerTrigger and maxTriggerDelay: a batch waits until there are enough records, but no longer
    than the delay.
    """

    def __init__(self, min_offsets: int | None, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        # The time of the last batch, or None before the first batch, which is not delayed, as in Kafka's source.
        self._last_ms: int | None = None

    def lets_through(self, count: int, now_ms: int) -> bool:
        """Returns True if a batch of `count` new records may run now."""
        if count == 0:
            return False
        enough = self._min_offsets is None or count >= self._min_offsets
        due = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if enough or due:
            self._last_ms = now_ms
            return True
        return False
