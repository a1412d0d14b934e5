"""A batch that is encoded at once equals the records that the per-record encoder makes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import RecordError, Records, encode
from rocketsim_proto.records.encoding import slice_crcs
from rocketsim_proto.records.record import Record

from tests.support.records import hosts, int32, property_pairs, topics

pytestmark = pytest.mark.usefixtures("record_kernels")

rows = st.lists(
    st.tuples(int32, st.binary(max_size=30), property_pairs, st.integers(0, 2**62), int32, st.integers(0, 15)),
    max_size=6,
)
HOST = record.encode_host("10.1.2.3", 4567)


@given(topics, rows, hosts, st.booleans())
def test_encode_agrees_with_the_plain_encoder(topic: str, batch: list, born_host: bytes, store_host_v6: bool) -> None:
    queue_ids, bodies, properties, born, flags, sys_flags = zip(*batch, strict=True) if batch else ((),) * 6
    plain = [
        record.encode(
            Record(
                topic,
                body,
                queue_id=queue_id,
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host,
                store_host=bytes(20 if store_host_v6 else 8),
                properties=record.decode_properties(encoded),
            )
        )
        for queue_id, body, encoded, born_timestamp, flag, sys_flag in batch
        if record.encode_properties(record.decode_properties(encoded)) == encoded
    ]
    data, sizes = encode(
        topic,
        np.array(queue_ids, np.int32),
        list(bodies),
        pa.array(properties, pa.binary()),
        born_timestamp=np.array(born, np.int64),
        born_host=born_host,
        store_host_v6=store_host_v6,
        flags=np.array(flags, np.int32),
        sys_flags=np.array(sys_flags, np.int32),
    )
    assert len(data) == sizes.sum()
    records = Records.walk(data, sizes=sizes)
    records.check()
    whole = [
        records[row : row + 1].take_bytes()
        for row in range(len(batch))
        if record.encode_properties(record.decode_properties(batch[row][2])) == batch[row][2]
    ]
    assert whole == plain


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()])
def test_bodies_may_be_any_arrow_bytes_or_strings_sliced_or_chunked(kind: pa.DataType) -> None:
    column = pa.array([b"not this", b"one", b"", b"a third body, longer than a view holds"], pa.binary()).cast(kind)[1:]
    for bodies in (column, pa.chunked_array([column[:1], column[1:]])):
        data, _ = encode("t", 0, bodies, [b""] * 3, born_timestamp=1, born_host=HOST)
        assert Records.walk(data).bodies().to_pylist() == [b"one", b"", b"a third body, longer than a view holds"]


def test_the_brokers_fields_are_empty_until_they_are_stamped() -> None:
    data, _ = encode("t", 3, [b"body"], [b"TAGS\x01a\x02"], born_timestamp=1, born_host=HOST)
    one = record.decode(data)
    assert (one.queue_offset, one.commit_log_offset, one.store_timestamp, one.store_host) == (0, 0, 0, bytes(8))


def test_limits_of_the_format_are_refused_with_the_row() -> None:
    with pytest.raises(RecordError, match="topic of 128 bytes"):
        encode("x" * 128, 0, [b""], [b""], born_timestamp=1, born_host=HOST)
    with pytest.raises(RecordError, match="topic of 0 bytes"):
        encode("", 0, [b""], [b""], born_timestamp=1, born_host=HOST)
    with pytest.raises(RecordError, match="32768") as error:
        encode("t", 0, [b"", b""], [bytes(32767), bytes(32768)], born_timestamp=1, born_host=HOST)
    assert error.value.at == 1
    with pytest.raises(ValueError, match="2 bodies, 1 properties"):
        encode("t", 0, [b"", b""], [b""], born_timestamp=1, born_host=HOST)
    with pytest.raises(ValueError, match="null"):
        encode("t", 0, [b"", None], [b"", b""], born_timestamp=1, born_host=HOST)


@given(st.lists(st.binary(max_size=3) | st.binary(min_size=200, max_size=300), max_size=8), st.booleans())
def test_checksums_of_many_bodies_are_those_of_each(bodies: list[bytes], same: bool) -> None:
    bodies = [body[:1] for body in bodies if body] if same else bodies
    sizes = np.array([len(body) for body in bodies], np.int64)
    lying = np.frombuffer(b"".join(b"x" + body for body in bodies) or b"x", np.uint8)
    expected = [record.body_crc(body) for body in bodies]
    assert slice_crcs(lying, np.cumsum(sizes + 1) - sizes, sizes).tolist() == expected
