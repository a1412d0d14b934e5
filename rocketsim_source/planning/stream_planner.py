"""Decides how far each batch of a stream goes, from the bounds of its queues.  Does no I/O."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketsim_client.model import NO_EPOCH, LogEpoch, MessageQueue, QueueBounds
from rocketsim_source.options.data_loss import DELETED, EARLIEST, TRIMMED, TRUNCATED, UNSUBSCRIBED
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.planning.limits import Limits, TriggerDelay
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.planning.splits import record_bytes
from rocketsim_source.source_cluster import Offsets, QueueStates, ReadIn

logger = logging.getLogger(__name__)


def truncated(starts: Offsets, bounds: Mapping[MessageQueue, QueueBounds]) -> list[MessageQueue]:
    """Returns the queues whose master reports an end before the query's position.

    Reports of slaves do not count, because slaves may be behind.
    """
    return [q for q, found in bounds.items() if q in starts and found.max_offset < starts[q] and found.is_master]


def cut_off(start: StreamOffset, bounds: Mapping[MessageQueue, QueueBounds]) -> Offsets:
    """Returns, for each queue whose promoted slave lacks records that were already read, the offset of the first of
    these records.

    The end of a queue does not show that records were lost, because the queue may have grown past the lost offsets
    again.
    """
    ends = {queue: bounds[queue].ends_in.get(epoch) for queue, epoch in start.read_in.items() if queue in bounds}
    return {queue: end for queue, end in ends.items() if end is not None and end < start.offsets[queue]}


def read_in(start: StreamOffset, end: Offsets, bounds: Mapping[MessageQueue, QueueBounds]) -> ReadIn:
    """Returns the leader epochs that are written into the checkpoint with the end of the next batch."""
    found = {queue: start.read_in.get(queue, NO_EPOCH) for queue in end}
    for queue in end.keys() & bounds.keys():
        advanced = end[queue] > start.offsets.get(queue, end[queue])
        found[queue] = epoch_of(end[queue], bounds[queue], found[queue], advanced=advanced)
    return {queue: epoch for queue, epoch in found.items() if epoch.epoch}


def epoch_of(offset: int, bounds: QueueBounds, before: LogEpoch, *, advanced: bool) -> LogEpoch:
    """Returns the leader epoch to keep with `offset`.

    The result is `before` as long as the broker may lack records that were read in epoch `before`.
    """
    if offset > bounds.max_offset:
        return before
    is_here = not before.epoch or before in bounds.ends_in
    return bounds.log_epoch if is_here or (advanced and bounds.log_epoch < before) else before


@dataclass
class StreamPlanner:
    """Plans the batches of one query."""

    options: SourceOptions
    delay: TriggerDelay
    turn: int = 0
    target: Offsets | None = None  # the end of an availableNow run, or None until it is known
    _warned: set[tuple[str, MessageQueue]] = field(default_factory=set)
    _closed: Offsets = field(default_factory=dict)  # the ends of queues that were closed for writing when last seen

    @classmethod
    def of(cls, options: SourceOptions) -> "StreamPlanner":
        return cls(options, TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay_ms))

    def next_offsets(
        self,
        start: StreamOffset,
        states: QueueStates,
        added: Offsets,
        ends: Offsets,
        *,
        unlimited: bool,
        bounded: bool,
        now_ms: int,
    ) -> Offsets:
        """Returns the end of the next batch, which is equal to its start if no batch is to run.

        `added` has new queues with the offset at which they start.  The first batch that names a new queue reads
        nothing of it, so that the start of the queue is in the checkpoint before any record is read.  No batch goes
        beyond `ends`.  `unlimited` (Trigger.Once) ignores all limits, and `bounded` (AvailableNow) ignores
        minOffsetsPerTrigger.
        """
        starts, cuts = start.offsets, cut_off(start, states.bounds)
        at = self.after_losses(starts, states, cuts)
        backlogs: dict[MessageQueue, int] = {}
        for queue, found in states.bounds.items():
            # A queue that lost records continues at a lower offset.  A batch cannot go back to a lower offset, so this
            # batch reads nothing of the queue, and the next batch reads from the lower offset on.
            if queue in at and queue not in cuts:
                end = min(found.max_offset, ends.get(queue, found.max_offset))
                if self.target is not None:
                    end = min(end, self.target.get(queue, at[queue]))
                backlogs[queue] = max(0, end - at[queue])
        total = sum(backlogs.values())
        if unlimited:
            taken: Mapping[MessageQueue, int] = backlogs
        elif bounded or self.delay.lets_through(total, now_ms):
            taken = self._limits().apply(backlogs, record_bytes(states.bounds), self.turn)
        else:
            taken = {}
        if any(taken.values()):
            self.turn += 1
        elif not total and at != starts:
            pass  # an allowed loss is written into the checkpoint even if there are no new records
        elif not added:
            return starts
        return {queue: offset + taken.get(queue, 0) for queue, offset in at.items()} | added

    def _limits(self) -> Limits:
        options = self.options
        return Limits(options.max_offsets_per_trigger, options.max_offsets_per_queue, options.max_bytes_per_trigger)

    def after_losses(self, starts: Offsets, states: QueueStates, cuts: Offsets) -> Offsets:
        """Returns the offset at which each queue continues after allowed losses.  Raises DataLossError for a loss that
        the options do not allow.
        """
        policy = self.options.data_loss
        at = dict(starts)
        for queue in sorted(queue for queue in starts if not self.options.reads(queue)):
            what = (
                f"is not named by the options any more: it was read up to {starts[queue]}. If the options name it "
                "again, it counts as a new queue (newQueueOffsets)"
            )
            policy.allow(UNSUBSCRIBED, queue, what)
            self._warn(UNSUBSCRIBED, queue, what)
            del at[queue]
        self._note_closed(states.bounds)
        for queue in sorted(states.gone & at.keys()):
            if queue in states.closed and at[queue] >= states.closed[queue]:
                self._tell_drained(queue, at[queue])
                continue  # keep the queue's offset: the topic may get the queue back, with its records
            if queue not in states.closed and queue in self._closed and at[queue] >= self._closed[queue]:
                self._tell_drained(queue, at[queue])
                del at[queue]
                continue
            what = f"is gone: its master has no such topic or queue; it was read up to {starts[queue]}"
            if queue in states.closed:
                what += f", and ends at {states.closed[queue]}"
            policy.allow(DELETED, queue, what)
            self._warn(DELETED, queue, what)
            del at[queue]
        for queue, cut in sorted(cuts.items()):
            if queue in at:
                what = (
                    f"was read up to {starts[queue]}, but the broker that is master now has its records up to {cut} "
                    "only (a slave was promoted that was behind): from there on the queue has other records"
                )
                action = policy.allow(TRUNCATED, queue, what)
                self._warn(TRUNCATED, queue, what)
                at[queue] = states.bounds[queue].min_offset if action == EARLIEST else cut
        for queue, found in states.bounds.items():
            if queue in at and at[queue] < found.min_offset and found.is_master:
                what = f"lost its records {at[queue]} to {found.min_offset - 1} before they were read (retention?)"
                policy.allow(TRIMMED, queue, what)
                self._warn(TRIMMED, queue, what)
                at[queue] = found.min_offset
        for queue in truncated(at, states.bounds):
            found = states.bounds[queue]
            what = (
                f"was read up to {starts[queue]}, but now ends at {found.max_offset} "
                "(broker restarted empty, or lost its tail?)"
            )
            action = policy.allow(TRUNCATED, queue, what)
            self._warn(TRUNCATED, queue, what)
            at[queue] = found.min_offset if action == EARLIEST else found.max_offset
        return at

    def _note_closed(self, bounds: Mapping[MessageQueue, QueueBounds]) -> None:
        for queue, found in bounds.items():
            if found.writable:
                self._closed.pop(queue, None)
            elif found.is_master:
                self._closed[queue] = found.max_offset

    def _tell_drained(self, queue: MessageQueue, end: int) -> None:
        if ("drained", queue) not in self._warned:
            self._warned.add(("drained", queue))
            logger.info("%s is closed, and was read up to its end %d, so none of its records is missing", queue, end)

    def _warn(self, kind: str, queue: MessageQueue, what: str) -> None:
        if (kind, queue) not in self._warned:
            self._warned.add((kind, queue))
            logger.warning("data loss allowed by the options: %s %s", queue, what)
