"""Message ids have RocketMQ's layout and are unique."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records.columnar import UniqIds

NOW = int(datetime(2026, 11, 20, 12, 0, 0, 123000, tzinfo=UTC).timestamp() * 1000)
SINCE_MONTH_BEGAN = NOW - int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


def counted_bytes():
    numbers = count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def ids() -> UniqIds:
    return UniqIds(bytes((10, 1, 2, 3)), counted_bytes())


def test_the_layout_is_rocketmqs() -> None:
    (one,) = ids().next(1, NOW).to_pylist()
    assert len(one) == 32 and one == one.upper()
    data = bytes.fromhex(one)
    assert data[:4] == bytes((10, 1, 2, 3))
    assert int.from_bytes(data[4:6], "big") == os.getpid() & 0xFFFF
    assert data[6:10] == (1).to_bytes(4, "big")
    assert int.from_bytes(data[10:14], "big") == SINCE_MONTH_BEGAN
    assert data[14:] == bytes(2)


def test_one_at_a_time_and_batches_come_from_the_same_numbers() -> None:
    made = ids()
    first, batch, last = made.one(NOW), made.next(3, NOW).to_pylist(), made.one(NOW)
    numbers = [int(one, 16) for one in (first, *batch, last)]
    assert numbers == list(range(numbers[0], numbers[0] + 5))


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(-5, 5))))
def test_ids_only_rise_whatever_the_clock_does_and_however_many_are_asked_for(steps: list[tuple[int, int]]) -> None:
    made, now, last = ids(), NOW, -1
    for size, step in steps:
        now += step
        batch = made.next(size, now)
        if size:
            first, end = int(batch[0].as_py(), 16), int(batch[-1].as_py(), 16)
            assert first > last and end - first == size - 1
            last = end


def test_a_new_month_starts_over_under_another_prefix() -> None:
    made = ids()
    before = made.one(NOW)
    after = made.one(int(datetime(2026, 12, 20, 12, 0, 0, 123000, tzinfo=UTC).timestamp() * 1000))
    assert before[12:20] != after[12:20]
    assert made.one(NOW)[12:20] == after[12:20]  # a clock that steps back into the old month gets no old prefix


def test_a_forked_child_takes_another_prefix() -> None:
    made = ids()
    parent = made.one(NOW)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, made.one(NOW).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write_end)
    with os.fdopen(read_end) as child:
        assert child.read()[8:20] != parent[8:20]


def test_threads_never_get_the_same_id() -> None:
    made = ids()
    with ThreadPoolExecutor(8) as threads:
        batches = list(threads.map(lambda size: made.next(size, NOW).to_pylist(), [100] * 200))
    assert len({one for batch in batches for one in batch}) == 20_000
