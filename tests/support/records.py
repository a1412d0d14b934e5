"""Records for tests: the per-record decoder with which batches must agree, and hypothesis strategies."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.records.slices import FEW

One = TypeVar("One")

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.sampled_from([8, 8, 20]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
topics = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "ü", "", "😀", "TAG", "TAGSS"])
values = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20)
property_pairs = st.lists(st.tuples(names, values), max_size=4).map(record.encode_properties)
# Property bytes that our encoders do not write, but others might: without separators, or not UTF-8.
odd_properties = st.lists(
    st.sampled_from(
        [b"TAGS", b"\x01", b"\x02", b"KEYS", b"\x01a\x02", b"\xed\xa0\x80", b"\xff", b"TAGS\x01", "ü".encode()]
    ),
    max_size=12,
).map(b"".join)


records = st.builds(
    Record,
    topic=topics,
    body=st.binary(max_size=30),
    queue_id=int32,
    flag=int32,
    queue_offset=int64,
    commit_log_offset=st.integers(0, 2**63 - 1),
    sys_flag=int32.map(lambda flag: flag & ~record.SYS_FLAG_COMPRESSED),
    born_timestamp=int64,
    born_host=hosts,
    store_timestamp=st.integers(0, 2**63 - 1),
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)


def record_bytes() -> st.SearchStrategy[bytes]:
    return st.builds(encode_raw, records, property_pairs | odd_properties, version_2=st.booleans())


def encode_raw(one: Record, properties: bytes, *, version_2: bool = False) -> bytes:
    """Encodes like `record.encode`, with unchanged property bytes and, on request, the 2-byte topic
    size of version 2.
    """
    plain = record.encode(replace(one, topic="", properties={}))
    topic = one.topic.encode()
    head, magic = plain[:-3], record.MESSAGE_MAGIC_V2 if version_2 else record.MESSAGE_MAGIC
    tail = len(topic).to_bytes(2 if version_2 else 1, "big") + topic + len(properties).to_bytes(2, "big") + properties
    return record.BLANK.pack(len(head) + len(tail), magic) + head[record.BLANK_SIZE :] + tail


def in_bulk(batch: list[One]) -> list[One]:
    """Returns the records repeated until they are too many for the code that handles each record by itself."""
    return batch * (FEW // len(batch) + 1) if batch else batch


def decode_all(data: bytes) -> Iterator[Record]:
    """Yields record by record, with every length and checksum checked."""
    at = 0
    while at < len(data):
        yield record.decode(data, at)
        at += int.from_bytes(data[at : at + 4], "big")
