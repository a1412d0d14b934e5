"""RocketMQ's `config/timercheck`: how far a real RocketMQ has delivered messages with a delivery time.

    | read until 8 | timer log position 8 | queue offset 8 | master's queue offset 8 | data version 3 x 8 | zeros |

RocketMQ has put the records of the timer topic in front of the queue offset into its wheel, and delivered those whose
TIMER_OUT_MS is before `read until`.
"""

from pathlib import Path
from struct import Struct
from typing import NamedTuple

from rocketsim_proto.records import record
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.store.message_store import MessageStore

_FIELDS = Struct(">7q")
_SIZE = 4096


class TimerCheck(NamedTuple):
    read_ms: int = 0
    timer_log: int = 0
    queue_offset: int = 0
    masters_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def read(store: MessageStore, path: Path) -> TimerCheck | None:
    """None without a file, and for one that is cut off."""
    try:
        data = store.disk.read_synced(path)
    except FileNotFoundError:
        return None
    return TimerCheck(*_FIELDS.unpack_from(data)) if len(data) >= _FIELDS.size else None


def write(store: MessageStore, path: Path, oldest: int | None, now_ms: int) -> None:
    """`oldest`: the log offset of the oldest message that waits, if one does."""
    before = read(store, path) or TimerCheck()
    at = store.queue_end(TIMER_TOPIC, 0) if oldest is None else record.locate(store.read_record(oldest)).queue_offset
    check = before._replace(
        read_ms=now_ms // 1000 * 1000,
        queue_offset=at,
        masters_queue_offset=at,
        timestamp_ms=now_ms,
        counter=before.counter + 1,
    )
    store.disk.write_atomically(path, _FIELDS.pack(*check).ljust(_SIZE, b"\0"))


def delivered(store: MessageStore, path: Path) -> tuple[int, int] | None:
    """(second, log offset): what waits in a second before and in front of the offset, RocketMQ has delivered."""
    check = read(store, path)
    if check is None:
        return None
    first, end = store.queue_bounds(TIMER_TOPIC, 0)
    if check.queue_offset >= end:
        return check.read_ms // 1000, store.end_offset
    at = max(check.queue_offset, first)
    found = store.read_ranges([(TIMER_TOPIC, 0, at, at + 1)], max_bytes=1)
    if not found.records:
        return None
    data = b"".join(found.records)
    with store.decoding(data):
        return check.read_ms // 1000, record.locate(data).commit_log_offset
