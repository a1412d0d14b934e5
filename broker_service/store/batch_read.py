"""Reads the records that queue entries point to, in queue order, as few and large slices of the mapped log.

Records that are neighbours in the log become one slice, which is a view of the mapped file and no copy.  If many slices
would be needed, Arrow copies the records into one buffer: a `binary_view` array over the maps is cast to `binary`, and
this copy runs in C++.
"""

from collections.abc import Sequence
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rocketsim_proto.records import slices
from rocketsim_proto.records.layout import HEAD
from rocketsim_proto.records.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_SIZE

from broker_service.store.commit_log import CommitLog

Positions = npt.NDArray[np.int64]

_HEAD = Struct(">II4xi4xqq")  # size, magic, queue id, queue offset, log offset
# For at most FEW records, slicing is faster than Arrow, and struct is faster than numpy.
FEW = 64


def read_records(log: CommitLog, offsets: Positions, sizes: Positions) -> list[memoryview]:
    """Returns the bytes of these records back to back.  To be called only for records for which
    `are_in_log` has returned True."""
    if not len(offsets):
        return []
    starts = _file_starts(log, offsets)
    breaks = np.flatnonzero((offsets[1:] != offsets[:-1] + sizes[:-1]) | (starts[1:] != starts[:-1])) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.append(breaks, len(offsets)) - 1
    starts = starts[firsts]
    begins = offsets[firsts] - starts
    lengths = offsets[lasts] + sizes[lasts] - offsets[firsts]
    if len(firsts) <= FEW:
        places = zip(starts.tolist(), begins.tolist(), (begins + lengths).tolist(), strict=True)
        views = {start: log.view(start) for start in set(starts.tolist())}
        return [views[start][begin:end] for start, begin, end in places]
    files, file_numbers = np.unique(starts, return_inverse=True)
    # An Arrow view of more than 12 bytes: | size 4 | first bytes 4, not needed here | buffer 4 | offset 4 |
    slots = np.zeros((len(firsts), 4), np.int32)
    slots[:, 0] = lengths
    slots[:, 2] = file_numbers
    slots[:, 3] = begins
    buffers = [None, pa.py_buffer(slots), *(pa.py_buffer(log.view(start)) for start in files.tolist())]
    array = pa.Array.from_buffers(pa.binary_view(), len(firsts), buffers).cast(pa.binary())
    return [memoryview(array.buffers()[2])[: int(lengths.sum())]]


def read_few(
    log: CommitLog, places: Sequence[tuple[int, int]], queue_offsets: Sequence[int], queue_id: int
) -> bytes | None:
    """Returns the bytes of a few records, whose (log offset, size) are in `places`, back to back.

    For a few records this is faster than `are_in_log` and `read_records`.  Returns None if the log does not have all of
    the records, or has a record of version 2, which those functions then find.  Raises Cold and ReadFailed as
    `CommitLog.need` does.
    """
    first, end = min(offset for offset, _ in places), log.end_offset
    if first < log.min_offset or any(size < MIN_SIZE or offset + size > end for offset, size in places):
        return None
    log.need_records(np.array([offset for offset, _ in places]), np.array([size for _, size in places]))
    found, start, view = [], -1, memoryview(b"")
    for (offset, size), queue_offset in zip(places, queue_offsets, strict=True):
        if not start <= offset < start + len(view):
            start = log.start_of(offset)
            view = log.view(start)
        at, head = offset - start, (size, MESSAGE_MAGIC, queue_id, queue_offset, offset)
        if at + size > len(view) or _HEAD.unpack_from(view, at) != head:
            return None
        found.append(view[at : at + size])
    return b"".join(found)


def are_in_log(
    log: CommitLog, offsets: Positions, sizes: Positions, queue_offsets: Positions, queue_ids: Positions
) -> npt.NDArray[np.bool_]:
    """Returns, for each record, True if the log has it at that offset with that size, queue id and queue offset.

    If the log has all of the records, their bytes are in memory afterwards.  Raises Cold and ReadFailed as
    `CommitLog.need` does.
    """
    present: npt.NDArray[np.bool_] = (
        (sizes >= MIN_SIZE) & (offsets >= log.min_offset) & (offsets + sizes <= log.end_offset)
    )
    if not len(present) or not present.all():
        return present
    starts = _file_starts(log, offsets)
    present = offsets + sizes <= starts + log.file_size
    if not present.all():
        return present
    log.need_records(offsets, sizes)
    heads = _heads(log, offsets, starts)
    magic = heads["magic"]
    present = (magic == MESSAGE_MAGIC) | (magic == MESSAGE_MAGIC_V2)
    present &= heads["size"] == sizes
    present &= heads["commit_log_offset"] == offsets
    present &= heads["queue_offset"] == queue_offsets
    present &= heads["queue_id"] == queue_ids
    return present


def _file_starts(log: CommitLog, offsets: Positions) -> Positions:
    """Returns, for each record, the offset at which its file begins."""
    first = log.start_of(int(offsets.min()))
    if offsets.max() < first + log.file_size:
        return np.full(len(offsets), first)
    starts = np.array(log.starts, np.int64)
    return starts[np.searchsorted(starts, offsets, side="right") - 1]


def _heads(log: CommitLog, offsets: Positions, starts: Positions) -> npt.NDArray[np.void]:
    """Returns the first fields of the records at these offsets."""
    heads = np.empty(len(offsets), f"V{HEAD.itemsize}")  # numpy would copy an array of dtype HEAD field by field
    changes = starts[1:] != starts[:-1]
    for start in {int(starts[0]), *starts[1:][changes].tolist()}:
        rows = starts == start if changes.any() else slice(None)
        heads[rows] = slices.gather(slices.as_bytes(log.view(start)), offsets[rows] - start, heads.dtype)
    return heads.view(HEAD)
