"""Message groups are spread over queues, and stay where they are when queues are added."""

from hypothesis import given
from hypothesis import strategies as st

from broker_service.wire.v2.queue_choice import RoundRobin, queue_of_group


@given(st.text(max_size=20), st.integers(1, 1000))
def test_a_group_has_one_queue_and_moves_only_to_a_new_one(group: str, queue_nums: int) -> None:
    before = queue_of_group(group, queue_nums)
    assert 0 <= before < queue_nums
    assert queue_of_group(group, queue_nums + 1) in (before, queue_nums)


def test_groups_are_spread_evenly() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[queue_of_group(f"group-{number}", 8)] += 1
    assert min(counts) > 850 and max(counts) < 1150


def test_each_topic_has_its_own_turns() -> None:
    turns = RoundRobin()
    assert [(turns.queue_of("a", 3), turns.queue_of("b", 2)) for _ in range(4)] == [(0, 0), (1, 1), (2, 0), (0, 1)]
