"""Tests which columns of a DataFrame become which part of a message."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, StructType

from rocketsim_client.sending.property_columns import entries, problems
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.sink_options import sink_options
from rocketsim_source.schema import HEADERS, PROPERTIES
from rocketsim_source.sink.outgoing import OutgoingRows, outgoing
from rocketsim_source.sink.sink_columns import SinkColumns

OPTIONS = {"nameServer": "h:1"}


def columns(schema: StructType, **given: str) -> SinkColumns:
    return SinkColumns.of(schema, sink_options(OPTIONS | given))


def schema(**fields: str | DataType) -> StructType:
    found = StructType()
    for name, kind in fields.items():
        found = found.add(name, {"int": "integer", "bigint": "long"}.get(kind, kind) if isinstance(kind, str) else kind)
    return found


@pytest.mark.parametrize(
    ("fields", "given", "says"),
    [
        (
            {"text": "string"},
            {"topic": "T"},
            "needs a column body (or value), string or binary; the columns are text. For",
        ),
        ({"body": "binary", "tag": "string"}, {"topic": "T"}, "did you mean tags?"),
        ({"body": "binary", "price": "string"}, {"topic": "T"}, "price means nothing to the sink; drop it, or put"),
        ({"topic": "string"}, {}, "needs a column body (or value)"),
        ({"body": "binary"}, {}, "needs the option topic or a column topic"),
        ({"body": "binary", "value": "binary"}, {"topic": "T"}, "mean the same"),
        ({"body": "int"}, {"topic": "T"}, "has to be string or binary, not int"),
        ({"body": "binary", "queueId": "string"}, {"topic": "T"}, "queueId has to be int or bigint"),
        ({"body": "binary", "deliverTimestamp": "timestamp"}, {"topic": "T"}, "not supported yet"),
        ({"body": "binary"}, {"topic": "T", "partitioner": "key"}, "partitioner=key needs a column keys (or key)"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused(fields: dict[str, str], given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as refusal:
        columns(schema(**fields), **given)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "id_columns", "says"),
    [
        (
            {"body": "binary", "order": "long"},
            "ordr",
            "idColumns names ordr, which is no column; did you mean order?",
        ),
        ({"body": "binary", "price": "double"}, "price", "idColumns names price, which is double: an id is made of"),
        ({"body": "binary", "properties": PROPERTIES}, "properties", "which is map<string,string>"),
    ],
)
def test_id_columns_have_to_be_there_and_of_a_kind_that_is_hashed(
    fields: dict[str, Any], id_columns: str, says: str
) -> None:
    found = StructType()
    for name, kind in fields.items():
        found = found.add(name, kind)
    with pytest.raises(OptionError) as refusal:
        columns(found, topic="T", sinkMode="idempotent", idColumns=id_columns)
    assert says in str(refusal.value)


def test_a_column_that_only_an_id_is_made_of_is_no_stranger() -> None:
    fields = schema(ORDER="bigint", body="binary", line="int", queueOffset="bigint")
    found = columns(fields, topic="T", sinkMode="idempotent", idColumns="order, line, queueOffset")
    assert found.ids == (0, 2, 3)


def test_what_only_brokers_say_is_ignored_so_that_what_was_read_can_be_written() -> None:
    found = columns(
        schema(body="binary", topic="string", queueOffset="bigint", msgId="string", bornTimestamp="timestamp")
    )
    assert (found.body, found.topic, found.queue_id) == (0, 1, None)


def test_kafkas_names_are_taken() -> None:
    found = columns(schema(key="binary", value="string", partition="int", headers=HEADERS), topic="T")
    assert (found.keys, found.body, found.queue_id, found.properties) == (0, 1, 2, 3)


def test_rows_are_parted_by_topic_and_queue_in_their_order() -> None:
    batch = pa.record_batch(
        {"body": [b"1", b"2", b"3", b"4"], "topic": ["a", "b", "a", "a"], "queueId": pa.array([0, 0, 1, 0], pa.int32())}
    )

    class Ids:
        def of(self, batch: pa.RecordBatch, topics: pa.Array | None) -> pa.StringArray:
            assert topics is not None and topics.to_pylist() == ["a", "b", "a", "a"]
            return pa.array(["i1", "i2", "i3", "i4"])

    parts = list(outgoing(batch, SinkColumns(body=0, topic=1, queue_id=2), None, Ids()))
    assert [
        (p.topic, p.queue_id, p.bodies.to_pylist(), p.msg_ids.to_pylist()) for p in parts if p.msg_ids is not None
    ] == [
        ("a", 0, [b"1", b"4"], ["i1", "i4"]),
        ("a", 1, [b"3"], ["i3"]),
        ("b", 0, [b"2"], ["i2"]),
    ]


def test_the_option_topic_goes_before_the_column() -> None:
    batch = pa.record_batch({"body": [b"1", b"2"], "topic": ["a", None]})
    assert [part.topic for part in outgoing(batch, SinkColumns(body=0, topic=1), "T", None)] == ["T"]
    with pytest.raises(ValueError, match="row 1: the topic is null"):
        list(outgoing(batch, SinkColumns(body=0, topic=1), None, None))


def test_a_null_body_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1: the body is null"):
        list(outgoing(pa.record_batch({"body": pa.array([b"1", None])}), SinkColumns(body=0), "T", None))


@pytest.mark.parametrize("start", [0, 1])
def test_what_clients_and_brokers_set_is_left_out_so_that_what_was_read_can_be_written(start: int) -> None:
    maps = pa.array(
        [
            [("UNIQ_KEY", "x"), ("a", "1"), ("__SHARDINGKEY", "g")],
            [("TAGS", "t"), ("__transactionId__", "x")],
            None,
            [("b", "2"), ("KEYS", "k"), ("c", "3")],
        ],
        pa.map_(pa.string(), pa.string()),
    )
    batch = pa.record_batch({"body": [b"1", b"2", b"3", b"4"], "properties": maps}).slice(start)
    (part,) = outgoing(batch, SinkColumns(body=0, properties=1), "T", None)
    assert part.properties is not None
    assert [dict(row or ()) for row in part.properties.to_pylist()] == [{"a": "1"}, {}, {}, {"b": "2", "c": "3"}][
        start:
    ]


HEADER = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
UNFIT = [
    [{"key": "trace", "value": b"1"}, {"key": "trace", "value": b"2"}],
    [{"key": "flag", "value": b""}],
    [{"key": "n", "value": None}],
    [{"key": "", "value": b"v"}],
    [{"key": "TTL", "value": b"9"}],
    [{"key": "fine", "value": b"1"}],
]


def test_headers_that_no_message_can_have_reach_the_producer_or_are_counted() -> None:
    batch = pa.record_batch({"value": [b"%d" % n for n in range(6)], "headers": pa.array(UNFIT, HEADER)})
    (part,) = outgoing(batch, SinkColumns(body=0, properties=1), "T", None)
    assert part.properties is not None
    assert [row for row, _ in problems(*entries(part.properties))] == [0, 1, 2, 3, 4]
    counted: Counter[str] = Counter()
    (part,) = outgoing(batch, SinkColumns(body=0, properties=1), "T", None, counted)
    assert part.properties is not None
    assert [dict(row) for row in part.properties.to_pylist()] == [{"trace": "2"}, {}, {}, {}, {}, {"fine": "1"}]
    assert counted == {"trace": 1, "flag": 1, "n": 1, "": 1, "TTL": 1}


def test_a_queue_id_that_is_no_number_of_a_queue_names_row_and_column() -> None:
    batch = pa.record_batch({"body": [b"1", b"2", b"3"], "partition": pa.array([None, 1, 1 << 40], pa.int64())})
    with pytest.raises(ValueError, match=r"row 2: column partition has 1099511627776, which is no queue id"):
        list(outgoing(batch, SinkColumns(body=0, queue_id=1), "T", None))
    found = list(outgoing(batch.slice(0, 2), SinkColumns(body=0, queue_id=1), "T", None))
    assert [part.queue_id for part in found] == [None, 1]


def test_headers_become_properties() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}], []], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    batch = pa.record_batch({"value": [b"1", b"2"], "headers": headers})
    (part,) = outgoing(batch, SinkColumns(body=0, properties=1), "T", None)
    assert part.properties is not None
    assert [dict(row) for row in part.properties.to_pylist()] == [{"a": "1"}, {}]


def test_headers_that_are_no_text_are_refused_by_name() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}], [{"key": "trace", "value": b"\xff\x00"}]],
        pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    )
    batch = pa.record_batch({"value": [b"1", b"2"], "headers": headers})
    with pytest.raises(ValueError, match=r"row 1: header trace is not UTF-8: .*base64"):
        list(outgoing(batch, SinkColumns(body=0, properties=1), "T", None))


@pytest.mark.parametrize("name", ["tags", "keys", "message_group", "topic"])
def test_columns_that_are_no_text_are_refused_by_name(name: str) -> None:
    batch = pa.record_batch({"value": [b"1", b"2"], name: [b"good", b"\xff"]})
    with pytest.raises(ValueError, match=f"column {name} is not UTF-8"):
        list(outgoing(batch, SinkColumns(body=0, **{name: 1}), None if name == "topic" else "T", None))


def test_the_key_is_the_group_of_a_row_that_names_neither_group_nor_queue() -> None:
    fields = schema(value="binary", key="binary", messageGroup="string", partition="int")
    batch = pa.record_batch(
        {
            "value": pa.array([b"1", b"2", b"3", b"4"]),
            "key": pa.array([b"a", b"b", None, b"d"]),
            "messageGroup": pa.array([None, "g", None, None]),
            "partition": pa.array([None, None, None, 2], pa.int32()),
        }
    )

    def groups(**given: str) -> dict[bytes, str | None]:
        found = outgoing(batch, columns(fields, topic="T", **given), "T", None)
        return {body: group for p in found for body, group in zip(p.bodies.to_pylist(), groups_of(p), strict=True)}

    assert groups() == {b"1": None, b"2": "g", b"3": None, b"4": None}
    assert groups(partitioner="key") == {b"1": "a", b"2": "g", b"3": None, b"4": None}


def groups_of(rows: OutgoingRows) -> list[str | None]:
    assert rows.message_groups is not None
    return rows.message_groups.to_pylist()


@pytest.mark.parametrize("partition", [pa.array([None, 1], pa.int32()), None], ids=["with queues", "without"])
def test_keys_are_groups_without_a_column_of_groups(partition: pa.Array | None) -> None:
    given = {"body": pa.array([b"1", b"2"]), "keys": pa.array(["a", "b"])}
    fields = {"body": "binary", "keys": "string"}
    if partition is not None:
        given["queueId"], fields["queueId"] = partition, "int"
    wanted = columns(schema(**fields), topic="T", partitioner="KEY")
    found = [groups_of(piece) for piece in outgoing(pa.record_batch(given), wanted, "T", None)]
    assert found == ([["a"], [None]] if partition is not None else [["a", "b"]])
