"""Joined and compared slices of buffers equal the same operations on Python's bytes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records.property_columns import joined
from rocketsim_proto.records.slices import binary_slices, extremes

pytestmark = pytest.mark.usefixtures("record_kernels")

COUNTS = st.integers(1, 100)


def pieces_of(count: int) -> st.SearchStrategy[list]:
    column = st.integers(0, 4).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=count, max_size=count)
    )
    uneven = st.lists(st.none() | st.binary(max_size=3), min_size=count, max_size=count)
    return st.tuples(column | uneven, st.lists(st.binary(max_size=3) | column | uneven, max_size=4)).map(
        lambda found: [*found[1], found[0]]
    )


@given(COUNTS.flatmap(pieces_of))
def test_pieces_are_joined_row_by_row(pieces: list) -> None:
    arrays = [piece if isinstance(piece, bytes) else pa.array([b"x", *piece], pa.binary())[1:] for piece in pieces]
    count = len(pieces[-1])
    columns = [[piece] * count if isinstance(piece, bytes) else piece for piece in pieces]
    assert joined(arrays).to_pylist() == [b"".join(piece or b"" for piece in row) for row in zip(*columns, strict=True)]


def test_no_rows_joined_are_none() -> None:
    assert joined([b"a", pa.array([], pa.binary())]).to_pylist() == []


@given(COUNTS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_extremes_are_those_of_each_column(count: int, width: int, chance) -> None:
    rows = np.array([[chance.randrange(256) for _ in range(width)] for _ in range(count)], np.uint8)
    low, high = extremes(rows)
    assert low.tolist() == [min(column) for column in zip(*rows.tolist(), strict=True)]
    assert high.tolist() == [max(column) for column in zip(*rows.tolist(), strict=True)]


@given(st.lists(st.none() | st.integers(0, 100), max_size=100), st.sampled_from([0, 1, 20_000]))
def test_slices_are_those_of_python_however_many_and_large_they_are(wanted: list[int | None], more: int) -> None:
    data = np.frombuffer(bytes(range(256)) * 100, np.uint8)
    starts = np.arange(len(wanted), dtype=np.int64) * 7
    sizes = np.array([(size or 0) + more for size in wanted], np.int64)
    valid = np.array([size is not None for size in wanted], np.bool_)
    expected = [
        data[start : start + size].tobytes() for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    assert binary_slices(data, starts, sizes).to_pylist() == expected
    some = [piece if there else None for piece, there in zip(expected, valid.tolist(), strict=True)]
    assert binary_slices(data, starts, sizes, valid).to_pylist() == some
