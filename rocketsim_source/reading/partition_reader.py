"""One task of a read, in an executor's Python worker.  The task reads ranges of queues and returns Arrow batches.

Spark forks workers and uses each for many tasks, so the cluster (its channels and routes) and the broker hints are made
after the fork, and kept for the later tasks of the process.  A stopped query abandons its generators without closing
them, so no object of a task relies on being closed.
"""

import os
from collections.abc import Iterator, MutableMapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType
from rocketsim_proto.allocation import share_freed_memory

from rocketsim_client.connection import Connection
from rocketsim_client.model import MessageQueue
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.planning.partition import QueueRangesPartition
from rocketsim_source.python_worker import prepare_for_next_task, report_missing_codec
from rocketsim_source.reading.decode import Decoder
from rocketsim_source.reading.range_fetch import RangeFetch
from rocketsim_source.source_cluster import ClientCluster, SourceCluster

MAX_HINTS = 100_000

_clusters: dict[tuple[int, Connection], SourceCluster] = {}
# The key includes the group, because brokers make suggestions by group.
hints_of_process: dict[tuple[int, Connection, str], dict[MessageQueue, int]] = {}


def worker_cluster(options: SourceOptions) -> SourceCluster:
    """Returns this process's connection to the cluster that the options name."""
    key = os.getpid(), options.connection
    if key not in _clusters:
        share_freed_memory()  # has to be called before gRPC starts threads
        _clusters[key] = ClientCluster.open(options.connection)
    return _clusters[key]


def worker_hints(options: SourceOptions, planned: dict[MessageQueue, int]) -> MutableMapping[MessageQueue, int]:
    """Returns the broker to ask first for each queue: the driver's hints, overridden by those of this process.

    The option `suggestScope` says whether the driver's or the process's hints count.
    """
    if "worker" not in options.suggest_scope:
        return dict(planned)
    known = hints_of_process.setdefault((os.getpid(), options.connection, options.pull_group), {})
    if len(known) > MAX_HINTS:
        known.clear()
    known.update(planned)
    return known


def read_partition(
    partition: QueueRangesPartition, schema: StructType, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Reads a task's ranges, and yields their rows as Arrow batches."""
    report_missing_codec()
    options = replace(options, protocol=partition.protocol)
    decoder = Decoder(schema, options)
    hints = worker_hints(options, partition.hints)
    fetch = RangeFetch(worker_cluster(options), partition.ranges, hints, options, read_in=partition.read_in)
    for batch in fetch.decoded(decoder.decode):
        rows = options.pull_batch_size or batch.num_rows
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
    prepare_for_next_task()
