"""Checks addresses, and by RocketMQ's rules the names of topics, groups, brokers, clusters and users.  Pure."""

import re

from rocketsim_proto.reserved import INTERNAL_PREFIX, RETRY_PREFIX, SYSTEM_PREFIXES, SYSTEM_TOPICS, TRACE_TOPIC

from broker_service.errors import InvalidParameter, MessageIllegal, NoPermission, RocketSimError

MAX_TOPIC_LENGTH = 127
MAX_RETRY_TOPIC_LENGTH = 255  # the name of a retry topic contains a group's name and a topic's name
MAX_GROUP_LENGTH = 120
MAX_USERNAME_LENGTH = 127
MAX_PASSWORD_LENGTH = 255

# the rule for names of brokers and clusters, as error messages state it
SERVER_NAME = "1 to 127 letters, digits and %|_.-"
_SERVER_NAME = re.compile(r"[%|a-zA-Z0-9_.-]{1,127}", re.ASCII)
_HOST = re.compile(r"[!-+.0-:<-~-]{1,255}", re.ASCII)  # printable characters except "," "/" and ";"
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)

_USERNAME = re.compile(r"[a-zA-Z0-9_.-]+", re.ASCII)
_PASSWORD = re.compile(r"[!-~]+", re.ASCII)  # characters that both a header and a command line can contain

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
# the broker names retry topics %RETRY%group+topic
_RETRY_TOPIC = re.compile(rf"{RETRY_PREFIX}[%|a-zA-Z0-9_+-]*", re.ASCII)


def is_system_topic(topic: str) -> bool:
    """True for a topic that belongs to the broker.  Clients can read such a topic, but neither write nor change it.
    TRACE_TOPIC is an exception.
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)


def is_server_name(name: str) -> bool:
    """True if a broker or a cluster may have this name."""
    return _SERVER_NAME.fullmatch(name) is not None


def is_address(text: str) -> bool:
    """True if the text is host:port."""
    host, _, port = text.rpartition(":")
    return bool(_HOST.fullmatch(host) and _PORT.fullmatch(port) and 0 < int(port) < 65_536)


def is_internal_topic(topic: str) -> bool:
    """True if no group may pop messages of the topic, and nobody may delete it.  TRACE_TOPIC may be deleted.

    Retry topics and dead letter topics are not internal.
    """
    return topic in SYSTEM_TOPICS or topic.startswith(INTERNAL_PREFIX)


def is_internal_group(group: str) -> bool:
    return group.startswith("CID_RMQ_SYS_")


def check_topic_name(topic: str) -> None:
    longest = MAX_RETRY_TOPIC_LENGTH if topic.startswith(RETRY_PREFIX) else MAX_TOPIC_LENGTH
    _check("topic", topic, longest, MessageIllegal)


def check_group_name(group: str) -> None:
    _check("consumer group", group, MAX_GROUP_LENGTH, InvalidParameter)


def is_group_name(group: str) -> bool:
    """True if `check_group_name` accepts the name."""
    return len(group) <= MAX_GROUP_LENGTH and _NAME.fullmatch(group) is not None


def is_username(name: str) -> bool:
    return len(name) <= MAX_USERNAME_LENGTH and _USERNAME.fullmatch(name) is not None


def check_credentials(username: str, password: str) -> None:
    """Raises ValueError for an invalid user name or password.  The error never contains the password."""
    if not is_username(username):
        raise ValueError(f"username {username!r}: expected 1 to {MAX_USERNAME_LENGTH} letters, digits and _.-")
    if len(password) > MAX_PASSWORD_LENGTH or not _PASSWORD.fullmatch(password):
        raise ValueError(
            f"password of user {username}: expected 1 to {MAX_PASSWORD_LENGTH} printable ASCII characters, no blanks"
        )


def refuse_system_topic(topic: str) -> None:
    if is_system_topic(topic) and topic != TRACE_TOPIC:
        raise NoPermission(f"topic {topic} belongs to the broker; choose another name")


def _check(what: str, name: str, longest: int, error: type[RocketSimError]) -> None:
    if not name:
        raise error(f"{what} is missing")
    if len(name) > longest:
        raise error(f"{what} {name[:40]!r}… has {len(name)} characters; {longest} at most")
    if not _NAME.fullmatch(name) and not (what == "topic" and _RETRY_TOPIC.fullmatch(name)):
        raise error(f"{what} {name!r}: only letters, digits and %|_- are allowed")
