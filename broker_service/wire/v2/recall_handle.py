"""Encodes and decodes recall handles in RocketMQ's format, so that RocketSim and RocketMQ accept each other's handles.

A handle is the url-safe base64 of "v1 TOPIC BROKER TIME ID", where TIME is the delivery time in milliseconds since
1970.  A handle is no secret, because a user who may send to the topic may recall any message of the topic.
"""

import base64
from typing import NamedTuple

_VERSION = "v1"


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str


def encode(handle: RecallHandle) -> str:
    text = " ".join((_VERSION, handle.topic, handle.broker_name, str(handle.deliver_ms), handle.message_id))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(text: str) -> RecallHandle | None:
    """Returns the decoded handle, or None if the text is not a handle."""
    try:
        parts = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode().split(" ", 4)
    except ValueError:
        return None
    if len(parts) != 5 or parts[0] != _VERSION or not parts[4]:
        return None
    _, topic, broker_name, time, message_id = parts
    if not (time.isascii() and time.isdigit() and len(time) < 16):
        return None
    return RecallHandle(topic, broker_name, int(time), message_id)
