"""Writes RocketMQ's `config/consumerOrderInfo.json`: the deliveries under way of groups that consume in order.

The file has one entry (a batch) for each TOPIC@GROUP and queue:

- `o`: the queue offsets; the first one is absolute, the others are distances from it
- `ot`: for each message that a consumer holds, its deadline
- `oc`: for each message, how often it was delivered before
- `cm`: one bit for each message, which is 1 if the message is acknowledged
- `a`: the `attemptId` of the pop that took the messages

While a consumer holds a message of the batch, RocketMQ delivers nothing from the queue, except to a pop with the same
attempt id.  When no consumer holds a message of the batch, RocketMQ delivers from the group's offset on, and continues
to count the deliveries.  `cm` has 64 bits, so only the first 64 messages of a queue are written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_service.state.locks import Locks
from broker_service.state.state import QueueState
from broker_service.state.transitions import Ordered, Place, Step
from broker_service.store.files import Files
from broker_service.store.json_file import JsonFile

_MOST = 64


def write(files: Files, path: Path, queues: Mapping[Place, QueueState], now_ms: int) -> None:
    """Writes the file.  If no delivery is under way, an existing file is overwritten, and no new file is created."""
    content = table_of(queues, now_ms)
    try:
        files.read(path)
    except FileNotFoundError:
        if not content["table"]:
            return
    JsonFile(path, files).save(content)


def table_of(queues: Mapping[Place, QueueState], now_ms: int) -> dict[str, Any]:
    """Makes the content of the file.  Messages are left out if none of their deliveries counted as an attempt."""
    table: dict[str, dict[int, Any]] = {}
    for place, queue in queues.items():
        if queue.locks is not None and (delivered := _delivered(queue.locks)):
            info = _queue_info(queue, delivered, _attempt_id(queue.locks), now_ms)
            table.setdefault(f"{place.topic}@{place.group}", {})[place.queue_id] = info
    return {"table": table}


def _delivered(locks: Locks) -> list[Ordered]:
    messages = (one for _, _, of_group in locks.groups() for one in of_group)
    return sorted(one for one in messages if one.attempt > 0 and one.step is not Step.GONE)[:_MOST]


def _attempt_id(locks: Locks) -> str:
    """Returns the queue's attempt id.  Returns "" if the queue has several attempt ids, because RocketMQ keeps only one
    for a queue.
    """
    taken = [(attempt_id, messages) for _, attempt_id, messages in locks.groups() if messages[0].step is not Step.WAITS]
    found = {attempt_id for attempt_id, _ in taken}
    return found.pop() if len(found) == 1 else ""


def _queue_info(queue: QueueState, delivered: list[Ordered], attempt_id: str, now_ms: int) -> dict[str, Any]:
    first = delivered[0].queue_offset
    offsets = [one.queue_offset for one in delivered]
    info = {
        "popTime": now_ms,
        "i": 1,  # invisible time of messages without `ot`, which no consumer holds
        "o": [first, *(offset - first for offset in offsets[1:])],
        "ot": {offset: queue.under_way[offset].deadline_ms for offset in offsets if offset in queue.under_way},
        "oc": {one.queue_offset: one.attempt - 1 for one in delivered if one.attempt > 1},
        "cm": _signed(sum(1 << at for at, one in enumerate(delivered) if one.step is Step.ACKED)),
        "l": now_ms,
    }
    return info | ({"a": attempt_id} if attempt_id else {})


def _signed(bits: int) -> int:
    """Returns the 64 bits as a signed number, like Java's long."""
    return bits - (1 << 64) if bits >> 63 else bits
