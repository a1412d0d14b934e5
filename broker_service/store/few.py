"""A few records, one by one.  Pure.

A column costs as much for one record as for some fifty, and a frame takes about a hundred of them on its way into the
log.  So for a few records the same steps are done here with the plain reader.  Only what is in order is: whatever is
not goes through the columns, which say what is wrong.
"""

from collections.abc import Sequence
from struct import Struct

import numpy as np
from rocketsim_proto.records.record import (
    NAME_END,
    PROPERTY_DELAY,
    PROPERTY_END,
    PROPERTY_TAGS,
    SYS_FLAG_TRANSACTION_MASK,
    Parts,
    RecordError,
    body_crc,
    decode_properties,
    locate,
    tags_code,
)

from broker_service.store.consume_queue import ENTRY
from broker_service.store.dispatch import PREPARED, ROLLED_BACK, SCHEDULE_TOPIC, QueueRun

FEW = 24

_ENTRY = Struct(">qiq")
_OFFSETS = Struct(">qq")
_QUEUE_OFFSET = 20  # in a record; the log offset lies behind it


def is_queued(parts: Parts) -> bool:
    """As `dispatch.is_queued`."""
    return parts.sys_flag & SYS_FLAG_TRANSACTION_MASK not in (PREPARED, ROLLED_BACK)


def sound(data: memoryview, sizes: Sequence[int], at: int, offset: int) -> list[Parts] | None:
    """The records of these sizes from `at` on, the first of which lies at `offset` of the log, if all are whole."""
    found = []
    for size in sizes:
        try:
            parts = locate(data, at)
            bytes(data[parts.topic_start : parts.topic_end]).decode()
        except (RecordError, UnicodeDecodeError):
            return None
        if parts.size != size or parts.commit_log_offset != offset or not has_its_body(data, parts):
            return None
        found.append(parts)
        at, offset = at + size, offset + size
    return found


def has_its_body(data: memoryview, parts: Parts) -> bool:
    return body_crc(data[parts.body_start : parts.body_end]) == parts.body_crc


def stamp(
    data: memoryview, records: Sequence[Parts], offset: int, next_offsets: dict[int, int], now_ms: int, host: bytes
) -> list[Parts]:
    """`Records.stamp` for records that will lie back to back from `offset` on; `next_offsets`, of their queues, go on.

    Returns the records as they are now.
    """
    stored = now_ms.to_bytes(8, "big") + host
    stamped = []
    for parts in records:
        if parts.store_end - parts.born_end != len(stored):
            room = parts.store_end - parts.born_end - 8
            raise RecordError(parts.start, f"{room} bytes for a store host of {len(host)}")
        queue_offset = 0
        if is_queued(parts):
            queue_offset = next_offsets[parts.queue_id]
            next_offsets[parts.queue_id] = queue_offset + 1
        _OFFSETS.pack_into(data, parts.start + _QUEUE_OFFSET, queue_offset, offset)
        data[parts.born_end : parts.store_end] = stored
        stamped.append(parts._replace(queue_offset=queue_offset, commit_log_offset=offset))
        offset += parts.size
    return stamped


def queue_runs(data: memoryview, records: Sequence[Parts], delay_levels_ms: Sequence[int]) -> list[QueueRun]:
    """As `dispatch.queue_runs`, in the order in which the runs begin."""
    entries: list[tuple[str, int, int, bytearray]] = []  # topic, queue, first offset
    last: dict[tuple[bytes, int], tuple[int, bytearray]] = {}  # of each queue: the next offset, its newest run
    for parts in records:
        if not is_queued(parts):
            continue
        topic = bytes(data[parts.topic_start : parts.topic_end])
        expected, run = last.get((topic, parts.queue_id), (-1, bytearray()))
        if expected != parts.queue_offset:
            run = bytearray()
            entries.append((topic.decode(), parts.queue_id, parts.queue_offset, run))
        run += _ENTRY.pack(parts.commit_log_offset, parts.size, _queue_code(data, parts, topic, delay_levels_ms))
        last[topic, parts.queue_id] = parts.queue_offset + 1, run
    return [
        QueueRun(topic_name, queue_id, first, np.frombuffer(run, ENTRY)) for topic_name, queue_id, first, run in entries
    ]


def _queue_code(data: memoryview, parts: Parts, topic: bytes, delay_levels_ms: Sequence[int]) -> int:
    """The hash of the tags, or the delivery time of a delayed message."""
    properties = bytes(data[parts.properties_start : parts.end])
    if topic == _SCHEDULE_TOPIC and (level := int(decode_properties(properties).get(PROPERTY_DELAY, 0))) > 0:
        store_timestamp = int.from_bytes(data[parts.born_end : parts.born_end + 8], "big", signed=True)
        return store_timestamp + delay_levels_ms[min(level, len(delay_levels_ms)) - 1]
    return tags_code(_tags(properties))


_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_TAGS = (PROPERTY_TAGS + NAME_END).encode()
_END = PROPERTY_END.encode()


def _tags(properties: bytes) -> str:
    """What `decode_properties` has for TAGS, without the other properties."""
    tags = b""
    for piece in properties.split(_END):
        if piece.startswith(_TAGS):
            tags = piece[len(_TAGS) :] or tags
    return tags.decode("utf-8", "replace")
