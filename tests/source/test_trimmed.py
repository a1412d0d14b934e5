"""Retention deletes records under a running query."""

from collections.abc import Iterator
from typing import Any

import pytest

from testbed.polling import wait_until
from testbed.processes import Processes
from tests.source.bench import TIMEOUT_S, Bench, failure_of

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
COUNT = 100  # the messages fill seven log files, of which retention deletes all but the newest in one round


@pytest.fixture
def alone(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yields a master with small log files and without a slave, because a slave would still have the records that the
    master deletes.
    """
    with Processes(tmp_path_factory.mktemp("alone")) as processes:
        name_server = processes.start_namesrv()
        master = processes.start_broker("broker-a", 0, name_server, mappedFileSizeCommitLog=64 << 10)
        with Bench(spark, processes, name_server, master, master) as bench:
            yield bench


def trim(bench: Bench, topic: str) -> int:
    """Lets the master's retention delete all that it may.  Returns the smallest offset that is left in queue 0."""
    bench.master.stop()
    bench.master.start(fileReservedTime=0, deleteWhen=EVERY_HOUR)
    wait_until(bench.is_writable, "the master to take writes", TIMEOUT_S)

    def smallest() -> int:
        return min(found.min_offset for found in bench.cluster.bounds(topic, fresh=True).values() if found.max_offset)

    return wait_until(smallest, "files to be deleted", TIMEOUT_S)


def test_records_trimmed_under_a_running_query_end_it_or_are_skipped_as_asked(alone: Bench, checkpoint: str) -> None:
    topic = alone.name("topic")
    bodies = [f"{number:04}" + "x" * 2_000 for number in range(COUNT)]
    alone.send(topic, bodies, queue_id=0)
    wait_until(lambda: alone.is_known(topic), "the topic's route", TIMEOUT_S)
    # A task that was planned just before the broker stops pulls again until the broker is back.
    first = alone.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=1, pullRetries=1000)
    query = alone.start(first, checkpoint, processingTime="1 second")
    wait_until(lambda: alone.rows(checkpoint), "the first rows", TIMEOUT_S)
    smallest = trim(alone, topic)
    said = failure_of(query)
    assert "failOnDataLoss" in said
    assert topic in said

    read = len(alone.rows(checkpoint))
    # A batch of one record that was planned before the records were deleted reports the loss of its own record only.
    assert any(f"lost its records {read} to {last} before they were read" in said for last in (smallest - 1, read))
    assert alone.bodies(checkpoint) == bodies[:read]
    alone.run(alone.stream(topic, startingOffsets="earliest", failOnDataLoss=False), checkpoint)
    assert alone.bodies(checkpoint) == bodies[:read] + bodies[smallest:]
