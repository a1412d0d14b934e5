"""A Spark source that returns the same Arrow batch again and again, which shows how fast any Python source in Spark can
be.

RocketSim's source has made this batch, so that the schema and the sizes of the columns are real.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rocketsim_source.python_worker import prepare_for_next_task

if TYPE_CHECKING:
    from pyspark.sql.session import SparkSession

NAME = "rocketsim_null"
_batches: dict[str, pa.RecordBatch] = {}


class NullSource(DataSource):
    """The source has the options `path` (a file that `save` has written), `rows`, `partitions`, and
    `maxOffsetsPerTrigger` for streams.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(Path(self.options["path"] + ".json").read_text()))

    def reader(self, schema: StructType) -> DataSourceReader:
        return NullReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NullStreamReader(self.options)


class NullReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._path = options["path"]
        self._rows = int(options["rows"])
        self._partitions = int(options["partitions"])

    def partitions(self) -> Sequence[InputPartition]:
        return shares(self._rows, self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeated(self._path, partition.value)


class NullStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Any) -> None:
        self._path = options["path"]
        self._rows = int(options["rows"])
        self._partitions = int(options["partitions"])
        self._rows_per_trigger = int(options.get("maxOffsetsPerTrigger", self._rows))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": min(self._rows, start["rows"] + self._rows_per_trigger)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return shares(end["rows"] - start["rows"], self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeated(self._path, partition.value)


def shares(rows: int, partitions: int) -> Sequence[InputPartition]:
    share, rest = divmod(rows, partitions)
    return [InputPartition(share + (index < rest)) for index in range(partitions) if share + (index < rest)]


def repeated(path: str, rows: int) -> Iterator[pa.RecordBatch]:
    if path not in _batches:
        with pa.ipc.open_file(path) as file:
            _batches[path] = file.get_batch(0)
    batch = _batches[path]
    for start in range(0, rows, batch.num_rows):
        yield batch.slice(0, min(batch.num_rows, rows - start))
    prepare_for_next_task()  # any Python source can do so, and this source shows how fast one can be


def save(path: Path, batch: pa.RecordBatch, schema: StructType) -> None:
    with pa.ipc.new_file(str(path), batch.schema) as file:
        file.write_batch(batch)
    Path(f"{path}.json").write_text(schema.json())


def register(session: "SparkSession") -> None:
    session.dataSource.register(NullSource)
