"""Latency faults follow RocketMQ 4.9's table D8, and the selection of queues uses them."""

import pytest

from rocketsim_client.model import MessageQueue
from rocketsim_client.sending.latency_fault import LatencyFaultTolerance, not_available_ms
from rocketsim_client.sending.selection import RoundRobin, by_group

QUEUES = [MessageQueue("T", name, queue_id) for queue_id in range(2) for name in ("a", "b")]


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (100, 0),
        (549.9, 0),
        (550, 30_000),
        (999, 30_000),
        (1000, 60_000),
        (2000, 120_000),
        (3000, 180_000),
        (14_999, 180_000),
        (15_000, 600_000),
        (99_999, 600_000),
    ],
)
def test_a_slow_broker_is_avoided_as_long_as_table_d8_says(latency_ms, expected):
    assert not_available_ms(latency_ms) == expected
    faults = LatencyFaultTolerance()
    faults.update("a", latency_ms, 1000.0)
    assert faults.is_available("a", 1000.0 + expected / 1000)
    assert faults.is_available("a", 1000.0) == (expected == 0)


def test_a_failed_send_counts_as_thirty_seconds_of_latency():
    faults = LatencyFaultTolerance()
    faults.update("a", 1, 0.0, isolation=True)
    assert not faults.is_available("a", 599.9)
    assert faults.is_available("a", 600.0)


def test_the_next_quick_answer_clears_a_broker():
    faults = LatencyFaultTolerance()
    faults.update("a", 5000, 0.0)
    faults.update("a", 1, 1.0)
    assert faults.is_available("a", 1.0)


def test_fault_mode_takes_the_available_broker_only():
    faults = LatencyFaultTolerance()
    faults.update("a", 3000, 0.0)
    turn = RoundRobin()
    assert {turn.next_available(QUEUES, faults, 1.0).broker_name for _ in range(8)} == {"b"}
    assert {turn.next_available(QUEUES, faults, 180.0).broker_name for _ in range(8)} == {"a", "b"}


def test_fault_mode_with_all_avoided_takes_the_better_half():
    faults = LatencyFaultTolerance()
    faults.update("a", 3000, 0.0)
    faults.update("b", 15_000, 0.0)
    turn = RoundRobin()
    assert {turn.next_available(QUEUES, faults, 1.0).broker_name for _ in range(8)} == {"a"}


def test_fault_mode_drops_an_avoided_broker_that_left_the_route():
    faults = LatencyFaultTolerance()
    faults.update("a", 600, 0.0)
    faults.update("gone", 551, 0.0)
    of_a = [queue for queue in QUEUES if queue.broker_name == "a"]
    assert RoundRobin().next_available(of_a, faults, 1.0).broker_name == "a"
    assert faults.pick_one_at_least(1.0) == "a"


def test_in_turn_every_queue_comes_once_a_round():
    turn = RoundRobin(7)
    assert {turn.next(QUEUES) for _ in QUEUES} == set(QUEUES)


def test_in_turn_passes_by_brokers_to_avoid_unless_there_is_no_other():
    turn = RoundRobin()
    assert {turn.next(QUEUES, frozenset("a")).broker_name for _ in range(8)} == {"b"}
    assert {turn.next(QUEUES, frozenset("ab")).broker_name for _ in range(8)} == {"a", "b"}


def test_a_key_always_means_the_same_queue():
    # The test compares numbers, because hash() would give others in another process.
    assert [by_group(QUEUES, key).queue_id for key in ("order-1", "order-2", "", "é")] == [1, 0, 0, 1]
    assert by_group(QUEUES, "order-1") == by_group(QUEUES, b"order-1")
