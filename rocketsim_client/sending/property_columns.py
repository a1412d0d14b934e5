"""Checks columns of properties by the rules of `validation.py`, without making a Python object for a row.  Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rocketsim_proto.records.arrays import binaries, booleans, mask, numpy_of
from rocketsim_proto.records.property_columns import binary_view
from rocketsim_proto.records.slices import flat_bytes
from rocketsim_proto.reserved import PROPERTIES

from rocketsim_client.errors import RowIllegal
from rocketsim_client.validation import property_problem, text_problem

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]

_ILLEGAL_IN_TEXT = (b"\0", b"\x01", b"\x02")
_RESERVED = binaries(sorted(name.encode() for name in PROPERTIES))


def check_texts(topic: str, columns: Mapping[str, pa.Array | None]) -> None:
    """Checks columns of texts.  `columns` maps the name of a property to the column with its values.  RowIllegal names
    the first bad row."""
    for name, column in columns.items():
        if column is None:
            continue
        for row in np.flatnonzero(_breaks_text(binary_view(column)))[:1].tolist():
            problem = text_problem(name, column[row].as_py())
            raise RowIllegal(topic, row, problem)


def check_maps(topic: str, maps: pa.MapArray) -> None:
    """Checks a map column of properties that the caller has chosen.  RowIllegal names the first bad row and the
    property."""
    for row, problem in problems(*entries(maps)):
        raise RowIllegal(topic, row, problem)


def entries(column: pa.Array) -> tuple[pa.Array, pa.Array, Positions]:
    """Returns the names and values of all rows of a map column, or of a column of lists of (name, value) structs,
    and the position at which each row begins.  A null row has no properties."""
    places = numpy_of(column.offsets).astype(np.int64)
    part = slice(int(places[0]), int(places[-1]))
    if isinstance(column, pa.MapArray):
        names, values = column.keys[part], column.items[part]
    else:
        names, values = column.values[part].flatten()  # a null struct has a null name and a null value
    if column.null_count:
        is_there, sizes = mask(column.is_valid()), np.diff(places)
        kept = booleans(np.repeat(is_there, sizes))
        names, values = names.filter(kept), values.filter(kept)
        places = np.concatenate(([0], np.cumsum(np.where(is_there, sizes, 0))))
    return names, values, places - places[0]


def unfit(names: pa.Array, values: pa.Array, places: Positions) -> Mask:
    """Marks the properties that a message cannot have, because `property_problem` finds a reason, or because a later
    property of the row has the same name."""
    import pyarrow.compute as pc

    names, values = binary_view(names), binary_view(values)
    broken = _is_missing(names) | _is_missing(values) | _breaks_text(names) | _breaks_text(values)
    broken |= mask(pc.is_in(names, value_set=_RESERVED))
    return broken | _has_a_later_one(names, places)


def problems(names: pa.Array, values: pa.Array, places: Positions) -> Iterator[tuple[int, str]]:
    """Yields the row and the reason for each property that a message cannot have."""
    for at in np.flatnonzero(unfit(names, values, places)).tolist():
        row = int(np.searchsorted(places, at, side="right")) - 1
        name, value = text_of(names[at].as_py()), text_of(values[at].as_py())
        twice = f"property {name!r} is there twice, and a message has one value for a name: join the values"
        yield row, property_problem(name, value) or twice


def text_of(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _is_missing(values: pa.BinaryArray) -> Mask:
    """Marks the values that are null or empty."""
    import pyarrow.compute as pc  # imported at the first use, because it takes 60 ms of CPU

    is_missing: Mask = (numpy_of(pc.binary_length(values)) == 0) | ~mask(values.is_valid())
    return is_missing


def _breaks_text(values: pa.BinaryArray) -> Mask:
    broken = np.zeros(len(values), np.bool_)
    text = flat_bytes(values)
    if not len(text) or int(text.min()) > _ILLEGAL_IN_TEXT[-1][0]:
        return broken
    import pyarrow.compute as pc

    for character in _ILLEGAL_IN_TEXT:
        broken |= mask(pc.match_substring(values, character))
    return broken & mask(values.is_valid())


def _has_a_later_one(names: pa.BinaryArray, places: Positions) -> Mask:
    """Marks each name that occurs again later in the same row."""
    found = np.zeros(len(names), np.bool_)
    if int(np.diff(places).max(initial=0)) < 2:
        return found
    codes = names.dictionary_encode(null_encoding="encode")
    rows = np.repeat(np.arange(len(places) - 1), np.diff(places))
    keys = rows * max(1, len(codes.dictionary)) + numpy_of(codes.indices)
    # The keys are in reverse order, so that `np.unique`, which finds the first of equal keys, finds the last property
    # of each name in a row.
    distinct, last = np.unique(keys[::-1], return_index=True)
    if len(distinct) < len(keys):
        found[:] = True
        found[len(keys) - 1 - last] = False
    return found
