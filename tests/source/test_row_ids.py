"""Ids of rows that are written again are equal for the same row, different for others, and unchanged by an upgrade."""

import decimal
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketsim_source.sink.row_ids import ColumnIds, OldIds, PlaceIds, RowIds


def ids(of: RowIds, topics: list[str] | None = None, **columns: Any) -> list[str]:
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    found: list[str] = of.of(pa.record_batch(arrays), None if topics is None else pa.array(topics)).to_pylist()
    return found


def test_the_scheme_stays_as_it_is() -> None:
    """A batch that is repeated after an upgrade must have the same ids."""
    assert ids(PlaceIds("out", "T", "q-7", 3), a=[0, 0]) == [
        "1AB50D36261C18367E07E90200000000",
        "1AB50D36261C18367E07E90200000001",
    ]
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    columns = {
        "text": ["é", None],
        "bytes": [b"\x00", b""],
        "whole": [-1, 2**40],
        "yes": [True, False],
        "day": [date(2026, 1, 31), None],
        "time": pa.array([moment, moment], pa.timestamp("us", "UTC")),
        "price": [Decimal("1.50"), Decimal("100")],
    }
    assert ids(ColumnIds("out", "T", tuple(range(7))), **columns) == [
        "F329AEE55371C027771F637330EA46F5",
        "10904E9563B61CD267165F32EB21CE87",
    ]
    assert ids(OldIds("q-7", 3), a=[0, 0]) == ["q-7-3-0", "q-7-3-1"]


def test_places_are_numbered_consecutively_within_a_task() -> None:
    of = PlaceIds("out", None, "q-7", 0)
    found = ids(of, a=[1, 2]) + ids(of, a=[3]) + ids(of, a=[4])
    assert found == ids(PlaceIds("out", None, "q-7", 0), a=[1, 2, 3, 4])
    assert len(set(found)) == 4


@pytest.mark.parametrize(
    "other", [("in", "T", "q-7", 0), ("out", "U", "q-7", 0), ("out", "T", "q-8", 0), ("out", "T", "q-7", 1)]
)
def test_another_write_topic_batch_or_partition_has_other_ids(other: tuple[str, str, str, int]) -> None:
    assert not set(ids(PlaceIds("out", "T", "q-7", 0), a=range(9))) & set(ids(PlaceIds(*other), a=range(9)))


def test_names_whose_concatenation_is_equal_have_different_ids() -> None:
    assert ids(PlaceIds("a", "bc", "q", 0), a=[0]) != ids(PlaceIds("ab", "c", "q", 0), a=[0])
    assert len(set(ids(ColumnIds("", "T", (0, 1)), a=["a", "ab", "", "abc"], b=["bc", "c", "abc", ""]))) == 4


def test_ids_of_columns_depend_on_their_values_the_topic_and_the_sinks_name_alone() -> None:
    rows: dict[str, Any] = {"order": [7, 8, 9], "line": ["a", "b", "c"], "body": [b"1", b"2", b"3"]}
    found = ids(ColumnIds("out", "T", (0, 1)), **rows)
    backwards: dict[str, Any] = {name: values[::-1] for name, values in rows.items()} | {"body": [b"other"] * 3}
    assert ids(ColumnIds("out", "T", (0, 1)), **backwards) == found[::-1]
    for other in (ColumnIds("in", "T", (0, 1)), ColumnIds("out", "U", (0, 1)), ColumnIds("out", "T", (0,))):
        assert not set(ids(other, **rows)) & set(found)
    assert ids(ColumnIds("out", None, (0, 1)), ["T", "U", "T"], **rows)[::2] == found[::2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([5], pa.int32()), pa.array([5], pa.int64())),
        (pa.array(["x"]), pa.array([b"x"])),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), pa.array([Decimal("1.5")], pa.decimal128(9, 4))),
        (pa.array([1_000], pa.timestamp("ms", "UTC")), pa.array([1_000_000], pa.timestamp("us", "UTC"))),
    ],
)
def test_equal_values_of_different_types_have_one_id(one: pa.Array, other: pa.Array) -> None:
    assert ids(ColumnIds("", "T", (0,)), a=one) == ids(ColumnIds("", "T", (0,)), a=other)


@pytest.mark.parametrize(("kind", "digits"), [(pa.decimal128, 38), (pa.decimal256, 76)])
@pytest.mark.parametrize("scale", [0, 10, 38])
@pytest.mark.parametrize("sign", ["", "-"])
def test_decimals_that_differ_in_their_last_digit_have_different_ids(
    kind: Any, digits: int, scale: int, sign: str
) -> None:
    values = [Decimal(f"{sign}{'1234567890' * 8}"[: digits + len(sign) - 1] + last) for last in "089"]
    column = pa.array([value.scaleb(-scale, decimal.Context(prec=76)) for value in values], kind(digits, scale))
    assert len(set(ids(ColumnIds("", "T", (0,)), a=column))) == len(values)


def test_null_has_an_id_of_its_own_and_a_row_of_nulls_only_is_refused() -> None:
    found = ids(ColumnIds("", "T", (0, 1)), a=["x", "x", "y"], b=[None, "", None])
    assert len(set(found)) == 3
    with pytest.raises(ValueError, match="2 rows have null in every one of idColumns"):
        ids(ColumnIds("", "T", (0, 1)), a=["x", None, None], b=[None, None, None])


keys = st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(keys, min_size=1, max_size=20), st.integers(0, 3))
def test_different_rows_have_different_ids_and_slices_do_not_matter(rows: list[tuple[Any, ...]], start: int) -> None:
    batch = pa.record_batch(
        {
            "a": pa.array([row[0] for row in rows], pa.string()),
            "b": pa.array([row[1] for row in rows], pa.binary()),
            "c": pa.array([row[2] for row in rows], pa.int64()),
        }
    )
    of = ColumnIds("", "T", (0, 1, 2))
    found = of.of(batch, None).to_pylist()
    assert len(set(found)) == len(set(rows))
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in found)
    assert of.of(batch.slice(start), None).to_pylist() == found[start:]
