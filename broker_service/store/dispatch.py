"""Makes consume-queue entries from records, for appends and for rebuilds.  Pure.

As in RocketMQ, prepared and rolled-back transactional records get no entry.  The entry of a record in the delay topic
has the delivery time in the field where other entries have the hash of the tags.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from rocketsim_proto.records import kernels
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import PROPERTY_DELAY, SYS_FLAG_TRANSACTION_MASK
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.store.consume_queue import ENTRY, Entries

PREPARED, ROLLED_BACK = 4, 12
_LEVEL = "[0-9]{1,9}"
_LEAST_QUEUE_ID = -(2**31)
_LONGEST_NAME = 255  # bytes that a file name may have on Linux
_NOT_IN_NAMES = {"/", "\0"}

Times = npt.NDArray[np.int64]  # one time, or one delay level, per record


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """Entries of one queue with consecutive queue offsets."""

    topic: str
    queue_id: int
    queue_offset: int
    entries: Entries


def level_of(delay: str) -> int:
    """Returns the delay level in a value of the property DELAY; 0 if it is no level."""
    return int(delay) if re.fullmatch(_LEVEL, delay) else 0


def can_name_a_queue(topic: str) -> bool:
    """Returns True if the file system allows a folder with this name, which the topic's queues need."""
    return 0 < len(topic.encode()) <= _LONGEST_NAME and topic not in (".", "..") and not _NOT_IN_NAMES & set(topic)


def is_queued(sys_flag: Any) -> Any:
    """Returns True if a record with this flag gets an entry in its queue; a column of flags gives a column."""
    kind = sys_flag & SYS_FLAG_TRANSACTION_MASK
    return (kind != PREPARED) & (kind != ROLLED_BACK)


def queue_extents(records: Records, delay_levels_ms: Sequence[int]) -> list[QueueExtent]:
    """Makes the entries of these records, which are in log order and already have their offsets."""
    if kernels.compiled is not None:
        found = kernels.compiled.queue_entries(records.data, np.ascontiguousarray(records.starts))
        if found is not None and found[0].isascii() and (topic := found[0].decode()) != SCHEDULE_TOPIC:
            compiled = found[1].view(ENTRY)
            return [QueueExtent(topic, queue, offset, compiled[first:last]) for queue, offset, first, last in found[2]]
    queued = is_queued(records.sys_flag)
    if not queued.all():
        records = records[queued]
    if not len(records):
        return []
    entries = np.empty(len(records), ENTRY)
    entries["commit_log_offset"] = records.commit_log_offset
    entries["size"] = records.sizes
    topics, codes = records.topic_codes()
    entries["tags_code"] = records.tags_codes()
    if SCHEDULE_TOPIC in topics:
        # pyarrow.compute is imported here, since it loads slowly; `node/app.py` loads it once the broker serves
        import pyarrow.compute as pc

        delayed = np.flatnonzero(codes == topics.index(SCHEDULE_TOPIC))
        some = records[delayed]
        given = some.property(PROPERTY_DELAY)
        # any other value is damage and counts as no level
        given = pc.if_else(pc.match_substring_regex(given, f"^{_LEVEL}$"), given, None)
        levels = pc.fill_null(pc.cast(given, "int64"), 0).to_numpy()
        entries["tags_code"][delayed] = delivery_times(
            levels, some.store_timestamp, entries["tags_code"][delayed], delay_levels_ms
        )
    # A queue id has a sign, so _LEAST_QUEUE_ID makes it the lower half of a key.  The order stays the same.
    keys, offsets = (codes << 32) + (records.queue_id.astype(np.int64) - _LEAST_QUEUE_ID), records.queue_offset
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, offsets, entries = keys[order], offsets[order], entries[order]
    breaks = np.flatnonzero((keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1] + 1)) + 1
    bounds = [0, *breaks.tolist(), len(keys)]
    firsts = bounds[:-1]
    return [
        QueueExtent(topics[key >> 32], (key & 0xFFFFFFFF) + _LEAST_QUEUE_ID, offset, entries[first:last])
        for key, offset, (first, last) in zip(
            keys[firsts].tolist(), offsets[firsts].tolist(), pairwise(bounds), strict=True
        )
    ]


def queue_offsets(
    queue_ids: npt.NDArray[np.int32], queued: npt.NDArray[np.bool_], next_offsets: dict[int, int]
) -> npt.NDArray[np.int64]:
    """Gives each new record of a topic the next offset of its queue; a record that is not queued gets 0.

    `next_offsets` (queue id to next offset) is updated.
    """
    offsets = np.zeros(len(queue_ids), np.int64)
    if len(next_offsets) == 1:
        ((queue_id, first),) = next_offsets.items()
        next_offsets[queue_id] = end = first + int(np.count_nonzero(queued))
        offsets[queued] = np.arange(first, end)
        return offsets
    ids = queue_ids[queued]
    order = np.argsort(ids, kind="stable") if (ids[1:] < ids[:-1]).any() else np.arange(len(ids))
    ordered = ids[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ids)])
    found, counts = ordered[begins].tolist(), np.diff(np.append(begins, len(ids)))
    firsts = np.array([next_offsets[queue_id] for queue_id in found], np.int64)
    next_offsets.update(zip(found, (firsts + counts).tolist(), strict=True))
    ranked = np.empty(len(ids), np.int64)
    ranked[order] = np.arange(len(ids)) + np.repeat(firsts - begins, counts)
    offsets[queued] = ranked
    return offsets


def delivery_times(
    levels: Times, stored_ms: Times, otherwise: Times, delay_levels_ms: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Returns each record's store time plus the delay of its level.

    A level above the last one counts as the last one.  A record without a level gets its time from `otherwise`.
    """
    delays = np.array([0, *delay_levels_ms], np.int64)
    due: npt.NDArray[np.int64] = stored_ms + delays[np.clip(levels, 0, len(delay_levels_ms))]
    return np.where(levels > 0, due, otherwise)
