"""A client receives a record as a message, whichever client has sent it."""

import gzip
import zlib
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as d
from rocketsim_proto.records.record import SYS_FLAG_COMPRESSED, Record, encode_host

from broker_service.wire.v2 import sent_message
from broker_service.wire.v2.delivered_message import message_of
from broker_service.wire.v2.message_rules import HIDDEN_PROPERTIES
from tests.support.v2 import message, resource


def delivered(stored: Record) -> d.Message:
    asked = {"queue_id": 3, "queue_offset": 7, "attempt": 2, "receipt_handle": "h", "max_body_size": 1000}
    return message_of(stored, resource("T"), **asked)


def stored(**fields: Any) -> Record:
    return Record(**{"topic": "T", "body": b"hello", "born_timestamp": 1_700_000_000_005} | fields)


def test_what_was_sent_is_received() -> None:
    sent = message(
        "T",
        message_id="01ABCDEF",
        user={"colour": "red", "__SHARDINGKEY2": "x"},
        tag="A",
        keys=["k1", "k2"],
        message_group="g",
        trace_context="trace",
        born_host="host-7",
        born_timestamp=Timestamp(seconds=1_700_000_000, nanos=5_000_000),
    )
    record = sent_message.record_of(
        sent, "T", peer=("10.1.2.3", encode_host("10.1.2.3", 5)), store_host_size=8, now_ms=0
    )
    record.store_host, record.store_timestamp = encode_host("10.0.0.1", 10911), 1_700_000_001_000
    found = delivered(record)
    system = found.system_properties
    assert (found.topic.name, found.body, found.user_properties["colour"]) == ("T", b"hello", "red")
    assert set(found.user_properties) == {"colour", "__SHARDINGKEY2", "__SHARDINGKEY", "TRACE_CONTEXT"}
    assert (system.tag, list(system.keys), system.message_id, system.message_group) == (
        "A",
        ["k1", "k2"],
        "01ABCDEF",
        "g",
    )
    assert (system.message_type, system.body_encoding, system.trace_context) == (d.FIFO, d.IDENTITY, "trace")
    assert system.body_digest == d.Digest(type=d.MD5, checksum="5D41402ABC4B2A76B9719D911017C592")
    assert (system.born_timestamp, system.born_host) == (sent.system_properties.born_timestamp, "host-7")
    assert (system.store_timestamp.seconds, system.store_host) == (1_700_000_001, "10.0.0.1:10911")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt, system.receipt_handle) == (3, 7, 2, "h")
    assert not system.HasField("invisible_duration")


def test_a_message_of_our_own_client_has_all_that_clients_want() -> None:
    """A message without an id gets the store's id, and a message without a host gets the connection's address."""
    system = delivered(stored()).system_properties
    assert len(system.message_id) == 32 and system.born_host == "127.0.0.1"
    assert (system.message_type, system.body_encoding) == (d.NORMAL, d.IDENTITY)
    assert not system.HasField("tag") and not system.keys


@pytest.mark.parametrize(
    ("packed", "flag", "body", "encoding"),
    [
        (gzip.compress(b"hello", mtime=0), SYS_FLAG_COMPRESSED, None, d.GZIP),
        (zlib.compress(b"hello"), SYS_FLAG_COMPRESSED, b"hello", d.IDENTITY),
        (zlib.compress(b"hello"), SYS_FLAG_COMPRESSED | 0x300, b"hello", d.IDENTITY),
        (zlib.compress(bytes(1000)), SYS_FLAG_COMPRESSED, bytes(1000), d.IDENTITY),
        (zlib.compress(bytes(1001)), SYS_FLAG_COMPRESSED, None, d.IDENTITY),
        (b"damaged", SYS_FLAG_COMPRESSED, b"damaged", d.IDENTITY),
    ],
    ids=["gzip", "zlib as older clients", "zlib", "as large as may be", "larger", "damaged"],
)
def test_a_packed_body_is_gzip_or_unpacked(packed: bytes, flag: int, body: bytes | None, encoding: d.Encoding) -> None:
    found = delivered(stored(body=packed, sys_flag=flag))
    assert (found.body, found.system_properties.body_encoding) == (body or packed, encoding)


def test_what_the_broker_has_added_is_no_property_of_the_user() -> None:
    properties = {**dict.fromkeys(HIDDEN_PROPERTIES, "1"), "a": "1"}
    assert len(HIDDEN_PROPERTIES) == 59
    found = delivered(stored(properties=properties))
    assert dict(found.user_properties) == {"a": "1"}
    assert found.system_properties.message_type == d.DELAY


def test_a_dead_letter_says_where_it_comes_from() -> None:
    found = delivered(stored(properties={"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "01"}))
    assert found.system_properties.dead_letter_queue == d.DeadLetterQueue(topic="T", message_id="01")
