"""Makes message ids for `sinkMode=idempotent`, where a row that is written again gets the same id.  Pure.

- ColumnIds: the id is a hash of the columns that the user names, whatever the row's partition and place.
- PlaceIds: the id is made of the row's place (name of the write, query, batch, partition and row number).  The place
  stays the same only if the batch is cut and ordered in the same way.  The sink cannot check how batches are cut, so
  the user has to ask for PlaceIds with a `sinkName`.

ColumnIds and PlaceIds are 32 hex digits, like RocketMQ's ids.  The way to make ids is never changed, because a batch
that is repeated after an upgrade has to get the same ids again.  A new way to make ids gets a new number (`idVersion`).
Version 1, the default, means ColumnIds and PlaceIds.  Version 0 (`OldIds`) finishes batches that an older release
began.
"""

import decimal
import hashlib
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rocketsim_proto.records.slices import fixed_binary
from rocketsim_proto.records.unique_ids import hex_strings

NULL_SIZE = 0xFFFFFFFF
# This context keeps as many digits as Arrow's widest decimal has.  The default context rounds to 28 digits, and Spark's
# decimals have 38.
ALL_DIGITS = decimal.Context(prec=76)


class RowIds(Protocol):
    def of(self, batch: pa.RecordBatch, topics: pa.Array | None) -> pa.StringArray:
        """Returns an id for each row of a task's next batch.

        `topics` has each row's topic, or is None if the option `topic` names it.
        """


def digest(size: int, *parts: str) -> bytes:
    """Returns a hash of several texts.  The sizes of the texts are hashed, too, so that ("ab", "c") and ("a", "bc")
    differ."""
    data = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hashlib.blake2b(data, digest_size=size).digest()


class PlaceIds:
    """Makes ids from the places of rows.

    `whole` names the write that Spark repeats as a whole (query and batch of a stream, or the job of a batch write).
    """

    def __init__(self, sink_name: str, topic: str | None, whole: str, partition: int) -> None:
        self._prefix = np.frombuffer(digest(12, "place", sink_name, topic or "", whole, str(partition)), np.uint8)
        self._rows = 0

    def of(self, batch: pa.RecordBatch, topics: pa.Array | None) -> pa.StringArray:
        numbers = np.arange(self._rows, self._rows + batch.num_rows)
        self._rows += batch.num_rows
        if self._rows > 1 << 32:
            raise ValueError("more than 4,294,967,296 rows in a task: there are no more ids; use more partitions")
        rows = np.empty((batch.num_rows, 16), np.uint8)
        rows[:, :12] = self._prefix
        rows[:, 12:] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
        return hex_strings(rows)


class ColumnIds:
    """Makes ids by hashing the topic and the columns with the given indexes."""

    def __init__(self, sink_name: str, topic: str | None, columns: tuple[int, ...]) -> None:
        self._begin = digest(16, "columns", sink_name)
        self._topic = topic
        self._columns = columns

    def of(self, batch: pa.RecordBatch, topics: pa.Array | None) -> pa.StringArray:
        columns = [batch.column(index) for index in self._columns]
        nothing = np.logical_and.reduce([column.is_null().to_numpy(zero_copy_only=False) for column in columns])
        if nothing.any():
            raise ValueError(f"{int(nothing.sum())} rows have null in every one of idColumns, and would all get one id")
        if topics is None:
            topics = pa.repeat(pa.scalar(self._topic or "", pa.string()), batch.num_rows)
        pieces: list[bytes | pa.BinaryArray] = [self._begin]
        for column in (topics, *columns):
            values = as_bytes(column)
            sizes = pc.fill_null(pc.binary_length(values).cast(pa.int64()), NULL_SIZE).to_numpy()
            pieces += [fixed_binary(sizes.astype(">u4").view(np.uint8), 4), pc.fill_null(values, b"")]
        rows = pc.binary_join_element_wise(*pieces, b"")
        # The rows are hashed in a loop, at about a microsecond each, because neither numpy nor Arrow has a hash of this
        # quality.
        digests = b"".join([hashlib.blake2b(row, digest_size=16).digest() for row in rows.to_pylist()])
        return hex_strings(np.frombuffer(digests, np.uint8).reshape(-1, 16))


def as_bytes(column: pa.Array) -> pa.BinaryArray:
    """Returns bytes that are equal for equal values of different types, such as an int and a long.

    Text and bytes stay as they are.  Whole numbers, times (µs) and days become eight bytes.  Decimals lose trailing
    zeros.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_decimal(kind):
        texts = [
            None if value is None else format(value.normalize(ALL_DIGITS), "f").encode() for value in column.to_pylist()
        ]
        return pa.array(texts, pa.binary())
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz))
    elif pa.types.is_date(kind):
        column = column.cast(pa.int32())
    numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    data = fixed_binary(np.ascontiguousarray(numbers.astype(">i8")).view(np.uint8), 8)
    return pc.if_else(column.is_valid(), data, pa.scalar(None, pa.binary()))


class OldIds:
    """Makes ids of version 0: `queryId-batchId-partition-number`."""

    def __init__(self, whole: str, partition: int) -> None:
        self._prefix = f"{whole}-{partition}-"
        self._rows = 0

    def of(self, batch: pa.RecordBatch, topics: pa.Array | None) -> pa.StringArray:
        numbers = pa.array(np.arange(self._rows, self._rows + batch.num_rows)).cast(pa.string())
        self._rows += batch.num_rows
        return pc.binary_join_element_wise(self._prefix, numbers, "")
