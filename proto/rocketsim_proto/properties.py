"""Properties as columns: NAME \\x01 VALUE \\x02 pairs of a whole batch, taken apart and put together.  Pure.

The reading side agrees with `record.decode_properties`: a piece without a separator, a name
or a value is dropped, the first \\x01
separates, the last value of a name wins at the place of the first, and what is not UTF-8 becomes U+FFFD.

Most batches come from one producer: the same names in the same order in every record.  Where, on top of that, every
value keeps its length, the properties are a matrix of bytes and all of this is slicing (`_Matrix`); otherwise one
scan over the bytes finds all separators (`_Pieces`).
"""

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketsim_proto.record import NAME_END, PROPERTY_END
from rocketsim_proto.slices import Bytes, Positions, binary_slices, fixed_binary, flat, gather, strings

_NAME_END = ord(NAME_END)
_PROPERTY_END = ord(PROPERTY_END)


class Properties:
    """The encoded properties of `len(starts)` records, lying anywhere in one buffer."""

    def __init__(self, data: Bytes, starts: Positions, sizes: Positions) -> None:
        self._data = data
        self._starts = starts
        self._sizes = sizes
        self._columns: dict[str, pa.StringArray] = {}

    def column(self, name: str) -> pa.StringArray:
        """The value of one property, null where a record does not have it."""
        if name not in self._columns:
            split = self._split
            self._columns[name] = _nulls(len(self._starts)) if split is None else split.column(name.encode())
        return self._columns[name]

    def maps(self) -> pa.MapArray:
        """All properties of each record, every name once."""
        split = self._split
        if split is None:
            offsets = pa.array(np.zeros(len(self._starts) + 1, np.int32))
            return pa.MapArray.from_arrays(offsets, _nulls(0), _nulls(0))
        return split.maps()

    @cached_property
    def _split(self) -> "_Matrix | _Pieces | None":
        if not len(self._sizes) or not self._sizes.any():
            return None
        return _matrix(self._data, self._starts, self._sizes) or _Pieces(self._data, self._starts, self._sizes)


def _nulls(count: int) -> pa.StringArray:
    return pa.nulls(count, pa.string())


# --- every record alike -------------------------------------------------------------------------------------------


class _Matrix:
    """Row r, columns a to b are the value of one property of record r, for all r."""

    def __init__(self, rows: Bytes, names: list[bytes], values: list[tuple[int, int]]) -> None:
        self._rows = rows
        self._names = names
        self._values = values

    def column(self, name: bytes) -> pa.StringArray:
        if name not in self._names:
            return _nulls(len(self._rows))
        start, end = self._values[self._names.index(name)]
        value = np.ascontiguousarray(self._rows[:, start:end]).reshape(-1)
        return strings(fixed_binary(value, end - start))

    def maps(self) -> pa.MapArray:
        count, width = len(self._rows), len(self._names)
        kept = np.concatenate([np.arange(start, end) for start, end in self._values])
        values = _repeated(self._rows[:, kept], [end - start for start, end in self._values])
        name_bytes = np.frombuffer(b"".join(self._names), np.uint8)
        names = _repeated(np.tile(name_bytes, (count, 1)), [len(name) for name in self._names])
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), strings(names), strings(values))


def _matrix(data: Bytes, starts: Positions, sizes: Positions) -> _Matrix | None:
    """None unless the names, and the length of every value, are the same in all records."""
    size = int(sizes[0])
    if not size or (sizes != size).any():
        return None
    first = data[starts[0] : starts[0] + size]
    ends = np.flatnonzero(first == _PROPERTY_END).tolist()
    if not ends or ends[-1] != size - 1:
        return None
    names, values, at = [], [], 0
    for end in ends:
        name, separator, value = first[at:end].tobytes().partition(NAME_END.encode())
        if not separator or name in names or not name.isascii():
            return None
        if name and value:
            names.append(name)
            values.append((end - len(value), end))
        at = end + 1
    if not names:
        return None
    rows = gather(data, starts, f"V{size}").view(np.uint8).reshape(len(starts), size)
    frame = np.ones(size, np.bool_)
    for start, end in values:
        frame[start:end] = False
    if (rows[:, frame] != first[frame]).any() or np.count_nonzero(rows == _PROPERTY_END) != len(starts) * len(ends):
        return None
    return _Matrix(rows, names, values)


def _repeated(rows: Bytes, widths: list[int]) -> pa.BinaryArray:
    """Every row cut into pieces of these widths."""
    bounds = np.cumsum([0, *widths])
    offsets = np.append((np.arange(len(rows))[:, None] * bounds[-1] + bounds[:-1]).reshape(-1), len(rows) * bounds[-1])
    data = np.ascontiguousarray(rows).reshape(-1)
    count = len(rows) * len(widths)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)])


# --- anything at all ----------------------------------------------------------------------------------------------


class _Pieces:
    """Every NAME \\x01 VALUE of the batch in order, with the record it belongs to."""

    def __init__(self, data: Bytes, starts: Positions, sizes: Positions) -> None:
        text, bounds = flat(binary_slices(data, starts, sizes))
        # A piece ends at each \x02, and at the end of a record that does not end with one.
        inner = np.flatnonzero(text == _PROPERTY_END)
        open_ends = bounds[1:][sizes > 0]
        open_ends = open_ends[text[open_ends - 1] != _PROPERTY_END]
        ends = np.unique(np.concatenate((inner, open_ends))) if len(open_ends) else inner
        is_inner = np.append(text == _PROPERTY_END, False)
        begins = np.concatenate(([0], ends[:-1] + is_inner[ends[:-1]]))
        separators = np.append(np.flatnonzero(text == _NAME_END), len(text))
        separator = separators[np.searchsorted(separators, begins)]
        kept = (begins < separator) & (separator < ends - 1)
        self._text = text
        self._count = len(starts)
        self._begins, self._separators, self._ends = begins[kept], separator[kept], ends[kept]
        self._row = np.searchsorted(bounds, self._begins, side="right") - 1

    def column(self, name: bytes) -> pa.StringArray:
        chosen = np.flatnonzero(self._separators - self._begins == len(name))
        if len(chosen) and name:
            names = gather(self._text, self._begins[chosen], f"V{len(name)}").view(np.uint8).reshape(-1, len(name))
            chosen = chosen[(names == np.frombuffer(name, np.uint8)).all(axis=1)]
        starts = np.zeros(self._count, np.int64)
        sizes = np.zeros(self._count, np.int64)
        valid = np.zeros(self._count, np.bool_)
        rows = self._row[chosen]  # the last of equal rows stays: numpy assigns in order
        starts[rows] = self._separators[chosen] + 1
        sizes[rows] = self._ends[chosen] - self._separators[chosen] - 1
        valid[rows] = True
        return strings(binary_slices(self._text, starts, sizes, valid))

    def maps(self) -> pa.MapArray:
        names = strings(binary_slices(self._text, self._begins, self._separators - self._begins))
        values = strings(binary_slices(self._text, self._separators + 1, self._ends - self._separators - 1))
        offsets = np.searchsorted(self._row, np.arange(self._count + 1)).astype(np.int32)
        if self._some_name_twice(names, offsets):
            return self._maps_one_by_one(names, values, offsets)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _some_name_twice(self, names: pa.StringArray, offsets: npt.NDArray[np.int32]) -> bool:
        """Whether a record may have a name twice; yes, when there are too many names to tell quickly."""
        codes = pc.dictionary_encode(names)
        if len(codes.dictionary) > 64:
            return True
        bits = np.uint64(1) << codes.indices.to_numpy().astype(np.uint64)
        filled = np.flatnonzero(np.diff(offsets))
        if not len(filled):
            return False
        seen = np.bitwise_or.reduceat(bits, offsets[:-1][filled])
        return bool((np.bitwise_count(seen) != np.diff(offsets)[filled]).any())

    def _maps_one_by_one(
        self, names: pa.StringArray, values: pa.StringArray, offsets: npt.NDArray[np.int32]
    ) -> pa.MapArray:
        name_list, value_list, bounds = names.to_pylist(), values.to_pylist(), offsets.tolist()
        rows = [
            list(dict(zip(name_list[start:end], value_list[start:end], strict=True)).items())
            for start, end in pairwise(bounds)
        ]
        return pa.array(rows, pa.map_(pa.string(), pa.string()))


# --- the writing side ---------------------------------------------------------------------------------------------


def encode_property_columns(columns: Mapping[str, pa.Array], further: pa.Array | None = None) -> pa.BinaryArray:
    """The encoded properties of each row: the columns in their order (null: not there), then a map column's entries.

    Raises ValueError for a name or value with a separator in it, which would read back as something else.  Put TAGS
    first: then the broker finds it without looking further.
    """
    parts = []
    for name, column in columns.items():
        values = _one_array(column).cast(pa.binary())
        _refuse_separators(pa.array([name.encode()], pa.binary()), "name")
        _refuse_separators(values, name)
        parts.append(pc.binary_join_element_wise(f"{name}{NAME_END}".encode(), values, PROPERTY_END.encode(), b""))
    if further is not None:
        parts.append(_encode_maps(_one_array(further)))
    if not parts:
        raise ValueError("no property columns: their number of rows is unknown")
    # Not null_handling="skip": Arrow then leaves out a row that has nothing but nulls.
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement="")


def _encode_maps(maps: pa.MapArray) -> pa.BinaryArray:
    offsets = maps.offsets.to_numpy()
    entries = slice(offsets[0], offsets[-1])
    names, values = maps.keys[entries].cast(pa.binary()), maps.items[entries].cast(pa.binary())
    _refuse_separators(names, "name")
    _refuse_separators(values, "value")
    pairs = pc.binary_join_element_wise(names, values, NAME_END.encode())
    pairs = pc.binary_join_element_wise(pairs, b"", PROPERTY_END.encode())
    # A null value is a property that is not there, a null map has none.
    lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), pc.fill_null(pairs, b""))
    return pc.if_else(maps.is_valid(), pc.binary_join(lists, b""), b"")


def _one_array(column: pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _refuse_separators(values: pa.BinaryArray, name: str) -> None:
    text, _ = flat(values)
    if len(text) and int(text.min()) <= _PROPERTY_END and np.isin(text, (_NAME_END, _PROPERTY_END)).any():
        raise ValueError(f"property {name} contains \\x01 or \\x02, which separate properties")
