"""Makes and reads Arrow arrays of numbers and texts without pandas.  Pure.

`pa.array`, `pa.scalar` and `to_numpy` import pandas if it is installed, as it usually is with Spark.  Importing pandas
would take 0.4 s of CPU and 42 MB in each Python worker that reads or writes its first rows.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[np.number]) -> pa.Array:
    """Makes an Arrow array, which shares the memory of `values` if `values` is contiguous."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts(values: Sequence[str | None]) -> pa.StringArray:
    return _of_bytes(pa.string(), [None if value is None else value.encode() for value in values])


def binaries(values: Sequence[bytes | None]) -> pa.BinaryArray:
    return _of_bytes(pa.binary(), values)


def repeated_text(value: str, count: int) -> pa.StringArray:
    return pa.repeat(texts([value])[0], count)


def booleans(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def numpy_of(array: pa.Array) -> npt.NDArray[Any]:
    """Returns an array of numbers without nulls as a numpy array over the same memory."""
    found = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype())
    return found[array.offset : array.offset + len(array)]


def mask(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Converts an Arrow array of booleans without nulls to a numpy mask."""
    bits = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def _of_bytes(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    pieces = [value or b"" for value in values]
    offsets = np.fromiter(accumulate(map(len, pieces), initial=0), np.int64, len(pieces) + 1)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{offsets[-1]} bytes; {np.iinfo(np.int32).max} at most")
    valid = None
    if None in values:
        present = np.array([value is not None for value in values])
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(pieces))]
    return pa.Array.from_buffers(kind, len(pieces), buffers)
