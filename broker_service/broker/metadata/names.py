"""What topics and consumer groups may be called.  Pure; RocketMQ's rules and its system topics."""

import re

from broker_service.errors import InvalidParameter, MessageIllegal, NoPermission, RocketSimError

MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 120
DEFAULT_TOPIC = "TBW102"  # topics that the first message makes are copies of it
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # where delayed messages wait, one queue a level

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_SYSTEM_PREFIXES = ("rmq_sys_", "%RETRY%", "%DLQ%")


def is_system_topic(topic: str) -> bool:
    """One that the broker itself writes to; clients may read it but not write, change or delete it."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES)


def check_topic_name(topic: str) -> None:
    _check("topic", topic, MAX_TOPIC_LENGTH, MessageIllegal)


def check_group_name(group: str) -> None:
    _check("consumer group", group, MAX_GROUP_LENGTH, InvalidParameter)


def refuse_system_topic(topic: str) -> None:
    if is_system_topic(topic):
        raise NoPermission(f"topic {topic} belongs to the broker; choose another name")


def _check(what: str, name: str, longest: int, error: type[RocketSimError]) -> None:
    if not name:
        raise error(f"{what} is missing")
    if len(name) > longest:
        raise error(f"{what} {name[:40]!r}… has {len(name)} characters; {longest} at most")
    if not _NAME.fullmatch(name):
        raise error(f"{what} {name!r}: only letters, digits and %|_- are allowed")
