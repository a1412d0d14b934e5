"""The reader that Spark uses if the option `view` is set.  One task asks the brokers and returns the rows."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rocketsim_source.options.view_options import ViewOptions
from rocketsim_source.views.columns import check_view_schema

if TYPE_CHECKING:
    import pyarrow as pa


class RocketSimViewReader(DataSourceReader):
    """Asks the brokers when its task runs, so that a query which runs again gets newer rows."""

    def __init__(self, schema: StructType, options: ViewOptions) -> None:
        self.schema = schema
        self.names = check_view_schema(options.view, schema)
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from rocketsim_source.views.rows import rows_of

        rows = rows_of(self.options)
        columns = to_arrow_schema(self.schema, timezone="UTC")
        arrays = [
            pa.array([row[name] for row in rows], column.type) for name, column in zip(self.names, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)
