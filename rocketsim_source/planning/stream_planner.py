"""How far each batch of a stream goes.  Pure but for what it is told: bounds come in, the next offset comes out."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketsim_source.options.data_loss import DELETED, EARLIEST, TRIMMED, TRUNCATED, UNSUBSCRIBED
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.planning.epochs import NO_EPOCH, ReadIn
from rocketsim_source.planning.limits import Limits, TriggerDelay
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.queue import Offsets, Queue
from rocketsim_source.source_cluster import Bounds, Seen

logger = logging.getLogger(__name__)


def truncated(starts: Offsets, bounds: Mapping[Queue, Bounds]) -> list[Queue]:
    """Queues that end before their start, as their master says.  A slave may just be behind."""
    return [q for q, found in bounds.items() if q in starts and found.max_offset < starts[q] and found.from_master]


def cut_off(start: StreamOffset, bounds: Mapping[Queue, Bounds]) -> Offsets:
    """From where on a promoted slave did not have what was read, by queue; the queue may be longer again by now."""
    cuts = {
        queue: bounds[queue].cut_at(start.offsets[queue], epoch)
        for queue, epoch in start.read_in.items()
        if queue in bounds
    }
    return {queue: cut for queue, cut in cuts.items() if cut is not None}


def read_in(start: StreamOffset, end: Offsets, bounds: Mapping[Queue, Bounds]) -> ReadIn:
    """The epochs to keep with the next batch's end."""
    found = {queue: start.read_in.get(queue, NO_EPOCH) for queue in end}
    for queue in end.keys() & bounds.keys():
        advanced = end[queue] > start.offsets.get(queue, end[queue])
        found[queue] = bounds[queue].read_in(end[queue], found[queue], advanced=advanced)
    return {queue: epoch for queue, epoch in found.items() if epoch.number}


@dataclass
class StreamPlanner:
    options: SourceOptions
    delay: TriggerDelay
    turn: int = 0
    target: Offsets | None = None  # where availableNow ends, once it is known
    _warned: set[tuple[str, Queue]] = field(default_factory=set)

    @classmethod
    def of(cls, options: SourceOptions) -> "StreamPlanner":
        return cls(options, TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay_ms))

    def next_offsets(
        self,
        start: StreamOffset,
        seen: Seen,
        added: Offsets,
        ends: Offsets,
        *,
        unlimited: bool,
        bounded: bool,
        now_ms: int,
    ) -> Offsets:
        """The end of the next batch; equal to where it starts if there is to be none.

        `added` are new queues with the offset they start at: the batch that first names them reads nothing of them, so
        that the start of the next one is in the checkpoint.  `ends` are final; `unlimited` (Trigger.Once) ignores all
        limits, `bounded` (AvailableNow) the minimum.
        """
        starts, cuts = start.offsets, cut_off(start, seen.bounds)
        at = self.after_losses(starts, seen, cuts)
        backlogs: dict[Queue, int] = {}
        for queue, found in seen.bounds.items():
            # What was cut off is read from there on by the next batch: a range cannot go back.
            if queue in at and queue not in cuts:
                end = min(found.max_offset, ends.get(queue, found.max_offset))
                if self.target is not None:
                    end = min(end, self.target.get(queue, at[queue]))
                backlogs[queue] = max(0, end - at[queue])
        total = sum(backlogs.values())
        if unlimited:
            taken: Mapping[Queue, int] = backlogs
        elif bounded or self.delay.lets_through(total, now_ms):
            taken = self._limits().apply(backlogs, record_bytes(seen.bounds), self.turn)
        else:
            taken = {}
        if any(taken.values()):
            self.turn += 1
        elif not total and at != starts:
            pass  # a loss that was allowed has to get into the checkpoint even without new records
        elif not added:
            return starts
        return {queue: offset + taken.get(queue, 0) for queue, offset in at.items()} | added

    def _limits(self) -> Limits:
        options = self.options
        return Limits(options.max_offsets_per_trigger, options.max_offsets_per_queue, options.max_bytes_per_trigger)

    def after_losses(self, starts: Offsets, seen: Seen, cuts: Offsets) -> Offsets:
        """Where each queue goes on; raises DataLossError where the options say so."""
        policy = self.options.data_loss
        at = dict(starts)
        for queue in sorted(queue for queue in starts if not self.options.reads(queue)):
            what = (
                f"is not what the options name any more: it was read up to {starts[queue]}, and no further. Named "
                "again later it is a new queue (newQueueOffsets)"
            )
            policy.allow(UNSUBSCRIBED, queue, what)
            self._warn(UNSUBSCRIBED, queue, what)
            del at[queue]
        for queue in sorted(seen.gone & at.keys()):
            what = f"is gone: its master has no such topic or queue; it was read up to {starts[queue]}"
            policy.allow(DELETED, queue, what)
            self._warn(DELETED, queue, what)
            del at[queue]
        for queue, cut in sorted(cuts.items()):
            if queue in at:
                what = (
                    f"was read up to {starts[queue]}, but the broker that is master now has its records up to {cut} "
                    "only (a slave was promoted that was behind): others have taken the places of those from there on"
                )
                action = policy.allow(TRUNCATED, queue, what)
                self._warn(TRUNCATED, queue, what)
                at[queue] = seen.bounds[queue].min_offset if action == EARLIEST else cut
        for queue, found in seen.bounds.items():
            if queue in at and at[queue] < found.min_offset and found.from_master:
                what = f"lost its records {at[queue]} to {found.min_offset - 1} before they were read (retention?)"
                policy.allow(TRIMMED, queue, what)
                self._warn(TRIMMED, queue, what)
                at[queue] = found.min_offset
        for queue in truncated(at, seen.bounds):
            found = seen.bounds[queue]
            what = (
                f"was read up to {starts[queue]}, but now ends at {found.max_offset} "
                "(broker restarted empty, or lost its tail?)"
            )
            action = policy.allow(TRUNCATED, queue, what)
            self._warn(TRUNCATED, queue, what)
            at[queue] = found.min_offset if action == EARLIEST else found.max_offset
        return at

    def _warn(self, kind: str, queue: Queue, what: str) -> None:
        if (kind, queue) not in self._warned:
            self._warned.add((kind, queue))
            logger.warning("data loss allowed by the options: %s %s", queue, what)


def record_bytes(bounds: Mapping[Queue, Bounds]) -> dict[Queue, float]:
    """The mean size of a queue's records, where the broker knows it."""
    return {
        queue: found.size_bytes / (found.max_offset - found.min_offset)
        for queue, found in bounds.items()
        if found.max_offset > found.min_offset and found.size_bytes > 0
    }
