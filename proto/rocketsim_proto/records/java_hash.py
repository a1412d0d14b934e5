"""Java's String.hashCode of whole columns: what a consume queue keeps of tags, an index file of keys.  Pure.

    h = c[0] * 31^(n-1) + ... + c[n-1] over UTF-16 units, modulo 2^32

In ASCII the bytes are the units.  Strings of one size are the rows of a table.  A column that is the same in all rows,
as most of the ids of a batch, adds the same to all hashes:

    key-00000001
    key-00000002        h = constant + column 10 * 31 + column 11, for all rows at once
    key-00000013
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketsim_proto.records.arrays import mask
from rocketsim_proto.records.record import tags_code
from rocketsim_proto.records.slices import Bytes, Positions, extremes, flat, gather

_LONG = 128  # from here on, and with more different sizes than _MANY, all characters are taken in one go
_MANY = 16

Hashes = npt.NDArray[np.uint32]


def java_hash(strings: pa.StringArray, before: "int | npt.NDArray[np.int32]" = 0) -> npt.NDArray[np.int32]:
    """hashCode of each string; 0 of null and of the empty string, as Java has it for the latter.

    `before`: the hash of what each string is thought to follow, so that a prefix need not be joined to all of them.
    """
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    characters, bounds = flat(strings)
    sizes = np.diff(bounds)
    hashes = np.empty(len(strings), np.uint32)
    hashes[:] = np.asarray(before, np.int64) & 0xFFFFFFFF
    counts = np.bincount(sizes[sizes < _LONG], minlength=1)
    different = np.flatnonzero(counts)
    if counts.sum() < len(sizes) or len(different) > _MANY:
        _hash_of_any(characters, bounds, sizes, hashes)
    elif len(different) == 1:
        if len(characters):
            _go_on(hashes, characters.reshape(len(sizes), -1))
    else:
        for size in different[different > 0].tolist():
            rows = np.flatnonzero(sizes == size)
            table = gather(characters, bounds[rows], f"V{size}").view(np.uint8).reshape(len(rows), size)
            hashes[rows] = _go_on(hashes[rows], table)
    if len(characters) and characters.max() >= 0x80:
        _hash_wide(strings, characters, bounds, np.broadcast_to(np.asarray(before), len(strings)), hashes)
    if strings.null_count:
        hashes[mask(strings.is_null())] = 0
    return hashes.view(np.int32)


def hash_rows(table: Bytes, low: Bytes, high: Bytes, before: int = 0) -> npt.NDArray[np.int32]:
    """hashCode of each row of ASCII characters; `low` and `high` are the `extremes` of the table."""
    hashes = np.full(len(table), before & 0xFFFFFFFF, np.uint32)
    return _go_on(hashes, table, low, high).view(np.int32)


def _go_on(hashes: Hashes, table: Bytes, low: Bytes | None = None, high: Bytes | None = None) -> Hashes:
    """In place: a row of characters behind each hash."""
    if low is None or high is None:
        low, high = extremes(table)
    powers = _powers(len(low) + 1)[::-1]
    same = low == high
    hashes *= powers[0]
    hashes += (low * powers[1:])[same].sum(dtype=np.uint32)
    for column in np.flatnonzero(~same).tolist():
        hashes += table[:, column] * powers[column + 1]
    return hashes


def _powers(count: int) -> Hashes:
    """31^0, 31^1, ...; a view that is not to be written to."""
    if count <= _KEPT:
        return _KEPT_POWERS[:count]
    return np.cumprod(np.r_[np.uint32(1), np.full(count - 1, 31, np.uint32)], dtype=np.uint32)


_KEPT = 1024
_KEPT_POWERS = np.array([pow(31, power, 1 << 32) for power in range(_KEPT)], np.uint32)


def _hash_of_any(characters: Bytes, bounds: Positions, sizes: Positions, hashes: Hashes) -> None:
    """All characters are multiplied with their powers and summed up string by string."""
    filled = np.flatnonzero(sizes)
    powers = _powers(int(sizes.max()) + 1)
    places = np.repeat(bounds[1:], sizes) - 1 - np.arange(bounds[-1])
    hashes *= powers[sizes]
    hashes[filled] += np.add.reduceat(characters * powers[places], bounds[:-1][filled], dtype=np.uint32)


def _hash_wide(
    strings: pa.StringArray, characters: Bytes, bounds: Positions, before: npt.NDArray[np.int32], hashes: Hashes
) -> None:
    """Again, one by one, those with characters that are no ASCII."""
    wide = np.diff(np.append(0, np.cumsum(characters >= 0x80))[bounds]) > 0
    for row in np.flatnonzero(wide).tolist():
        text = strings[row].as_py()
        units = len(text.encode("utf-16-be", "surrogatepass")) // 2
        hashes[row] = (int(before[row]) * pow(31, units, 1 << 32) + tags_code(text)) & 0xFFFFFFFF
