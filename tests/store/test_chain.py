"""Walking the chain of record sizes: in runs as one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rocketsim_proto import record

from broker_service.store.chain import Stop, walk


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


@settings(deadline=None)
@given(runs, ends, st.integers(0, 200), st.integers(0, 3))
def test_runs_are_walked_as_one_by_one(runs, end, cut, skip):
    data = b"".join(rec(size) * count for size, count in runs) + end
    limit = max(len(data) - cut, 0)
    at = sum([size for size, count in runs for _ in range(count)][:skip])
    chain = walk(data, at, limit)
    assert (chain.sizes.tolist(), chain.end, chain.stop) == plain(data, at, limit)
    assert chain.sizes.dtype == np.int64
