"""Tests Kafka's column `partition`, which has a stable number for each queue, and the way back from the number to the
queue.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import source_options
from rocketsim_source.partition_numbers import name_number, partition_number, queues_with, refuse_collisions
from rocketsim_source.planning.partition import parallelism_now, plan_partitions
from tests.source.memory_cluster import MemoryCluster

# Two names with one number, found by trying.
TWINS = "broker-112", "broker-149"


def test_a_number_never_changes() -> None:
    """Users store partition numbers in tables, so the number of a queue must not change."""
    assert partition_number(MessageQueue("T", "broker-a", 0)) == 65_536 * name_number("broker-a")
    assert [name_number(name) for name in ("broker-a", "broker-b")] == [9960, 10861]
    assert partition_number(MessageQueue("T", "broker-a", 7)) - partition_number(MessageQueue("U", "broker-a", 0)) == 7


@given(st.text(min_size=1), st.integers(0, 65_535))
def test_a_number_is_a_positive_int_that_no_bare_queue_id_has(name: str, queue_id: int) -> None:
    assert 65_536 <= partition_number(MessageQueue("T", name, queue_id)) < 2**31


def test_a_queue_id_that_has_no_number_is_refused() -> None:
    with pytest.raises(OptionError, match="no partition number"):
        partition_number(MessageQueue("T", "broker-a", 65_536))


@given(st.sets(st.sampled_from([f"broker-{letter}" for letter in "abcdefgh"]), min_size=1), st.data())
def test_the_way_back_finds_the_queue_and_no_other(names: set[str], data: st.DataObject) -> None:
    queues = [MessageQueue("T", name, queue_id) for name in sorted(names) for queue_id in range(4)]
    queue = data.draw(st.sampled_from(queues))
    assert queues_with(partition_number(queue), queues) == [queue]


def test_a_bare_queue_id_means_that_queue_of_every_broker() -> None:
    queues = [MessageQueue("T", name, queue_id) for name in ("a", "b") for queue_id in range(4)]
    assert queues_with(3, queues) == [MessageQueue("T", "a", 3), MessageQueue("T", "b", 3)]
    assert queues_with(4, queues) == []
    assert queues_with(partition_number(MessageQueue("T", "elsewhere", 3)), queues) == []


def test_two_brokers_with_one_number_are_refused_by_name() -> None:
    with pytest.raises(OptionError, match=f"{TWINS[1]} and {TWINS[0]}|{TWINS[0]} and {TWINS[1]}"):
        refuse_collisions(TWINS)
    refuse_collisions(["broker-a", "broker-b", "broker-a"])
    twins = [MessageQueue("T", name, 0) for name in TWINS]
    with pytest.raises(OptionError):
        queues_with(partition_number(twins[0]), twins)


@pytest.mark.parametrize(("profile", "refused"), [("kafka", True), ("rocketmq", False)])
def test_a_plan_is_checked_for_them_even_where_one_has_nothing_to_read(profile: str, refused: bool) -> None:
    options = source_options({"nameServer": "h:1", "topic": "T", "schemaProfile": profile}, streaming=True)
    ranges = [OffsetRange(MessageQueue("T", TWINS[0], 0), 0, 10), OffsetRange(MessageQueue("T", TWINS[1], 0), 5, 5)]
    if not refused:
        assert plan_partitions(ranges, options, MemoryCluster(), parallelism_now(options))
        return
    with pytest.raises(OptionError):
        plan_partitions(ranges, options, MemoryCluster(), parallelism_now(options))
