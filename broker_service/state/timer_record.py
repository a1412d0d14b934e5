"""Pure functions for the records of messages with a delivery time: their waiting, their recall and their delivery.

A waiting message is a record of queue 0 of RocketMQ's `rmq_sys_wheel_timer`.  When a message is delivered, or moved to
the end of the log, the appended copy names the waiting record and thereby settles it.
"""

from collections.abc import Iterator
from dataclasses import replace

from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import (
    MAX_PROPERTIES_SIZE,
    PROPERTY_DELIVER_MS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    Record,
    encode_properties,
)
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.errors import InvalidParameter, MessageIllegal

MAX_TIMER_DELAY_MS = 3 * 86_400_000  # RocketMQ's timerMaxDelaySec
MAX_TIMERS = 10_000_000  # maximum number of waiting messages; each takes some 10 to 30 bytes of memory

PROPERTY_OUT_MS = "TIMER_OUT_MS"
PROPERTY_DELETE_KEY = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_SOURCE = "__TIMER_SOURCE"  # in a copy: second and log offset of the record that it settles
_RECALL_TAG = "_RECALL_TAG_"  # RocketMQ's
_RECALL_BODY = b"0"
_LONGEST_SOURCE = f"{'9' * 11} {'9' * 19}"


def out_ms(deliver_ms: int) -> int:
    """Returns RocketMQ's time of the message: the last whole second before its delivery time."""
    return (deliver_ms - 1) // 1000 * 1000


def waiting_record(message: Record, deliver_ms: int, now_ms: int) -> Record:
    """Makes the record in which a message waits for its delivery time.

    Raises MessageIllegal if the time is too far ahead, or if the properties leave no room for the properties of the
    delivered copy.
    """
    if deliver_ms - now_ms > MAX_TIMER_DELAY_MS:
        raise MessageIllegal(
            f"topic {message.topic}: the delivery time is more than {MAX_TIMER_DELAY_MS // 1000} s from now; choose an "
            "earlier one"
        )
    real = {PROPERTY_REAL_TOPIC: message.topic, PROPERTY_REAL_QUEUE_ID: str(message.queue_id)}
    properties = {**message.properties, PROPERTY_OUT_MS: str(out_ms(deliver_ms)), **real}
    if len(encode_properties({**properties, PROPERTY_TIMER_SOURCE: _LONGEST_SOURCE})) > MAX_PROPERTIES_SIZE:
        raise MessageIllegal(
            f"the message cannot wait: its properties and the broker's exceed {MAX_PROPERTIES_SIZE} bytes"
        )
    return replace(message, topic=TIMER_TOPIC, queue_id=0, properties=properties)


def recall_key(topic: str, message_id: str) -> str:
    return f"{topic}+{message_id}"


def recall_record(topic: str, message_id: str, deliver_ms: int, now_ms: int) -> Record:
    """Makes RocketMQ's delete record, which waits until the same time as the message.

    Raises InvalidParameter if the delivery time is over, or if no message can have this delivery time.
    """
    if not 0 < deliver_ms - now_ms < MAX_TIMER_DELAY_MS:
        raise InvalidParameter("recall failed, timestamp invalid: the message is delivered, or never had that time")
    properties = {
        PROPERTY_TAGS: _RECALL_TAG,
        PROPERTY_DELETE_KEY: recall_key(topic, message_id),
        PROPERTY_UNIQ_KEY: message_id,
        PROPERTY_DELIVER_MS: str(deliver_ms),
    }
    return waiting_record(Record(topic, _RECALL_BODY, born_timestamp=now_ms, properties=properties), deliver_ms, now_ms)


def second_of(waiting: Record) -> int:
    """Returns the second in which the message waits.  Raises ValueError if the record names no valid time."""
    return second_in(waiting.properties.get(PROPERTY_OUT_MS, ""))


def second_in(value: str) -> int:
    """Returns the second in a value of TIMER_OUT_MS.  Raises ValueError if the value is no valid time."""
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise ValueError(f"the record names no time: {PROPERTY_OUT_MS}={value[:20]!r}")
    return int(value) // 1000


def topic_of(waiting: Record) -> str:
    """Returns the topic to which the message will be delivered; empty if the record does not say it."""
    return waiting.properties.get(PROPERTY_REAL_TOPIC, "")


def key_of(waiting: Record) -> str:
    """Returns the key by which a recall names this message."""
    return recall_key(topic_of(waiting), waiting.message_id)


def delivered_record(waiting: Record) -> Record:
    """Makes the message for its real topic and queue.  Raises ValueError if the record names no topic or no queue."""
    properties = dict(waiting.properties)
    topic, queue_id = properties.pop(PROPERTY_REAL_TOPIC, ""), properties.pop(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or not (queue_id.isascii() and queue_id.isdigit()):
        raise ValueError(f"the record does not say where it belongs: topic {topic!r}, queue {queue_id!r}")
    return _copy(replace(waiting, topic=topic, queue_id=int(queue_id), properties=properties))


def moved_record(waiting: Record) -> Record:
    """Makes a copy of the record for the end of the log, because the record's log file expires."""
    return _copy(waiting)


def _copy(waiting: Record) -> Record:
    source = f"{second_of(waiting)} {waiting.commit_log_offset}"
    return replace(waiting, properties={**waiting.properties, PROPERTY_TIMER_SOURCE: source})


def sources(data: bytes) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Yields, for each of these adjacent records, its topic and the waiting record that it settles.

    The waiting record is given by its second and log offset.  For a record that is not a copy, the waiting record is
    None.
    """
    records = Records.walk(data)
    values = records.property(PROPERTY_TIMER_SOURCE).to_pylist()
    for topic, value in zip(records.topics().to_pylist(), values, strict=True):
        second, _, log_offset = (value or "").partition(" ")
        is_copy = second.isdecimal() and log_offset.isdecimal()
        yield topic, (int(second), int(log_offset)) if is_copy else None
