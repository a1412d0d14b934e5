"""Finds where records begin and end in a buffer that is filled with records, one behind the other.  Pure."""

import struct

import numpy as np

from rocketsim_proto.records.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_SIZE, RecordError
from rocketsim_proto.records.slices import Bytes, Positions, gather

_SIZE = struct.Struct(">I")
_SIZE_AND_MAGIC = np.dtype([("size", ">u4"), ("magic", ">u4")])


def walk_sizes(data: Bytes) -> Positions:
    """Returns the sizes of the records in `data`.  Raises RecordError if the records do not fill the data exactly."""
    total = len(data)
    if not total:
        return np.empty(0, np.int64)
    at = 0
    first = int.from_bytes(data[:4].tobytes(), "big")
    # Records of one producer often have the same size, and it takes little time to try if they do.
    if first >= MIN_SIZE and total % first == 0:
        found = np.ndarray(shape=(total // first,), dtype=">u4", buffer=data, strides=(first,))
        if (found == first).all():
            return np.full(len(found), first, np.int64)
    sizes = []
    unpack = _SIZE.unpack_from
    view = data.data
    end = total - MIN_SIZE
    while at <= end:
        (size,) = unpack(view, at)
        if size < MIN_SIZE:
            raise RecordError(at, f"size {size}, a record has at least {MIN_SIZE}")
        sizes.append(size)
        at += size
    if at != total:
        bad = at if at < total else at - sizes[-1]
        raise RecordError(bad, f"{total - bad} bytes left do not hold a record")
    return np.array(sizes, np.int64)


def check_sizes(data: Bytes, starts: Positions, sizes: Positions) -> None:
    """Raises RecordError unless the sizes fill the data exactly, and each record begins with its size and a record's
    magic number.
    """
    short = sizes < MIN_SIZE
    if short.any():
        row = int(short.argmax())
        raise RecordError(int(starts[row]), f"size {sizes[row]}, a record has at least {MIN_SIZE}")
    total = int(sizes.sum())
    if total != len(data):
        raise RecordError(min(total, len(data)), f"sizes add up to {total} bytes, there are {len(data)}")
    found = gather(data, starts, _SIZE_AND_MAGIC)
    own, magic = found["size"], found["magic"]
    bad = (own != sizes) | (magic != MESSAGE_MAGIC) & (magic != MESSAGE_MAGIC_V2)
    if bad.any():
        row = int(bad.argmax())
        reason = f"magic {magic[row]:08x}" if own[row] == sizes[row] else f"size {own[row]}, {sizes[row]} announced"
        raise RecordError(int(starts[row]), reason)
