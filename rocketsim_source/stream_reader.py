"""The interface that Spark calls for a stream, with method names in camel case.  Spark calls `read` in the executors,
and the methods about offsets in one process on the driver.

Spark makes the reader in two processes, and pickles the reader of the second process.  The reader's constructor opens
no channel and starts no thread, because the first call that needs them makes them (`stream_query.py`).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rocketsim_source.commits.termination import flush_on_sigterm
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.planning.partition import QueueRangesPartition
from rocketsim_source.source_cluster import ClientCluster
from rocketsim_source.stream_query import StreamQuery

if TYPE_CHECKING:
    import pyarrow as pa


# The limit of a query without maxOffsetsPerTrigger.  Every query has a limit, so that Spark passes ReadAllAvailable for
# Trigger.Once only.
NO_LIMIT = 2**62


class RocketSimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.schema = schema
        self.options = options
        self._query: StreamQuery | None = None
        # The last start as Spark gave it, and as it was read: an idle query gets the same start with each trigger.
        self._start: tuple[dict[str, Any], StreamOffset] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "options": self.options, "_query": None, "_start": None}

    @property
    def query(self) -> StreamQuery:
        if self._query is None:
            self._query = StreamQuery(self.options, ClientCluster.open(self.options.connection))
            flush_on_sigterm(self._query.close)
        return self._query

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_offsets_per_trigger or NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        # The end of the run is looked up later, by latestOffset, when Spark has replayed a batch that was not finished.
        self.query.available_now = True

    def initialOffset(self) -> dict[str, Any]:
        return self.query.initial_offset().json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._start is None or self._start[0] != start:
            self._start = start, StreamOffset.of(start)
        offset = self._start[1]
        end = self.query.latest_offset(offset, unlimited=isinstance(limit, ReadAllAvailable))
        return start if end is offset else end.json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.query.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self.query.partitions(StreamOffset.of(start), StreamOffset.of(end))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        from rocketsim_source.reading.partition_reader import read_partition

        assert isinstance(partition, QueueRangesPartition)
        return read_partition(partition, self.schema, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        self.query.batch_committed(StreamOffset.of(end))

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
