"""Checks messages and arguments before they are sent.  MessageIllegal gives the reason.  Pure."""

import re
from collections.abc import Sequence

from rocketsim_proto.records import record
from rocketsim_proto.records.record import property_fault
from rocketsim_proto.reserved import DEFAULT_TOPIC, PROPERTIES, RETRY_PREFIX, SCHEDULE_TOPIC

from rocketsim_client.errors import InvalidParameter, MessageIllegal
from rocketsim_client.model import Message

MAX_GROUP_SIZE = 255
# The bytes of a record beside body, topic and the caller's properties: the fixed fields and UNIQ_KEY.
OVERHEAD = record.MIN_SIZE + len(record.PROPERTY_UNIQ_KEY) + 32 + 2

_LONG_TEXT = 500  # characters; shorter tags and keys certainly fit into a record, and need no full check
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
# The broker creates the retry topics, and clients may read them.
_RETRY_TOPIC = re.compile(rf"{RETRY_PREFIX}[%|a-zA-Z0-9_+-]*")
NOT_FOR_SENDING = frozenset(
    {
        SCHEDULE_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        DEFAULT_TOPIC,
    }
)
# Name of a property -> the argument that sets the property.  Spark's sink has columns with the same or similar names.
_ARGUMENTS = {
    record.PROPERTY_TAGS: "tags",
    record.PROPERTY_KEYS: "keys",
    record.PROPERTY_UNIQ_KEY: "msg_ids of send_columns",
    record.PROPERTY_SHARDING_KEY: "message_group",
    record.PROPERTY_WAIT: "wait_store_msg_ok",
    record.PROPERTY_DELAY: "delay_level",
    record.PROPERTY_DELIVER_MS: "deliver_at",
}


def seconds(value_s: float | None, older_name_ms: float) -> float:
    """Returns `value_s`.  If `value_s` is None, returns the value of the option's older name, converted from
    milliseconds to seconds."""
    return older_name_ms / 1000 if value_s is None else value_s


def check_topic(topic: str) -> None:
    if not topic:
        raise MessageIllegal("the topic is empty")
    if len(topic.encode()) > record.MAX_TOPIC_SIZE:
        raise MessageIllegal(f"topic of {len(topic.encode())} bytes; {record.MAX_TOPIC_SIZE} at most: {topic[:40]}…")
    if not _NAME.fullmatch(topic) and not _RETRY_TOPIC.fullmatch(topic):
        raise MessageIllegal(f"topic {topic!r}: only letters, digits and %|_- are possible")


def check_group(group: str) -> None:
    if not group or len(group) > MAX_GROUP_SIZE or not _NAME.fullmatch(group):
        raise MessageIllegal(f"group {group!r}: 1 to {MAX_GROUP_SIZE} letters, digits and %|_-")


def check_namespace(namespace: str) -> None:
    if not re.fullmatch("[A-Za-z0-9_-]+", namespace, re.ASCII):
        raise InvalidParameter(f"namespace {namespace!r}: only letters, digits, _ and - are possible")


def check_namespaces(namespace: str, namespace_v2: str) -> None:
    """Checks the two namespaces of a connection.  At most one may be given, and the other one is an empty text."""
    for value in filter(None, (namespace, namespace_v2)):
        check_namespace(value)
    if namespace and namespace_v2:
        raise InvalidParameter("namespace and namespace_v2: give only one of them")


def check_topic_for_sending(topic: str) -> None:
    check_topic(topic)
    if topic in NOT_FOR_SENDING:
        raise MessageIllegal(f"topic {topic!r} is one of RocketMQ's system topics: it cannot be sent to")


def property_problem(name: object, value: object) -> str:
    """Returns what is wrong with a sender's own property, or an empty text.  `sending/property_columns.py` has the
    same rule for columns."""
    if not isinstance(name, str) or not name:
        return f"property name {name!r}: a string that is not empty expected"
    if name in PROPERTIES:
        argument = _ARGUMENTS.get(name)
        set_by = f"the argument {argument} sets it" if argument else "RocketMQ's own programs set it; use another name"
        return f"property {name!r} is reserved by RocketMQ: {set_by}"
    if not isinstance(value, str):
        return f"property {name!r}: a string expected, not {'null' if value is None else type(value).__name__}"
    return text_problem(name, value) or (
        f"property {name!r}: {fault}" if (fault := property_fault(name, value)) else ""
    )


def text_problem(name: str, text: str) -> str:
    """Returns what is wrong with the text of any property, or an empty text.  A property with an empty text counts
    as missing."""
    try:
        (name + text).encode()
    except UnicodeEncodeError:
        return f"property {name!r}: it contains half of a surrogate pair, which is no text"
    return f"property {name!r}: {fault}" if text and (fault := property_fault(name, text)) else ""


def check_message_group(message_group: str) -> None:
    if problem := text_problem(record.PROPERTY_SHARDING_KEY, message_group):
        raise MessageIllegal(f"message group {message_group!r}: {problem}")


def check(message: Message, max_message_size: int) -> int:
    """Returns the approximate size of the message's record.  Raises MessageIllegal if the message cannot be sent as it
    is.  The topic is checked by `check_topic`."""
    body = message.body
    if type(body) is not bytes:
        cure = "; body.encode() makes bytes of a text" if isinstance(body, str) else ""
        raise MessageIllegal(f"topic {message.topic!r}: a body is bytes, not {type(body).__name__}{cure}")
    if not body:
        raise MessageIllegal(f"topic {message.topic!r}: the body is empty")
    if len(body) > max_message_size:
        raise MessageIllegal(f"topic {message.topic!r}: body of {len(body)} bytes; {max_message_size} at most")
    size = OVERHEAD + len(body) + len(message.topic)
    tags, keys = message.tags, message.keys
    if not message.properties and (tags is None or type(tags) is str) and (keys is None or type(keys) is str):
        # A fast check for ordinary messages; all others are checked in full below.
        if not tags and not keys:
            return size + 16
        text = f"{tags or ''}{keys or ''}"
        if text.isascii() and text.isprintable() and len(text) < 2 * _LONG_TEXT:
            return size + len(text) + 16
    return size + _check_properties(message)


def size_if_usual(messages: Sequence[Message], max_message_size: int) -> int | None:
    """Returns the total size of a batch's messages, as `check` counts it, if all messages are ordinary.  Returns None
    if each message has to be checked by itself."""
    first, count = messages[0], len(messages)
    bodies = [message.body for message in messages]
    tags, keys = [message.tags for message in messages], [message.keys for message in messages]
    if (
        set(map(type, bodies)) != {bytes}
        or [message.topic for message in messages].count(first.topic) < count
        or [message.wait_store_msg_ok for message in messages].count(first.wait_store_msg_ok) < count
        or any([message.delay_level for message in messages])  # a list, because a generator takes twice as long
        or any([message.properties for message in messages])
        or any([message.message_group for message in messages])
        or [message.deliver_at for message in messages].count(None) < count
    ):
        return None
    sizes = list(map(len, bodies))
    if min(sizes) == 0 or max(sizes) > max_message_size:
        return None
    size = sum(sizes) + count * (OVERHEAD + len(first.topic) + 16)
    if tags.count(None) + keys.count(None) == 2 * count:
        return size
    texts = [text for text in (*tags, *keys) if text is not None]
    if set(map(type, texts)) != {str} or max(map(len, texts)) >= _LONG_TEXT:
        return None
    text = "".join(texts)
    return size + len(text) if text.isascii() and text.isprintable() else None


def _check_properties(message: Message) -> int:
    pairs = list((message.properties or {}).items())
    for name, value in pairs:
        if problem := property_problem(name, value):
            raise MessageIllegal(f"topic {message.topic!r}: {problem}")
    for name, text in ((record.PROPERTY_TAGS, message.tags), (record.PROPERTY_KEYS, message.keys)):
        if text is None:
            continue
        if not isinstance(text, str):
            raise MessageIllegal(
                f"topic {message.topic!r}: property {name!r}: a string expected, not {type(text).__name__}"
            )
        if problem := text_problem(name, text):
            raise MessageIllegal(f"topic {message.topic!r}: {problem}")
        pairs.append((name, text))
    size = 0
    for name, value in pairs:
        text = name + value
        size += len(text) if text.isascii() else len(text.encode())
        size += 2
    # The other 128 bytes are for UNIQ_KEY, WAIT, DELAY and the broker's own properties.
    most = record.MAX_PROPERTIES_SIZE - 128
    if size > most:
        raise MessageIllegal(f"topic {message.topic!r}: properties of {size} bytes; {most} at most")
    return size
