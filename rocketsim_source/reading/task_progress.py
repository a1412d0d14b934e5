"""The positions of a task in its ranges, and how a frame moves them.  Does no I/O and uses no clock."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rocketsim_proto.records.columnar import Records

from rocketsim_client.arrow import OfQueue
from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import GetMessageStatus, OffsetRange
from rocketsim_client.range_pull import check_rows
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.reading.losses import Losses

if TYPE_CHECKING:
    from rocketsim_client.model import PullFrame, Segment


class Move(NamedTuple):
    """The position in a range before and after some consecutive rows of a frame."""

    range_index: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """A range that its broker ended before the task had all of the range's records."""

    index: int
    segment: "Segment"
    broker_id: int


@dataclass(frozen=True, slots=True)
class CheckedFrame:
    """A frame whose counts, order and queues are right.

    If the broker ended a range early, later ranges of the frame are not used, so that a repeated task returns its rows
    in the same order.
    """

    records: Records
    extents: list[OfQueue]
    moves: list[Move]  # one for each extent
    early_end: EarlyEnd | None


class TaskProgress:
    """The position in each range of a task."""

    def __init__(self, ranges: list[OffsetRange], options: SourceOptions, losses: Losses) -> None:
        self.ranges = ranges
        self.at = [queue_range.from_offset for queue_range in ranges]
        self._is_filtered = options.broker_filters
        self._losses = losses

    def first_open(self) -> int | None:
        return next((index for index in range(len(self.ranges)) if self.is_open(index)), None)

    def is_open(self, index: int) -> bool:
        return self.at[index] < self.ranges[index].until_offset

    def left_of(self, indices: list[int]) -> list[OffsetRange]:
        return [self.ranges[index]._replace(from_offset=self.at[index]) for index in indices]

    def check(self, frame: "PullFrame", indices: list[int]) -> CheckedFrame:
        """Checks a frame that answers a call for the ranges `indices`, without moving any position.  Raises RecordError
        or BadAnswer if the frame is wrong.
        """
        records = Records.walk(frame.records, frame.count, frame.sizes or None)
        offsets, queue_ids = records.queue_offset, records.queue_id
        moves: list[Move] = []
        extents: list[OfQueue] = []
        early_end: EarlyEnd | None = None
        row = 0
        at = {index: self.at[index] for index in indices}
        for segment in frame.segments:
            index = indices[segment.range_index]
            queue, _, until = self.ranges[index]
            rows = slice(row, row + segment.count)
            row += segment.count
            check_rows(queue, queue_ids[rows], offsets[rows], at[index], min(until, segment.next_offset))
            self._check_gap(index, at[index], segment)
            before = at[index]
            at[index] = before if segment.ends_range else max(before, min(segment.next_offset, until))
            moves.append(Move(index, before, at[index]))
            extents.append(OfQueue(queue, segment.count))
            if segment.ends_range and at[index] < until:
                early_end = EarlyEnd(index, segment, frame.broker_id)
                break
        return CheckedFrame(records[:row] if row < len(records) else records, extents, moves, early_end)

    def _check_gap(self, index: int, at: int, segment: "Segment") -> None:
        """Refuses missing offsets, unless a filter may have left them out or retention may have deleted them."""
        queue, _, until = self.ranges[index]
        gap = segment.next_offset - at - segment.count
        if self._is_filtered or not gap:
            return
        if gap > 0 and segment.status == GetMessageStatus.MESSAGE_WAS_REMOVING:
            self._losses.trimmed(queue, at, segment.next_offset)
        elif segment.next_offset <= until and segment.status in (
            GetMessageStatus.FOUND,
            GetMessageStatus.NO_MATCHED_MESSAGE,
        ):
            raise BadAnswer(
                f"{queue}: a broker sent {segment.count} records for the offsets {at} to {segment.next_offset}"
            )

    def advance(self, moves: list[Move]) -> set[int]:
        """Moves the positions, and returns the ranges that made progress."""
        further = {index for index, _, after in moves if after > self.at[index]}
        for index, _, after in moves:
            self.at[index] = after
        return further
