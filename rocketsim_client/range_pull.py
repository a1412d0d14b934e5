"""Keeps the progress of a pull of ranges, so that the pull can continue at another broker.  Pure."""

from typing import TYPE_CHECKING

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import MessageQueue, OffsetRange, PullFrame, QueueRange, Ranges

if TYPE_CHECKING:  # at run time this import would delay the start of a query
    import numpy as np
    import numpy.typing as npt

# Bytes of a frame.  The fixed cost of a frame is small at this size, and larger frames were not faster.
FRAME_BYTES = 3 << 20


class RangeProgress:
    """How far each range of a pull has been read.  Each new stream has only the unfinished ranges, so the range numbers
    in the stream's segments are translated to those of the caller's list."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges: list[QueueRange | OffsetRange] = list(ranges)
        self._next = [one.from_offset for one in ranges]
        self._open = [one.from_offset < one.until_offset for one in ranges]
        self._asked: list[int] = []
        self._steps = 0

    def open_ranges(self) -> list[QueueRange | OffsetRange]:
        """Returns the ranges that are not finished, each from its next offset on.  In the next frames, `range_index` of
        a segment is an index into this list."""
        self._asked = [index for index, is_open in enumerate(self._open) if is_open]
        return [self._ranges[index]._replace(from_offset=self._next[index]) for index in self._asked]

    def total(self) -> int:
        """Returns a count that grows with every segment that makes progress."""
        return self._steps

    def advance(self, frame: PullFrame) -> PullFrame:
        """Notes the frame's progress, and changes the range numbers in its segments to those of the caller's list."""
        for segment in frame.segments:
            index = self._asked[segment.range_index]
            if segment.next_offset < self._next[index]:
                behind = self._ranges[index]
                raise BadAnswer(
                    f"queue {behind.queue_id} of topic {behind.topic!r}: a broker went back from offset "
                    f"{self._next[index]} to {segment.next_offset}"
                )
            if segment.next_offset > self._next[index] or segment.ends_range:
                self._steps += 1
            self._next[index] = segment.next_offset
            if segment.ends_range or segment.next_offset >= self._ranges[index].until_offset:
                self._open[index] = False
            segment.range_index = index
        return frame


def check_rows(
    queue: MessageQueue,
    queue_ids: "npt.NDArray[np.int32]",
    offsets: "npt.NDArray[np.int64]",
    start: int,
    end: int,
) -> None:
    """Raises BadAnswer unless the records belong to the queue and have rising offsets in [start, end)."""
    if not len(offsets):
        return
    in_order = len(offsets) == 1 or bool((offsets[1:] > offsets[:-1]).all())
    if not in_order or offsets[0] < start or offsets[-1] >= end or bool((queue_ids != queue.queue_id).any()):
        raise BadAnswer(
            f"expected records of {queue} from {start} to {end} in order, but got offsets {offsets[0]} to {offsets[-1]}"
        )
