"""Converts a DataFrame's rows to columns of messages, separately for each topic and queue.

For speed, no Python object is made for a row.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rocketsim_proto.records.arrays import binaries, booleans, mask, numbers, numpy_of
from rocketsim_proto.records.property_columns import binary_view
from rocketsim_proto.reserved import PROPERTIES, PropertyUse

from rocketsim_client.sending.property_columns import entries, unfit
from rocketsim_source.sink.row_ids import RowIds
from rocketsim_source.sink.sink_columns import SinkColumns

# The properties that are left out, because clients and brokers set them, or because they have columns of their own.
NOT_THE_SENDERS = binaries(sorted(name.encode() for name, use in PROPERTIES.items() if use is not PropertyUse.RESERVED))


@dataclass(slots=True)
class OutgoingRows:
    """Rows for one topic and, if the rows name queue ids, for one queue id."""

    topic: str
    queue_id: int | None
    bodies: pa.Array
    tags: pa.Array | None
    keys: pa.Array | None
    properties: pa.Array | None
    message_groups: pa.Array | None
    msg_ids: pa.Array | None
    rows: npt.NDArray[np.int64]  # the numbers of the rows in the batch


class RowProblem(ValueError):
    """Raised for a row that cannot become a message, with the row's number in the batch, and the reason."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"row {row}: {problem}")
        self.row = row
        self.problem = problem


def outgoing(
    batch: pa.RecordBatch,
    columns: SinkColumns,
    topic: str | None,
    row_ids: RowIds | None,
    left_out: Counter[str] | None = None,
) -> Iterator[OutgoingRows]:
    """Yields the batch's rows by topic and queue id.  Rows of the same topic and queue id keep their order.

    Without `row_ids` the producer makes the message ids.  With `left_out`, invalid properties are left out, and
    `left_out` counts them by name.  Without `left_out`, invalid properties are kept, and the producer refuses their
    rows.
    """

    bodies = batch.column(columns.body)
    bodies = bodies if bodies.type == pa.binary() else bodies.cast(pa.binary())
    if bodies.null_count:
        raise RowProblem(first(bodies.is_null()), "the body is null")

    def text(index: int | None) -> pa.Array | None:
        if index is None:
            return None
        return as_text(batch.column(index), lambda at: (at, f"column {batch.schema.names[index]}"))

    topics = None if topic is not None else text(columns.topic)
    if topics is not None and topics.null_count:
        raise RowProblem(first(topics.is_null()), "the topic is null, and there is no option topic")
    keys, message_groups = text(columns.keys), text(columns.message_group)
    queue_ids = None if columns.queue_id is None else as_queue_ids(batch, columns.queue_id)
    if columns.group_by_key:
        message_groups = with_keys_as_groups(keys, message_groups, queue_ids)
    whole = OutgoingRows(
        topic or "",
        None,
        bodies,
        text(columns.tags),
        keys,
        user_properties(batch.column(columns.properties), left_out) if columns.properties is not None else None,
        message_groups,
        row_ids.of(batch, topics) if row_ids is not None and batch.num_rows else None,
        np.arange(batch.num_rows),
    )
    for name, rows in parts(topics):
        ids = queue_ids if queue_ids is None or rows is None else queue_ids.take(rows)
        of_topic = taken(whole, rows)
        for queue_id, of_queue in parts(ids):
            part = taken(of_topic, of_queue)
            part.topic = whole.topic if name is None else name
            part.queue_id = queue_id
            yield part


def first(rows: pa.BooleanArray) -> int:
    """Returns the number of the first row whose value is true."""
    return int(np.argmax(mask(rows)))


def as_queue_ids(batch: pa.RecordBatch, index: int) -> pa.Int32Array:
    """Returns the queue id of each row.  Raises RowProblem for a number that is not a queue id.  Whether the topic has
    the queue is checked later.
    """
    ids = batch.column(index)
    if ids.type == pa.int32():
        return ids
    is_too_large = pc.fill_null(pc.not_equal(ids, ids.cast(pa.int32(), safe=False).cast(ids.type)), False)
    if pc.any(is_too_large).as_py():
        row = first(is_too_large)
        raise RowProblem(
            row,
            f"column {batch.schema.names[index]} has {ids[row].as_py()}, which is no queue id (0 to {(1 << 31) - 1}); "
            "without the column rows are spread over the topic's queues",
        )
    return ids.cast(pa.int32())


def with_keys_as_groups(keys: pa.Array, message_groups: pa.Array | None, queue_ids: pa.Array | None) -> pa.Array:
    """Returns the message group of each row.  A row without a group gets its key as group, unless the row names a
    queue."""
    groups = keys if message_groups is None else pc.coalesce(message_groups, keys)
    if queue_ids is None:
        return groups
    given = pa.nulls(len(keys), pa.string()) if message_groups is None else message_groups
    return pc.if_else(queue_ids.is_valid(), given, groups)


def parts(values: pa.Array | None) -> Iterator[tuple[Any, pa.Array | None]]:
    """Yields each distinct value with its rows, in the order of the values' first rows.  If all rows have the same
    value, yields this value with None instead of the rows.
    """
    if values is None:
        yield None, None
        return
    codes = values.dictionary_encode(null_encoding="encode")
    distinct = codes.dictionary.to_pylist()
    if len(distinct) == 1:
        yield distinct[0], None
        return
    indices = codes.indices.to_numpy(zero_copy_only=False)
    for code, value in enumerate(distinct):
        yield value, pa.array(np.flatnonzero(indices == code))


def taken(whole: OutgoingRows, rows: pa.Array | None) -> OutgoingRows:
    def take(array: pa.Array | None) -> pa.Array | None:
        return array if array is None or rows is None else array.take(rows)

    bodies = take(whole.bodies)
    assert bodies is not None
    return OutgoingRows(
        whole.topic,
        whole.queue_id,
        bodies,
        take(whole.tags),
        take(whole.keys),
        take(whole.properties),
        take(whole.message_groups),
        take(whole.msg_ids),
        whole.rows if rows is None else whole.rows[numpy_of(rows)],
    )


def as_text(values: pa.Array, what: Callable[[int], tuple[int, str]]) -> pa.StringArray:
    """Returns bytes as text, because RocketMQ stores all parts of a message except the body as UTF-8.

    Raises RowProblem for bytes that are not UTF-8.  For the error, `what` maps the index of an element to the element's
    row, and to the part of the message that the element belongs to.
    """
    if values.type == pa.string():
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        for at, value in enumerate(values.to_pylist()):
            try:
                bytes(value or b"").decode()
            except UnicodeDecodeError:
                row, part = what(at)
                raise RowProblem(
                    row,
                    f"{part} is not UTF-8: {value[:40]!r}. RocketMQ keeps text there; write base64 or hex(…) of it, or "
                    "leave it out",
                ) from None
        raise


def user_properties(column: pa.Array, left_out: Counter[str] | None) -> pa.MapArray:
    """Returns the properties of a map column, or of Kafka's headers.  Properties that clients and brokers set by
    themselves are left out, so that rows which were read can be written again.  If `left_out` is given, properties that
    a message cannot have are left out, too, and `left_out` counts them by name.
    """
    names, values, places = entries(column)
    keep = ~mask(pc.is_in(binary_view(names), value_set=NOT_THE_SENDERS))
    names, values, places = kept(names, values, places, keep)
    values = as_text(
        values, lambda at: (int(np.searchsorted(places, at, side="right")) - 1, f"header {names[at].as_py()}")
    )
    if left_out is not None and (lost := unfit(names, values, places)).any():
        left_out.update(str(name) for name in names.filter(booleans(lost)).to_pylist())
        names, values, places = kept(names, values, places, ~lost)
    if names.null_count:
        names = names.fill_null("")  # an Arrow map cannot have null names, and the producer refuses empty names, too
    return pa.MapArray.from_arrays(numbers(places.astype(np.int32)), names, values)


def kept(
    names: pa.Array, values: pa.Array, places: npt.NDArray[np.int64], keep: npt.NDArray[np.bool_]
) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int64]]:
    """Returns the properties that are kept, and for each row the index of its first kept property."""
    before = np.concatenate(([0], np.cumsum(keep)))
    chosen = booleans(keep)
    return names.filter(chosen), values.filter(chosen), before[places]
