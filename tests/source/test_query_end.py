"""Spark ends the reader's process of a bounded query at once, but the group's offsets must still reach the end of every
queue.
"""

from pathlib import Path

import pytest
from pyspark import cloudpickle

from testbed.polling import wait_until
from tests.source import late_commits
from tests.source.bench import TIMEOUT_S, Bench, run_program
from tests.source.late_commits import BUG, BUGS, HELD, LateCommits, is_held

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[2]

STOPPED_AT_ONCE = """
import sys
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.source import late_commits

name_server, topic, group, held, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
cloudpickle.register_pickle_by_value(late_commits)
spark.dataSource.register(late_commits.LateCommits)
stream = spark.readStream.format("rocketsim-late").options(
    nameServer=name_server, topic=topic, group=group, startingOffsets="earliest", maxOffsetsPerTrigger=8,
    commitTimeoutMs="30s", **{late_commits.HELD: held}
).load()
query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(600)
spark.stop()
"""


def lag_at_the_end(pair: Bench, checkpoint: str, held: Path, bug: str | None = None) -> int:
    """Runs a query of 20 records, and returns the group's lag when the reader's process has ended."""
    cloudpickle.register_pickle_by_value(late_commits)
    pair.spark.dataSource.register(LateCommits)
    topic, group = pair.topic(20), pair.name("group")
    planted = {BUG: bug} if bug else {}
    # The query has one batch and one commit, which is under way when the process is told to end.
    options = {"group": group, "startingOffsets": "earliest", "commitInitialOffset": False, "commitTimeoutMs": "30s"}
    reader = pair.spark.readStream.format(LateCommits.name())
    stream = reader.options(**pair.options(topic, **options), **{HELD: str(held)}, **planted).load()
    pair.run(stream, checkpoint)
    assert len(pair.rows(checkpoint)) == 20
    return lag_when_gone(pair, topic, group, held)


def lag_when_gone(pair: Bench, topic: str, group: str, held: Path) -> int:
    wait_until(lambda: not is_held(str(held)), "the end of the reader's process", TIMEOUT_S)
    committed = pair.committed(group, topic)
    return sum(end - max(committed[queue], 0) for queue, end in pair.end(topic).items())


def test_available_now_under_sigterm_ends_at_lag_zero(pair: Bench, checkpoint: str, tmp_path: Path) -> None:
    assert lag_at_the_end(pair, checkpoint, tmp_path / "held") == 0


@pytest.mark.parametrize("bug", BUGS)
def test_a_query_that_does_not_wait_for_its_last_commit_ends_with_lag(
    pair: Bench, checkpoint: str, tmp_path: Path, bug: str
) -> None:
    assert lag_at_the_end(pair, checkpoint, tmp_path / "held", bug) > 0


def test_spark_stopped_right_after_available_now_ends_at_lag_zero(pair: Bench, checkpoint: str, tmp_path: Path) -> None:
    """The program ends with its query, while an earlier commit is under way and the last one has not begun."""
    topic, group, held = pair.topic(20), pair.name("group"), tmp_path / "held"
    done = run_program(STOPPED_AT_ONCE, pair.name_server.address, topic, group, str(held), checkpoint, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-6000:]
    assert lag_when_gone(pair, topic, group, held) == 0
