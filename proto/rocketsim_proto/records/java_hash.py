"""Computes Java's String.hashCode for columns of texts.  Consume queues have the hash of tags, and index files have the
hash of keys.  Pure.

    h = c[0] * 31^(n-1) + ... + c[n-1] over UTF-16 units, modulo 2^32

In ASCII text each byte is a UTF-16 unit.  Strings of one size form the rows of a table.  A column of this table that
has the same character in all rows adds the same number to all hashes.  Most columns of a batch's message ids have the
same character in all rows:

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

# `_hash_of_any`, which hashes all characters at once, is used if a string has _LONG or more characters, or if there are
# more than _MANY different sizes.
_LONG = 128
_MANY = 16

Hashes = npt.NDArray[np.uint32]


def java_hash(strings: pa.StringArray, before: "int | npt.NDArray[np.int32]" = 0) -> npt.NDArray[np.int32]:
    """Returns the hashCode of each string, and 0 for null.  The hashCode of the empty string is 0 in Java, too.

    `before` is the hash of a prefix.  With `before`, the result is the hash of prefix and string, without joining them.
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
    """Returns the hashCode of each row of ASCII characters.  `low` and `high` are the `extremes` of the table."""
    hashes = np.full(len(table), before & 0xFFFFFFFF, np.uint32)
    return _go_on(hashes, table, low, high).view(np.int32)


def _go_on(hashes: Hashes, table: Bytes, low: Bytes | None = None, high: Bytes | None = None) -> Hashes:
    """Continues each hash with the characters of its row, in place."""
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
    """Returns the array 31^0, 31^1, ...  Callers must not change the array."""
    if count <= _KEPT:
        return _KEPT_POWERS[:count]
    return np.cumprod(np.r_[np.uint32(1), np.full(count - 1, 31, np.uint32)], dtype=np.uint32)


_KEPT = 1024
_KEPT_POWERS = np.array([pow(31, power, 1 << 32) for power in range(_KEPT)], np.uint32)


def _hash_of_any(characters: Bytes, bounds: Positions, sizes: Positions, hashes: Hashes) -> None:
    """Multiplies all characters by their powers of 31, and adds the products string by string."""
    filled = np.flatnonzero(sizes)
    powers = _powers(int(sizes.max()) + 1)
    places = np.repeat(bounds[1:], sizes) - 1 - np.arange(bounds[-1])
    hashes *= powers[sizes]
    hashes[filled] += np.add.reduceat(characters * powers[places], bounds[:-1][filled], dtype=np.uint32)


def _hash_wide(
    strings: pa.StringArray, characters: Bytes, bounds: Positions, before: npt.NDArray[np.int32], hashes: Hashes
) -> None:
    """Computes the hashes of strings with non-ASCII characters again, one by one."""
    wide = np.diff(np.append(0, np.cumsum(characters >= 0x80))[bounds]) > 0
    for row in np.flatnonzero(wide).tolist():
        text = strings[row].as_py()
        units = len(text.encode("utf-16-be", "surrogatepass")) // 2
        hashes[row] = (int(before[row]) * pow(31, units, 1 << 32) + tags_code(text)) & 0xFFFFFFFF
