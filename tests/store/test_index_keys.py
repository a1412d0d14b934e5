"""The keys of the index, compared with RocketMQ's buildIndex one record at a time."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import Record, tags_code

from broker_service.store.index_keys import index_keys, joined
from tests.support.records import in_bulk, records

pytestmark = pytest.mark.usefixtures("record_kernels")

ROLLED_BACK = 12


def one_by_one(batch: list[Record]) -> list[tuple[int, int, int]]:
    """Returns (hash, log offset, store time) of each entry."""
    entries = []
    for one in batch:
        if one.sys_flag & ROLLED_BACK == ROLLED_BACK:
            continue
        keys = [one.properties.get("UNIQ_KEY", ""), *one.properties.get("KEYS", "").split(" ")]
        texts = [f"{one.topic}#{key}" for key in keys if key]
        if tags := one.properties.get("TAGS"):
            texts.append(f"{one.topic}#T#{tags}")
        for text in texts:
            code = abs(tags_code(text))
            entries.append((code if code < 2**31 else 0, one.commit_log_offset, one.store_timestamp))
    return entries


def assert_agrees(batch: list[Record]) -> None:
    keys = index_keys(Records.walk(b"".join(map(record.encode, batch))))
    found = zip(keys.hashes.tolist(), keys.offsets.tolist(), keys.timestamps.tolist(), strict=True)
    assert list(found) == one_by_one(batch)


text = st.text(st.sampled_from("ab c7ü"), max_size=6)
properties = st.fixed_dictionaries({}, optional={"UNIQ_KEY": text, "KEYS": text, "TAGS": text, "other": text})


@given(st.lists(st.builds(replace, records, topic=st.sampled_from(["topic", "ü"]), properties=properties), max_size=5))
def test_any_records_have_the_keys_that_rocketmq_gives_them(few):
    for batch in (few, in_bulk(few)):
        assert_agrees(batch)


def of_size(size: int, characters: str) -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(characters), min_size=size, max_size=size)


NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "WAIT")


@given(
    records,
    st.lists(st.tuples(of_size(9, "0F"), of_size(3, "kü7"), of_size(2, "ab"), of_size(4, "true")), min_size=1),
    st.lists(st.sampled_from(NAMES), unique=True),
)
@example(Record(topic="a", body=b""), [("0", "k", "b", "")], ["KEYS"])
@example(Record(topic="a", body=b""), [("0", "k l", "b", "")], ["KEYS", "TAGS"])
def test_records_of_one_shape_have_rocketmqs_keys_too(first, values, names):
    few = [
        replace(
            first,
            properties={name: dict(zip(NAMES, value, strict=True))[name] for name in names},
            commit_log_offset=number,
        )
        for number, value in enumerate(values)
    ]
    assert_agrees(in_bulk(few))


def test_a_hash_without_a_magnitude_counts_as_zero():
    topic, key = "t", "polygenelubricants"
    one = Record(topic=topic, body=b"", properties={"KEYS": _ending_in_min_value(f"{topic}#", key)})
    assert tags_code(f"t#{one.properties['KEYS']}") == -(2**31)
    assert_agrees(in_bulk([one]))


def test_parts_are_put_in_their_order():
    batch = [Record(topic="t", body=b"", properties={"KEYS": f"k{number}"}) for number in range(5)]
    parts = [index_keys(Records.walk(b"".join(map(record.encode, some)))) for some in (batch[:2], batch[2:])]
    assert joined(parts).hashes.tolist() == [code for code, _, _ in one_by_one(batch)]


def _ending_in_min_value(prefix: str, key: str) -> str:
    """Extends `key` by seven characters, the digits of the missing value in base 31, so that Java's hash of prefix and
    key is -2^31.
    """
    missing = (-(2**31) - tags_code(prefix + key) * 31**7) % 2**32
    units = [40] * 7
    missing = (missing - sum(40 * 31**n for n in range(7))) % 2**32
    for n in range(7):
        digit, missing = divmod(missing, 31 ** (6 - n))
        units[n] += digit
    return key + "".join(map(chr, units))
