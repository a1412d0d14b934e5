"""A batch that a crash interrupts is run again over the same records, with another number of cores, by another broker,
or both.  The tests cover everything from the driver's plan to the ids that the sink makes, without Spark.

`dropDuplicates("msgId")` must leave every row exactly once.
"""

import json
import os

import pytest

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.planning.partition import QueueRangesPartition
from rocketsim_source.reading.partition_reader import read_partition
from rocketsim_source.schema import source_schema
from rocketsim_source.sink.row_ids import PlaceIds
from rocketsim_source.stream_query import StreamQuery
from tests.source.memory_cluster import MemoryCluster

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(5)]
COUNT = 300
START = StreamOffset(dict.fromkeys(QUEUES, 0))
ALL = sorted(f"{queue}#{offset}" for queue in QUEUES for offset in range(COUNT))


class Run:
    """A driver with `cores` cores, and its executors."""

    def __init__(self, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, cores: int, **given: str) -> None:
        self._cores = cores
        self._monkeypatch = monkeypatch
        self._cluster = cluster
        self.options = source_options(
            {"nameServer": "h:1", "topic": "T", "idlePollMs": "0", "suggestScope": "task+driver"} | given,
            streaming=True,
        )
        self.query = StreamQuery(self.options, cluster)

    def planned_end(self) -> str:
        """Plans the batch, and returns its end as the checkpoint stores it."""
        with self._monkeypatch.context() as patch:
            self._patch(patch)
            return json.dumps(self.query.latest_offset(START, unlimited=False).json())

    def written(self, end: str, *, rows_of_a_task: int | None = None) -> list[tuple[str, str]]:
        """Runs the batch's tasks, and returns (id, body) of each written row.  With `rows_of_a_task`, each task crashes
        after so many rows.
        """
        schema, rows = source_schema(self.options), []
        with self._monkeypatch.context() as patch:
            self._patch(patch)
            for number, partition in enumerate(self.query.partitions(START, StreamOffset.of(json.loads(end)))):
                assert isinstance(partition, QueueRangesPartition)
                ids = PlaceIds("out", "U", "query-7", number)
                of_task: list[tuple[str, str]] = []
                for batch in read_partition(partition, schema, self.options):
                    bodies = [body.decode() for body in batch.column("body").to_pylist()]
                    of_task += zip(ids.of(batch, None).to_pylist(), bodies, strict=True)
                rows += of_task[:rows_of_a_task]
        return rows

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(os, "cpu_count", lambda: self._cores)
        # Low enough for few rows to become several tasks.
        patch.setattr("rocketsim_source.planning.splits.RECORDS_WORTH_A_TASK", 100)
        patch.setattr("rocketsim_source.reading.partition_reader.worker_cluster", lambda options: self._cluster)


def fresh_cluster() -> MemoryCluster:
    cluster = MemoryCluster(0, 1)
    for queue in QUEUES:
        cluster.put(queue, COUNT)
    return cluster


def lagging_cluster(has: int, *queues: MessageQueue) -> MemoryCluster:
    """Returns a cluster that sends all readers to its slave, which has only `has` records of these queues."""
    cluster = fresh_cluster()
    cluster.packed = True
    for broker in cluster.brokers.values():
        broker.suggest = 1
    for queue in queues:
        cluster.brokers[1].end[queue] = has
    return cluster


def without_duplicates(rows: list[tuple[str, str]]) -> list[str]:
    """Returns the bodies of the rows that dropDuplicates("msgId") keeps: the first row of each id."""
    return sorted(dict(reversed(rows)).values())


@pytest.mark.parametrize("cores", [1, 2, 7, 64])
def test_a_batch_repeats_its_ids_with_another_number_of_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    first = Run(fresh_cluster(), monkeypatch, 2, minPartitions="3")
    end = first.planned_end()
    rows = first.written(end, rows_of_a_task=77)
    again = Run(fresh_cluster(), monkeypatch, cores).written(end)
    assert without_duplicates(rows + again) == ALL


@pytest.mark.parametrize("has", [0, 40, 299])
def test_a_batch_repeats_its_ids_when_a_slave_is_behind(monkeypatch: pytest.MonkeyPatch, has: int) -> None:
    """The slave serves the first run or the second."""
    end = Run(fresh_cluster(), monkeypatch, 1).planned_end()
    lagging = lagging_cluster(has, QUEUES[1])
    by_slave = Run(lagging, monkeypatch, 1).written(end)
    by_master = Run(fresh_cluster(), monkeypatch, 1).written(end)
    assert {broker_id for broker_id, broker in lagging.brokers.items() if broker.pulls} == {0, 1}
    for rows in (by_master[:500] + by_slave, by_slave[:500] + by_master):
        assert without_duplicates(rows) == ALL
    assert by_slave == by_master


def test_a_batch_repeats_its_ids_with_other_cores_and_options_and_a_slave_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Run(fresh_cluster(), monkeypatch, 4)
    end = first.planned_end()
    rows = first.written(end, rows_of_a_task=100)
    again = Run(lagging_cluster(123, *QUEUES[::2]), monkeypatch, 1, minPartitions="9").written(end)
    assert without_duplicates(rows + again) == ALL
