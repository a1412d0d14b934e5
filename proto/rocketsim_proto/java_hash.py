"""Java's String.hashCode of whole columns: what a consume queue keeps of tags, an index file of keys.  Pure.

    h = c[0] * 31^(n-1) + ... + c[n-1] over UTF-16 units, modulo 2^32

In ASCII the bytes are the units.  Strings of one size are the rows of a table, and Horner's rule goes over its columns:

    key-00000001
    key-00000002        h = h * 31 + column, twelve times, for all rows at once
    key-00000003
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketsim_proto.record import tags_code
from rocketsim_proto.slices import Bytes, Positions, flat, gather

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
        _go_on(hashes, characters.reshape(len(sizes), int(different[0])))
    else:
        for size in different.tolist():
            rows = np.flatnonzero(sizes == size)
            table = gather(characters, bounds[rows], f"V{size}") if size else np.empty(0, "V1")
            hashes[rows] = _go_on(hashes[rows], table.view(np.uint8).reshape(len(rows), size))
    if len(characters) and characters.max() >= 0x80:
        _hash_wide(strings, characters, bounds, np.broadcast_to(np.asarray(before), len(strings)), hashes)
    if strings.null_count:
        hashes[strings.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes.view(np.int32)


def _go_on(hashes: Hashes, table: Bytes) -> Hashes:
    """In place: a row of characters behind each hash."""
    for column in table.T.astype(np.uint32):
        hashes *= np.uint32(31)
        hashes += column
    return hashes


def _hash_of_any(characters: Bytes, bounds: Positions, sizes: Positions, hashes: Hashes) -> None:
    """All characters are multiplied with their powers and summed up string by string."""
    filled = np.flatnonzero(sizes)
    powers = np.cumprod(np.r_[np.uint32(1), np.full(sizes.max(), 31, np.uint32)], dtype=np.uint32)
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
