"""Properties as columns, compared with the per-record reader and writer."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import encode_property_columns
from rocketsim_proto.records.properties import Properties

from tests.support.records import in_bulk, odd_properties, property_pairs, values

pytestmark = pytest.mark.usefixtures("record_kernels")

anything = property_pairs | odd_properties | st.binary(max_size=20)


def split(rows: list[bytes]) -> Properties:
    """The rows lie in one buffer with something between them, as they do in a log."""
    sizes = np.array([len(row) for row in rows], np.int64)
    starts = np.cumsum(sizes + 3) - sizes
    return Properties(
        np.frombuffer(b"".join(b"\x02\x01x" + row for row in rows) + b"TAGS\x01", np.uint8), starts, sizes
    )


def assert_agrees(few: list[bytes]) -> None:
    for rows in (few, in_bulk(few)):
        assert_reads(rows)


def assert_reads(rows: list[bytes]) -> None:
    plain = [record.decode_properties(row) for row in rows]
    properties = split(rows)
    assert properties.maps().to_pylist() == [list(one.items()) for one in plain]
    assert {name.decode("utf-8", "replace") for name in properties.names()} == {name for one in plain for name in one}
    for name in ("TAGS", "KEYS", "", "ü", "TAG", "nowhere"):
        assert properties.column(name).to_pylist() == [one.get(name) for one in plain]
        assert properties.java_hash(name).tolist() == [record.tags_code(one.get(name, "")) for one in plain]


@given(st.lists(anything, max_size=8))
def test_any_properties_are_read_as_the_plain_reader_reads_them(rows: list[bytes]) -> None:
    assert_agrees(rows)


def test_a_batch_of_rocketmq_4_is_a_table_without_its_last_separators() -> None:
    """A broker of 4.9 stores no separator behind the last property."""
    rows = [b"UNIQ_KEY\x01%032X\x02TAGS\x01a\x02CLUSTER\x01c" % number for number in range(100)]
    assert split(rows).matrix is not None
    assert_reads(rows)


@given(anything, st.integers(1, 4), st.lists(anything, max_size=2))
def test_a_batch_of_one_shape_is_read_the_same_way(row: bytes, count: int, others: list[bytes]) -> None:
    assert_agrees([row] * count)
    assert_agrees([row] * count + others)


@given(st.text("a\x01\x02\x00é", max_size=3), st.text("a\x01\x02\x00é", max_size=3))
@example("a", "")
@example("", "a")
def test_a_property_that_is_not_read_back_as_it_was_sent_has_a_fault(name: str, value: str) -> None:
    is_read_back = record.decode_properties(record.encode_properties({name: value})) == {name: value}
    assert is_read_back or record.property_fault(name, value)


def test_an_ordinary_property_has_no_fault() -> None:
    assert record.property_fault("a", " ") == record.property_fault("é", "é") == ""


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(b"TAGS\x01\x02\x02c\x02", id="a separator inside the value"),
        pytest.param(b"TAGS\x01\x01bc\x02", id="a second name end inside the value"),
        pytest.param(b"TAGT\x01abc\x02", id="another name of the same length"),
        pytest.param(b"TAG\x01abcd\x02", id="another split of the same length"),
        pytest.param(b"TAGS\x01abcd", id="no end"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"TAGS\x01\xed\xa0\x80\x02", id="half of a surrogate pair"),
    ],
)
def test_a_record_that_looks_almost_like_the_first_is_read_for_what_it_is(other: bytes) -> None:
    assert_agrees([b"TAGS\x01abc\x02", other, b"TAGS\x01def\x02"])


def test_a_batch_with_more_names_than_can_be_told_apart_quickly_is_read_too() -> None:
    assert_agrees([b"".join(b"n%d\x01v\x02" % n for n in range(100)), b"n1\x01a\x02n1\x01b\x02"])


@given(
    st.lists(st.tuples(st.none() | values, st.none() | values, st.none() | st.dictionaries(values, values, max_size=3)))
)
def test_encoded_columns_are_what_the_plain_writer_makes(rows: list) -> None:
    tags, keys, further = zip(*rows, strict=True) if rows else ((), (), ())
    maps = pa.array([None if m is None else list(m.items()) for m in further], pa.map_(pa.string(), pa.string()))
    encoded = encode_property_columns({"TAGS": pa.array(tags, pa.string()), "KEYS": pa.array(keys, pa.string())}, maps)
    plain = [
        record.encode_properties(
            [(name, value) for name, value in (("TAGS", tag), ("KEYS", key)) if value is not None]
            + list((m or {}).items())
        )
        for tag, key, m in rows
    ]
    assert encoded.to_pylist() == plain


def test_sliced_and_chunked_columns_are_encoded_from_where_they_begin() -> None:
    tags = pa.array(["x", "a", None], pa.string())[1:]
    maps = pa.array([[("no", "no")], [("p", "q")], None], pa.map_(pa.string(), pa.string()))[1:]
    assert encode_property_columns({"TAGS": tags}, maps).to_pylist() == [b"TAGS\x01a\x02p\x01q\x02", b""]
    chunked = pa.chunked_array([tags[:1], tags[1:]])
    assert encode_property_columns({"TAGS": chunked}).to_pylist() == [b"TAGS\x01a\x02", b""]


def test_a_null_in_a_map_is_a_property_that_is_not_there() -> None:
    maps = pa.array([[("a", None), ("b", "c")]], pa.map_(pa.string(), pa.string()))
    assert encode_property_columns({}, maps).to_pylist() == [b"b\x01c\x02"]


@pytest.mark.parametrize("bad", ["a\x01b", "a\x02b"])
def test_a_separator_in_a_name_or_value_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="TAGS"):
        encode_property_columns({"TAGS": pa.array(["fine", bad])})
    with pytest.raises(ValueError, match="name"):
        encode_property_columns({bad: pa.array(["fine"])})
    for pair in ((bad, "fine"), ("fine", bad)):
        with pytest.raises(ValueError, match="separate"):
            encode_property_columns({}, pa.array([[pair]], pa.map_(pa.string(), pa.string())))
