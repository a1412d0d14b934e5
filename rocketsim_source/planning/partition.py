"""The work of one Spark task.  The work is pickled for an executor as numbers and text only."""

import os
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from rocketsim_client.model import LogEpoch, MessageQueue, OffsetRange
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.partition_numbers import refuse_collisions
from rocketsim_source.planning.splits import Parallelism
from rocketsim_source.source_cluster import ReadIn, SourceCluster


class QueueRangesPartition(InputPartition):
    """The ranges that a task reads, in order.

    `hints` has the broker id to ask first for a queue, as found by a probe.  `read_in` has the leader epoch in which
    each queue was planned.  `protocol` is the protocol that the servers speak, so that no task has to find it out.
    """

    def __init__(
        self,
        ranges: Sequence[OffsetRange],
        hints: dict[MessageQueue, int] | None = None,
        read_in: dict[MessageQueue, LogEpoch] | None = None,
        protocol: str = "auto",
    ) -> None:
        super().__init__(None)
        self.read_in = read_in or {}
        self.ranges = list(ranges)
        self.hints = hints or {}
        self.protocol = protocol

    def __repr__(self) -> str:
        return f"QueueRangesPartition({', '.join(f'{r.queue}[{r.from_offset},{r.until_offset})' for r in self.ranges)})"


def parallelism_now(options: SourceOptions, batch_bytes: int = 0) -> Parallelism:
    """Returns how this driver, with its present cores and options, cuts a batch of `batch_bytes` into partitions."""
    cores = options.parallelism or os.cpu_count() or 1
    return Parallelism(cores, options.min_partitions, options.max_records_per_partition, batch_bytes)


def plan_partitions(
    ranges: Sequence[OffsetRange],
    options: SourceOptions,
    cluster: SourceCluster,
    parallelism: Parallelism,
    read_in: ReadIn | None = None,
) -> list[InputPartition]:
    """Cuts the ranges into partitions, and adds hints, epochs and the protocol to each."""
    epochs = read_in or {}
    if options.schema_profile == "kafka":
        refuse_collisions(queue_range.queue.broker_name for queue_range in ranges)
    planned = parallelism.partitions(ranges)
    hints = (
        probe(planned, options, cluster)
        if "driver" in options.suggest_scope and options.read_from == "suggested"
        else {}
    )
    protocol = cluster.protocol
    return [
        QueueRangesPartition(
            pieces,
            {r.queue: hints[r.queue] for r in pieces if r.queue in hints},
            {r.queue: epochs[r.queue] for r in pieces if r.queue in epochs},
            protocol,
        )
        for pieces in planned
    ]


def probe(
    planned: Sequence[Sequence[OffsetRange]], options: SourceOptions, cluster: SourceCluster
) -> dict[MessageQueue, int]:
    """Asks the master of each broker name once which broker it suggests for the queue that is furthest behind."""
    furthest: dict[str, OffsetRange] = {}
    for queue_range in (piece for pieces in planned for piece in pieces):
        name = queue_range.queue.broker_name
        if name not in furthest or queue_range.from_offset < furthest[name].from_offset:
            furthest[name] = queue_range
    suggested = {
        name: cluster.probe(queue_range.queue, queue_range.from_offset, options.pull_group)
        for name, queue_range in furthest.items()
    }
    return {piece.queue: suggested[piece.queue.broker_name] for pieces in planned for piece in pieces}
