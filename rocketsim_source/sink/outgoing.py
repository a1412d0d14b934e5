"""A DataFrame's rows -> the columns of messages, for a topic and queue at a time.  No Python object per row."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketsim_client.validation import RESERVED_PROPERTIES
from rocketsim_source.sink.row_ids import RowIds
from rocketsim_source.sink.sink_columns import SinkColumns


@dataclass(slots=True)
class Outgoing:
    """Rows of one topic, and of one queue id if they name one."""

    topic: str
    queue_id: int | None
    bodies: pa.Array
    tags: pa.Array | None
    keys: pa.Array | None
    properties: pa.Array | None
    message_groups: pa.Array | None
    msg_ids: pa.Array | None


def outgoing(
    batch: pa.RecordBatch, columns: SinkColumns, topic: str | None, row_ids: RowIds | None
) -> Iterator[Outgoing]:
    """The batch's rows by topic and queue id, each part in the order of the rows.  `row_ids` None: the producer makes
    ids.
    """

    def column(index: int | None, kind: pa.DataType) -> pa.Array | None:
        if index is None:
            return None
        array = batch.column(index)
        return array if array.type == kind else array.cast(kind)

    bodies = column(columns.body, pa.binary())
    assert bodies is not None
    if bodies.null_count:
        raise ValueError(f"{bodies.null_count} rows have no body (null)")

    def text(index: int | None) -> pa.Array | None:
        if index is None:
            return None
        return as_text(batch.column(index), lambda at: f"column {batch.schema.names[index]}")

    topics = None if topic is not None else text(columns.topic)
    if topics is not None and topics.null_count:
        raise ValueError(f"{topics.null_count} rows have no topic (null), and there is no option topic")
    keys, message_groups = text(columns.keys), text(columns.message_group)
    queue_ids = column(columns.queue_id, pa.int32())
    if columns.group_by_key:
        message_groups = with_keys_as_groups(keys, message_groups, queue_ids)
    whole = Outgoing(
        topic or "",
        None,
        bodies,
        text(columns.tags),
        keys,
        user_properties(batch.column(columns.properties)) if columns.properties is not None else None,
        message_groups,
        row_ids.of(batch, topics) if row_ids is not None and batch.num_rows else None,
    )
    for name, rows in parts(topics):
        ids = queue_ids if queue_ids is None or rows is None else queue_ids.take(rows)
        of_topic = taken(whole, rows)
        for queue_id, of_queue in parts(ids):
            part = taken(of_topic, of_queue)
            part.topic = whole.topic if name is None else name
            part.queue_id = queue_id
            yield part


def with_keys_as_groups(keys: pa.Array, message_groups: pa.Array | None, queue_ids: pa.Array | None) -> pa.Array:
    """The groups, and the keys of the rows that have none; a row that names its queue needs none."""
    groups = keys if message_groups is None else pc.coalesce(message_groups, keys)
    if queue_ids is None:
        return groups
    given = pa.nulls(len(keys), pa.string()) if message_groups is None else message_groups
    return pc.if_else(queue_ids.is_valid(), given, groups)


def parts(values: pa.Array | None) -> Iterator[tuple[Any, pa.Array | None]]:
    """(value, its rows): each distinct value once, in the order of its first row; rows
    None: all.
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


def taken(whole: Outgoing, rows: pa.Array | None) -> Outgoing:
    def take(array: pa.Array | None) -> pa.Array | None:
        return array if array is None or rows is None else array.take(rows)

    bodies = take(whole.bodies)
    assert bodies is not None
    return Outgoing(
        whole.topic,
        whole.queue_id,
        bodies,
        take(whole.tags),
        take(whole.keys),
        take(whole.properties),
        take(whole.message_groups),
        take(whole.msg_ids),
    )


def as_text(values: pa.Array, what: Callable[[int], str]) -> pa.StringArray:
    """Bytes as text: RocketMQ keeps all but bodies as UTF-8.  Raises ValueError that says what is none."""
    if values.type == pa.string():
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        for at, value in enumerate(values.to_pylist()):
            try:
                bytes(value or b"").decode()
            except UnicodeDecodeError:
                raise ValueError(
                    f"{what(at)} is not UTF-8: {value[:40]!r}. RocketMQ keeps text there; write base64 or hex(…) of "
                    "it, or leave it out"
                ) from None
        raise


def user_properties(column: pa.Array) -> pa.MapArray:
    """A map column, or Kafka's headers, without the names that RocketMQ keeps for itself: what was read can be written
    again.
    """
    if isinstance(column, pa.MapArray):
        offsets, names, values = column.offsets.to_numpy(), column.keys, column.items
    else:
        offsets = column.offsets.to_numpy()
        names, values = column.values.field("key"), column.values.field("value")
    first, last = int(offsets[0]), int(offsets[-1])
    names, values = names.slice(first, last - first), values.slice(first, last - first)
    values = as_text(values, lambda at: f"header {names[at].as_py()}")
    reserved = pa.array(sorted(RESERVED_PROPERTIES), pa.string())
    keep = pc.and_(pc.invert(pc.is_in(names, value_set=reserved)), pc.and_(names.is_valid(), values.is_valid()))
    kept_before = np.concatenate(([0], np.cumsum(keep.to_numpy(zero_copy_only=False)))).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(kept_before[offsets - first]), names.filter(keep), values.filter(keep))
