"""Decodes records into Arrow batches for Spark.  The decoder is the client's, with the columns of Kafka's source in
addition.
"""

from collections.abc import Generator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rocketsim_proto.records.arrays import numbers
from rocketsim_proto.records.record import PROPERTY_KEYS, RecordError

from rocketsim_client.arrow import COLUMNS, RecordDecoder, Rows, bodies, repeated, timestamps
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.partition_numbers import partition_number
from rocketsim_source.reading.fetched import Fetched, Undecoded


def headers(rows: Rows) -> pa.Array:
    maps = rows.records.properties()
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items.cast(pa.binary())], fields=fields)
    return pa.ListArray.from_arrays(maps.offsets, pairs)


SPARK_COLUMNS = COLUMNS | {
    "key": lambda rows: rows.records.property(PROPERTY_KEYS).cast(pa.binary()),
    "value": bodies,
    "partition": lambda rows: repeated([(partition_number(queue), size) for queue, size in rows.queues], pa.int32()),
    "offset": lambda rows: numbers(rows.records.queue_offset),
    "timestamp": lambda rows: timestamps(rows.records.born_timestamp),
    "timestamptype": lambda rows: repeated([(0, len(rows.records))], pa.int32()),  # CreateTime
    "headers": headers,
}


class Decoder(RecordDecoder):
    """Decodes the frames of one task.  All batches get the same Arrow schema object, because Spark compares schemas
    exactly.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(
            to_arrow_schema(schema, timezone="UTC"),
            SPARK_COLUMNS,
            most_bytes=options.pull_max_bytes,
            expression=options.expression,
            check_crcs=options.check_crcs,
        )

    def decode(self, fetched: Fetched) -> Generator[pa.RecordBatch, None, Undecoded | None]:
        """Yields the frame's batches.  The generator's return value says which records it could not read."""
        given = 0
        try:
            for batch in self.batches(fetched.records, fetched.extents, fetched.broker_id):
                yield batch
                given += batch.num_rows
        except RecordError as error:
            return Undecoded(self.done(given), self.unreadable(fetched.records), error)
        return None
