"""What a send frame must be before it is appended: refused as a whole, or good as a whole.  Pure.

Everything the log takes from a client is checked here, because what is in the log is copied and served as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from isal import isal_zlib
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import (
    BLANK_SIZE,
    MAX_PROPERTIES_SIZE,
    NAME_END,
    PROPERTY_DELAY,
    PROPERTY_WAIT,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_TYPE,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_STORE_HOST_V6,
    Parts,
    RecordError,
    locate,
)

from broker_service.errors import MessageIllegal
from broker_service.store import few

# A delivered delayed message says where it comes from; recovery counts on these, so clients may not set them.
PROPERTY_DELIVERED_LEVEL = "__DELAY_LEVEL"
PROPERTY_DELIVERED_OFFSET = "__DELAY_OFFSET"

_CLIENT_SYS_FLAGS = (
    SYS_FLAG_COMPRESSED
    | SYS_FLAG_COMPRESSION_TYPE
    | SYS_FLAG_MULTI_TAGS
    | SYS_FLAG_BORN_HOST_V6
    | SYS_FLAG_STORE_HOST_V6
)
_SECTOR = bytes(512)
# Kinds of message that would be stored as something else than they are meant to be.
_UNSUPPORTED: dict[bytes, str] = {
    b"TRAN_MSG": "transactional messages are not supported",
    b"TIMER_DELIVER_MS": "messages with a delivery time are not supported; use a delay level",
    b"TIMER_DELAY_SEC": "messages with a delivery time are not supported; use a delay level",
    b"TIMER_DELAY_MS": "messages with a delivery time are not supported; use a delay level",
    PROPERTY_DELIVERED_LEVEL.encode(): "the property belongs to the broker",
    PROPERTY_DELIVERED_OFFSET.encode(): "the property belongs to the broker",
}
_DELAY, _WAIT = PROPERTY_DELAY.encode(), PROPERTY_WAIT.encode()
_SPECIAL = tuple(name + NAME_END.encode() for name in (*_UNSUPPORTED, _DELAY, _WAIT))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    max_message_size: int  # of a body
    log_file_size: int
    store_host_size: int  # 8 or 20: the broker's own address has to fit into the records


@dataclass(frozen=True, slots=True)
class Frame:
    """Checked records of one topic, for queues from `queues[0]` to `queues[1]`.  `delay_level` and `waits` are
    properties of a single message.
    """

    records: Records
    queues: tuple[int, int]
    delay_level: int = 0
    waits: bool = True


def check_frame(topic: str, data: bytes | memoryview, count: int, crc32: int, limits: FrameLimits) -> Frame:
    """The frame's records, over a writable copy of `data`; MessageIllegal says what is wrong and with which message."""
    if count <= 0 or not data:
        raise MessageIllegal("a frame without a message")
    if isal_zlib.crc32(data) != crc32:
        raise MessageIllegal("the frame's CRC-32 does not fit its bytes: they were damaged on the way; send it again")
    copy = bytearray(data)
    if count <= few.FEW and (frame := _few(topic.encode(), copy, count, limits)) is not None:
        return frame
    try:
        records = Records.walk(copy, count)
        records.check()
        records.check_topic(topic)
        _check_sizes(records, limits)
        _check_flags(records, limits)
        _check_no_zeros(records, copy)
        names = records.property_names()
        for name in _UNSUPPORTED.keys() & names:
            raise MessageIllegal(f"property {name.decode()}: {_UNSUPPORTED[name]}")
        return Frame(
            records,
            (int(records.queue_id.min()), int(records.queue_id.max())),
            _delay_level(records) if _DELAY in names else 0,
            _waits(records) if _WAIT in names else True,
        )
    except RecordError as error:
        raise MessageIllegal(f"the frame for topic {topic} is refused: {error}") from error


def _few(topic: bytes, data: bytearray, count: int, limits: FrameLimits) -> Frame | None:
    """A few records, looked at one by one; None if there is anything about them that the columns have to judge."""
    view, found, at = memoryview(data), [], 0
    try:
        while at < len(data):
            found.append(locate(view, at))
            at += found[-1].size
    except RecordError:
        return None
    if len(found) != count or not all(_is_plain(view, parts, topic, limits) for parts in found):
        return None
    queue_ids = [parts.queue_id for parts in found]
    return Frame(Records.of_parts(np.frombuffer(data, np.uint8), found), (min(queue_ids), max(queue_ids)))


def _is_plain(data: memoryview, parts: Parts, topic: bytes, limits: FrameLimits) -> bool:
    """Whether a record passes all checks below and says nothing that a single message only may say."""
    properties = bytes(data[parts.properties_start : parts.end])
    return (
        parts.body_end - parts.body_start <= limits.max_message_size
        and parts.size <= limits.log_file_size - BLANK_SIZE
        and len(properties) <= MAX_PROPERTIES_SIZE
        and not parts.sys_flag & ~_CLIENT_SYS_FLAGS
        and parts.store_end - parts.born_end == 8 + limits.store_host_size
        and data[parts.topic_start : parts.topic_end] == topic
        and b"\0" not in properties
        and not any(name in properties for name in _SPECIAL)
        and few.has_its_body(data, parts)
    )


def _check_sizes(records: Records, limits: FrameLimits) -> None:
    for what, sizes, most in (
        ("a body", records.body_size, limits.max_message_size),
        ("properties", records.properties_size, MAX_PROPERTIES_SIZE),
        ("a record", records.sizes, limits.log_file_size - BLANK_SIZE),
    ):
        worst = int(sizes.argmax())
        if sizes[worst] > most:
            raise MessageIllegal(f"message {worst} of the frame has {what} of {sizes[worst]} bytes; {most} at most")


def _check_flags(records: Records, limits: FrameLimits) -> None:
    flags = records.sys_flag
    strange = flags & ~np.int32(_CLIENT_SYS_FLAGS) != 0
    if strange.any():
        row = int(strange.argmax())
        raise MessageIllegal(
            f"message {row} of the frame has system flag {int(flags[row]):#x}: not for a client to set"
        )
    needed = SYS_FLAG_STORE_HOST_V6 if limits.store_host_size == 20 else 0
    wrong = flags & SYS_FLAG_STORE_HOST_V6 != needed
    if wrong.any():
        raise MessageIllegal(
            f"message {int(wrong.argmax())} of the frame has no room for this broker's address: "
            f"the store host must be {limits.store_host_size} bytes"
        )


def _check_no_zeros(records: Records, data: bytearray) -> None:
    """Properties that a recovery would take for sectors that never reached the disk: no checksum covers them."""
    ends = records.properties_start + records.properties_size - 1
    lost = (records.properties_size > 0) & (records.data[ends] == 0)
    if records.properties_size.max() >= len(_SECTOR) and _SECTOR in data:
        lost |= np.array([_SECTOR in piece for piece in _properties(records)])
    if lost.any():
        raise MessageIllegal(f"message {int(lost.argmax())} of the frame has NUL characters in its properties")


def _properties(records: Records) -> Iterator[bytes]:
    for start, size in zip(records.properties_start.tolist(), records.properties_size.tolist(), strict=True):
        yield records.data[start : start + size].tobytes()


def _delay_level(records: Records) -> int:
    levels = [_level(value) for value in records.property(PROPERTY_DELAY).drop_null().to_pylist()]
    if len(records) > 1 and any(levels):
        raise MessageIllegal("delayed messages cannot be sent in a batch; send each by itself")
    return levels[0]


def _level(value: str) -> int:
    if not (value.isascii() and value.lstrip("-").isdigit()):
        raise MessageIllegal(f"property {PROPERTY_DELAY}={value[:20]!r}: a delay level is a number")
    return max(0, int(value[:9]))


def _waits(records: Records) -> bool:
    if len(records) > 1:
        return True
    return str(records.property(PROPERTY_WAIT)[0].as_py()).lower() != "false"
