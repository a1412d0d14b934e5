"""Encodes columns of properties into the encoded properties of each row, which `properties.py` decodes.  Pure."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from rocketsim_proto.records.arrays import binaries, numbers, numpy_of
from rocketsim_proto.records.record import NAME_END, PROPERTY_END
from rocketsim_proto.records.slices import MAX_BUFFER, fixed_binary, flat_bytes, offsets

_SEPARATORS = "property {} contains \\x01 or \\x02, which separate properties"
_MARKS = (ord(NAME_END), ord(PROPERTY_END))
_NOTHING = binaries([b""])[0]


def encode_property_columns(columns: Mapping[str, pa.Array], further: pa.Array | None = None) -> pa.BinaryArray:
    """Encodes the properties of each row: first `columns` in their order, then the entries of the map column `further`.

    A null value means that the row does not have the property.  Raises ValueError for a name or value that contains a
    separator, because it would be decoded differently.  TAGS should come first, because the broker then finds it fast.
    """
    pieces: list[bytes | pa.BinaryArray] = []  # constants and columns in turn, which are joined at the end
    text = b""
    for name, column in columns.items():
        values = binary_view(_one_array(column))
        if NAME_END in name or PROPERTY_END in name:
            raise ValueError(_SEPARATORS.format("name"))
        _refuse_separators(values, name)
        begin = f"{name}{NAME_END}".encode()
        if values.null_count:
            pieces += [text, _join(begin, values, PROPERTY_END.encode())]
            text = b""
        else:
            pieces += [text + begin, values]
            text = PROPERTY_END.encode()
    if further is not None:
        pieces += [text, _encode_maps(_one_array(further))]
        text = b""
    if not pieces:
        raise ValueError("there are no property columns, so the number of rows is not known")
    return joined([*pieces, text])


def _encode_maps(maps: pa.MapArray) -> pa.BinaryArray:
    import pyarrow.compute as pc  # imported late, because it takes 60 ms of CPU

    places = numpy_of(maps.offsets)
    entries = slice(places[0], places[-1])
    names, values = maps.keys[entries].cast(pa.binary()), maps.items[entries].cast(pa.binary())
    _refuse_separators(names, "name")
    _refuse_separators(values, "value")
    pairs = _join(names, NAME_END.encode(), values, PROPERTY_END.encode())
    # A null value means that the row does not have the property; a null map has no properties.
    lists = pa.ListArray.from_arrays(numbers(places - places[0]), pairs.fill_null(_NOTHING))
    return pc.if_else(maps.is_valid(), pc.binary_join(lists, _NOTHING), _NOTHING)


def _one_array(column: pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _refuse_separators(values: pa.BinaryArray, name: str) -> None:
    text = flat_bytes(values)
    if len(text) and int(text.min()) <= max(_MARKS) and np.isin(text, _MARKS).any():
        raise ValueError(_SEPARATORS.format(name))


def binary_view(array: pa.Array) -> pa.BinaryArray:
    """Converts an array to binary.  For a string array the result uses the same memory, because even a cast that copies
    nothing takes longer.
    """
    return array.view(pa.binary()) if array.type == pa.string() else array.cast(pa.binary())


def joined(pieces: Sequence[bytes | pa.BinaryArray]) -> pa.BinaryArray:
    """Joins all pieces of each row.  A piece of type bytes is the same in every row, and a null counts as empty.

    If the elements of each column have one size, all rows have one size, too.  Rows of one size are filled in as a
    structured array, which takes half of the time if many pieces are short.
    """
    count = next(len(piece) for piece in pieces if not isinstance(piece, bytes))
    widths = [len(piece) if isinstance(piece, bytes) else _width(piece) for piece in pieces]
    if None in widths or not 0 < sum(width or 0 for width in widths) * count <= MAX_BUFFER:
        return _join(*pieces, null_handling="replace", null_replacement="")
    rows = np.empty(count, _row(tuple(widths)))
    for number, piece in enumerate(pieces):
        if width := widths[number]:
            rows[f"{number}"] = np.void(piece) if isinstance(piece, bytes) else flat_bytes(piece).view(f"V{width}")
    return fixed_binary(rows.view(np.uint8), rows.itemsize)


def _join(*pieces: bytes | pa.BinaryArray, **nulls: str) -> pa.BinaryArray:
    """Joins all pieces of each row with Arrow.  A null piece makes the row null, unless `nulls` says otherwise."""
    import pyarrow.compute as pc  # imported late, because it takes 60 ms of CPU

    constants = [binaries([piece])[0] if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*constants, _NOTHING, **nulls)


@lru_cache(maxsize=64)
def _row(widths: tuple[int, ...]) -> np.dtype:
    """Makes a dtype with one field for each piece that has bytes, named by the number of the piece."""
    return np.dtype([(f"{number}", f"V{width}") for number, width in enumerate(widths) if width])


def _width(array: pa.BinaryArray) -> int | None:
    """Returns the size of all elements, or None if their sizes differ."""
    sizes = np.diff(offsets(array))
    return None if array.null_count or not len(sizes) or (sizes != sizes[0]).any() else int(sizes[0])
