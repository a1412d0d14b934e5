"""Checking the chain of record sizes in runs gives the same result as checking record by record."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records

from broker_service.store.log_scanner import Stop, count_valid, walk


def rec(size: int) -> bytes:
    return record.encode(record.Record("t", b"x" * (size - 92)))


def plain(data: bytes, at: int, limit: int) -> tuple[list[int], int, Stop]:
    sizes = []
    while True:
        if at + 8 > limit:
            return sizes, at, Stop.END
        size, magic = record.BLANK.unpack_from(data, at)
        if magic == record.BLANK_MAGIC and size >= 8:
            return sizes, at, Stop.BLANK
        if magic not in (record.MESSAGE_MAGIC, record.MESSAGE_MAGIC_V2) or size < record.MIN_SIZE:
            return sizes, at, Stop.NO_RECORD
        if at + size > limit:
            return sizes, at, Stop.END
        sizes.append(size)
        at += size


runs = st.lists(st.tuples(st.integers(92, 100), st.integers(1, 60)), max_size=8)
ends = st.sampled_from([b"", b"\0" * 20, record.BLANK.pack(50, record.BLANK_MAGIC), b"garbage, no record"])


@given(runs, ends, st.integers(0, 200), st.integers(0, 3))
def test_runs_are_walked_as_one_by_one(runs, end, cut, skip):
    data = b"".join(rec(size) * count for size, count in runs) + end
    limit = max(len(data) - cut, 0)
    at = sum([size for size, count in runs for _ in range(count)][:skip])
    chain = walk(data, at, limit)
    assert (chain.sizes.tolist(), chain.end, chain.stop) == plain(data, at, limit)
    assert chain.sizes.dtype == np.int64


def three() -> bytearray:
    """Returns three records from log offset 1000 on."""
    data = bytearray()
    for _ in range(3):
        one = record.Record("topic", b"x" * 50, commit_log_offset=1000 + len(data), properties={"TAGS": "TagA"})
        data += record.encode(one)
    return data


def soundness(data: bytearray, strict_from: int = 10**9) -> int:
    return count_valid(Records.walk(data), 1000, crc=True, strict_from=strict_from)[0]


def test_only_whole_records_before_the_first_bad_one_are_sound():
    size = len(three()) // 3
    assert soundness(three()) == 3
    for at, left in ((2 * size + 100, 2), (size + 100, 1), (100, 0), (size + 86, 1), (size + 30, 1)):
        data = three()
        data[at] ^= 1
        assert soundness(data) == left, at


def test_a_bad_checksum_before_a_bad_length_is_found():
    data = three()
    size = len(data) // 3
    data[size + 100] ^= 1
    data[2 * size + 86] ^= 1
    assert soundness(data) == 1


def test_zeros_in_the_properties_are_found_where_they_are_looked_for():
    data = three()
    size = len(data) // 3
    data[2 * size - 10 : 2 * size] = bytes(10)
    assert soundness(data) == 3, "no checksum covers them"
    assert soundness(data, strict_from=1000 + size) == 1
    assert soundness(data, strict_from=1000 + 2 * size) == 3
