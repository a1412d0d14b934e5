"""Decodes the properties of a whole batch, which are NAME \\x01 VALUE \\x02 pairs, into columns.  Pure.

The result is the same as that of `record.decode_properties`.  A piece that lacks the separator, the name or the value
is dropped.  The first \\x01 of a piece separates name and value.  If a name occurs twice, the last value counts, at the
place of the first.  Bytes that are not UTF-8 become U+FFFD.

Most batches come from one producer and have the same names in the same order in every record.  If the values have the
same sizes, too, the batch is a table of bytes (`Matrix`).  If only the names are the same, the batch is a table with
the place of each value (`_Table`).  Batches with different names are split piece by piece (`Pieces`), and small batches
are decoded record by record (`_Few`).  The compiled module needs none of the classes in this module.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketsim_proto.records import kernels
from rocketsim_proto.records.arrays import binaries, numbers, numpy_of, texts
from rocketsim_proto.records.java_hash import hash_rows, java_hash
from rocketsim_proto.records.record import NAME_END, PROPERTY_END, decode_properties, tags_code
from rocketsim_proto.records.slices import (
    FEW,
    Bytes,
    Positions,
    binary_slices,
    bytes_array,
    extremes,
    fixed_binary,
    flat,
    gather,
    strings,
)

_NAME_END = ord(NAME_END)
_PROPERTY_END = ord(PROPERTY_END)
_PAIR = _PROPERTY_END << 8 | _NAME_END


class Properties:
    """The encoded properties of `len(starts)` records, which may lie anywhere in one buffer."""

    def __init__(self, data: Bytes, starts: Positions, sizes: Positions) -> None:
        self._data = data
        self._starts = np.ascontiguousarray(starts)
        self._sizes = np.ascontiguousarray(sizes)
        self._columns: dict[str, pa.StringArray] = {}

    def column(self, name: str) -> pa.StringArray:
        """Returns the values of one property, with null for records that do not have the property."""
        if name not in self._columns:
            if kernels.compiled is not None:
                found = kernels.compiled.property_values(self._data, self._starts, self._sizes, name.encode())
                self._columns[name] = _strings(found)
            else:
                self._columns[name] = self._split.column(name.encode())
        return self._columns[name]

    def java_hash(self, name: str) -> npt.NDArray[np.int64]:
        """Returns Java's hashCode of one property of each record, and 0 for records that do not have the property."""
        if kernels.compiled is not None:
            found = kernels.compiled.property_hashes(self._data, self._starts, self._sizes, name.encode())
            if found is not None:
                return found
        return self._java_hash(name).astype(np.int64)

    def _java_hash(self, name: str) -> npt.NDArray[np.int32]:
        if isinstance(self._split, _Few):
            return self._split.java_hash(name)
        if (matrix := self.matrix) is not None and (hashes := matrix.java_hash(name.encode())) is not None:
            return hashes
        column = self.column(name)
        return np.zeros(len(column), np.int32) if column.null_count == len(column) else java_hash(column)

    @property
    def matrix(self) -> "Matrix | None":
        """The properties as a table of bytes, if all records have the same names and values of the same sizes."""
        return self._split if isinstance(self._split, Matrix) else None

    def names(self) -> frozenset[bytes]:
        """Returns all names that at least one record has."""
        return self._split.names()

    def maps(self) -> pa.MapArray:
        """Returns all properties of each record, with each name once."""
        if kernels.compiled is not None:
            found = kernels.compiled.property_map(self._data, self._starts, self._sizes)
            if found is not None:
                return pa.MapArray.from_arrays(numbers(found[0]), _strings(found[1]), _strings(found[2]))
        return self._split.maps()

    @cached_property
    def _split(self) -> "_Few | Matrix | _Table | Pieces":
        if len(self._starts) <= FEW:
            return _Few(self._data, self._starts, self._sizes)
        if (matrix := _matrix(self._data, self._starts, self._sizes)) is not None:
            return matrix
        text, bounds = flat(binary_slices(self._data, self._starts, self._sizes))
        return _table(text, bounds) or Pieces(text, bounds)


def _strings(column: kernels.Column) -> pa.StringArray:
    """Makes a string array of a column that a compiled function has found."""
    offsets, values, valid, is_ascii = column
    array = bytes_array(offsets, values, valid, is_text=is_ascii)
    return array if is_ascii else strings(array)


# --- a few records ------------------------------------------------------------------------------------------------


class _Few:
    """The properties of a few records, each decoded with `record.decode_properties`."""

    def __init__(self, data: Bytes, starts: Positions, sizes: Positions) -> None:
        bounds = zip(starts.tolist(), sizes.tolist(), strict=True)
        self._rows = [decode_properties(data.data[start : start + size]) for start, size in bounds]

    def column(self, name: bytes) -> pa.StringArray:
        return texts([row.get(name.decode()) for row in self._rows])

    def java_hash(self, name: str) -> npt.NDArray[np.int32]:
        return np.array([tags_code(row.get(name, "")) for row in self._rows], np.int32)

    def names(self) -> frozenset[bytes]:
        return frozenset(name.encode() for row in self._rows for name in row)

    def maps(self) -> pa.MapArray:
        return _maps([row.items() for row in self._rows])


# --- the same names and sizes in every record ---------------------------------------------------------------------


class Matrix:
    """A table of bytes with one row per record, in which each name and each value has its own columns.

    `low` and `high` are the smallest and largest byte of each column.

    | U N I Q _ K E Y \\x01 0 A 0 0 0 1 ... \\x02 W A I T \\x01 t r u e \\x02 |
    |                      begin       end                begin   end      |
    """

    def __init__(self, rows: Bytes, low: Bytes, high: Bytes, values: Mapping[bytes, slice]) -> None:
        self._rows = rows
        self._low = low
        self._high = high
        self._values = values

    def column(self, name: bytes) -> pa.StringArray:
        value = self._values.get(name)
        if value is None:
            return pa.nulls(len(self._rows), pa.string())
        values = np.ascontiguousarray(self._rows[:, value])
        return strings(fixed_binary(values.reshape(-1), value.stop - value.start))

    def java_hash(self, name: bytes, before: int = 0) -> npt.NDArray[np.int32] | None:
        """Returns, for each value of the property, the hashCode of prefix and value.  `before` is the hash of the
        prefix.

        Returns None if the property is missing or not ASCII.
        """
        value = self._values.get(name)
        if value is None or self._high[value].max() >= 0x80:
            return None
        return hash_rows(self._rows[:, value], self._low[value], self._high[value], before)

    def has(self, name: bytes, character: bytes) -> bool:
        """Returns True if a value of the property `name` contains `character`."""
        value, code = self._values.get(name), ord(character)
        if value is None or not ((self._low[value] <= code) & (code <= self._high[value])).any():
            return False
        return bool((self._rows[:, value] == code).any())

    def names(self) -> frozenset[bytes]:
        return frozenset(self._values)

    def maps(self) -> pa.MapArray:
        count, width = len(self._rows), len(self._values)
        places = self._values.values()
        values = np.hstack([self._rows[:, value] for value in places])
        names = np.tile(np.frombuffer(b"".join(self._values), np.uint8), count)
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        return pa.MapArray.from_arrays(
            numbers(offsets),
            strings(_in_turn(names, [len(name) for name in self._values], count)),
            strings(_in_turn(values, [value.stop - value.start for value in places], count)),
        )


def _in_turn(pieces: Bytes, sizes: list[int], count: int) -> pa.BinaryArray:
    """Makes an array of pieces that lie back to back.  `sizes` are the sizes of the first pieces, and are repeated
    `count` times.
    """
    offsets = np.zeros(count * len(sizes) + 1, np.int32)
    np.cumsum(np.tile(sizes, count), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(pieces)])


def _matrix(data: Bytes, starts: Positions, sizes: Positions) -> Matrix | None:
    """Makes a Matrix.  Returns None unless all records have the first record's names, and values of the same sizes."""
    size = int(sizes[0])
    if not size or (sizes != size).any():
        return None
    rows = gather(data, starts, f"V{size}").view(np.uint8).reshape(len(starts), size)
    values = _values_of(rows[0].tobytes())
    if values is None:
        return None
    low, high = extremes(rows)
    is_value = np.zeros(size, np.bool_)
    for value in values.values():
        is_value[value] = True
    fits = np.where(is_value, low > _PROPERTY_END, low == high).all()
    return Matrix(rows, low, high, values) if fits else None


def _values_of(properties: bytes) -> dict[bytes, slice] | None:
    """Returns where the values lie in one record's properties, or None if the properties do not have the usual form."""
    values: dict[bytes, slice] = {}
    begin = 0
    for piece in properties.removesuffix(bytes((_PROPERTY_END,))).split(bytes((_PROPERTY_END,))):
        name, _, value = piece.partition(bytes((_NAME_END,)))
        if not name or not value or _NAME_END in value or name in values or not name.isascii():
            return None
        values[name] = slice(begin + len(name) + 1, begin + len(piece))
        begin += len(piece) + 1
    return values


# --- the same names in every record -------------------------------------------------------------------------------


class _Table:
    """A table of positions: row r, column c has the position of record r's value for the c-th property name."""

    def __init__(self, text: Bytes, names: list[bytes], starts: Positions, sizes: Positions) -> None:
        self._text = text
        self._names = names
        self._starts = starts
        self._sizes = sizes

    def column(self, name: bytes) -> pa.StringArray:
        if name not in self._names:
            return pa.nulls(len(self._starts), pa.string())
        column = self._names.index(name)
        return strings(binary_slices(self._text, self._starts[:, column], self._sizes[:, column]))

    def names(self) -> frozenset[bytes]:
        return frozenset(self._names)

    def maps(self) -> pa.MapArray:
        count, width = self._starts.shape
        values = binary_slices(self._text, self._starts.reshape(-1), self._sizes.reshape(-1))
        names = binaries(self._names).take(numbers(np.tile(np.arange(width), count)))
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        return pa.MapArray.from_arrays(numbers(offsets), strings(names), strings(values))


def _table(text: Bytes, bounds: Positions) -> _Table | None:
    """Makes a _Table.  Returns None if a record has other property names than the others, another order of the names, a
    name twice, or an unusual form.
    """
    count = len(bounds) - 1
    marks = np.flatnonzero(text <= _PROPERTY_END)
    kinds, lasts = text[marks], bounds[1:] - 1
    is_open = text[lasts] != _PROPERTY_END if len(text) else np.zeros(count, np.bool_)
    if is_open.any():
        # RocketMQ 4.9 omits the last separator.  A missing separator counts as if it stood right behind the record's
        # properties.
        lasts = lasts + is_open
        places = np.searchsorted(marks, lasts[is_open])
        marks, kinds = np.insert(marks, places, lasts[is_open]), np.insert(kinds, places, _PROPERTY_END)
    width = len(marks) // (2 * count) if count else 0
    if not width or len(marks) != 2 * count * width:
        return None
    separators, ends = marks[0::2].reshape(count, width), marks[1::2].reshape(count, width)
    if (kinds.view("<u2") != _PAIR).any() or (ends[:, -1] != lasts).any():  # compares both separators at once
        return None
    begins = np.empty_like(ends)
    begins[:, 0] = bounds[:-1]
    begins[:, 1:] = ends[:, :-1] + 1
    name_sizes, sizes = separators - begins, ends - separators - 1
    if (name_sizes != name_sizes[0]).any() or not name_sizes[0].all() or not sizes.all():
        return None
    names = []
    for column, size in enumerate(name_sizes[0].tolist()):
        found = gather(text, begins[:, column], f"V{size}").tobytes()
        name = found[:size]
        if found != name * count or name in names or not name.isascii():
            return None
        names.append(name)
    return _Table(text, names, separators + 1, sizes)


# --- different names ----------------------------------------------------------------------------------------------


class Pieces:
    """All NAME \\x01 VALUE pieces of the batch in order, each with the record to which it belongs."""

    def __init__(self, text: Bytes, bounds: Positions) -> None:
        # A piece ends at each \x02, and at the end of a record that does not end with one.
        inner = np.flatnonzero(text == _PROPERTY_END)
        open_ends = bounds[1:][np.diff(bounds) > 0]
        open_ends = open_ends[text[open_ends - 1] != _PROPERTY_END]
        ends = np.unique(np.concatenate((inner, open_ends))) if len(open_ends) else inner
        is_inner = np.append(text == _PROPERTY_END, False)
        begins = np.concatenate(([0], ends[:-1] + is_inner[ends[:-1]]))
        separators = np.append(np.flatnonzero(text == _NAME_END), len(text))
        separator = separators[np.searchsorted(separators, begins)]
        kept = (begins < separator) & (separator < ends - 1)
        self._text = text
        self._count = len(bounds) - 1
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
        rows = self._row[chosen]  # if a row occurs twice, numpy keeps the last assignment
        starts[rows] = self._separators[chosen] + 1
        sizes[rows] = self._ends[chosen] - self._separators[chosen] - 1
        valid[rows] = True
        return strings(binary_slices(self._text, starts, sizes, valid))

    def names(self) -> frozenset[bytes]:
        names = binary_slices(self._text, self._begins, self._separators - self._begins)
        return frozenset(names.unique().to_pylist())

    def maps(self) -> pa.MapArray:
        names = strings(binary_slices(self._text, self._begins, self._separators - self._begins))
        values = strings(binary_slices(self._text, self._separators + 1, self._ends - self._separators - 1))
        offsets = np.searchsorted(self._row, np.arange(self._count + 1)).astype(np.int32)
        if self._some_name_twice(names, offsets):
            return self._maps_one_by_one(names, values, offsets)
        return pa.MapArray.from_arrays(numbers(offsets), names, values)

    def _some_name_twice(self, names: pa.StringArray, offsets: npt.NDArray[np.int32]) -> bool:
        """Returns True if a record may have a name twice, or if it has too many names to find that out quickly."""
        codes = names.dictionary_encode()
        if len(codes.dictionary) > 64:
            return True
        bits = np.uint64(1) << numpy_of(codes.indices).astype(np.uint64)
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
            dict(zip(name_list[start:end], value_list[start:end], strict=True)).items()
            for start, end in pairwise(bounds)
        ]
        return _maps(rows)


def _maps(rows: Sequence[Collection[tuple[str, str]]]) -> pa.MapArray:
    offsets = np.fromiter(accumulate(map(len, rows), initial=0), np.int32, len(rows) + 1)
    pairs = [pair for row in rows for pair in row]
    return pa.MapArray.from_arrays(
        numbers(offsets), texts([name for name, _ in pairs]), texts([value for _, value in pairs])
    )
