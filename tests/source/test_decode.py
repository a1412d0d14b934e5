"""Columns decoded from batches of records agree with the per-record decoder."""

import json
import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, StructType
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import Record, RecordError

from rocketsim_client.arrow import OfQueue
from rocketsim_client.model import MessageQueue
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import source_options
from rocketsim_source.partition_numbers import partition_number
from rocketsim_source.reading.decode import Decoder
from rocketsim_source.schema import HEADERS, check_schema, source_schema

A0, B1 = MessageQueue("T", "broker-a", 0), MessageQueue("U", "broker-b", 1)


def decoded(
    records: list[Record], runs: list[OfQueue], schema: StructType | None = None, **given: str
) -> list[dict[str, Any]]:
    options = source_options({"nameServer": "h:1", "topic": "T"} | given, streaming=True)
    found = Decoder(schema or source_schema(options), options)
    data = b"".join(map(record.encode, records))
    rows: list[dict[str, Any]] = []
    for batch in found.batches(Records.walk(data), runs, 1):
        for field in batch.schema:  # Spark would read a null in such a column as a value
            assert field.nullable or not batch.column(field.name).null_count
        rows += batch.to_pylist()
    return rows


def a_record(**fields: Any) -> Record:
    return Record(
        **({"topic": "T", "body": b"body", "queue_offset": 7, "born_timestamp": 1000, "store_timestamp": 2500} | fields)
    )


texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), max_size=8)
properties = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY", "mine", "é"]), texts, max_size=5
)
records = st.builds(
    Record,
    topic=st.just("T"),
    body=st.binary(max_size=40),
    queue_id=st.just(0),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    commit_log_offset=st.integers(0, 2**62),
    born_timestamp=st.integers(0, 4 * 10**12),
    store_timestamp=st.integers(0, 4 * 10**12),
    reconsume_times=st.integers(0, 100),
    properties=properties,
)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).replace(microsecond=ms % 1000 * 1000)


@settings(max_examples=60)
@given(st.lists(records, min_size=1, max_size=12))
def test_every_column_agrees_with_the_plain_decoder(found: list[Record]) -> None:
    rows = decoded(found, [OfQueue(A0, len(found))], includeHosts="true")
    assert len(rows) == len(found)
    for row, one in zip(rows, map(record.decode, map(record.encode, found)), strict=True):
        assert row["topic"] == "T"
        assert (row["brokerName"], row["queueId"], row["queueOffset"]) == ("broker-a", 0, one.queue_offset)
        assert row["msgId"] == one.message_id
        assert (row["keys"], row["tags"]) == (one.properties.get("KEYS"), one.properties.get("TAGS"))
        assert (row["body"], row["flag"], row["reconsumeTimes"]) == (one.body, one.flag, one.reconsume_times)
        assert (row["bornTimestamp"], row["storeTimestamp"]) == (
            moment(one.born_timestamp),
            moment(one.store_timestamp),
        )
        assert row["messageGroup"] == one.properties.get("__SHARDINGKEY")
        assert dict(row["properties"]) == one.properties
        assert row["bornHost"] == "127.0.0.1:0"
        assert row["servedByBrokerId"] == 1


def test_a_frame_of_several_queues_names_each_rows_own() -> None:
    rows = decoded(
        [a_record(), a_record(queue_offset=8), a_record(topic="U", queue_id=1)], [OfQueue(A0, 2), OfQueue(B1, 1)]
    )
    assert [(row["topic"], row["brokerName"], row["queueId"]) for row in rows] == [A0, A0, B1]


def test_kafka_columns() -> None:
    rows = decoded(
        [a_record(properties={"KEYS": "k"}), a_record(topic="U", queue_id=1, properties={"x": "1"})],
        [OfQueue(A0, 1), OfQueue(B1, 1)],
        schemaProfile="kafka",
        includeHeaders="true",
    )
    assert rows[0] == {
        "key": b"k",
        "value": b"body",
        "topic": "T",
        "partition": partition_number(A0),
        "offset": 7,
        "timestamp": moment(1000),
        "timestampType": 0,
        "headers": [{"key": "KEYS", "value": b"k"}],
    }
    assert (rows[1]["key"], rows[1]["partition"]) == (None, partition_number(B1))


def test_other_forms_of_columns() -> None:
    rows = decoded(
        [a_record(body="é".encode(), properties={"a": "1"}), a_record(body=b"\xff")],
        [OfQueue(A0, 2)],
        bodyFormat="string",
        propertiesFormat="json",
        columns="body, properties",
    )
    assert rows == [{"body": "é", "properties": '{"a": "1"}'}, {"body": "\ufffd", "properties": "{}"}]
    assert json.loads(rows[0]["properties"]) == {"a": "1"}


def test_compressed_bodies_come_unpacked() -> None:
    packed = a_record(body=zlib.compress(b"x" * 1000), sys_flag=record.SYS_FLAG_COMPRESSED)
    assert [row["body"] for row in decoded([packed, a_record()], [OfQueue(A0, 2)])] == [b"x" * 1000, b"body"]


def packed_record(size: int, offset: int) -> Record:
    return a_record(body=zlib.compress(b"x" * size), sys_flag=record.SYS_FLAG_COMPRESSED, queue_offset=offset)


def test_bodies_that_unpack_to_more_than_a_batch_are_several_batches_in_order() -> None:
    """40 bodies of 4 MiB are 167 KB in a frame, and 160 MiB unpacked."""
    frame = [packed_record(4 << 20, n) for n in range(20)] + [packed_record(4 << 20, n) for n in range(20)]
    assert sum(len(record.encode(one)) for one in frame) < 200_000
    options = source_options({"nameServer": "h:1", "topic": "T"}, streaming=True)
    decoder = Decoder(source_schema(options), options)
    batches = decoder.batches(Records.walk(b"".join(map(record.encode, frame))), [OfQueue(A0, 20), OfQueue(B1, 20)], 0)
    rows = []
    for batch in batches:
        assert batch.num_rows == 1  # a single unpacked body is already larger than pullMaxBytes
        assert batch.nbytes < 5 << 20
        rows += [(row["topic"], row["queueId"], row["queueOffset"], len(row["body"])) for row in batch.to_pylist()]
    assert rows == [(*queue[:1], queue.queue_id, n, 4 << 20) for queue in (A0, B1) for n in range(20)]


def test_batches_hold_as_much_as_a_frame_may_and_a_larger_body_is_alone() -> None:
    kib = 1 << 10
    frame = [
        packed_record(4 * kib, 0),
        packed_record(5 * kib, 1),
        a_record(queue_offset=2, body=b"y" * kib),
        packed_record(3 * kib, 3),
        packed_record(90 * kib, 4),
        a_record(queue_offset=5),
        packed_record(10 * kib - 4, 6),
    ]
    options = source_options({"nameServer": "h:1", "topic": "T", "pullMaxBytes": "10k"}, streaming=True)
    decoder = Decoder(source_schema(options), options)
    batches = list(decoder.batches(Records.walk(b"".join(map(record.encode, frame))), [OfQueue(A0, 7)], 0))
    assert [batch.column("queueOffset").to_pylist() for batch in batches] == [[0, 1, 2], [3], [4], [5, 6]]
    sizes = [sum(map(len, batch.column("body").to_pylist())) for batch in batches]
    assert sizes == [10 * kib, 3 * kib, 90 * kib, 10 * kib]


def test_nothing_is_unpacked_for_a_query_that_does_not_want_bodies() -> None:
    bomb = a_record(body=b"not compressed at all", sys_flag=record.SYS_FLAG_COMPRESSED)
    assert decoded([bomb], [OfQueue(A0, 1)], columns="queueOffset") == [{"queueOffset": 7}]


def test_a_body_that_unpacks_to_more_than_a_message_may_have_is_refused() -> None:
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(129)) + packer.flush()
    assert len(bomb) < 200_000
    with pytest.raises(RecordError, match="unpacks to more than 134217728"):
        decoded([a_record(body=bomb, sys_flag=record.SYS_FLAG_COMPRESSED)], [OfQueue(A0, 1)])


def test_only_projected_columns_are_made() -> None:
    options = source_options({"nameServer": "h:1", "topic": "T"}, streaming=True)
    schema = source_schema(
        source_options({"nameServer": "h:1", "topic": "T", "columns": "queueOffset,BODY"}, streaming=True)
    )
    assert schema.fieldNames() == ["queueOffset", "body"]
    check_schema(schema, options)
    broken = bytearray(record.encode(a_record()))
    broken[-1:] = b""  # the properties are cut off, which only a reader of properties notices
    rows = decoded([a_record()], [OfQueue(A0, 1)], schema)
    assert rows == [{"queueOffset": 7, "body": b"body"}]


def test_a_wrong_checksum_is_noticed_when_asked_for() -> None:
    data = bytearray(record.encode(a_record()))
    data[90] ^= 1
    for check in (True, False):
        options = source_options({"nameServer": "h:1", "topic": "T", "checkCrcs": str(check)}, streaming=True)
        decoder = Decoder(source_schema(options), options)
        if check:
            with pytest.raises(RecordError, match="CRC"):
                list(decoder.batches(Records.walk(bytes(data)), [OfQueue(A0, 1)], 0))
        else:
            assert [b.num_rows for b in decoder.batches(Records.walk(bytes(data)), [OfQueue(A0, 1)], 0)] == [1]


def test_tags_are_compared_as_text() -> None:
    found = [
        a_record(properties={"TAGS": "Aa"}),
        a_record(properties={"TAGS": "BB"}),
        a_record(topic="U", properties={"TAGS": "Aa"}),
    ]
    rows = decoded(found, [OfQueue(A0, 2), OfQueue(B1, 1)], subExpression="Aa")
    assert [(row["topic"], row["tags"]) for row in rows] == [("T", "Aa"), ("U", "Aa")]
    assert decoded(found[1:2], [OfQueue(A0, 1)], subExpression="Aa") == []


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"bodies": "binary"}, "did you mean body?"),
        ({"body": "int"}, "body is binary or string, not int"),
        ({"queueOffset": "int"}, "queueOffset is bigint, not int"),
        ({"value": "binary"}, "there is no column 'value'"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(columns: dict[str, str], says: str) -> None:
    options = source_options({"nameServer": "h:1", "topic": "T"}, streaming=True)
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, {"int": "integer"}.get(kind, kind))
    with pytest.raises(OptionError) as refusal:
        check_schema(schema, options)
    assert says in str(refusal.value)


def test_a_schema_whose_elements_may_not_be_null_is_not_compared_with_itself() -> None:
    """Both schemas have the same text, so an error that only shows both texts would not help."""
    options = source_options({"nameServer": "h:1", "topic": "T", "schemaProfile": "kafka"}, streaming=True)
    schema = StructType().add("headers", ArrayType(HEADERS.elementType, containsNull=False))
    with pytest.raises(
        OptionError, match=r"headers is array<.*>, but its elements have to be nullable: leave containsN"
    ):
        check_schema(schema, options)


@pytest.mark.parametrize(("profile", "nullable"), [("rocketmq", {"keys", "tags", "messageGroup"}), ("kafka", {"key"})])
def test_only_what_a_message_may_be_without_is_nullable(profile: str, nullable: set[str]) -> None:
    options = source_options(
        {"nameServer": "h:1", "topic": "T", "schemaProfile": profile, "includeHosts": str(profile == "rocketmq")},
        streaming=True,
    )
    schema = source_schema(options)
    assert {field.name for field in schema if field.nullable} == nullable
    for name in nullable:
        with pytest.raises(OptionError, match=f"column {name} is null for messages that lack it"):
            check_schema(StructType().add(name, schema[name].dataType, nullable=False), options)


def test_batches_have_the_arrow_schema_that_spark_compares() -> None:
    options = source_options({"nameServer": "h:1", "topic": "T", "includeHosts": "true"}, streaming=True)
    decoder = Decoder(source_schema(options), options)
    (batch,) = decoder.batches(Records.walk(record.encode(a_record())), [OfQueue(A0, 1)], 0)
    assert batch.schema.equals(decoder.arrow_schema)
    assert batch.schema.field("storeTimestamp").type == pa.timestamp("us", tz="UTC")
