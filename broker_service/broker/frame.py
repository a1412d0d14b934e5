"""Checks the records that a client sends to a topic, before they are appended.  If one record is wrong, all records of
the send are refused.

Slaves and readers get the log's bytes unchanged, so everything that a client can do wrong is checked here.  The records
of a send come from the client, in a frame, or the broker has made them from the client's messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rocketsim_proto.records import kernels
from rocketsim_proto.records.record import (
    BLANK_SIZE,
    MAX_PROPERTIES_SIZE,
    PROPERTY_DELAY,
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_S,
    PROPERTY_DELIVER_MS,
    PROPERTY_WAIT,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_TYPE,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_STORE_HOST_V6,
    Record,
    RecordError,
    checksum,
    decode,
    encode,
)

from broker_service.errors import MessageIllegal
from broker_service.state.half_messages import PROPERTY_PREPARED
from broker_service.state.timer_record import PROPERTY_DELETE_KEY, PROPERTY_TIMER_SOURCE
from broker_service.store.batch import Batch, Fields

# The broker sets these two properties when it delivers a delayed message: the delay level, and the offset in the
# schedule topic.  Clients may not set the two properties, because recovery relies on them.
PROPERTY_DELIVERED_LEVEL = "__DELAY_LEVEL"
PROPERTY_DELIVERED_OFFSET = "__DELAY_OFFSET"

_CLIENT_SYS_FLAGS = (
    SYS_FLAG_COMPRESSED
    | SYS_FLAG_COMPRESSION_TYPE
    | SYS_FLAG_MULTI_TAGS
    | SYS_FLAG_BORN_HOST_V6
    | SYS_FLAG_STORE_HOST_V6
)
# Property that clients may not set -> the reason.  Without this check the broker would ignore the property and store a
# normal message.
UNSUPPORTED: dict[bytes, str] = {
    PROPERTY_PREPARED.encode(): "transactional messages are not supported",
    PROPERTY_DELAY_S.encode(): f"delays in seconds are not supported; use {PROPERTY_DELIVER_MS}",
    PROPERTY_DELAY_MS.encode(): f"delays in milliseconds are not supported; use {PROPERTY_DELIVER_MS}",
    PROPERTY_DELETE_KEY.encode(): "the property belongs to the broker",
    PROPERTY_TIMER_SOURCE.encode(): "the property belongs to the broker",
    PROPERTY_DELIVERED_LEVEL.encode(): "the property belongs to the broker",
    PROPERTY_DELIVERED_OFFSET.encode(): "the property belongs to the broker",
}
_DELAY, _DELIVER = PROPERTY_DELAY.encode(), PROPERTY_DELIVER_MS.encode()
SPECIAL = tuple(sorted(UNSUPPORTED.keys() | {_DELAY, _DELIVER, PROPERTY_WAIT.encode()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    max_message_size: int  # the largest body, in bytes
    log_file_size: int
    store_host_size: int  # size of the address of the broker, 8 or 20 bytes; each record must have room for it

    @property
    def max_record_size(self) -> int:
        return self.log_file_size - BLANK_SIZE


@dataclass(frozen=True, slots=True)
class Frame:
    """Checked records of one topic.

    `queues` has the lowest and the highest queue id of the records.  `message` is set only if the frame has a single
    record with special properties.  The fields `delay_level`, `deliver_ms` and `waits` are set from the special
    properties of `message`.  If `waits` is false, the sender does not wait for the disk or the slave.
    """

    batch: Batch
    queues: tuple[int, int]
    message: Record | None = None
    delay_level: int = 0
    waits: bool = True
    deliver_ms: int = 0


def check_frame(topic: str, data: bytes | memoryview, count: int, crc32: int, limits: FrameLimits) -> Frame:
    """Checks a frame of records from a client.  Raises MessageIllegal, whose text names the first wrong message and the
    reason.

    If `data` is a writable view, the append writes its stamps into it, otherwise into a copy.
    """
    if count <= 0 or not data:
        raise MessageIllegal("the frame has no message")
    if checksum(data) != crc32:
        raise MessageIllegal("the frame's CRC-32 does not fit its bytes: they were damaged on the way; send it again")
    try:
        can_be_written = isinstance(data, memoryview) and not data.readonly
        written = memoryview(data) if can_be_written else bytearray(data)
        if (found := _checked_at_once(topic, written, count, limits)) is not None:
            return _frame_of(*found)
        return _checked(topic, Batch.of_frame(written, count), limits)
    except RecordError as error:
        raise MessageIllegal(f"the frame for topic {topic} is refused: {error}") from error


def check_records(topic: str, records: Sequence[Record], limits: FrameLimits) -> Frame:
    """Checks records that the broker has made from a client's messages."""
    try:
        data = bytearray(b"".join(map(encode, records)))
        if (found := _checked_at_once(topic, data, len(records), limits)) is not None:
            return _frame_of(*found, records[0])
        return _checked(topic, Batch.of_frame(data, len(records)), limits, records[0])
    except RecordError as error:
        raise MessageIllegal(f"a message for topic {topic} cannot be stored: {error}") from error


def _checked_at_once(
    topic: str, data: bytearray | memoryview, count: int, limits: FrameLimits
) -> tuple[Batch, frozenset[bytes]] | None:
    """Makes all checks of `_checked` in one pass of compiled code.  Returns the batch, and which special properties it
    has.

    Returns None if the compiled module is missing, or if a record breaks a rule.  If a record breaks a rule, `_checked`
    then finds the rule and raises.
    """
    if kernels.compiled is None:
        return None
    found = kernels.compiled.check(
        data,
        count,
        topic.encode(),
        SPECIAL,
        max_body_size=limits.max_message_size,
        max_record_size=limits.max_record_size,
        client_flags=_CLIENT_SYS_FLAGS,
        store_host_v6=limits.store_host_size == 20,
    )
    if found is None:
        return None
    places, queue_ids, bits = found
    names = frozenset(name for number, name in enumerate(SPECIAL) if bits >> number & 1) if bits else frozenset()
    return Batch.of_checked(data, places, queue_ids), names


def _checked(topic: str, batch: Batch, limits: FrameLimits, first: Record | None = None) -> Frame:
    """Checks a batch.  `first` is the first record, if the caller has already decoded it."""
    batch.check_topic(topic)
    _check_fields(batch, limits)
    lost = batch.lost_sector()
    if lost is not None:
        raise MessageIllegal(f"message {lost} of the frame has NUL characters in its properties")
    return _frame_of(batch, batch.properties_among(frozenset(SPECIAL)), first)


def _frame_of(batch: Batch, names: frozenset[bytes], first: Record | None = None) -> Frame:
    """Makes the frame for records that have passed the checks.  `names` are the special properties that these records
    have.
    """
    queue_ids = batch.queue_ids
    queues = queue_ids[0], queue_ids[-1]
    if not names:
        return Frame(batch, queues)
    for name in UNSUPPORTED.keys() & names:
        raise MessageIllegal(f"property {name.decode()}: {UNSUPPORTED[name]}")
    if len(batch) > 1:
        _check_none_is_delayed(batch, names)
        return Frame(batch, queues)
    message = first or decode(batch.view_bytes(), check_crc=False)
    # An empty value counts as a missing property, because RocketMQ's decoder, and therefore every reader, drops empty
    # properties.
    return Frame(
        batch,
        queues,
        message,
        _delay_level(message.properties.get(PROPERTY_DELAY) or "0"),
        message.properties.get(PROPERTY_WAIT, "").lower() != "false",
        _deliver_ms(message.properties.get(PROPERTY_DELIVER_MS) or "0"),
    )


def _check_fields(batch: Batch, limits: FrameLimits) -> None:
    """Raises MessageIllegal for the first message whose fields break a rule."""
    for number, fields in batch.fields():
        body, properties, record, flag, host = broken = _broken(fields, limits)
        if (body | properties | record | flag | host) is False:
            continue
        rows = [(int(np.argmax(breaks)), rule) for rule, breaks in enumerate(broken) if np.any(breaks)]
        if rows:
            row, rule = min(rows)
            one = Fields(*(int(np.atleast_1d(value)[row]) for value in fields))
            fault = _FAULTS[rule].format(one=one, limits=limits)
            raise MessageIllegal(f"message {number + row} of the frame {fault}")


def _broken(fields: Fields, limits: FrameLimits) -> tuple[Any, ...]:
    """Returns for each rule whether the message breaks it: a bool, or an array of bools if the fields are columns."""
    flags = fields.sys_flag
    return (
        fields.body_size > limits.max_message_size,
        fields.properties_size > MAX_PROPERTIES_SIZE,
        fields.size > limits.max_record_size,
        flags & ~_CLIENT_SYS_FLAGS != 0,
        (flags & SYS_FLAG_STORE_HOST_V6 != 0) != (limits.store_host_size == 20),
    )


_FAULTS = (
    "has a body of {one.body_size} bytes; this broker's maxMessageSize is {limits.max_message_size}",
    f"has properties of {{one.properties_size}} bytes; at most {MAX_PROPERTIES_SIZE} are allowed",
    "has a record of {one.size} bytes; only {limits.max_record_size} fit into a file of this broker's "
    "(mappedFileSizeCommitLog)",
    "has system flag {one.sys_flag:#x}, which clients may not set",
    "has no room for this broker's address: the store host must be {limits.store_host_size} bytes",
)


def _check_none_is_delayed(batch: Batch, names: frozenset[bytes]) -> None:
    if _DELAY in names and any(map(_delay_level, batch.columns.property(PROPERTY_DELAY).drop_null().to_pylist())):
        raise MessageIllegal("delayed messages cannot be sent in a batch; send each by itself")
    if _DELIVER in names:
        raise MessageIllegal("messages with a delivery time cannot be sent in a batch; send each by itself")


def _delay_level(value: str) -> int:
    if not (value.isascii() and value.lstrip("-").isdigit()):
        raise MessageIllegal(f"property {PROPERTY_DELAY}={value[:20]!r}: a delay level must be a number")
    return max(0, int(value[:9]))


def _deliver_ms(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise MessageIllegal(
            f"property {PROPERTY_DELIVER_MS}={value[:20]!r}: a delivery time must be milliseconds since 1970"
        )
    return int(value)
