"""Reads the records that queue entries point to, in queue order, as few and large slices of the mapped log.

Records that are neighbours in the log become one slice, which is a view of the mapped file and no copy.  If many slices
would be needed, Arrow copies the records into one buffer: a `binary_view` array over the maps is cast to `binary`, and
this copy runs in C++.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rocketsim_proto.records import kernels, slices
from rocketsim_proto.records.layout import HEAD
from rocketsim_proto.records.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_SIZE

from broker_service.store.commit_log import CommitLog

Positions = npt.NDArray[np.int64]

FEW = 64  # for at most this number of slices, slicing is faster than Arrow


class NotInLog(Exception):
    """The log does not have a record at the log offset of its queue entry.  `row` is the number of the first one."""

    def __init__(self, row: int) -> None:
        super().__init__(f"record {row} of those that were to be read is not in the log")
        self.row = row


class LogRead(NamedTuple):
    """Records of the log, back to back.  `runs` has the log offsets at which each of the `slices` begins and ends; it
    is empty if the slices are a copy.
    """

    slices: list[memoryview]
    runs: list[tuple[int, int]]


def read_records(
    log: CommitLog, offsets: Positions, sizes: Positions, queue_ids: Positions, queue_offsets: Positions
) -> LogRead:
    """Returns the bytes of these records.

    Raises NotInLog if the log does not have one of them with its size, queue id and queue offset at its log offset.
    Raises Cold and ReadFailed as `CommitLog.need` does.
    """
    if not len(offsets):
        return LogRead([], [])
    runs, starts, wrong = _runs(log, offsets, sizes)
    if wrong >= 0:
        raise NotInLog(wrong)
    log.need_records(runs[:, 0], runs[:, 1] - runs[:, 0])
    files = [(start, log.view(start)) for start in sorted(set(starts))]
    if (mismatch := _first_mismatch(files, offsets, sizes, queue_ids, queue_offsets)) >= 0:
        raise NotInLog(mismatch)
    return _read(log, files, runs)


def _runs(log: CommitLog, offsets: Positions, sizes: Positions) -> tuple[Positions, list[int], int]:
    """Joins records that follow one another in a file of the log to runs.

    Returns three values: an array with two columns, the log offsets at which each run begins and ends; the log offsets
    at which the runs' files begin, some of them several times; and the number of the first record that cannot be in the
    log, or -1.
    """
    if kernels.compiled is not None:
        return kernels.compiled.runs(offsets, sizes, log.min_offset, log.end_offset, log.file_size)
    ends, places = offsets + sizes, offsets % log.file_size
    inside = (sizes >= MIN_SIZE) & (offsets >= log.min_offset) & (ends <= log.end_offset)
    inside &= places + sizes <= log.file_size
    if not inside.all():
        return np.empty((0, 2), np.int64), [], int(inside.argmin())
    breaks = np.flatnonzero((offsets[1:] != ends[:-1]) | (places[1:] == 0))
    firsts = np.append(0, breaks + 1)
    runs = np.stack((offsets[firsts], ends[np.append(breaks, -1)]), axis=1)
    starts = offsets[firsts] - places[firsts]
    return runs, [int(starts[0]), *starts[1:][starts[1:] != starts[:-1]].tolist()], -1


def _first_mismatch(
    files: list[tuple[int, memoryview]],
    offsets: Positions,
    sizes: Positions,
    queue_ids: Positions,
    queue_offsets: Positions,
) -> int:
    """Returns the number of the first record whose head in the log is not as expected, or -1.  `files` has the log
    offset and the bytes of each file in which the records are.
    """
    if kernels.compiled is not None:
        return kernels.compiled.first_mismatch(files, offsets, sizes, queue_ids, queue_offsets)
    heads = np.empty(len(offsets), f"V{HEAD.itemsize}")  # numpy would copy an array of dtype HEAD field by field
    for start, data in files:
        rows = slice(None) if len(files) == 1 else (offsets >= start) & (offsets < start + len(data))
        heads[rows] = slices.gather(slices.as_bytes(data), offsets[rows] - start, heads.dtype)
    found = heads.view(HEAD)
    good = (found["magic"] == MESSAGE_MAGIC) | (found["magic"] == MESSAGE_MAGIC_V2)
    good &= (found["size"] == sizes) & (found["commit_log_offset"] == offsets)
    good &= (found["queue_id"] == queue_ids) & (found["queue_offset"] == queue_offsets)
    return -1 if good.all() else int(good.argmin())


def _read(log: CommitLog, files: list[tuple[int, memoryview]], runs: Positions) -> LogRead:
    if len(runs) <= FEW:
        views, found = dict(files), LogRead([], [])
        for begin, end in runs.tolist():
            start = log.start_of(begin)
            found.slices.append(views[start][begin - start : end - start])
            found.runs.append((begin, end))
        return found
    starts = np.array([start for start, _ in files])
    numbers = np.searchsorted(starts, runs[:, 0], side="right") - 1
    # An Arrow view of more than 12 bytes: | size 4 | first bytes 4, not needed here | buffer 4 | offset 4 |
    slots = np.zeros((len(runs), 4), np.int32)
    slots[:, 0] = runs[:, 1] - runs[:, 0]
    slots[:, 2] = numbers
    slots[:, 3] = runs[:, 0] - starts[numbers]
    buffers = [None, pa.py_buffer(slots), *(pa.py_buffer(data) for _, data in files)]
    array = pa.Array.from_buffers(pa.binary_view(), len(runs), buffers).cast(pa.binary())
    return LogRead([memoryview(array.buffers()[2])[: int(slots[:, 0].sum())]], [])
