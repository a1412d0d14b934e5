"""RocketSim as a Spark data source: its name, and the classes that read and write.

Spark imports this module whenever it looks for data sources.  The module can be imported fast, because it imports only
Spark's interface at its top, and everything else when it is used.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class RocketSimDataSource(DataSource):
    """The data source `format("rocketsim")`, which reads topics as streams or batches, and writes to them.
    docs/spark.md has all options and columns."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format`."""
        return "rocketsim"

    def schema(self) -> "StructType":
        """Returns the columns that the options select."""
        from rocketsim_source.options.source_options import source_options
        from rocketsim_source.options.view_options import MESSAGES, view_of, view_options
        from rocketsim_source.schema import source_schema

        if view_of(self._given()) != MESSAGES:
            from rocketsim_source.views.columns import view_schema

            return view_schema(view_options(self._given()).view)
        # Spark does not say here if the schema is for a stream or a batch.  Options that are wrong only for a stream,
        # or only for a batch, are refused later, by the reader.
        return source_schema(source_options(self._given(), streaming=True))

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Returns the reader for `spark.read`."""
        from rocketsim_source.batch_reader import FilteringReader, RocketSimReader
        from rocketsim_source.options.source_options import source_options
        from rocketsim_source.options.view_options import MESSAGES, view_of, view_options
        from rocketsim_source.schema import check_schema

        if view_of(self._given()) != MESSAGES:
            from rocketsim_source.views.view_reader import RocketSimViewReader

            return RocketSimViewReader(schema, view_options(self._given()))
        options = source_options(self._given(), streaming=False)
        check_schema(schema, options)
        return (FilteringReader if options.filter_pushdown else RocketSimReader)(schema, options)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Returns the reader for `spark.readStream`."""
        from rocketsim_source.options.source_options import refuse_pushdown, source_options
        from rocketsim_source.options.view_options import refuse_view
        from rocketsim_source.schema import check_schema
        from rocketsim_source.stream_reader import RocketSimStreamReader

        refuse_view(self._given(), "read as a stream")
        options = source_options(self._given(), streaming=True)
        refuse_pushdown(options)
        check_schema(schema, options)
        return RocketSimStreamReader(schema, options)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Returns the writer for `df.write`."""
        from rocketsim_source.options.view_options import refuse_view
        from rocketsim_source.sink.writer import RocketSimWriter, sink_plan

        refuse_view(self._given(), "written to")
        return RocketSimWriter(sink_plan(schema, self._given(), overwrite))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        """Returns the writer for `df.writeStream`."""
        from rocketsim_source.options.view_options import refuse_view
        from rocketsim_source.sink.writer import RocketSimStreamWriter, sink_plan

        refuse_view(self._given(), "written to")
        return RocketSimStreamWriter(sink_plan(schema, self._given(), overwrite))

    def _given(self) -> Mapping[str, str]:
        return dict(self.options)
