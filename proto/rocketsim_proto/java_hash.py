"""Java's String.hashCode of whole columns: what a consume queue keeps of tags, an index file of keys.  Pure."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketsim_proto.record import tags_code
from rocketsim_proto.slices import flat


def java_hash(strings: pa.StringArray) -> npt.NDArray[np.int32]:
    """hashCode of each string; 0 of null and of the empty string, as Java has it for the latter.

    h = c[0] * 31^(n-1) + ... + c[n-1] over UTF-16 units, modulo 2^32.  In ASCII the bytes are the units: all
    characters of the column are multiplied with their powers in one go and summed up string by string.
    """
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    characters, bounds = flat(strings)
    hashes = np.zeros(len(strings), np.uint32)
    sizes = np.diff(bounds)
    filled = np.flatnonzero(sizes)
    if len(filled):
        powers = np.cumprod(np.r_[np.uint32(1), np.full(sizes.max() - 1, 31, np.uint32)], dtype=np.uint32)
        places = np.repeat(bounds[1:], sizes) - 1 - np.arange(bounds[-1])
        hashes[filled] = np.add.reduceat(characters * powers[places], bounds[:-1][filled], dtype=np.uint32)
        if characters.max() >= 0x80:
            wide = np.add.reduceat(characters >= 0x80, bounds[:-1][filled], dtype=np.int64) > 0
            for row in filled[wide].tolist():
                hashes[row] = tags_code(strings[row].as_py()) & 0xFFFFFFFF
    if strings.null_count:
        hashes[strings.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes.view(np.int32)
