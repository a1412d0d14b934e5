"""SQL92 filters select the messages that RocketMQ's own filter has selected."""

import numpy as np
import pyarrow as pa
import pytest
from rocketsim_proto.records import columnar, sql_filter
from rocketsim_proto.records.record import Record, encode

from tests.support.sql_filters import Outcomes

# RocketMQ ignores text after the end of an expression, and selects by the part before that text.
IGNORED_BY_ROCKETMQ = {"a LIKE 'a%'", "a = 5)", "a-b = 5"}
LETTERS = {"t": True, "f": False, "n": False, "e": False}


def selected(text: str, rows: list[dict[str, str]]) -> list[bool]:
    def column(name: str) -> pa.StringArray:
        return pa.array([row.get(name) for row in rows], pa.string())

    return sql_filter.selected(sql_filter.parse(text), column, len(rows)).tolist()


def test_messages_are_selected_as_rocketmq_selects_them():
    measured = Outcomes.measured()
    assert len(measured.outcomes) > 500 and len(measured.rows) > 70
    for text, outcome in measured.outcomes.items():
        if outcome == "invalid" or text in IGNORED_BY_ROCKETMQ:
            with pytest.raises(sql_filter.SqlFilterInvalid):
                sql_filter.parse(text)
        else:
            # The expression is also negated and tested for NULL, so that false, unknown and failed are told apart.
            assert selected(text, measured.rows) == [LETTERS[one] for one in outcome], text
            assert selected(f"NOT ({text})", measured.rows) == [one == "f" for one in outcome], text
            assert selected(f"({text}) IS NULL", measured.rows) == [one == "n" for one in outcome], text


def test_records_are_selected_by_their_properties_and_tag():
    properties = [{"price": "20", "TAGS": "a"}, {"price": "21", "TAGS": "b"}, {"TAGS": "b"}, {}]
    data = b"".join(encode(Record(topic="t", body=b"x", properties=one)) for one in properties)
    records = columnar.Records.walk(data)
    for text, expected in [
        ("price > 20", [1]),
        ("price BETWEEN 20 AND 21", [0, 1]),
        ("TAGS = 'b' AND price IS NULL", [2]),
        ("TAGS IN ('a', 'c') OR price IS NULL", [0, 2, 3]),
    ]:
        assert np.flatnonzero(sql_filter.matches(sql_filter.parse(text), records)).tolist() == expected, text
    nothing = records[np.zeros(4, bool)]
    assert sql_filter.matches(sql_filter.parse("price > 20 AND a CONTAINS 'x' OR b"), nothing).tolist() == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a > ", "ends where more is expected"),
        ("a = 5 b", "from 'b' on"),
        ("a > 'x'", "numbers and properties only"),
        ("a = NULL", "IS NULL"),
        ("a BETWEEN 10 AND 5", "the smaller number comes first"),
        ("5", "condition is expected"),
        ("'a' IN ('a')", "name of a property"),
        ("a = 9223372036854775808", "larger than 9223372036854775807"),
        ("a > 1e999", "larger than a double"),
        ("a = '" + "x" * sql_filter.MOST_CHARACTERS + "'", "at most"),
        ("NOT " * 200 + "a", "nested deeper"),
        ("(" * 150 + "a" + ")" * 150 + " = b" * 150, "nested deeper"),
    ],
)
def test_a_refusal_says_what_is_wrong(text: str, reason: str):
    with pytest.raises(sql_filter.SqlFilterInvalid, match=reason):
        sql_filter.parse(text)


def test_many_alternatives_are_not_nested():
    text = " OR ".join(f"a = '{number}'" for number in range(500))
    assert selected(text, [{"a": "499"}, {"a": "500"}]) == [True, False]


def test_the_number_zero_with_a_point_is_accepted_which_rocketmq_refuses():
    assert Outcomes.measured().outcomes["a > 0"] != "invalid"
    assert selected("a > 0.0", [{"a": "0.5"}, {"a": "-0.5"}]) == [True, False]
