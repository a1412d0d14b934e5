"""Fetches the ranges of one task, in order, each from the broker that should serve it.

Broker choice: a queue's hint, else the master; after each frame the broker that it suggests.  An unreachable broker is
replaced at once by another of its name.  A slave that lacks a record is behind, which is no data loss: the fetch asks
the master, and waits if it does not answer; the data loss policy applies to the master's answer only.  An unreadable
record is requested from the other members of the broker name before it is given up.
"""

import logging
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rocketsim_proto.records.columnar import RecordError, Records

from rocketsim_client.arrow import OfQueue
from rocketsim_client.errors import (
    BadAnswer,
    BrokerRefused,
    InvalidParameter,
    NoPermission,
    RocketSimError,
    TopicNotExist,
)
from rocketsim_client.model import MASTER_ID, GetMessageStatus, MessageQueue, OffsetRange
from rocketsim_client.range_pull import check_rows
from rocketsim_client.retry import backoff_s, is_worth_asking_again
from rocketsim_source.options.data_loss import DELETED, TRIMMED, TRUNCATED
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.reading.prefetch import FrameLate, prefetched
from rocketsim_source.reading.unreadable import Place, Unreadable
from rocketsim_source.source_cluster import ReadIn, SourceCluster

if TYPE_CHECKING:
    from rocketsim_client.model import PullFrame, Segment

logger = logging.getLogger(__name__)

TRUNCATION_GRACE_S = 3.0
RETRY_MAX_S = 2.0
NOT_ENOUGH = frozenset(
    {
        GetMessageStatus.OFFSET_OVERFLOW_BADLY,
        GetMessageStatus.OFFSET_OVERFLOW_ONE,
        GetMessageStatus.OFFSET_FOUND_NULL,
        GetMessageStatus.NO_MESSAGE_IN_QUEUE,
        GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)


class SlaveBehind(RuntimeError):
    """The master is away and its slave does not have what was planned while the master was there."""


class Move(NamedTuple):
    """The position in a range before and after an extent of rows."""

    range_index: int
    before: int
    after: int


@dataclass(slots=True)
class Fetched:
    """A frame whose counts, order and queues have been checked."""

    records: Records
    extents: list[OfQueue]
    broker_id: int
    moves: list[Move]  # one for each extent
    failures: int  # of the task before this frame
    used: int = 0
    unreadable: list[int] = field(default_factory=list)
    why: object = None

    def unreadable_after(self, used: int, rows: list[int], error: RecordError) -> None:
        """The decoder returned `used` of the frame's records, and cannot read these rows."""
        if not rows:
            raise error
        self.used, self.unreadable, self.why = used, rows, error


@dataclass(slots=True)
class Stuck:
    """A range that its broker ended early."""

    index: int
    segment: "Segment"
    broker_id: int


class RangeFetch:
    """`hints`: the broker to ask first for a queue; updated with the brokers' suggestions, for later tasks.
    `read_in`: the epochs in which the ranges were planned.
    """

    def __init__(
        self,
        cluster: SourceCluster,
        ranges: list[OffsetRange],
        hints: MutableMapping[MessageQueue, int],
        options: SourceOptions,
        *,
        read_in: ReadIn | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._ranges = ranges
        self._at = [queue_range.from_offset for queue_range in ranges]
        self._hints = dict(hints)  # this task's own
        self._learned = hints
        self._options = options
        self._read_in = read_in or {}
        self._clock = clock
        self._sleep = sleep
        self._failures = 0
        self._left_slave: set[MessageQueue] = set()  # a slave lacked records: the task asks the master
        self._waiting_since: dict[int, float] = {}
        self._unreadable = Unreadable()
        self._answering = MASTER_ID  # the broker that sent the last frame or was asked for the next
        self._instead: dict[MessageQueue, int] = {}  # the broker to ask after another sent unreadable records

    def frames(self) -> Iterator[Fetched]:
        """All records of all ranges, in order; raises the error with which the task fails."""
        while (first := self._first_open()) is not None:
            try:
                target = self._target(self._ranges[first].queue)
                yield from self._stream(self._one_call(first, target), target)
            except (RecordError, BadAnswer) as error:
                self._bad_frame(error)
            except RocketSimError as error:
                self._refused(first, error)

    # --- broker choice ------------------------------------------------------------------------------------------------

    def _target(self, queue: MessageQueue) -> int:
        if queue in self._instead:
            return self._instead[queue]
        if queue in self._left_slave:
            return MASTER_ID
        match self._options.read_from:
            case "slave":
                slaves = sorted(i for i, usable in self._cluster.members(queue).items() if i != MASTER_ID and usable)
                return slaves[0] if slaves else MASTER_ID  # a suggestion may name the master
            case "suggested":
                return self._hints.get(queue, MASTER_ID)
        return MASTER_ID

    def _follow(self, queue: MessageQueue, suggested: int, answering: int) -> bool:
        """Whether to go on at another broker for this queue."""
        if self._options.read_from != "suggested" or queue in self._left_slave or queue in self._instead:
            return False
        if suggested != answering and not self._cluster.members(queue).get(suggested, False):
            return False  # unknown, or it failed a moment ago: stay
        self._learned[queue] = suggested
        if "task" not in self._options.suggest_scope:
            return False
        self._hints[queue] = suggested
        return suggested != answering

    # --- the ranges ---------------------------------------------------------------------------------------------------

    def _first_open(self) -> int | None:
        return next((i for i, planned in enumerate(self._ranges) if self._at[i] < planned.until_offset), None)

    def _one_call(self, first: int, target: int) -> list[int]:
        """The open ranges from the first on that one call to one broker can serve.  Order is kept, so that a task that
        is repeated returns its rows in the same order.
        """
        broker_name = self._ranges[first].queue.broker_name
        indices = []
        for index in range(first, len(self._ranges)):
            queue, _, until = self._ranges[index]
            if self._at[index] >= until:
                continue
            if queue.broker_name != broker_name or self._target(queue) != target:
                break
            indices.append(index)
        return indices

    def _stream(self, indices: list[int], target: int) -> Iterator[Fetched]:
        asked = [self._ranges[index]._replace(from_offset=self._at[index]) for index in indices]
        stream = self._cluster.pull(
            asked,
            broker_id=target,
            only_this=self._options.read_from == "masterOnly",
            group=self._options.pull_group,
            expression=self._options.expression.asked,
            frame_bytes=self._options.pull_max_bytes,
            read_in=self._read_in,
        )
        self._answering = target
        try:
            with prefetched(stream, self._options.prefetch_pulls, self._options.pull_timeout_ms / 1000) as frames:
                for frame in frames:
                    self._answering = frame.broker_id
                    fetched, stuck = self._take(frame, indices)
                    if fetched is not None:
                        yield fetched
                        if fetched.unreadable:
                            self._ask_again(fetched)
                            return
                    if stuck is not None:
                        self._stuck(stuck)
                        return
                    # The queue that the next frame continues with decides.
                    open_now = next((i for i in indices if self._at[i] < self._ranges[i].until_offset), None)
                    if open_now is None:
                        return
                    touched = {self._ranges[indices[segment.range_index]].queue for segment in frame.segments}
                    moves = [
                        self._follow(queue, frame.suggest_which_broker_id, frame.broker_id) for queue in sorted(touched)
                    ]
                    if any(moves) and self._target(self._ranges[open_now].queue) != frame.broker_id:
                        return
        except FrameLate:
            self._cluster.suspect(asked[0].queue, self._answering)
            raise

    def _take(self, frame: "PullFrame", indices: list[int]) -> tuple[Fetched | None, Stuck | None]:
        """Check a frame and advance the positions.  An inconsistent frame is not used at all, and a frame is not used
        beyond a range that its broker ended early: a repeated task must return its rows in the same order.
        """
        records = Records.walk(frame.records, frame.count, frame.sizes or None)
        offsets, queue_ids = records.queue_offset, records.queue_id
        moves: list[Move] = []
        extents: list[OfQueue] = []
        stuck: Stuck | None = None
        row = 0
        at = dict(zip(indices, (self._at[index] for index in indices), strict=True))
        for segment in frame.segments:
            index = indices[segment.range_index]
            queue, _, until = self._ranges[index]
            rows = slice(row, row + segment.count)
            row += segment.count
            check_rows(queue, queue_ids[rows], offsets[rows], at[index], min(until, segment.next_offset))
            gap = segment.next_offset - at[index] - segment.count
            if gap > 0 and not self._options.broker_filters and segment.status == GetMessageStatus.MESSAGE_WAS_REMOVING:
                self._lost(queue, at[index], segment.next_offset)
            elif gap != 0 and not self._options.broker_filters and segment.next_offset <= until:
                if segment.status in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE):
                    raise BadAnswer(f"{queue}: {segment.count} records from {at[index]} to {segment.next_offset}")
            before = at[index]
            at[index] = before if segment.ends_range else max(before, min(segment.next_offset, until))
            moves.append(Move(index, before, at[index]))
            extents.append(OfQueue(queue, segment.count))
            if segment.ends_range and at[index] < until:
                stuck = Stuck(index, segment, frame.broker_id)
                break
        failures = self._failures
        for index, _, offset in moves:
            if offset > self._at[index]:
                self._failures = 0
                self._waiting_since.pop(index, None)
            self._at[index] = offset
        if row < len(records):
            records = records[:row]
        if self._unreadable.left_out:
            records, extents = self._without_left_out(records, extents)
        fetched = Fetched(records, extents, frame.broker_id, moves, failures) if len(records) else None
        return fetched, stuck

    def _without_left_out(self, records: Records, extents: list[OfQueue]) -> tuple[Records, list[OfQueue]]:
        keep = np.ones(len(records), np.bool_)
        row, kept = 0, []
        for queue, size in extents:
            left_out = self._unreadable.left_out.get(queue)
            if left_out:
                keep[row : row + size] = ~np.isin(records.queue_offset[row : row + size], sorted(left_out))
            kept.append(OfQueue(queue, int(keep[row : row + size].sum())))
            row += size
        return (records, extents) if keep.all() else (records[keep], kept)

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        """Try again, each time after a longer pause, until the retries are used up without any progress."""
        self._failures += 1
        if self._failures > self._options.pull_retries:
            raise error
        pause = backoff_s(self._failures, self._options.pull_retry_backoff_ms / 1000, RETRY_MAX_S)
        logger.warning("pull failed (%d of %d retries): %s", self._failures, self._options.pull_retries, error)
        self._sleep(pause)

    def _stuck(self, stuck: Stuck) -> None:
        """A broker has no records at the position.  Decide why, and set the position at which the range continues."""
        queue, _, until = self._ranges[stuck.index]
        at, segment = self._at[stuck.index], stuck.segment
        if self._instead.get(queue) == stuck.broker_id:
            del self._instead[queue]
            if place := self._unreadable.first_of(queue, at):
                self._not_there_either(place, stuck)
            return
        if stuck.broker_id != MASTER_ID:
            if queue not in self._left_slave and self._members_master(queue):
                self._left_slave.add(queue)  # ask the master, which may have the records
                return
            self._left_slave.add(queue)
            if self._wait(stuck.index, self._options.slave_behind_wait_ms / 1000):
                return
            if segment.status != GetMessageStatus.OFFSET_TOO_SMALL:
                raise SlaveBehind(
                    f"{queue}: broker {stuck.broker_id} has records up to {segment.max_offset} and the master, which "
                    f"has them up to {until}, did not answer for {self._options.slave_behind_wait_ms} ms "
                    "(slaveBehindWaitMs)"
                )
        elif segment.status in NOT_ENOUGH and self._wait(stuck.index, TRUNCATION_GRACE_S):
            return
        self._waiting_since.pop(stuck.index, None)
        if segment.status == GetMessageStatus.OFFSET_TOO_SMALL:
            self._lost(queue, at, min(segment.min_offset, until))
            self._at[stuck.index] = min(max(at, segment.min_offset), until)
            return
        if segment.status == GetMessageStatus.OFFSET_TRUNCATED:
            what = (
                f"was planned to be read from {at} to {until}, but a broker that did not have all of that was promoted "
                f"since: from {segment.next_offset} on its records are others, or none"
            )
        else:
            what = (
                f"ends at {segment.max_offset}, but was planned to be read from {at} to {until} ({segment.status.name})"
            )
        self._options.data_loss.allow(TRUNCATED, queue, what)
        logger.warning("data loss allowed by the options: %s %s", queue, what)
        self._at[stuck.index] = until

    def _bad_frame(self, error: RecordError | BadAnswer) -> None:
        """This task or the client has found an invalid frame: the next attempt asks another broker, if there is one."""
        first = self._first_open()
        assert first is not None, "nothing is asked for"
        queue, broker_id = self._ranges[first].queue, self._answering
        members = self._cluster.members(queue) if self._options.read_from != "masterOnly" else {}
        others = [other for other, usable in members.items() if usable and other != broker_id]
        if others:
            self._instead[queue] = min(others, key=lambda other: (other < broker_id, other))
        if isinstance(error, RecordError):
            error = BadAnswer(f"{queue}: a broker sent what is no record: {error}")
        self._failed(error)

    def _ask_again(self, fetched: Fetched) -> None:
        """A frame has unreadable records: continue at the first row that was not returned yet."""
        self._failures = fetched.failures
        row = 0
        for extent, (index, before, after) in zip(fetched.extents, fetched.moves, strict=True):
            used = min(max(0, fetched.used - row), extent.size)
            if used == extent.size:
                self._at[index] = after
            else:
                self._at[index] = int(fetched.records.queue_offset[row + used]) if used else before
            row += extent.size
        queues = np.repeat(np.arange(len(fetched.extents)), [extent.size for extent in fetched.extents])
        places = [
            Place(fetched.extents[queues[row]].queue, int(fetched.records.queue_offset[row]))
            for row in fetched.unreadable
        ]
        self._unreadable.add(places, fetched.broker_id, fetched.why)
        self._ask_another_or_give_up(places[0])

    def _not_there_either(self, place: Place, stuck: Stuck) -> None:
        """Another broker's copy is unreadable, and this broker has none: not any more, or not yet."""
        if stuck.segment.status == GetMessageStatus.OFFSET_TOO_SMALL:
            self._unreadable.add([place], stuck.broker_id, self._unreadable.why[place])
            self._ask_another_or_give_up(place)
        else:
            self._failed(self._unreadable.error(place))

    def _ask_another_or_give_up(self, place: Place) -> None:
        """Ask another broker, fail the attempt, or leave the record out."""
        queue = place.queue
        members = self._cluster.members(queue)
        if self._options.read_from == "masterOnly":
            members = {MASTER_ID: True}
        error = self._unreadable.error(place)
        other = self._unreadable.ask_instead(place, members)
        if not members:
            self._failed(error)  # even the broker that sent it is unreachable
        elif other is not None:
            self._instead[queue] = other
            if members[other]:
                logger.warning("asking broker id %d: %s", other, error)
            else:
                self._failed(error)
        elif self._options.corrupt == "fail":
            raise error
        else:
            offsets = self._unreadable.leave_out(queue, members)
            logger.warning(
                "left out as corrupt=skip allows: %s offsets %s, %d records in this task so far. %s",
                *(queue, offsets, self._unreadable.count, error),
            )

    def _members_master(self, queue: MessageQueue) -> bool:
        return self._cluster.members(queue).get(MASTER_ID, False)

    def _wait(self, index: int, at_most_s: float) -> bool:
        """True after a short pause: ask again.  False: the time is over."""
        since = self._waiting_since.setdefault(index, self._clock())
        if self._clock() - since >= at_most_s:
            return False
        self._sleep(backoff_s(1, self._options.pull_retry_backoff_ms / 1000, RETRY_MAX_S))
        return True

    def _lost(self, queue: MessageQueue, start: int, end: int) -> None:
        what = f"lost its records {start} to {end - 1} before they were read (retention?)"
        self._options.data_loss.allow(TRIMMED, queue, what)
        logger.warning("data loss allowed by the options: %s %s", queue, what)

    def _refused(self, first: int, error: RocketSimError) -> None:
        """A call failed.  A broker that lacks one topic or queue refuses the whole call: that queue is skipped, if its
        master confirms it, and the others are read on.  Any other temporary error is retried.
        """
        if says_missing(error) and self._skip_deleted(first, error):
            return
        if isinstance(error, NoPermission):
            raise PermissionError(f"reading {self._ranges[first].queue} is not permitted: {error}") from error
        if not is_worth_asking_again(error) and not says_missing(error):
            raise error
        self._failed(error)

    def _skip_deleted(self, first: int, error: RocketSimError) -> bool:
        broker_name = self._ranges[first].queue.broker_name
        left = [index for index, planned in enumerate(self._ranges) if self._at[index] < planned.until_offset]
        of_broker = [index for index in left if self._ranges[index].queue.broker_name == broker_name]
        gone = self._cluster.bounds(sorted({self._ranges[index].queue for index in of_broker})).gone
        for index in of_broker:
            queue, _, until = self._ranges[index]
            if queue in gone:
                self._options.data_loss.allow(DELETED, queue, f"is gone while it was read: {error}")
                logger.warning("data loss allowed by the options: %s is gone while it was read: %s", queue, error)
                self._at[index] = until
        return bool(gone)


def says_missing(error: RocketSimError) -> bool:
    """A topic that does not exist, or a queue id beyond the topic's: RocketMQ has no code of its own for the latter."""
    return isinstance(error, TopicNotExist | InvalidParameter) or type(error) is BrokerRefused
