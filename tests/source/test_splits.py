"""Ranges are split into partitions: every record exactly once, and no more tasks than needed."""

import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.model import MessageQueue, OffsetRange, QueueBounds
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.partition import parallelism_now
from rocketsim_source.planning.splits import RULE_WITHOUT_BYTES, Parallelism, batch_bytes, count

ranges = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10**6), st.integers(0, 60)), max_size=10, unique_by=lambda one: one[0]
).map(lambda found: [OffsetRange(MessageQueue("T", f"b{q % 3}", q), start, start + size) for q, start, size in found])
maybe = st.one_of(st.none(), st.integers(1, 60))


def records(pieces: list[OffsetRange]) -> Counter[tuple[MessageQueue, int]]:
    return Counter((piece.queue, offset) for piece in pieces for offset in range(piece.from_offset, piece.until_offset))


@given(ranges, st.integers(1, 8), maybe, maybe)
def test_partitions_cover_every_record_exactly_once(
    whole: list[OffsetRange], cores: int, min_partitions: int | None, max_records: int | None
) -> None:
    partitions = Parallelism(cores, min_partitions, max_records).partitions(whole)
    assert records([piece for pieces in partitions for piece in pieces]) == records(whole)
    assert all(pieces for pieces in partitions)
    if max_records is not None:
        assert all(sum(map(count, pieces)) <= max_records for pieces in partitions)
    if min_partitions is not None and max_records is None:
        assert len(partitions) >= min(min_partitions, sum(map(count, whole)))


@given(ranges, st.integers(1, 8))
def test_a_queue_is_not_split_unasked(whole: list[OffsetRange], cores: int) -> None:
    partitions = Parallelism(cores).partitions(whole)
    found = [piece for pieces in partitions for piece in pieces]
    assert sorted(found) == sorted(piece for piece in whole if count(piece))


@given(ranges, st.integers(1, 8), maybe, maybe)
def test_largest_partitions_come_first_and_offsets_stay_in_order(
    whole: list[OffsetRange], cores: int, min_partitions: int | None, max_records: int | None
) -> None:
    partitions = Parallelism(cores, min_partitions, max_records).partitions(whole)
    sizes = [sum(map(count, pieces)) for pieces in partitions]
    assert sizes == sorted(sizes, reverse=True)
    assert all(pieces == sorted(pieces) for pieces in partitions)


def test_a_thousand_queues_with_little_in_them_are_one_task() -> None:
    whole = [OffsetRange(MessageQueue("T", "b", q), 0, 10) for q in range(1024)]
    assert len(Parallelism(cores=2).partitions(whole)) == 1


def test_a_thousand_full_queues_are_a_few_tasks_of_equal_size() -> None:
    whole = [OffsetRange(MessageQueue("T", "b", q), 0, 10_000) for q in range(1024)]
    partitions = Parallelism(cores=2).partitions(whole)
    assert len(partitions) == 4
    assert {sum(map(count, pieces)) for pieces in partitions} == {2_560_000}


def test_four_full_queues_are_four_tasks_on_two_cores() -> None:
    whole = [OffsetRange(MessageQueue("T", "b", q), 0, 1_000_000) for q in range(4)]
    assert len(Parallelism(cores=2).partitions(whole)) == 4


@pytest.mark.parametrize(("mebibytes", "tasks"), [(1, 1), (32, 1), (33, 2), (128, 4), (1000, 4)])
def test_few_large_records_are_as_many_tasks_as_their_bytes_are_worth(mebibytes: int, tasks: int) -> None:
    whole = [OffsetRange(MessageQueue("T", "b", q), 0, 250) for q in range(4)]
    assert len(Parallelism(cores=2, batch_bytes=mebibytes << 20).partitions(whole)) == tasks


def test_the_size_of_a_batch_comes_from_the_mean_sizes_of_its_queues() -> None:
    small, large, unknown = (MessageQueue("T", "b", q) for q in range(3))
    bounds = {
        small: QueueBounds(100, 200, size_bytes=100 * 50),
        large: QueueBounds(0, 10, size_bytes=10 << 20),
        unknown: QueueBounds(0, 10),
    }
    ranges = [OffsetRange(small, 150, 160), OffsetRange(large, 5, 7), OffsetRange(unknown, 0, 10)]
    assert batch_bytes(ranges, bounds) == 10 * 50 + (2 << 20)


def test_a_cluster_larger_than_the_driver_gets_as_many_tasks_as_parallelism_says() -> None:
    whole = [OffsetRange(MessageQueue("T", "b", q), 0, 1_000_000) for q in range(64)]
    given = {"nameServer": "h:1", "topic": "T"}
    of_driver = parallelism_now(source_options(given, streaming=True))
    assert of_driver.cores == os.cpu_count()
    of_cluster = parallelism_now(source_options(given | {"parallelism": "24"}, streaming=True))
    assert len(of_cluster.partitions(whole)) == 48


def test_min_partitions_splits_the_largest() -> None:
    whole = [OffsetRange(MessageQueue("T", "b", 0), 0, 900), OffsetRange(MessageQueue("T", "b", 1), 0, 100)]
    partitions = Parallelism(cores=2, min_partitions=4).partitions(whole)
    assert sorted(sum(map(count, pieces)) for pieces in partitions) == [100, 300, 300, 300]


def test_rule_1_cuts_as_it_always_did() -> None:
    """A batch that is repeated after an upgrade is cut by the rule with which it was planned: see RULE."""
    sizes = [700_000, 130_000, 90_000, 90_000, 10, 0]
    whole = [OffsetRange(MessageQueue("T", f"b{q % 2}", q), 5, 5 + size) for q, size in enumerate(sizes)]

    def written(split: Parallelism) -> list[list[tuple[int, int, int]]]:
        return [
            [(one.queue.queue_id, one.from_offset, one.until_offset) for one in held]
            for held in split.partitions(whole)
        ]

    assert Parallelism(2).rule == RULE_WITHOUT_BYTES == 1
    assert written(Parallelism(2)) == [
        [(0, 5, 700_005)],
        [(1, 5, 130_005)],
        [(2, 5, 90_005), (4, 5, 15)],
        [(3, 5, 90_005)],
    ]
    assert written(Parallelism(1, min_partitions=7, max_records_per_partition=200_000)) == [
        [(0, 5, 175_005)],
        [(0, 175_005, 350_005)],
        [(0, 350_005, 525_005)],
        [(0, 525_005, 700_005)],
        [(1, 5, 130_005)],
        [(2, 5, 90_005), (4, 5, 15)],
        [(3, 5, 90_005)],
    ]
