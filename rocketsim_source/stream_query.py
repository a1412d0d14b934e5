"""StreamQuery: the driver's part of one stream query, which finds where the query starts and how far each batch goes,
commits offsets and reports progress.

`stream_reader.py` is the interface for Spark, `planning` makes the decisions, and `commits` has the committing thread.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition
from rocketsim_proto.lag import goes_on_at

from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.commits.committer import Committer, now_ms
from rocketsim_source.options.data_loss import DELETED, EARLIEST, TRUNCATED
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.planning.partition import parallelism_now, plan_partitions
from rocketsim_source.planning.progress import LagClock, TransportsUsed, report
from rocketsim_source.planning.queue_watch import NothingAnswers, QueueWatch, answered, refuse_unreachable
from rocketsim_source.planning.splits import batch_bytes
from rocketsim_source.planning.starts import (
    KnownOffsets,
    RequestedPositions,
    end_offsets,
    refuse_starts_behind_ends,
    refuse_times_behind_ends,
    start_offsets,
    wanted_ends,
    wanted_starts,
)
from rocketsim_source.planning.stream_planner import StreamPlanner, read_in, truncated
from rocketsim_source.source_cluster import OffsetAnswers, Offsets, QueueStates, SourceCluster

TRUNCATION_GRACE_S = 3.0  # a queue that seems truncated for this time counts as truncated
BOUNDED_WAIT_S = 10.0  # availableNow waits this long for a broker name that does not answer
# An idle query plans again after IDLE_PLAN_S, and earlier if it has to look for new queues, but at most once in
# LEAST_IDLE_PLAN_S.
IDLE_PLAN_S = 5.0
LEAST_IDLE_PLAN_S = 1.0
POLL_S = 0.01
POLL_MAX_S = 0.05


class Reported(NamedTuple):
    """A progress report, with the values from which it was made.  A report is kept only if no queue had a lag, because
    the report then stays the same while the values do."""

    states: QueueStates
    position: Offsets
    group: dict[str, Any] | None
    report: dict[str, Any]


class StreamQuery:
    """The state of one query.

    The reader makes the StreamQuery with the first call that needs brokers, and keeps it while the query runs.
    """

    def __init__(self, options: SourceOptions, cluster: SourceCluster) -> None:
        self.options = options
        self.available_now = False
        self._cluster = cluster
        self._watch = QueueWatch(cluster, options, now_ms)
        self._planner = StreamPlanner.of(options)
        self._committer = Committer(cluster, options) if options.commits else None
        self._initial: StreamOffset | None = None
        self._asked_before = False
        self._states = QueueStates()
        self._position: Offsets = {}
        self._lag_clock = LagClock()
        self._transports = TransportsUsed()
        self._ends: Offsets = {}
        self._idle_at: Offsets | None = None  # the offsets at which the last wait found no record
        self._plan_due = 0.0  # the time at which an idle query plans again
        self._reported: Reported | None = None

    # --- where to start -----------------------------------------------------------------------------------------------

    def initial_offset(self) -> StreamOffset:
        """Returns the offset at which the query starts.

        Spark asks twice, so every call in one run returns the same offset.
        """
        if self._initial is None:
            queues = self._watch.discover(must_exist=True)
            # Queues that do not exist are refused only here, because later a queue may be missing while its broker is
            # down.
            ends = wanted_ends(self.options, queues)
            starts = self._resolve(wanted_starts(self.options, queues, streaming=True), ends)
            self._initial = StreamOffset(starts, read_in=read_in(StreamOffset({}), starts, self._states.bounds))
            if self._committer and self.options.commit_initial_offset:
                self._committer.start_at(starts)
        return self._initial

    def _resolve(self, wanted: RequestedPositions, ends: RequestedPositions) -> Offsets:
        refuse_times_behind_ends(wanted, ends)
        self._states = states = self._watch.states(wanted.positions, must_answer=True)
        wanted = RequestedPositions(
            {queue: chain for queue, chain in wanted.positions.items() if queue in states.bounds}, wanted.timestamps
        )
        found = answered(self._cluster.search(wanted.timestamps), "offset at startingTimestamp")
        committed = answered(self._committed(wanted), "committed offset")
        starts = start_offsets(wanted, KnownOffsets(states.bounds, committed, found), self.options)
        reached = answered(self._cluster.search(ends.timestamps), "offset at endingTimestamp")
        known = end_offsets(ends, KnownOffsets(states.bounds, {}, reached))
        refuse_starts_behind_ends(starts, known, wanted, ends, from_group=committed)
        return starts

    def _committed(self, wanted: RequestedPositions) -> OffsetAnswers:
        asked = wanted.needs_committed()
        if not asked:
            return OffsetAnswers()
        assert self.options.group is not None
        return self._cluster.committed(self.options.group, asked)

    # --- how far to go ------------------------------------------------------------------------------------------------

    def latest_offset(self, start: StreamOffset, *, unlimited: bool) -> StreamOffset:
        """Returns the end of the next batch.  Waits up to idlePollMs for records, and returns `start` if no record
        comes.
        """
        first, self._asked_before = not self._asked_before, True
        is_initial = self._initial is not None and start.offsets == self._initial.offsets and start.batch_start is None
        keeps_start = first and is_initial and not start.anchor and self.options.initial_offset_anchor
        self._position = dict(start.offsets)
        if not is_initial:
            self._processed(start, "onTrigger")
        deadline = time.monotonic() + self.options.idle_poll_ms / 1000
        pause, news = POLL_S, False
        while True:
            end = start.offsets if self._knows_of_nothing_new(start) else self._plan(start, unlimited)
            left = deadline - time.monotonic()
            if end != start.offsets:
                self._position = dict(end)
                epochs = read_in(start, end, self._states.bounds)
                batch_start = start.offsets if keeps_start else None
                ranges = [
                    OffsetRange(queue, start.offsets[queue], until)
                    for queue, until in end.items()
                    if start.offsets.get(queue, until) < until
                ]
                split = parallelism_now(self.options, batch_bytes(ranges, self._states.bounds))
                return StreamOffset(end, split=split, read_in=epochs, batch_start=batch_start)
            if keeps_start and not unlimited:
                return StreamOffset(start.offsets, anchor=True, read_in=start.read_in)
            if self.available_now or unlimited or left <= 0:
                return start
            before, news = news, self._wait_for_records(left)
            if not news and time.monotonic() >= deadline:
                self._idle_at = None if self._has_backlog(start) else start.offsets
                return start
            self._idle_at = None
            # Without this pause the query would plan ninety times a second while a broker cannot wait for records, or
            # while the records that have come are too few for a batch.
            if before or not news:
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                pause = min(2 * pause, POLL_MAX_S)

    def _wait_for_records(self, hold_s: float) -> bool:
        """Waits until a queue may have more records.

        Returns False if no record came.  Returns False without waiting while a broker is unreachable.
        """
        if self._states.unreachable:
            return False
        ends = {queue: found.max_offset for queue, found in self._states.bounds.items()}
        return self._cluster.wait_for_records(ends, hold_s)

    def _knows_of_nothing_new(self, start: StreamOffset) -> bool:
        """Returns True if the last plan found no record beyond `start`, and no broker has reported a record since.

        As long as the result is True, the query only waits for records.  After some seconds the result is False, so
        that the query plans again and notices losses and new queues.
        """
        return self._idle_at == start.offsets and time.monotonic() < self._plan_due

    def _has_backlog(self, start: StreamOffset) -> bool:
        return any(found.max_offset > start.offsets.get(queue, -1) for queue, found in self._states.bounds.items())

    def _plan(self, start: StreamOffset, unlimited: bool) -> Offsets:
        queues = self._watch.discover(must_answer=self.available_now)
        states = self._queue_states(start, queues)
        if self.available_now and self._planner.target is None:
            self._planner.target = {queue: found.max_offset for queue, found in states.bounds.items()}
        new = {queue for queue in states.bounds if queue not in start.offsets}
        if self._planner.target is not None:
            new &= self._planner.target.keys()
        end = self._planner.next_offsets(
            start,
            states,
            self._added(new, states),
            self._ends,
            unlimited=unlimited,
            bounded=self.available_now,
            now_ms=now_ms(),
        )
        if self._committer and (dropped := start.offsets.keys() - end.keys()):
            self._committer.forget(set(dropped))
        pause_s = max(LEAST_IDLE_PLAN_S, min(self._watch.discovery_due_in_ms / 1000, IDLE_PLAN_S))
        self._plan_due = time.monotonic() + pause_s
        return end

    def _queue_states(self, start: StreamOffset, queues: set[MessageQueue]) -> QueueStates:
        """Returns the bounds of all queues.

        If a queue seems truncated, its broker is asked again until the truncation is certain.
        """
        asked = sorted({queue for queue in start.offsets if self.options.reads(queue)} | queues)
        begun = time.monotonic()
        while True:
            waited = time.monotonic() - begun
            states = self._watch.states(asked, read_in=start.read_in)
            self._learn_ends(asked, states)
            unsure = truncated(start.offsets, states.bounds) and waited < TRUNCATION_GRACE_S
            # A bounded run that left out an unreachable queue would end as if it had read everything.
            if self.available_now and states.unreachable and waited >= BOUNDED_WAIT_S:
                refuse_unreachable(states)
            if not unsure and not (self.available_now and states.unreachable):
                break
            time.sleep(POLL_MAX_S)
        self._states = states
        now = now_ms()
        for queue, found in states.bounds.items():
            self._lag_clock.observe(queue, found.max_offset, now)
        return states

    def _added(self, new: set[MessageQueue], states: QueueStates) -> Offsets:
        """Returns the offsets at which new queues start.  A queue whose start is not known yet is left to the next
        trigger.
        """
        if not new:
            return {}
        wanted = RequestedPositions(dict.fromkeys(sorted(new), self.options.new_queue_offsets))
        committed = self._committed(wanted)
        if self.available_now:
            answered(committed, "committed offset")
        said = {queue: chain for queue, chain in wanted.positions.items() if queue not in committed.unreachable}
        return start_offsets(RequestedPositions(said), KnownOffsets(states.bounds, committed.offsets), self.options)

    def _learn_ends(self, asked: Sequence[MessageQueue], states: QueueStates) -> None:
        """Looks up the ends of the queues for which the options name a timestamp.

        A queue's end by timestamp is known once the queue has a record after that time, and does not change any more.
        If no broker answers for a queue, the batch reads nothing of the queue.
        """
        wanted = wanted_ends(self.options, asked, strangers=False)
        open_ends = {
            queue: ms for queue, ms in wanted.timestamps.items() if queue in states.bounds and queue not in self._ends
        }
        found = self._cluster.search(open_ends)
        states.set_unreachable(found.unreachable)
        self._ends |= end_offsets(
            RequestedPositions(wanted.positions, open_ends), KnownOffsets(states.bounds, {}, found.offsets)
        )

    # --- what to read -------------------------------------------------------------------------------------------------

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        """Plans a batch from its two offsets alone, so that a replayed batch reads the same records in the same
        partitions.  Brokers are asked only about a data loss that the options allow.
        """
        if end.anchor:
            return []
        starts = start.offsets if end.batch_start is None else end.batch_start
        if end.batch_start is None and self._initial is not None and not self._asked_before:
            self._refuse_unknown_starts(end.offsets.keys() - starts.keys())
        ranges = [
            OffsetRange(queue, self._from(queue, starts[queue], until), until)
            for queue, until in end.offsets.items()
            if queue in starts  # a queue without a start is new, and this batch reads nothing of it
        ]
        parallelism = end.split or parallelism_now(self.options)
        return plan_partitions(ranges, self.options, self._cluster, parallelism, end.read_in)

    def _from(self, queue: MessageQueue, start: int, until: int) -> int:
        if start <= until:
            return start
        what = (
            f"should be read from {start} to {until}: its end went back, or this is the first batch of a query whose "
            "start moved on before the batch was finished (initialOffsetAnchor=true prevents that)"
        )
        if self.options.data_loss.allow(TRUNCATED, queue, what) != EARLIEST:
            return until
        found = self._watch.states([queue], must_answer=True).bounds.get(queue)
        return min(until, found.min_offset if found else until)

    def _refuse_unknown_starts(self, queues: set[MessageQueue]) -> None:
        """Raises an error if the first batch is run again, its starts are not known, and no broker answers for a queue.

        If the checkpoint does not have the starts of the first batch, the brokers are asked for the starts.  A queue
        for which no broker answers must not count as a new queue, because the first batch reads nothing from new
        queues.
        """
        states = self._watch.states(sorted(queues))
        for queue in sorted(queues):
            if queue in states.gone:
                self.options.data_loss.allow(DELETED, queue, "is gone: its master has no such topic or queue")
            else:
                raise NothingAnswers(
                    f"the first batch has to be run again, and no broker said where {queue} starts: start the query "
                    "again when its brokers are back (initialOffsetAnchor=true writes starts down before reading)"
                )

    # --- committing, progress, the end --------------------------------------------------------------------------------

    def batch_committed(self, end: StreamOffset) -> None:
        self._processed(end, "onCommit")

    def _processed(self, offset: StreamOffset, when: str) -> None:
        if self._committer is None:
            return
        # At an anchor (the offset of an empty first batch) no record was read yet, so a committed offset of the group
        # is not changed.
        if self.options.commit_offsets in ("auto", when) and not offset.anchor:
            self._committer.processed(offset.offsets)
        self._committer.check()

    def report(self) -> dict[str, Any] | None:
        if not self._states.bounds and not self._states.unreachable:
            return None
        group = self._committer.status() if self._committer else None
        known = self._reported
        if known is not None and known.states is self._states and known[1:3] == (self._position, group):
            return known.report  # an idle query reports the same with each trigger
        now = now_ms()
        waits = [
            self._lag_clock.waiting_ms(queue, goes_on_at(self._position.get(queue, 0), found.min_offset), now)
            for queue, found in self._states.bounds.items()
        ]
        waiting_ms = max(waits, default=0)
        made = report(
            self._states.bounds,
            self._position,
            waiting_ms,
            group,
            self._states.unreachable_names,
            self._transports.observe(self._states.bounds),
        )
        # The waiting time of records changes with time alone.
        is_lasting = not made["lag"]["total"] and not waiting_ms
        self._reported = Reported(self._states, dict(self._position), group, made) if is_lasting else None
        return made

    def stop(self) -> None:
        """Commits the wanted offsets, and ends all calls, so that the process need not wait for them when it ends."""
        self.close()
        self._cluster.close()

    def close(self) -> None:
        """Commits the wanted offsets.  A signal handler may call this method."""
        if self._committer is not None:
            self._committer.close(self.options.commit_timeout_ms / 1000)
