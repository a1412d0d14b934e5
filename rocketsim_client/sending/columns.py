"""Cuts Arrow columns into batches for brokers and queues, without making a Python object for a row.  Pure."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rocketsim_proto.records.arrays import binaries, mask, numpy_of
from rocketsim_proto.records.record import (
    MAX_PROPERTIES_SIZE,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
)
from rocketsim_proto.records.slices import offsets

from rocketsim_client.errors import MessageIllegal, RocketSimError, RowIllegal, SendFailed
from rocketsim_client.model import BatchPart, MessageQueue, SendResults
from rocketsim_client.sending import selection
from rocketsim_client.sending.batch import OutgoingBatch, column_properties, compressed, spread
from rocketsim_client.sending.options import ProducerOptions
from rocketsim_client.sending.property_columns import check_maps, check_texts
from rocketsim_client.validation import OVERHEAD

# A frame of columns is as large as this number of batches.  With 900 messages of 1 KiB, the fixed cost of a frame is
# still a third of its whole cost.
BATCHES_A_FRAME = 8
MAX_FRAME_BYTES = 4 << 20  # the limit of a frame unless `batch_bytes` is larger; a broker takes four times as much

_TEXTS = (PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_SHARDING_KEY)
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """How columns are cut.  `first` is any number, and decides which broker gets the first batch."""

    topic: str
    batch_bytes: int
    max_message_size: int
    compress_over: int
    compress_type: str
    queues: Sequence[MessageQueue]
    first: int
    may_move: bool


def column_plan(
    topic: str, queues: Sequence[MessageQueue], options: ProducerOptions, *, first: int, may_move: bool
) -> ColumnPlan:
    return ColumnPlan(
        topic=topic,
        batch_bytes=max(options.batch_bytes, min(options.batch_bytes * BATCHES_A_FRAME, MAX_FRAME_BYTES)),
        max_message_size=options.max_message_size,
        compress_over=options.compress_over,
        compress_type=options.compression,
        queues=queues,
        first=first,
        may_move=may_move,
    )


def results_of(futures: "Sequence[Future[BatchPart]]", timeout_s: float | None) -> SendResults:
    """Waits for all batches and returns their results.  Raises SendFailed with the first failure, after all batches
    are done."""
    parts: list[BatchPart] = []
    failure: Exception | None = None
    for future in futures:
        try:
            parts.append(future.result(timeout_s))
        except Exception as error:
            failure = failure or error
    if failure:
        stored = sum(len(part.msg_ids) for part in parts)
        raise SendFailed(
            f"{stored} messages were acknowledged, others not: {str(failure) or repr(failure)}",
            attempts=1,
            maybe_stored=True,
            code=failure.code if isinstance(failure, RocketSimError) else None,
        ) from failure
    return SendResults(parts)


def plan_columns(
    plan: ColumnPlan,
    bodies: pa.Array,
    tags: pa.Array | None,
    keys: pa.Array | None,
    properties: pa.Array | None,
    message_groups: pa.Array | None,
    msg_ids: pa.StringArray,
    born_timestamp: int,
) -> Iterator[tuple[OutgoingBatch, int]]:
    """Yields batches and their sizes.

    Without message groups, neighbouring batches go to different brokers, and each batch fills all queues of its broker
    in equal parts.  With message groups, each row goes to the queue of its group.  A row whose group is null or empty
    goes where it would go without groups.  If `plan.may_move` is False, all rows go to the one queue of the plan.
    """
    bodies = _one_array(bodies, pa.binary())
    sizes = _sizes(plan, bodies)
    texts = [None if column is None else _one_array(column, pa.string()) for column in (tags, keys, message_groups)]
    check_texts(plan.topic, dict(zip(_TEXTS, texts, strict=True)))
    if texts[2] is not None:  # an empty group counts as no group, as for single messages
        texts[2] = pc.if_else(pc.equal(texts[2], ""), pa.scalar(None, pa.string()), texts[2])
    if properties is not None:
        properties = properties.combine_chunks() if isinstance(properties, pa.ChunkedArray) else properties
        check_maps(plan.topic, properties)
    try:
        encoded = column_properties(msg_ids, texts[0], texts[1], texts[2], properties)
    except ValueError as error:
        raise MessageIllegal(f"topic {plan.topic!r}: {error}") from error
    _check_sizes(plan, encoded)
    sys_flags: Any = 0
    if len(sizes) and int(sizes.max()) >= plan.compress_over:
        packed, flags = compressed(bodies.to_pylist(), plan.compress_over, plan.compress_type)
        bodies, sys_flags = binaries(packed), np.asarray(flags, np.int32)
        sizes = np.diff(offsets(bodies))
    record_sizes = sizes + np.diff(offsets(encoded)) + OVERHEAD + len(plan.topic)
    whole = OutgoingBatch(
        plan.topic,
        "",
        np.zeros(len(bodies), np.int32),
        bodies,
        encoded,
        msg_ids,
        born_timestamp,
        sys_flags=sys_flags,
        may_move=plan.may_move,
        rows=np.arange(len(bodies), dtype=np.int32),
    )
    if not plan.may_move or texts[2] is None or texts[2].null_count == len(bodies):
        yield from _in_turn(plan, whole, record_sizes)
        return
    keyed, keyed_sizes = whole, record_sizes
    if texts[2].null_count:  # rows without a group are sent as if the column were missing
        has_key = mask(texts[2].is_valid())
        rows = np.flatnonzero(~has_key)
        yield from _in_turn(plan, whole.take(rows), record_sizes[rows])
        rows = np.flatnonzero(has_key)
        keyed, keyed_sizes = whole.take(rows), record_sizes[rows]
    keyed.may_move = False
    keyed.group_hashes = _group_hashes(texts[2].drop_null())
    for part, rows in cut_by_group(keyed, plan.queues):
        for start, end in _cuts(keyed_sizes[rows], plan.batch_bytes):
            yield part.slice(start, end), int(keyed_sizes[rows[start:end]].sum())


def _in_turn(
    plan: ColumnPlan, whole: OutgoingBatch, record_sizes: npt.NDArray[np.int64]
) -> Iterator[tuple[OutgoingBatch, int]]:
    names = sorted({queue.broker_name for queue in plan.queues})
    for turn, (start, end) in enumerate(_cuts(record_sizes, plan.batch_bytes)):
        name = names[(plan.first + turn) % len(names)]
        part = whole.slice(start, end)
        part.broker_name = name
        part.queue_ids = spread([queue.queue_id for queue in plan.queues if queue.broker_name == name], end - start)
        yield part, int(record_sizes[start:end].sum())


def cut_by_group(batch: OutgoingBatch, queues: Sequence[MessageQueue]) -> Iterator[tuple[OutgoingBatch, Positions]]:
    """Cuts the batch into one part for each broker.  Each row goes to the broker that has the queue of the row's
    message group.  Yields each part together with the numbers of its rows."""
    assert batch.group_hashes is not None
    chosen = batch.group_hashes % len(queues)
    names = np.array([queue.broker_name for queue in queues])
    queue_ids = np.array([queue.queue_id for queue in queues], np.int32)
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names[chosen] == name)
        if len(rows):
            part = batch.take(rows)
            part.broker_name, part.queue_ids = name, queue_ids[chosen[rows]]
            yield part, rows


def _group_hashes(message_groups: pa.StringArray) -> Positions:
    codes = message_groups.dictionary_encode()
    hashes = np.array([selection.group_hash(group) for group in codes.dictionary.to_pylist()], np.int64)
    of_rows: Positions = hashes[numpy_of(codes.indices)]
    return of_rows


def _sizes(plan: ColumnPlan, bodies: pa.BinaryArray) -> npt.NDArray[np.int64]:
    if bodies.null_count:
        row = int(np.argmin(mask(bodies.is_valid())))
        raise RowIllegal(plan.topic, row, "the body is null")
    sizes: npt.NDArray[np.int64] = np.diff(offsets(bodies)).astype(np.int64)
    if int(sizes.min()) == 0:
        row = int(sizes.argmin())
        raise RowIllegal(plan.topic, row, "the body is empty")
    if int(sizes.max()) > plan.max_message_size:
        row = int(np.argmax(sizes > plan.max_message_size))
        raise RowIllegal(
            plan.topic,
            row,
            f"the body has {int(sizes[row])} bytes; this sender's limit, maxMessageSize, is {plan.max_message_size}",
        )
    return sizes


def _check_sizes(plan: ColumnPlan, properties: pa.BinaryArray) -> None:
    sizes = np.diff(offsets(properties))
    if int(sizes.max()) > MAX_PROPERTIES_SIZE:
        row = int(np.argmax(sizes > MAX_PROPERTIES_SIZE))
        raise RowIllegal(
            plan.topic,
            row,
            f"properties of {int(sizes[row])} bytes, with tags, keys, message group and id; {MAX_PROPERTIES_SIZE} at "
            "most",
        )


def _cuts(sizes: npt.NDArray[np.int64], limit: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of rows, each of at most `limit` bytes, or of a single larger row."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield start, end
        start = end


def _one_array(column: pa.Array, kind: pa.DataType) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array if array.type == kind else array.cast(kind)
