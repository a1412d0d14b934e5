"""Pure functions that check messages of clients, with the error codes and texts of RocketMQ's proxy."""

import re

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as pb
from rocketsim_proto.records.record import property_fault
from rocketsim_proto.reserved import BROKER_PROPERTIES, OPEN_AT_THE_PROXY, PROPERTIES

from broker_service.wire.v2.status import Refused

MAX_USER_PROPERTIES = 128
MAX_PROPERTIES_BYTES = 16_384  # limit for keys, tag and user properties together
MAX_ORIGIN_BYTES = 8_192  # limit for trace context and born host together, which are set by clients, not by users
MAX_MESSAGE_GROUP_BYTES = 63
MAX_MESSAGE_ID_BYTES = 1024
MAX_CLIENTS_DELAY_MS = 24 * 3_600_000
MAX_RECOVERY_S = 3_600
_END_OF_TIME_S = 253_402_300_800  # the year 10000, where protobuf's timestamps end

# Names in RocketMQ's MessageConst.  Users may not set these properties, and do not get them as user properties.
RESERVED_PROPERTIES = frozenset(PROPERTIES) - OPEN_AT_THE_PROXY - BROKER_PROPERTIES
HIDDEN_PROPERTIES = RESERVED_PROPERTIES | BROKER_PROPERTIES

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check(message: pb.Message, max_body_size: int, now_ms: int) -> None:
    """Raises Refused with the reason if a message is invalid.  The topic's name and type are checked elsewhere."""
    system = message.system_properties
    body_size = len(message.body)  # the body is read once, because each access copies it
    if not body_size:
        raise Refused(pb.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if body_size > max_body_size:
        raise Refused(pb.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {max_body_size}")
    check_id(system.message_id)
    _check_sizes(message)
    _check_tag(system.tag)
    for key in filter(None, system.keys):  # an empty key counts as no key
        _check_text(key, pb.ILLEGAL_MESSAGE_KEY, "key")
    _check_group(system.message_group)
    for name, value in message.user_properties.items():
        if name in HIDDEN_PROPERTIES:
            raise Refused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if _has_control(name) or _has_control(value):
            raise Refused(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name!r}: neither key nor value can contain control character",
            )
        if fault := property_fault(name, value):
            raise Refused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r}: {fault}")
    if _has_control(system.trace_context) or _has_control(system.born_host):
        raise Refused(pb.BAD_REQUEST, "trace context and born host cannot contain control character")
    if system.HasField("delivery_timestamp"):
        _check_delivery_time(system.delivery_timestamp, now_ms)
    if system.orphaned_transaction_recovery_duration.seconds > MAX_RECOVERY_S:
        raise Refused(pb.BAD_REQUEST, f"orphaned transaction recovery duration is above the max {MAX_RECOVERY_S} s")
    if system.message_type == pb.TRANSACTION and system.HasField("delivery_timestamp"):
        raise Refused(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "a message of type TRANSACTION cannot have a delivery time, too"
        )
    if system.HasField("priority") and system.priority < 0:
        raise Refused(pb.BAD_REQUEST, f"priority {system.priority} is negative")


def type_of(message: pb.Message) -> pb.MessageType:
    """Returns the message type that follows from the fields, in RocketMQ's order.  Only the type TRANSACTION is stated
    in the message itself.
    """
    system = message.system_properties
    if system.message_type == pb.TRANSACTION:
        return pb.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return pb.DELAY
    if system.message_group:
        return pb.FIFO
    if system.HasField("priority"):
        return pb.PRIORITY
    return pb.LITE if system.lite_topic else pb.NORMAL


def check_type(message_type: pb.MessageType, of_topic: str) -> None:
    name = pb.MessageType.Name(message_type)
    if of_topic not in ("MIXED", name):
        raise Refused(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {of_topic}, but actual type is {name}",
        )


def is_time(timestamp: Timestamp) -> bool:
    """Returns True if a time is in the range that protobuf's timestamps should have.  Clients may send times
    outside this range.
    """
    return 0 <= timestamp.seconds < _END_OF_TIME_S and 0 <= timestamp.nanos < 1_000_000_000


def in_ms(timestamp: Timestamp) -> int:
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def milliseconds(duration: Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def check_id(message_id: str) -> None:
    if not message_id.strip():
        raise Refused(pb.ILLEGAL_MESSAGE_ID, "message id cannot be null or empty")
    if len(message_id.encode()) > MAX_MESSAGE_ID_BYTES or _has_control(message_id):
        raise Refused(
            pb.ILLEGAL_MESSAGE_ID,
            f"message id cannot contain control character or exceed {MAX_MESSAGE_ID_BYTES} bytes",
        )


def _check_tag(tag: str) -> None:
    """Checks a tag.  An empty tag counts as no tag."""
    if not tag:
        return
    _check_text(tag, pb.ILLEGAL_MESSAGE_TAG, "tag")
    if "|" in tag:
        raise Refused(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")


def _check_group(group: str) -> None:
    if not group:
        return
    _check_text(group, pb.ILLEGAL_MESSAGE_GROUP, "message group")
    if len(group.encode()) > MAX_MESSAGE_GROUP_BYTES:
        raise Refused(pb.ILLEGAL_MESSAGE_GROUP, f"message group exceeds the max {MAX_MESSAGE_GROUP_BYTES} bytes")


def _check_text(text: str, code: pb.Code, what: str) -> None:
    if not text.strip():
        raise Refused(code, f"{what} cannot be the char sequence of whitespace")
    if _has_control(text):
        raise Refused(code, f"{what} cannot contain control character")


def _has_control(text: str) -> bool:
    return not text.isprintable() and _CONTROL.search(text) is not None


def _check_sizes(message: pb.Message) -> None:
    """Checks the sizes of keys, tag and properties.  Sizes are checked before characters, because checking characters
    takes longer.
    """
    properties, system = message.user_properties, message.system_properties
    if len(properties) > MAX_USER_PROPERTIES:
        raise Refused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties: {len(properties)}, max is {MAX_USER_PROPERTIES}",
        )
    if len(system.keys) > MAX_PROPERTIES_BYTES:
        raise Refused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(system.keys)} keys are too many, max is {MAX_PROPERTIES_BYTES} bytes",
        )
    texts = (system.tag, *system.keys, *properties.keys(), *properties.values())
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_PROPERTIES_BYTES:
        raise Refused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"keys, tag and user properties have {size} bytes together, max is {MAX_PROPERTIES_BYTES}",
        )
    origin_size = len(system.trace_context.encode()) + len(system.born_host.encode())
    if origin_size > MAX_ORIGIN_BYTES:
        raise Refused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"trace context and born host have {origin_size} bytes together, max is {MAX_ORIGIN_BYTES}",
        )


def _check_delivery_time(timestamp: Timestamp, now_ms: int) -> None:
    if not is_time(timestamp):
        raise Refused(pb.ILLEGAL_DELIVERY_TIME, "the delivery time is not one of the years 1970 to 9999")
    if in_ms(timestamp) > now_ms + MAX_CLIENTS_DELAY_MS:
        raise Refused(
            pb.ILLEGAL_DELIVERY_TIME,
            f"the delivery time is too far in the future, max is {MAX_CLIENTS_DELAY_MS} ms from now",
        )
