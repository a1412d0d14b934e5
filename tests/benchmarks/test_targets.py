"""Every benchmark from P1 to P22 exists and has the promised target, and every target is used."""

from pathlib import Path

import benchmarks
from benchmarks import targets
from benchmarks.registry import BENCHMARKS, GROUPS
from benchmarks.targets import Target


def every_target() -> list[Target]:
    found = []
    for value in vars(targets).values():
        if isinstance(value, Target):
            found.append(value)
        elif isinstance(value, dict):
            found += [one for one in value.values() if isinstance(one, Target)]
    return found


def test_p1_to_p22_all_have_a_target_and_a_benchmark():
    numbers = [f"P{number}" for number in range(1, 23)]
    assert sorted({target.number for target in every_target()}, key=lambda name: int(name[1:])) == numbers
    assert list(dict.fromkeys(one.targets for one in BENCHMARKS)) == numbers


def test_the_benchmarks_have_their_promised_names():
    words = "spark-read spark-stream spark-body spark-sink send-async send-batch send sync-ratio flush-ratio"
    words += " pull catchup recovery latency memory growth cold-backlog consumption v2 idle-streams scrapes on-rocketmq"
    words += " codec idle-queries"
    assert [one.name for one in BENCHMARKS] == words.split()
    assert all(one.needs and one.what for one in BENCHMARKS)


def test_every_benchmark_is_in_with_spark_or_in_without_spark():
    assert {*GROUPS["with-spark"], *GROUPS["without-spark"]} == {*BENCHMARKS} == {*GROUPS["all"]}
    assert len(GROUPS["with-spark"]) + len(GROUPS["without-spark"]) == len(BENCHMARKS)
    for one in BENCHMARKS:
        module = Path(benchmarks.__file__).parent / f"{one.run.__code__.co_names[1]}.py"
        assert ("spark.session(" in module.read_text()) is one.spark, one.name


def test_each_target_is_the_promised_one():
    """A target is a ratio or the benchmark's own figure."""
    found = {name: value for name, value in vars(targets).items() if isinstance(value, Target | dict)}
    said = {
        name: [
            f"itself {one}" if one.of_value else f"{one}"
            for one in (value.values() if isinstance(value, dict) else [value])
        ]
        for name, value in found.items()
        if not name.startswith("_")
    }
    assert said == {
        "READ_KAFKA": ["≥ 2.9", "≥ 2.3"],
        "READ_TUNED": ["≥ 1.8", "≥ 1.9"],
        "READ_ALL_KAFKA": ["≥ 1.3"],
        "READ_ALL_CEILING": ["≥ 0.55"],
        "READ_LARGE": ["≥ 0.95"],
        "STREAM_KAFKA": ["≥ 2.1", "≥ 1.9"],
        "STREAM_TUNED": ["≥ 1.2", "≥ 1.4"],
        "STREAM_CEILING": ["≥ 0.85"],
        "FIRST_ROWS": ["≤ 1.1"],
        "BODY_KAFKA": ["≥ 3.3", "≥ 2.8"],
        "SINK_ALONE": ["≥ 1.15", "≥ 1.4"],
        "SINK_PAIR": ["≥ 0.9", "≥ 1.1"],
        "ASYNC_JAVA": ["≥ 8", "≥ 5"],
        "ASYNC_PYTHON": ["≥ 30"],
        "BATCH_LIST": ["≥ 1", "≥ 0.7"],
        "BATCH_COLUMNS": ["≥ 2.5", "≥ 2"],
        "SEND_RATE": ["≥ 0.8"],
        "SEND_P50": ["≤ 2"],
        "SYNC_64": ["≥ 1"],
        "SYNC_4096": ["itself ≥ 0.95"],
        "ASYNC_OWN": ["≥ 0.8", "≥ 5"],
        "FLUSH_64": ["≥ 1"],
        "FLUSH_4096": ["itself ≥ 0.93"],
        "MESSAGES_PER_SYNC": ["itself ≥ 16"],
        "PULL_KAFKA": ["≥ 4.5", "≥ 2.5"],
        "PULL_JAVA": ["≥ 1"],
        "PULL_RAW": ["≥ 0.5", "≥ 0.65"],
        "PULL_MESSAGES": ["≥ 20"],
        "CATCHUP": ["≥ 3"],
        "LAG": ["≤ 0.3"],
        "RESTART": ["≤ 1"],
        "RESTART_WITHOUT_CHECKPOINT": ["≤ 0.4"],
        "REBUILD": ["itself ≥ 200"],
        "LATENCY": ["≤ 1"],
        "MEMORY": ["itself ≤ 250"],
        "MEMORY_SLOPE": ["itself ≤ 1"],
        "MEMORY_WORKER": ["itself ≤ 220"],
        "GROWTH_LOG": ["≤ 1.3"],
        "GROWTH_QUEUES": ["≤ 2"],
        "GROWTH_LAG": ["itself ≤ 1"],
        "COLD_BACKLOG": ["≤ 2"],
        "PENDING_RATE": ["≥ 0.9"],
        "PENDING_START": ["≤ 2"],
        "TIMER_BYTES": ["itself ≤ 64"],
        "DELIVERY_BYTES": ["itself ≤ 500"],
        "GROUP_BYTES": ["itself ≤ 8192"],
        "V2_SEND": ["≥ 0.6"],
        "V2_RECEIVE": ["≥ 1"],
        "V2_P99": ["≤ 2"],
        "V2_JAVA": ["≥ 0.6"],
        "V2_ECHO": ["≥ 0.6"],
        "V2_MEMORY": ["≤ 0.4"],
        "IDLE_STREAMS": ["itself ≤ 40.9"],
        "SCRAPE": ["itself ≤ 5"],
        "ROCKETMQ_PULL": ["≥ 3", "≥ 2"],
        "ROCKETMQ_PULL_RAISED": ["≥ 1"],
        "ROCKETMQ_SPARK": ["≥ 0.6", "≥ 1"],
        "ROCKETMQ_SINK": ["≥ 0.4"],
        "REMOTING_SEND": ["≥ 0.6"],
        "REMOTING_PULL": ["≥ 1"],
        "CODEC_CHECK": ["itself ≤ 0.06", "itself ≤ 0.15"],
        "CODEC_ENCODE": ["itself ≤ 0.07", "itself ≤ 0.2"],
        "IDLE_QUERIES": ["itself ≤ 0.5"],
    }


def test_every_target_is_used_by_a_benchmark():
    modules = [path.read_text() for path in Path(benchmarks.__file__).parent.glob("*.py")]
    names = [name for name, value in vars(targets).items() if isinstance(value, Target | dict) and name.isupper()]
    assert [name for name in names if not any(f"targets.{name}" in module for module in modules)] == []
