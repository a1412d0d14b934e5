"""Latency to the commit is calculated from a query's progress."""

from benchmarks.latency import Commit, kafka_ends, latencies_ms, our_ends
from benchmarks.spark import ended_ms


def test_a_row_belongs_to_the_batch_whose_offsets_hold_it():
    commits = [Commit(1000.0, {0: 2, 1: 1}), Commit(1500.0, {0: 4, 1: 1})]
    rows = [(0, 0, 900.0), (0, 1, 950.0), (0, 2, 1100.0), (0, 3, 1400.0), (1, 0, 990.0)]
    assert latencies_ms(rows, commits) == [100.0, 50.0, 400.0, 100.0, 10.0]


def test_a_batch_is_committed_when_its_trigger_has_run():
    progress = {"timestamp": "2026-01-02T03:04:05.250Z", "durationMs": {"triggerExecution": 750}}
    assert ended_ms(progress) % 60_000 == 6_000


def test_ends_are_read_from_either_source():
    assert our_ends('{"v": 1, "q": {"t": {"broker-a": {"0": 5, "1": 7}}}}') == {0: 5, 1: 7}
    assert kafka_ends('{"t": {"0": 5, "1": 7}}') == {0: 5, 1: 7}
