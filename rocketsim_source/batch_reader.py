"""Batch reads.  A batch has the records between the starting and ending offsets at the time when Spark plans the read,
and none that arrive later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from rocketsim_client.model import OffsetRange
from rocketsim_source.commits.committer import now_ms
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.planning.partition import QueueRangesPartition, parallelism_now, plan_partitions
from rocketsim_source.planning.pushed_filters import NO_FILTERS, PushedFilters
from rocketsim_source.planning.queue_watch import QueueWatch, answered
from rocketsim_source.planning.splits import batch_bytes
from rocketsim_source.planning.starts import (
    KnownOffsets,
    end_offsets,
    end_within,
    refuse_starts_behind_ends,
    refuse_times_behind_ends,
    start_offsets,
    wanted_ends,
    wanted_starts,
)
from rocketsim_source.source_cluster import ClientCluster, Offsets, SourceCluster

if TYPE_CHECKING:
    import pyarrow as pa


class RocketSimReader(DataSourceReader):
    """Reads a batch, and commits no offsets, because Spark may run a batch again, or only a part of it."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.schema = schema
        self.options = options
        self.pushed = NO_FILTERS

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        cluster = ClientCluster.open(options.connection)
        try:
            planned, size = ranges(options, cluster, self.pushed)
            return plan_partitions(planned, options, cluster, parallelism_now(options, size))
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        from rocketsim_source.reading.partition_reader import read_partition

        if not isinstance(partition, QueueRangesPartition):
            return iter(())  # Spark passes a partition of its own if there are no partitions to read
        return read_partition(partition, self.schema, self.options)


class FilteringReader(RocketSimReader):
    """Reads those records of a batch that can pass the query's filters.

    The option `filterPushdown` selects this reader.  The reader is a class of its own, because Spark refuses every
    reader with `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is true.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Notes the filters, and returns all of them, because Spark has to evaluate them again."""
        self.pushed = PushedFilters.of(filters)
        asked = self.pushed.expression(self.options.sub_expression)
        if asked != self.options.sub_expression:
            self.options = replace(self.options, sub_expression=asked, filter_type="TAG")
        return filters


def ranges(
    options: SourceOptions, cluster: SourceCluster, pushed: PushedFilters = NO_FILTERS
) -> tuple[list[OffsetRange], int]:
    """Returns the ranges that the options and the filters name, and an estimate of their size in bytes.  The
    estimate is 0 if no broker reports sizes."""
    watch = QueueWatch(cluster, options, now_ms)
    queues = watch.discover(must_exist=True)
    if not queues:
        raise OptionError(f"no topic matches subscribePattern={options.subscribe_pattern}")
    states = watch.states(sorted(queues), must_answer=True)
    starts_wanted = wanted_starts(options, states.bounds, streaming=False)
    ends_wanted = wanted_ends(options, states.bounds)
    committed: Offsets = {}
    if asked := starts_wanted.needs_committed():
        assert options.group is not None
        committed = answered(cluster.committed(options.group, asked), "committed offset")
    first = answered(cluster.search(starts_wanted.timestamps), "offset at startingTimestamp")
    last = answered(cluster.search(ends_wanted.timestamps), "offset at endingTimestamp")

    refuse_times_behind_ends(starts_wanted, ends_wanted)
    starts = start_offsets(starts_wanted, KnownOffsets(states.bounds, committed, first), options)
    ends = end_offsets(ends_wanted, KnownOffsets(states.bounds, {}, last))
    ends = {
        queue: end_within(queue, end, states.bounds[queue], options.data_loss) for queue, end in sorted(ends.items())
    }
    refuse_starts_behind_ends(starts, ends, starts_wanted, ends_wanted)
    planned = []
    for queue, start in sorted(starts.items()):
        end = ends.get(queue, states.bounds[queue].max_offset)
        planned.append(OffsetRange(queue, start, max(start, end)))
    planned = within_store_times(pushed.narrowed(planned), cluster, pushed)
    return planned, batch_bytes(planned, states.bounds)


def within_store_times(planned: list[OffsetRange], cluster: SourceCluster, pushed: PushedFilters) -> list[OffsetRange]:
    """Cuts the ranges by the filters' store times.

    Only RocketSim's brokers promise that the store times in a queue never decrease.  If the clock of a RocketMQ broker
    was set back, a search by time could leave out records that pass the filters, so ranges of RocketMQ's brokers are
    not cut.
    """
    if cluster.protocol == "remoting":
        return planned
    first, last = pushed.searches(planned)
    return pushed.between(
        planned,
        answered(cluster.search(first), "offset at the store time of a filter") if first else {},
        answered(cluster.search(last), "offset at the store time of a filter") if last else {},
    )
