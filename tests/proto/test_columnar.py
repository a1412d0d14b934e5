"""Every column agrees with the per-record decoder for any record, and no unchecked byte is trusted."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import RecordError, Records
from rocketsim_proto.records.record import Record
from rocketsim_proto.records.slices import FEW

from tests.support.records import decode_all, encode_raw, in_bulk, record_bytes

pytestmark = pytest.mark.usefixtures("record_kernels")

FIELDS = {
    "queue_id": "queue_id",
    "flag": "flag",
    "queue_offset": "queue_offset",
    "commit_log_offset": "commit_log_offset",
    "sys_flag": "sys_flag",
    "born_timestamp": "born_timestamp",
    "store_timestamp": "store_timestamp",
    "reconsume_times": "reconsume_times",
    "prepared_transaction_offset": "prepared_transaction_offset",
}


def few_or_in_bulk(batch: list[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.sampled_from([batch, in_bulk(batch)])


batches = st.lists(record_bytes(), max_size=8).flatmap(few_or_in_bulk)


def host_text(host: bytes) -> str:
    address, port = record.decode_host(host)
    return f"[{address}]:{port}" if len(host) == 20 else f"{address}:{port}"


def assert_agrees(records: Records, plain: list[Record]) -> None:
    assert len(records) == len(plain)
    for column, field in FIELDS.items():
        assert getattr(records, column).tolist() == [getattr(one, field) for one in plain]
        assert getattr(records, column).dtype.isnative
    assert records.body_crc.tolist() == [record.body_crc(one.body) for one in plain]
    assert records.topics().to_pylist() == [one.topic for one in plain]
    assert records.bodies().to_pylist() == [one.body for one in plain]
    unpacked = [body for _, bodies in records.bodies_uncompressed(100) for body in bodies.to_pylist()]
    assert unpacked == [one.body for one in plain]
    assert records.born_hosts().to_pylist() == [host_text(one.born_host) for one in plain]
    assert records.store_hosts().to_pylist() == [host_text(one.store_host) for one in plain]
    assert records.properties().to_pylist() == [list(one.properties.items()) for one in plain]
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "ü", "", "nowhere"):
        assert records.property(name).to_pylist() == [one.properties.get(name) for one in plain]
    if all(one.commit_log_offset >= 0 for one in plain):
        assert records.message_ids().to_pylist() == [one.message_id for one in plain]
    assert records.tags_codes().tolist() == [record.tags_code(one.properties.get("TAGS", "")) for one in plain]


@given(batches)
def test_every_column_agrees_with_the_plain_decoder(batch: list[bytes]) -> None:
    data = b"".join(batch)
    records = Records.walk(data, count=len(batch))
    records.check()
    assert_agrees(records, list(decode_all(data)))
    for array in (records.properties(), records.topics(), records.bodies(), records.message_ids()):
        array.validate(full=True)


@given(record_bytes(), st.integers(1, 5) | st.just(FEW + 1))
def test_a_batch_of_equal_records_agrees_too(one: bytes, count: int) -> None:
    records = Records.walk(one * count)
    assert_agrees(records, list(decode_all(one * count)))


@given(batches, st.data())
def test_some_of_the_records_are_records_again(batch: list[bytes], data: st.DataObject) -> None:
    records = Records.walk(b"".join(batch))
    plain = list(decode_all(b"".join(batch)))
    rows = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=8)) if batch else []
    rows *= data.draw(st.sampled_from([1, FEW]))
    assert_agrees(records[np.array(rows, np.int64)], [plain[row] for row in rows])
    assert records[np.array(rows, np.int64)].take_bytes() == b"".join(batch[row] for row in rows)
    assert records[1:].take_bytes() == b"".join(batch[1:])
    assert_agrees(records[::-2], plain[::-2])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_kind_of_buffer_can_be_walked(kind: type) -> None:
    data = record.encode(Record("t", b"body")) * 2 + record.encode(Record("t", b"other body"))
    assert Records.walk(kind(data)).bodies().to_pylist() == [b"body", b"body", b"other body"]


@given(batches)
def test_sizes_that_come_with_the_data_are_used_and_checked(batch: list[bytes]) -> None:
    data, sizes = b"".join(batch), [len(one) for one in batch]
    packed = struct.pack(f"<{len(sizes)}I", *sizes)
    for given_sizes in (packed, bytearray(packed), memoryview(packed), np.array(sizes, np.uint32)):
        assert Records.walk(data, sizes=given_sizes).bodies().to_pylist() == [one.body for one in decode_all(data)]
    if len(sizes) > 1:
        moved = [sizes[0] + 1, sizes[1] - 1, *sizes[2:]]
        with pytest.raises(RecordError):
            Records.walk(data, sizes=np.array(moved))


@given(st.lists(record_bytes(), min_size=1, max_size=5).flatmap(few_or_in_bulk), st.data())
def test_damage_is_found_where_the_plain_decoder_finds_it(batch: list[bytes], data: st.DataObject) -> None:
    damaged = bytearray(b"".join(batch))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    try:
        expected = list(decode_all(bytes(damaged)))
    except RecordError as error:
        if "UTF-8" in error.reason:  # the columns look at topics only if they are asked for
            with pytest.raises(RecordError):
                Records.walk(damaged).topics()
            return
        with pytest.raises(RecordError) as found:
            Records.walk(damaged).check()
        assert found.value.at >= error.at  # a wrong record size is noticed before an error inside an earlier record
        sizes_chain = _chains(bytes(damaged))
        if sizes_chain:
            assert found.value.at == error.at
    else:
        assert_agrees_or_is_compressed(Records.walk(damaged), expected)


def _chains(data: bytes) -> bool:
    try:
        Records.walk(data)
    except RecordError:
        return False
    return True


def assert_agrees_or_is_compressed(records: Records, plain: list[Record]) -> None:
    records.check()
    if not any(one.sys_flag & record.SYS_FLAG_COMPRESSED for one in plain):
        assert_agrees(records, plain)


@given(st.binary(max_size=400))
def test_noise_is_refused_or_read_as_the_plain_decoder_reads_it(noise: bytes) -> None:
    try:
        Records.walk(noise).check()
    except RecordError:
        with pytest.raises(RecordError):
            list(decode_all(noise))
    else:
        list(decode_all(noise))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda b: b[:-1], id="cut short"),
        pytest.param(lambda b: b + b"\0", id="a byte too many"),
        pytest.param(lambda b: b + bytes(8), id="zeros behind it"),
        pytest.param(lambda b: b + record.BLANK.pack(8, record.BLANK_MAGIC), id="a blank of 8 bytes"),
        pytest.param(lambda b: b + record.BLANK.pack(100, record.BLANK_MAGIC) + bytes(92), id="a larger blank"),
        pytest.param(lambda b: b"\xff\xff\xff\xff" + b[4:], id="a size of 4 GiB"),
        pytest.param(lambda b: b"\0\0\0\0" + b[4:], id="a size of 0"),
        pytest.param(lambda b: bytes(len(b)), id="preallocated zeros"),
        pytest.param(lambda b: b[:36] + b"\0\0\0\x30" + b[40:], id="a flag that claims IPv6 hosts"),
        pytest.param(lambda b: b[:84] + b"\x7f\xff\xff\xff" + b[88:], id="a huge body"),
        pytest.param(lambda b: b[:84] + b"\xff\xff\xff\xff" + b[88:], id="a negative body"),
        pytest.param(lambda b: b[:92] + b"\xff" + b[93:], id="a topic that ends elsewhere"),
        pytest.param(lambda b: b[:90] + b"\0" + b[91:], id="another body"),
    ],
)
def test_a_damaged_record_is_refused(damage) -> None:
    good = record.encode(Record("t", b"body"))
    with pytest.raises(RecordError):
        Records.walk(damage(good)).check()
    with pytest.raises(RecordError) as behind:
        Records.walk(good + damage(good)).check()
    assert behind.value.at >= len(good)


def test_a_hostile_body_size_is_refused_before_anything_is_reached_through_it() -> None:
    good = record.encode(Record("t", b"body"))
    hostile = good[:84] + b"\x7f\xff\xff\xff" + good[88:]
    for column in (Records.bodies, Records.topics, Records.properties, Records.tags_codes, Records.message_ids):
        with pytest.raises(RecordError):
            column(Records.walk(good + hostile))


def test_a_count_that_differs_is_refused() -> None:
    data = record.encode(Record("t", b"body")) * 3
    with pytest.raises(RecordError, match="3 records, 4 announced"):
        Records.walk(data, count=4)


def test_the_checksum_is_only_looked_at_when_asked() -> None:
    damaged = bytearray(record.encode(Record("t", b"body")))
    damaged[88] ^= 1
    Records.walk(damaged).check(crc=False)
    with pytest.raises(RecordError, match="CRC"):
        Records.walk(damaged).check()


@pytest.mark.parametrize("size", [1, 255, 256, 5000])
def test_one_wrong_bit_in_one_body_of_many_is_found(size: int) -> None:
    """Small bodies and large ones are checked in different ways."""
    one = record.encode(Record("t", b"b" * size))
    damaged = bytearray(one * 100)
    Records.walk(damaged).check()
    damaged[57 * len(one) + 88 + size - 1] ^= 1
    with pytest.raises(RecordError, match="CRC") as error:
        Records.walk(damaged).check()
    assert error.value.at == 57 * len(one)


@pytest.mark.parametrize("other", ["topi", "topic2", "tüpic", "TOPIC"])
def test_a_record_of_another_topic_is_refused(other: str) -> None:
    ours, theirs = record.encode(Record("topic", b"")), record.encode(Record(other, b""))
    Records.walk(ours + ours).check_topic("topic")
    with pytest.raises(RecordError, match=other) as error:
        Records.walk(ours + theirs + ours).check_topic("topic")
    assert error.value.at == len(ours)


def test_no_records_have_all_columns_too() -> None:
    records = Records.walk(b"", count=0)
    records.check()
    records.check_topic("t")
    assert_agrees(records, [])
    assert records.take_bytes() == b""


@given(st.lists(record_bytes(), min_size=1, max_size=6).flatmap(few_or_in_bulk), st.data())
def test_a_stamp_changes_what_the_broker_knows_and_nothing_else(batch: list[bytes], data: st.DataObject) -> None:
    widths = {len(one.store_host) for one in decode_all(b"".join(batch))}
    width = data.draw(st.sampled_from(sorted(widths)))
    batch = [one for one in batch if len(record.decode(one).store_host) == width]
    records = Records.walk(bytearray(b"".join(batch)))
    queue_offsets = np.arange(len(batch)) + 2**40
    log_offsets = np.arange(len(batch)) * 1000 + 2**50
    host = data.draw(st.binary(min_size=width, max_size=width))
    _ = records.queue_offset  # a column seen before must not be kept
    records.stamp(queue_offsets, log_offsets, 1234567890123, host)
    expected = list(decode_all(b"".join(batch)))
    for row, one in enumerate(expected):
        one.queue_offset, one.commit_log_offset = 2**40 + row, 2**50 + 1000 * row
        one.store_timestamp, one.store_host = 1234567890123, host
    assert_agrees(records, expected)
    assert_agrees(Records.walk(records.take_bytes()), expected)


def test_a_store_host_of_another_width_is_refused() -> None:
    wide = record.encode(Record("t", b"", store_host=bytes(20)))
    records = Records.walk(bytearray(record.encode(Record("t", b"")) + wide))
    before = bytes(records.data)
    with pytest.raises(RecordError, match="20 bytes for a store host of 8"):
        records.stamp(0, 0, 0, bytes(8))
    assert bytes(records.data) == before


def test_a_read_only_buffer_cannot_be_stamped() -> None:
    data = record.encode(Record("t", b""))
    with pytest.raises(ValueError, match="read-only"):
        Records.walk(data).stamp(1, 1, 1, bytes(8))
    assert data == record.encode(Record("t", b""))


def test_a_topic_of_version_2_may_have_more_than_127_bytes() -> None:
    one = encode_raw(Record("x" * 300, b"body"), b"TAGS\x01a\x02", version_2=True)
    records = Records.walk(one)
    records.check_topic("x" * 300)
    assert records.property("TAGS").to_pylist() == ["a"]


@given(st.lists(st.sampled_from(["a", "b", "ab", "üü"]), min_size=1, max_size=100))
def test_the_codes_of_topics_say_which_record_has_which(topics: list[str]) -> None:
    records = Records.walk(b"".join(record.encode(Record(topic, b"body")) for topic in topics))
    names, codes = records.topic_codes()
    assert [names[code] for code in codes.tolist()] == topics
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("others", [0, 3])
def test_a_topic_that_is_not_utf8_has_no_code(others: int) -> None:
    data = record.encode(Record("t", b"body")).replace(b"body\x01t", b"body\x01\xff") * (1 + others)
    with pytest.raises(RecordError, match="UTF-8"):
        Records.walk(data).topic_codes()
