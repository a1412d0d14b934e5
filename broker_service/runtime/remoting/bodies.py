"""The bodies of answers in RocketMQ's remoting protocol.  Pure.

They are JSON, but for maps whose keys are queues: RocketMQ's own clients write and read objects as keys there.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rocketsim_proto.remoting import loose_json

from broker_service.errors import InvalidParameter


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def by_queue(name: str, broker_name: str, entries: Iterable[tuple[str, int, object]], **others: object) -> bytes:
    """`{name: {queue: value, ...}, **others}` of entries of topic, queue id and value."""
    parts = [
        to_json({"brokerName": broker_name, "queueId": queue_id, "topic": topic}) + b":" + to_json(value)
        for topic, queue_id, value in entries
    ]
    rest = b"".join(b"," + to_json(key) + b":" + to_json(value) for key, value in others.items())
    return b'{"' + name.encode() + b'":{' + b",".join(parts) + b"}" + rest + b"}"


def from_json(body: bytes) -> Mapping[str, Any]:
    """The object that a request's body is; raises InvalidParameter."""
    try:
        found = loose_json.loads(body)
    except loose_json.LooseJsonError as error:
        raise InvalidParameter(f"the request's body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidParameter("the request's body is no JSON object")
    return found
