"""RocketMQ's `config/consumerOrderInfo.json`: what its groups that consume in order have under way.

For TOPIC@GROUP and queue: the offsets of a batch (`o`, the first as it is, others as the distance from it), until when
each is with a consumer (`ot`), how often each was delivered before that (`oc`), which are acknowledged (`cm`, a bit
each), and the `attemptId` (`a`) of the pop.  RocketMQ delivers nothing of the queue while one of them is with a
consumer, except to a pop with the same attempt id; then it begins at the group's offset, and counts on.

It says no more of a batch than `cm` has bits for, so of a queue the first 64 are told.
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
    """No file is made for nothing; one that is there, RocketMQ's own too, says what is under way now."""
    content = table_of(queues, now_ms)
    try:
        files.read(path)
    except FileNotFoundError:
        if not content["table"]:
            return
    JsonFile(path, files).save(content)


def table_of(queues: Mapping[Place, QueueState], now_ms: int) -> dict[str, Any]:
    """The file's content.  Without what was never delivered, or with attempts that do not count."""
    table: dict[str, dict[int, Any]] = {}
    for place, queue in queues.items():
        if queue.locks is not None and (delivered := _delivered(queue.locks)):
            told = _told(queue, delivered, _attempt_id(queue.locks), now_ms)
            table.setdefault(f"{place.topic}@{place.group}", {})[place.queue_id] = told
    return {"table": table}


def _delivered(locks: Locks) -> list[Ordered]:
    messages = (one for _, _, of_group in locks.groups() for one in of_group)
    return sorted(one for one in messages if one.attempt > 0 and one.step is not Step.GONE)[:_MOST]


def _attempt_id(locks: Locks) -> str:
    """RocketMQ has one for the whole queue."""
    taken = [(attempt_id, messages) for _, attempt_id, messages in locks.groups() if messages[0].step is not Step.WAITS]
    found = {attempt_id for attempt_id, _ in taken}
    return found.pop() if len(found) == 1 else ""


def _told(queue: QueueState, delivered: list[Ordered], attempt_id: str, now_ms: int) -> dict[str, Any]:
    first = delivered[0].queue_offset
    offsets = [one.queue_offset for one in delivered]
    told = {
        "popTime": now_ms,
        "i": 1,  # what has no time of its own is with nobody
        "o": [first, *(offset - first for offset in offsets[1:])],
        "ot": {offset: queue.under_way[offset].deadline_ms for offset in offsets if offset in queue.under_way},
        "oc": {one.queue_offset: one.attempt - 1 for one in delivered if one.attempt > 1},
        "cm": _signed(sum(1 << at for at, one in enumerate(delivered) if one.step is Step.ACKED)),
        "l": now_ms,
    }
    return told | ({"a": attempt_id} if attempt_id else {})


def _signed(bits: int) -> int:
    """Returns the bits as a signed number, as Java's long has them."""
    return bits - (1 << 64) if bits >> 63 else bits
