"""plan_append decides at which log offsets records of given sizes are written.  Pure.

As in RocketMQ, a log file ends with a blank record of at least 8 bytes, so a record fits into a file only if 8 bytes
remain behind it:

    | record | record | blank: size to the end of the file, blank magic | zeros |
"""

from typing import NamedTuple

import numpy as np
from rocketsim_proto.records.record import BLANK_SIZE

from broker_service.errors import MessageIllegal


class Extent(NamedTuple):
    """Records `first` to `last` (exclusive) lie back to back from `commit_log_offset` on, in one file."""

    commit_log_offset: int
    first: int
    last: int


class AppendPlan(NamedTuple):
    extents: list[Extent]
    blanks: list[tuple[int, int]]  # (commit_log_offset, size)
    end_offset: int


def plan_append(end_offset: int, file_size: int, sizes: list[int] | np.ndarray) -> AppendPlan:
    """Places records of these sizes at `end_offset`, the end of the log.

    Raises MessageIllegal if a record is larger than a log file.
    """
    total = sum(sizes) if isinstance(sizes, list) else int(sizes.sum())
    if total <= file_size - end_offset % file_size - BLANK_SIZE:
        return AppendPlan([Extent(end_offset, 0, len(sizes))], [], end_offset + total)
    ends = np.cumsum(sizes, dtype=np.int64)  # in bytes from the first record's start, without the blanks
    extents: list[Extent] = []
    blanks: list[tuple[int, int]] = []
    at, first, placed = end_offset, 0, 0
    while first < len(ends):
        room = file_size - at % file_size
        last = int(np.searchsorted(ends, placed + room - BLANK_SIZE, side="right"))
        if last > first:
            extents.append(Extent(at, first, last))
            at += int(ends[last - 1]) - placed
            placed = int(ends[last - 1])
            first = last
        elif room == file_size:
            size = int(ends[first]) - placed
            raise MessageIllegal(f"a record of {size} bytes does not fit into a log file of {file_size} bytes")
        if first < len(ends):
            left = file_size - at % file_size
            blanks.append((at, left))
            at += left
    return AppendPlan(extents, blanks, at)
