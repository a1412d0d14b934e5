"""A message's properties follow one rule, whether they come from `send`, from columns or from Spark's sink."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.reserved import PROPERTIES

from rocketsim_client import Message
from rocketsim_client.errors import MessageIllegal, RowIllegal
from rocketsim_client.producer import Producer
from rocketsim_client.sending.property_columns import check_texts, entries, problems, unfit
from rocketsim_client.validation import check, check_message_group, property_problem

MAPS = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.string()}))
BAD = [
    ("flag", ""),
    ("", "v"),
    ("__SHARDINGKEY", "g"),
    ("TTL", "5"),
    ("CORRELATION_ID", "c"),
    ("a", "\x01"),
    ("a\x02", "v"),
    ("a", "\0"),
]


@pytest.mark.parametrize("bad", BAD)
def test_send_and_columns_refuse_the_same_properties_and_name_the_row(cluster: Any, bad: tuple[str, str]) -> None:
    with Producer(cluster.address) as producer:
        with pytest.raises(MessageIllegal) as refused:
            producer.send(Message("T", b"x", properties=dict([bad])))
        maps = pa.array([[("fine", "1")], [bad]], MAPS)
        with pytest.raises(RowIllegal, match="row 1") as of_row:
            producer.send_columns("T", pa.array([b"1", b"2"]), properties=maps)
        assert of_row.value.problem == str(refused.value).removeprefix("topic 'T': ")
        assert of_row.value.code == 13 and pickle.loads(pickle.dumps(of_row.value)).row == 1
    assert cluster.messages("T") == []


@pytest.mark.parametrize("name", ["__SHARDINGKEY", "TAGS", "DELAY", "TIMER_DELIVER_MS"])
def test_a_property_that_an_argument_sets_names_the_argument(name: str) -> None:
    assert "the argument " in property_problem(name, "x") and name in property_problem(name, "x")


def test_every_name_of_the_table_is_refused() -> None:
    for name in PROPERTIES:
        with pytest.raises(MessageIllegal, match="reserved by RocketMQ"):
            check(Message("T", b"x", properties={name: "1"}), 100)


def test_a_name_that_comes_twice_in_a_row_is_refused_and_the_last_one_would_stay() -> None:
    maps = pa.array([[("a", "1"), ("b", "2"), ("a", "3"), ("a", "4")], None, [("a", "5"), ("b", "6")]], MAPS)
    assert unfit(*entries(maps)).tolist() == [True, False, True, False, False, False]
    row, problem = next(problems(*entries(maps)))
    assert row == 0 and "'a' is there twice" in problem


def test_rows_and_entries_without_a_value_are_told_apart() -> None:
    headers = pa.array([[{"key": "a", "value": None}], None, [None, {"key": None, "value": "v"}], []], HEADERS)
    assert [row for row, _ in problems(*entries(headers))] == [0, 2, 2]
    with_nothing = pa.array([None, [("a", "1")]], MAPS)
    assert not unfit(*entries(with_nothing)).any() and entries(with_nothing)[2].tolist() == [0, 0, 1]


@pytest.mark.parametrize("text", ["a\0", "a\x01"])
@pytest.mark.parametrize("name", ["TAGS", "KEYS", "__SHARDINGKEY"])
def test_tags_keys_and_groups_are_held_to_the_same_text(name: str, text: str) -> None:
    with pytest.raises(RowIllegal, match=f"row 2: property '{name}': it contains"):
        check_texts("T", {name: pa.array(["fine", None, text])})
    with pytest.raises(MessageIllegal, match="it contains"):
        check_message_group(text)


def test_half_of_a_surrogate_pair_is_refused_as_a_message_and_not_by_an_encoder() -> None:
    for message in (Message("T", b"x", properties={"a": "\ud800"}), Message("T", b"x", tags="\ud800")):
        with pytest.raises(MessageIllegal, match="surrogate"):
            check(message, 100)


names = st.sampled_from(["a", "é", "", "TAGS", "TTL", "trace"]) | st.text(max_size=3)
values = st.none() | st.text(max_size=4)


@given(st.lists(st.lists(st.tuples(names, values), max_size=4), max_size=6))
def test_columns_find_exactly_what_the_rule_for_one_property_finds(rows: list[list[tuple[str, Any]]]) -> None:
    found = unfit(*entries(pa.array(rows, MAPS)))
    wanted = [
        bool(property_problem(name, value)) or name in [later for later, _ in row[at + 1 :]]
        for row in rows
        for at, (name, value) in enumerate(row)
    ]
    assert found.tolist() == wanted and found.dtype == np.bool_


def test_properties_without_room_in_a_record_name_the_row(cluster: Any) -> None:
    with Producer(cluster.address) as producer, pytest.raises(RowIllegal, match=r"row 1: properties of 4\d{4} bytes"):
        producer.send_columns(
            "T", pa.array([b"1", b"2"]), properties=pa.array([[("a", "1")], [("a", "x" * 40_000)]], MAPS)
        )
