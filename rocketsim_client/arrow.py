"""Turns records into the Arrow columns that a schema names, without making a Python object for a row.  Pure.

A frame becomes one RecordBatch, or several if its unpacked bodies would make a large one.  A value that is the same for
consecutive rows, such as the topic or broker name, is repeated without reading it from each record.  Properties are
parsed only if the schema has a column for them.  `rocketsim_source` uses the same decoder, with more columns, for
Spark's batches.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rocketsim_proto.records.arrays import numbers, repeated_text, texts
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, RecordError

from rocketsim_client.errors import InvalidParameter
from rocketsim_client.expression import Expression
from rocketsim_client.model import MessageQueue

TIME = pa.timestamp("us", tz="UTC")
MOST_BYTES = 64 << 20  # the most bytes of unpacked bodies in one batch


class OfQueue(NamedTuple):
    """The next `size` records of a frame belong to `queue`."""

    queue: MessageQueue
    size: int


class Rows(NamedTuple):
    """The data from which columns are made."""

    records: Records
    queues: Sequence[OfQueue]
    broker_id: int
    bodies: pa.Array | None  # unpacked; None if no column needs them


def repeated(counted: Sequence[tuple[Any, int]], kind: pa.DataType) -> pa.Array:
    """Repeats each value as often as its count says."""
    values, counts = [value for value, _ in counted], [count for _, count in counted]
    if kind != pa.string():
        return numbers(np.repeat(np.array(values, kind.to_pandas_dtype()), counts))
    if len(set(values)) == 1:
        return repeated_text(values[0], sum(counts))
    return texts(values).take(numbers(np.repeat(np.arange(len(counted)), counts)))


def timestamps(ms: np.ndarray) -> pa.Array:
    return numbers(ms * 1000).view(TIME)


def text_of(binary: pa.Array) -> pa.Array:
    """Decodes bytes as UTF-8.  Bytes that are not UTF-8 become the replacement character."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return texts([None if v is None else v.decode("utf-8", "replace") for v in binary.to_pylist()])


def json_of(maps: pa.Array) -> pa.Array:
    return texts([json.dumps(dict(pairs), ensure_ascii=False) for pairs in maps.to_pylist()])


def as_text(column: pa.Array) -> pa.Array:
    """Turns a column into text, for a schema whose field is a string."""
    if pa.types.is_binary(column.type):
        return text_of(column)
    return json_of(column) if pa.types.is_map(column.type) else column


Column = Callable[[Rows], pa.Array]


def bodies(rows: Rows) -> pa.Array | None:
    return rows.bodies


COLUMNS: dict[str, Column] = {
    "topic": lambda rows: repeated([(queue.topic, size) for queue, size in rows.queues], pa.string()),
    "brokername": lambda rows: repeated([(queue.broker_name, size) for queue, size in rows.queues], pa.string()),
    "queueid": lambda rows: repeated([(queue.queue_id, size) for queue, size in rows.queues], pa.int32()),
    "queueoffset": lambda rows: numbers(rows.records.queue_offset),
    "msgid": lambda rows: rows.records.message_ids(),
    "keys": lambda rows: rows.records.property(PROPERTY_KEYS),
    "tags": lambda rows: rows.records.property(PROPERTY_TAGS),
    "body": bodies,
    "flag": lambda rows: numbers(rows.records.flag),
    "borntimestamp": lambda rows: timestamps(rows.records.born_timestamp),
    "storetimestamp": lambda rows: timestamps(rows.records.store_timestamp),
    "reconsumetimes": lambda rows: numbers(rows.records.reconsume_times),
    "messagegroup": lambda rows: rows.records.property(PROPERTY_SHARDING_KEY),
    "properties": lambda rows: rows.records.properties(),
    "bornhost": lambda rows: rows.records.born_hosts(),
    "storehost": lambda rows: rows.records.store_hosts(),
    "servedbybrokerid": lambda rows: repeated([(rows.broker_id, len(rows.records))], pa.int32()),
}


FIELDS = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("brokerName", pa.string(), nullable=False),
    pa.field("queueId", pa.int32(), nullable=False),
    pa.field("queueOffset", pa.int64(), nullable=False),
    pa.field("msgId", pa.string(), nullable=False),
    pa.field("keys", pa.string()),
    pa.field("tags", pa.string()),
    pa.field("body", pa.binary(), nullable=False),
    pa.field("flag", pa.int32(), nullable=False),
    pa.field("bornTimestamp", TIME, nullable=False),
    pa.field("storeTimestamp", TIME, nullable=False),
    pa.field("reconsumeTimes", pa.int32(), nullable=False),
    pa.field("messageGroup", pa.string()),
    pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
    pa.field("bornHost", pa.string(), nullable=False),
    pa.field("storeHost", pa.string(), nullable=False),
)
NOT_UNASKED = frozenset({"bornHost", "storeHost"})


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Returns the schema of the named columns, or of all columns but the hosts if no columns are named.  Raises
    InvalidParameter for an unknown column."""
    known = {field.name: field for field in FIELDS}
    if columns is None:
        return pa.schema([field for field in FIELDS if field.name not in NOT_UNASKED])
    for name in columns:
        if name not in known:
            raise InvalidParameter(f"column {name!r} is not known; columns are {', '.join(known)}")
    return pa.schema([known[name] for name in columns])


class RecordDecoder:
    """Makes batches of one schema from frames.  `columns` maps a column's name in lower case to the function that
    makes it.  `expression` selects the rows.  `most_bytes` limits the bytes of bodies in a batch."""

    def __init__(
        self,
        schema: pa.Schema,
        columns: Mapping[str, Column] = COLUMNS,
        *,
        most_bytes: int = MOST_BYTES,
        expression: Expression | None = None,
        check_crcs: bool = True,
    ) -> None:
        self.arrow_schema = schema
        self._columns = [(columns[field.name.lower()], pa.types.is_string(field.type)) for field in schema]
        self._has_bodies = any(make is bodies for make, _ in self._columns)
        self._most_bytes = most_bytes
        self._expression = None if expression is None or expression.selects_all else expression
        self._check_crcs = check_crcs
        self._kept: np.ndarray | None = (
            None  # the rows of the last frame that the filter selected; None if it selected all
        )
        self._frame_rows = 0

    def batches(self, records: Records, queues: Sequence[OfQueue], broker_id: int) -> Iterator[pa.RecordBatch]:
        """Yields a frame's rows in one batch, or in several if its unpacked bodies are large.  A batch of more than one
        row has bodies of at most `most_bytes`.  Raises RecordError if a record is damaged."""
        self._kept, self._frame_rows = None, len(records)
        if self._check_crcs:
            records.check()
        queues = [one for one in queues if one.size]
        if self._expression is not None:
            records, queues = self._filtered(records, queues, self._expression)
        if not len(records):
            return
        if not self._has_bodies:
            yield self._batch(Rows(records, queues, broker_id, None))
            return
        for rows, unpacked in records.bodies_uncompressed(self._most_bytes):
            whole = len(unpacked) == len(records)
            some, of_some = (records, queues) if whole else (records[rows], queues_of(rows, queues))
            yield self._batch(Rows(some, of_some, broker_id, unpacked))

    def done(self, rows: int) -> int:
        """Returns how many records of the last frame come before the selected row with the number `rows`.  The records
        that the filter left out are counted, too."""
        if self._kept is None:
            return rows
        return int(self._kept[rows]) if rows < len(self._kept) else self._frame_rows

    def unreadable(self, records: Records) -> list[int]:
        """Returns the numbers of the records from which `batches` cannot make rows.  Call this only after `batches` has
        failed, because checking each record by itself is slow."""
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
        columns = [as_text(make(rows)) if is_text else make(rows) for make, is_text in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _filtered(
        self, records: Records, queues: Sequence[OfQueue], expression: Expression
    ) -> tuple[Records, list[OfQueue]]:
        keep = expression.selects(records)
        if keep.all():
            return records, list(queues)
        self._kept = np.flatnonzero(keep)
        edges = np.cumsum([0, *(one.size for one in queues)])
        counts = [int(keep[start:end].sum()) for start, end in pairwise(edges)]
        return records[keep], [OfQueue(one.queue, count) for one, count in zip(queues, counts, strict=True) if count]


def queues_of(rows: slice, queues: Sequence[OfQueue]) -> list[OfQueue]:
    """Returns the queues of these rows, each with its number of rows."""
    found, row = [], 0
    for queue, size in queues:
        inside = min(row + size, rows.stop) - max(row, rows.start)
        if inside > 0:
            found.append(OfQueue(queue, inside))
        row += size
    return found


def queues_in(records: Records, topic: str, broker_name: str) -> list[OfQueue]:
    """Returns the queues of consecutive records of one topic."""
    if not len(records):
        return []
    ids = records.queue_id
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    return [OfQueue(MessageQueue(topic, broker_name, int(ids[a])), b - a) for a, b in pairwise(edges)]
