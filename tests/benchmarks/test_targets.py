"""The table of targets matches the issue, and every benchmark in it exists."""

from pathlib import Path

import pytest

import benchmarks
from benchmarks import targets
from benchmarks.registry import BENCHMARKS, GROUPS
from benchmarks.targets import Sense, Target


def every_target() -> list[Target]:
    found = []
    for value in vars(targets).values():
        if isinstance(value, Target):
            found.append(value)
        elif isinstance(value, dict):
            found += [one for one in value.values() if isinstance(one, Target)]
    return found


def test_p1_to_p18_all_have_a_target_and_a_benchmark():
    numbers = [f"P{number}" for number in range(1, 19)]
    assert sorted({target.number for target in every_target()}, key=lambda name: int(name[1:])) == numbers
    assert list(dict.fromkeys(one.targets for one in BENCHMARKS)) == numbers


def test_the_benchmarks_have_their_promised_names():
    words = "spark-read spark-stream spark-body spark-sink send-async send-batch send sync-ratio flush-ratio"
    words += " pull catchup recovery latency memory growth cold-backlog consumption v2 idle-streams"
    assert [one.name for one in BENCHMARKS] == words.split()
    assert all(one.needs and one.what for one in BENCHMARKS)


def test_what_starts_spark_and_what_does_not_is_all_there_is():
    assert {*GROUPS["with-spark"], *GROUPS["without-spark"]} == {*BENCHMARKS} == {*GROUPS["all"]}
    assert len(GROUPS["with-spark"]) + len(GROUPS["without-spark"]) == len(BENCHMARKS)
    for one in BENCHMARKS:
        module = Path(benchmarks.__file__).parent / f"{one.run.__code__.co_names[1]}.py"
        assert ("spark.session(" in module.read_text()) is one.spark, one.name


@pytest.mark.parametrize(
    ("target", "sense", "limit"),
    [
        (targets.READ_KAFKA[100], Sense.AT_LEAST, 2.5),
        (targets.READ_TUNED[1024], Sense.AT_LEAST, 1.55),
        (targets.READ_ALL_KAFKA, Sense.AT_LEAST, 1.3),
        (targets.READ_ALL_CEILING, Sense.AT_LEAST, 0.55),
        (targets.STREAM_KAFKA[1024], Sense.AT_LEAST, 1.9),
        (targets.STREAM_TUNED, Sense.AT_LEAST, 1.5),
        (targets.FIRST_ROWS, Sense.AT_MOST, 1.1),
        (targets.BODY_KAFKA[100], Sense.AT_LEAST, 2.9),
        (targets.SINK_PAIR[1024], Sense.AT_LEAST, 0.85),
        (targets.ASYNC_PYTHON, Sense.AT_LEAST, 30.0),
        (targets.BATCH_COLUMNS, Sense.AT_LEAST, 1.5),
        (targets.SEND_RATE, Sense.AT_LEAST, 0.5),
        (targets.PULL_KAFKA[1024], Sense.AT_LEAST, 1.6),
        (targets.LAG, Sense.AT_MOST, 0.35),
        (targets.SEND_P50, Sense.AT_MOST, 2.0),
        (targets.RESTART, Sense.AT_MOST, 1.0),
        (targets.LATENCY, Sense.AT_MOST, 1.0),
        (targets.GROWTH_LOG, Sense.AT_MOST, 1.3),
        (targets.COLD_BACKLOG, Sense.AT_MOST, 2.0),
        (targets.PENDING_RATE, Sense.AT_LEAST, 0.9),
        (targets.PENDING_START, Sense.AT_MOST, 2.0),
        (targets.V2_SEND, Sense.AT_LEAST, 0.6),
        (targets.V2_RECEIVE, Sense.AT_LEAST, 1.0),
        (targets.V2_P99, Sense.AT_MOST, 2.0),
        (targets.V2_JAVA, Sense.AT_LEAST, 0.2),
        (targets.V2_ECHO, Sense.AT_LEAST, 0.6),
        (targets.V2_MEMORY, Sense.AT_MOST, 0.4),
    ],
)
def test_a_target_points_the_right_way(target, sense, limit):
    assert (target.sense, target.limit, target.of_value) == (sense, limit, False)
