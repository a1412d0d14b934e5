"""Records -> Arrow columns, only those that the query's schema names, without a Python object per row.  Pure, no I/O.

A frame becomes one RecordBatch, or several where its bodies are compressed and would make a large one.  What is the
same for a run of rows (topic, broker name) is repeated, not read; properties are only taken apart if a projected column
is made from them.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, RecordError

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.partition_numbers import partition_number


class Run(NamedTuple):
    """The next `size` records of a frame belong to this queue."""

    queue: MessageQueue
    size: int


class Rows(NamedTuple):
    """What columns are made from."""

    records: Records
    runs: Sequence[Run]
    broker_id: int
    bodies: pa.Array | None  # unpacked; None: no column is made from them


def repeated(runs: Sequence[tuple[Any, int]], kind: pa.DataType) -> pa.Array:
    """Each value as often as its run is long."""
    values = [value for value, _ in runs]
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], kind), sum(count for _, count in runs))
    rows = np.repeat(np.arange(len(runs)), [count for _, count in runs])
    return pa.array(values, kind).take(pa.array(rows))


def timestamps(ms: np.ndarray) -> pa.Array:
    return pa.array(ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def text_of(binary: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 gets the replacement character."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in binary.to_pylist()], pa.string())


def properties_json(rows: Rows) -> pa.Array:
    maps = rows.records.properties().to_pylist()
    return pa.array([json.dumps(dict(pairs), ensure_ascii=False) for pairs in maps], pa.string())


def headers(rows: Rows) -> pa.Array:
    maps = rows.records.properties()
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items.cast(pa.binary())], fields=fields)
    return pa.ListArray.from_arrays(maps.offsets, pairs)


def partitions(rows: Rows) -> pa.Array:
    return repeated([(partition_number(queue), size) for queue, size in rows.runs], pa.int32())


Column = Callable[[Rows], pa.Array]
BODIES = ("body", "value")

COLUMNS: dict[str, Column] = {
    "topic": lambda rows: repeated([(queue.topic, size) for queue, size in rows.runs], pa.string()),
    "brokername": lambda rows: repeated([(queue.broker_name, size) for queue, size in rows.runs], pa.string()),
    "queueid": lambda rows: repeated([(queue.queue_id, size) for queue, size in rows.runs], pa.int32()),
    "queueoffset": lambda rows: pa.array(rows.records.queue_offset),
    "msgid": lambda rows: rows.records.message_ids(),
    "keys": lambda rows: rows.records.property(PROPERTY_KEYS),
    "tags": lambda rows: rows.records.property(PROPERTY_TAGS),
    "body": lambda rows: rows.bodies,
    "flag": lambda rows: pa.array(rows.records.flag),
    "borntimestamp": lambda rows: timestamps(rows.records.born_timestamp),
    "storetimestamp": lambda rows: timestamps(rows.records.store_timestamp),
    "reconsumetimes": lambda rows: pa.array(rows.records.reconsume_times),
    "messagegroup": lambda rows: rows.records.property(PROPERTY_SHARDING_KEY),
    "properties": lambda rows: rows.records.properties(),
    "bornhost": lambda rows: rows.records.born_hosts(),
    "storehost": lambda rows: rows.records.store_hosts(),
    "servedbybrokerid": lambda rows: repeated([(rows.broker_id, len(rows.records))], pa.int32()),
    # Kafka's names
    "key": lambda rows: rows.records.property(PROPERTY_KEYS).cast(pa.binary()),
    "value": lambda rows: rows.bodies,
    "partition": partitions,
    "offset": lambda rows: pa.array(rows.records.queue_offset),
    "timestamp": lambda rows: timestamps(rows.records.born_timestamp),
    "timestamptype": lambda rows: repeated([(0, len(rows.records))], pa.int32()),  # CreateTime
    "headers": headers,
}


class Decoder:
    """Frames of one task.  The Arrow schema is made once, because Spark compares it exactly."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = [column(field) for field in self.arrow_schema]
        self._has_bodies = any(field.name.lower() in BODIES for field in self.arrow_schema)
        self._most_bytes = options.pull_max_bytes
        self._tags = pa.array(sorted(set(options.tags)), pa.string()) if options.filters else None
        self._check_crcs = options.check_crcs
        self._kept: np.ndarray | None = None  # of the last frame: the rows that its filter let through; None: all
        self._frame_rows = 0

    def batches(self, records: Records, runs: Sequence[Run], broker_id: int) -> Iterator[pa.RecordBatch]:
        """A frame's rows: one batch, or several where bodies are larger than the frame once they are unpacked.  A batch
        has bodies of at most `pullMaxBytes`, or a single row.  RecordError if the records are not what they claim to
        be.
        """
        self._kept, self._frame_rows = None, len(records)
        if self._check_crcs:
            records.check()
        runs = [run for run in runs if run.size]
        if self._tags is not None:
            records, runs = self._filtered(records, runs, self._tags)
        if not len(records):
            return
        if not self._has_bodies:
            yield self._batch(Rows(records, runs, broker_id, None))
            return
        for piece, bodies in records.bodies_uncompressed(self._most_bytes):
            whole = len(bodies) == len(records)
            some, of_some = (records, runs) if whole else (records[piece], runs_of(piece, runs))
            yield self._batch(Rows(some, of_some, broker_id, bodies))

    def done(self, rows: int) -> int:
        """How many of the last frame's records are behind its first `rows` rows: some may be filtered out."""
        if self._kept is None:
            return rows
        return int(self._kept[rows]) if rows < len(self._kept) else self._frame_rows

    def unreadable(self, records: Records) -> list[int]:
        """The records that `batches` can make no rows of.  One by one: for a frame that is known to have some."""
        return [row for row in range(len(records)) if not self._is_readable(records[row : row + 1])]

    def _is_readable(self, one: Records) -> bool:
        try:
            one.check(crc=self._check_crcs)
            if self._has_bodies:
                deque(one.bodies_uncompressed(self._most_bytes), maxlen=0)
        except RecordError:
            return False
        return True

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([make(rows) for make in self._columns], schema=self.arrow_schema)

    def _filtered(self, records: Records, runs: Sequence[Run], tags: pa.Array) -> tuple[Records, list[Run]]:
        """The second look, by string: the broker compared hash codes only, and different tags may share one."""
        keep = pc.is_in(records.property(PROPERTY_TAGS), value_set=tags).to_numpy(zero_copy_only=False)
        if keep.all():
            return records, list(runs)
        self._kept = np.flatnonzero(keep)
        edges = np.cumsum([0, *(run.size for run in runs)])
        counts = [int(keep[start:end].sum()) for start, end in pairwise(edges)]
        return records[keep], [Run(run.queue, count) for run, count in zip(runs, counts, strict=True) if count]


def runs_of(piece: slice, runs: Sequence[Run]) -> list[Run]:
    """The parts of the runs that are these rows."""
    found, row = [], 0
    for queue, size in runs:
        inside = min(row + size, piece.stop) - max(row, piece.start)
        if inside > 0:
            found.append(Run(queue, inside))
        row += size
    return found


def column(field: pa.Field) -> Column:
    """How to make this column, in the form in which the schema has it."""
    name = field.name.lower()
    make = COLUMNS[name]
    if name == "properties" and pa.types.is_string(field.type):
        return properties_json
    if name in (*BODIES, "key") and pa.types.is_string(field.type):
        return lambda rows: text_of(make(rows))
    return make
