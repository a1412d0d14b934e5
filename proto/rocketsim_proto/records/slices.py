"""Gathers and scatters slices of one buffer with numpy and Arrow, without Python code per slice.  Pure.

The module uses two techniques:

- For slices of one size: a "window" is a numpy array with a stride of one byte, whose element i is the `itemsize`
  bytes from position i on.  Indexing the window with an array of positions reads or writes the slices at these
  positions at the speed of memcpy.
- For slices of any size: an Arrow `binary_view` array over the buffer describes the slices, and a cast to `binary`
  copies them in C.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketsim_proto.records import kernels
from rocketsim_proto.records.arrays import binaries, texts

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

# An Arrow view: | size 4 | first bytes 4 | buffer 4 | offset 4 |.  A view of up to 12 bytes has the bytes themselves: |
# size 4 | bytes 12 |.
_VIEW = np.dtype([("size", "<i4"), ("first", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
_INLINE = 12
_INLINE_VIEW = np.dtype([("size", "<i4"), ("inline", f"V{_INLINE}")])
FEW = 64  # up to this number of slices or records, a loop is faster than numpy and Arrow (without the compiled module)
LITTLE = 64 << 10  # a loop is used only up to this number of bytes, because a loop copies the bytes twice
_FOLD = 32  # rows
MAX_BUFFER = 2**31 - 1  # Arrow counts the bytes of a buffer in 32 bits


def as_bytes(data: object) -> Bytes:
    """Returns a flat uint8 view of a contiguous buffer, without a copy.  A read-only buffer stays read-only."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, dtype=np.uint8)  # type: ignore[call-overload, no-any-return]


def windows(data: Bytes, itemsize: int) -> npt.NDArray[np.void]:
    """Returns an array whose element i is data[i : i + itemsize]; writing to an element writes to the buffer."""
    count = max(len(data) - itemsize + 1, 0)
    return np.ndarray(shape=(count,), dtype=f"V{itemsize}", buffer=data if count else bytes(itemsize), strides=(1,))


def gather(data: Bytes, starts: Positions, dtype: npt.DTypeLike) -> npt.NDArray[np.void]:
    """Returns the slices of `dtype`'s size at `starts`.  Raises IndexError if a slice is not inside the buffer."""
    dtype = np.dtype(dtype)
    return windows(data, dtype.itemsize)[starts].view(dtype)


def extremes(rows: Bytes) -> tuple[Bytes, Bytes]:
    """Returns the smallest and the largest byte of each column of a table, which must have a row.

    Many short rows are first joined into a few long rows, because numpy uses vector instructions only for long rows,
    and processes short rows hardly faster than byte by byte.
    """
    return _folded(np.minimum, rows), _folded(np.maximum, rows)


def _folded(pick: np.ufunc, rows: Bytes) -> Bytes:
    count, width = rows.shape
    wide = rows[: count - count % _FOLD].reshape(-1, _FOLD * width)
    if not len(wide):
        return np.asarray(pick.reduce(rows, axis=0))
    folded = pick.reduce(pick.reduce(wide, axis=0).reshape(_FOLD, width), axis=0)
    rest = rows[count - count % _FOLD :]
    return np.asarray(pick(folded, pick.reduce(rest, axis=0)) if len(rest) else folded)


def binary_slices(
    data: Bytes, starts: Positions, sizes: Positions, valid: npt.NDArray[np.bool_] | None = None
) -> pa.BinaryArray:
    """Copies data[start : start + size] for each pair of start and size.  An element is null where `valid` is False.
    The caller must have checked that the slices are inside the buffer.
    """
    count = len(starts)
    if kernels.compiled is not None and valid is None:
        return bytes_array(*kernels.compiled.gather(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes)))
    if valid is None and count <= FEW and sum(lengths := sizes.tolist()) <= LITTLE:
        bounds = zip(starts.tolist(), lengths, strict=True)
        return binaries([data.data[start : start + size].tobytes() for start, size in bounds])
    if len(data) > MAX_BUFFER:
        raise ValueError(f"a buffer of {len(data)} bytes; {MAX_BUFFER} at most")
    if valid is not None:
        sizes = np.where(valid, sizes, 0)
    views = np.zeros(count, _VIEW)
    views["size"] = sizes
    views["offset"] = starts
    short = np.flatnonzero(sizes <= _INLINE)
    if len(short):
        views.view(_INLINE_VIEW)["inline"][short] = _first_bytes(data, starts[short])
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(pa.binary_view(), count, [bitmap, pa.py_buffer(views), pa.py_buffer(data)])
    return array.cast(pa.binary())


def _first_bytes(data: Bytes, starts: Positions) -> npt.NDArray[np.void]:
    """Returns 12 bytes from each start on, with zeros behind the end of the buffer."""
    room = starts <= len(data) - _INLINE
    if room.all():
        return windows(data, _INLINE)[starts]
    first = np.zeros(len(starts), f"V{_INLINE}")
    first[room] = windows(data, _INLINE)[starts[room]]
    for row in np.flatnonzero(~room).tolist():
        first[row] = np.void(data[starts[row] : starts[row] + _INLINE].tobytes().ljust(_INLINE, b"\0"))
    return first


def flat(array: pa.Array) -> tuple[Bytes, Positions]:
    """Returns the bytes of a binary or string array back to back, and the count + 1 positions at which elements begin
    and end.
    """
    positions = offsets(array).astype(np.int64)
    positions -= positions[0]
    return flat_bytes(array), positions


def flat_bytes(array: pa.Array) -> Bytes:
    """Returns the bytes of a binary or string array back to back."""
    data, places = array.buffers()[2], offsets(array)
    return np.frombuffer(data, np.uint8)[places[0] : places[-1]] if data is not None else np.empty(0, np.uint8)


def offsets(array: pa.Array) -> npt.NDArray[Any]:
    """Returns, without a copy, the count + 1 positions in the buffer at which the elements of a binary or string array
    begin and end.
    """
    if not len(array):
        return np.zeros(1, np.int32)
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    found = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return found[array.offset : array.offset + len(array) + 1]


def strings(array: pa.BinaryArray) -> pa.StringArray:
    """Decodes UTF-8 as tolerantly as RocketMQ: bytes that are not UTF-8 become U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist()]
        return texts(decoded)


def binary_array(values: Any) -> pa.BinaryArray:
    """Makes a binary array from an Arrow array (of any binary or string type, chunked or not) or a list of bytes.

    Raises ValueError if an element is null.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    array = values if isinstance(values, pa.Array) else binaries(values)
    if array.type != pa.binary():
        array = array.cast(pa.binary())
    if array.null_count:
        raise ValueError(f"{array.null_count} nulls in a column that must not have nulls")
    return array


def bytes_array(offsets: Any, values: Any, valid: Any = None, *, is_text: bool = False) -> pa.Array:
    """Makes a binary or a string array over the memory of `offsets` and `values`.  `valid` has its validity bits."""
    bitmap = None if valid is None else pa.py_buffer(valid)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.string() if is_text else pa.binary(), len(offsets) - 1, buffers)


def fixed_binary(rows: Bytes, width: int) -> pa.BinaryArray:
    """Makes a binary array of elements of `width` bytes, which lie back to back in `rows`, without a copy."""
    count = len(rows) // width
    return bytes_array(np.arange(0, (count + 1) * width, width, dtype=np.int32), rows)
