"""Reads and writes RocketMQ's `config/timercheck`: how far a RocketMQ has delivered messages with a delivery time.

    | read until 8 | timer log 8 | queue offset 8 | master's queue offset 8 | data version 3 x 8 | zeros | CRC-32 4 |

RocketMQ has put all timers (records of the timer topic) before `queue offset` into its timer wheel.  From the wheel,
RocketMQ has delivered the timers whose TIMER_OUT_MS is before `read until`.  This broker also writes a CRC of the
fields into the file.  RocketMQ does not update the CRC, so a wrong CRC means that RocketMQ wrote the file last.  This
broker reads its own progress from the log and not from this file, because the log may have been cut since the file was
written.
"""

from pathlib import Path
from struct import Struct
from typing import NamedTuple

from isal import isal_zlib
from rocketsim_proto.records import record
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.store.message_store import MessageStore

FIELDS = Struct(">7q")
_OURS = Struct(">I")
_SIZE = 4096


class TimerCheck(NamedTuple):
    read_ms: int = 0
    timer_log: int = 0
    queue_offset: int = 0
    masters_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def encode(check: TimerCheck) -> bytes:
    """Returns the file's bytes as this broker writes them."""
    fields = FIELDS.pack(*check)
    return fields.ljust(_SIZE - _OURS.size, b"\0") + _OURS.pack(isal_zlib.crc32(fields))


def is_ours(data: bytes) -> bool:
    """Returns True if this broker has written the file, and RocketMQ has not changed it since."""
    return data == encode(TimerCheck(*FIELDS.unpack_from(data)))


def _read(store: MessageStore, path: Path) -> bytes | None:
    """Reads the file.  Returns None if the file is missing or too short."""
    try:
        data = store.disk.read_synced(path)
    except FileNotFoundError:
        return None
    return data if len(data) >= FIELDS.size else None


def is_rocketmqs(store: MessageStore, path: Path) -> bool:
    """Returns True if RocketMQ was the last to write the file."""
    data = _read(store, path)
    return data is not None and not is_ours(data)


def write(store: MessageStore, path: Path, oldest: int | None, now_ms: int) -> None:
    """Writes the file.  `oldest` is the log offset of the oldest waiting timer, or None if no timer waits."""
    data = _read(store, path)
    before = TimerCheck(*FIELDS.unpack_from(data)) if data is not None else TimerCheck()
    at = store.queues.end_at(TIMER_TOPIC, 0, store.end_offset if oldest is None else oldest)
    check = before._replace(
        read_ms=now_ms // 1000 * 1000,
        queue_offset=at,
        masters_queue_offset=at,
        timestamp_ms=now_ms,
        counter=before.counter + 1,
    )
    store.disk.write_atomically(path, encode(check))


def delivered(store: MessageStore, path: Path) -> tuple[int, int] | None:
    """Returns (second, log offset): RocketMQ has delivered all timers that lie before this log offset and were due
    before this second.

    Returns None if the file is missing, or if this broker was the last to write it.
    """
    content = _read(store, path)
    if content is None or is_ours(content):
        return None
    check = TimerCheck(*FIELDS.unpack_from(content))
    first, end = store.queues.bounds(TIMER_TOPIC, 0)
    if check.queue_offset >= end:
        return check.read_ms // 1000, store.end_offset
    at = max(check.queue_offset, first)
    found = store.queues.read_ranges([(TIMER_TOPIC, 0, at, at + 1)], max_bytes=1)
    if not found.records:
        return None
    data = b"".join(found.records)
    with store.log.decoding(data):
        return check.read_ms // 1000, record.locate(data).commit_log_offset
