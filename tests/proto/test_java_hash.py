import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import java_hash


@given(st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=50)))
def test_a_column_of_hashes_agrees_with_the_plain_hash(texts: list[str | None]) -> None:
    column = pa.array(texts, pa.string())
    expected = [0 if text is None else record.tags_code(text) for text in texts]
    assert java_hash(column).tolist() == expected
    assert java_hash(column[1:]).tolist() == expected[1:]


@given(
    st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=50) | st.text("ab", max_size=200)),
    st.text(max_size=5),
)
def test_a_hash_that_goes_on_is_that_of_both_together(texts: list[str | None], prefix: str) -> None:
    before = record.tags_code(prefix)
    expected = [0 if text is None else record.tags_code(prefix + text) for text in texts]
    assert java_hash(pa.array(texts, pa.string()), before).tolist() == expected
    assert java_hash(pa.array(texts, pa.string()), np.full(len(texts), before, np.int32)).tolist() == expected


@pytest.mark.parametrize(
    ("text", "code"), [("TagA", 2598919), ("Aa", 2112), ("BB", 2112), ("polygenelubricants", -(2**31)), ("", 0)]
)
def test_hashes_are_those_of_java(text: str, code: int) -> None:
    assert java_hash(pa.array([text])).tolist() == [code]


def test_a_long_string_is_hashed_like_a_short_one() -> None:
    texts = ["x" * 40000, "ü" * 40000, "y"]
    assert java_hash(pa.array(texts)).tolist() == [record.tags_code(text) for text in texts]
