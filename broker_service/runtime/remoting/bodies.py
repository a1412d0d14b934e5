"""The bodies of requests and answers in RocketMQ's remoting protocol.  Pure.

Bodies are JSON with one exception: a map may have queues as keys, and RocketMQ writes each of these keys as an object.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rocketsim_proto.remoting import loose_json

from broker_service.errors import InvalidParameter


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def by_queue(name: str, broker_name: str, entries: Iterable[tuple[str, int, object]], **others: object) -> bytes:
    """Returns the body `{name: {queue: value, ...}, **others}` for entries of topic, queue id and value."""
    parts = [
        to_json({"brokerName": broker_name, "queueId": queue_id, "topic": topic}) + b":" + to_json(value)
        for topic, queue_id, value in entries
    ]
    rest = b"".join(b"," + to_json(key) + b":" + to_json(value) for key, value in others.items())
    return b'{"' + name.encode() + b'":{' + b",".join(parts) + b"}" + rest + b"}"


def from_json(body: bytes) -> Mapping[str, Any]:
    """Parses a request's body, which must be a JSON object; raises InvalidParameter."""
    try:
        found = loose_json.loads(body)
    except loose_json.LooseJsonError as error:
        raise InvalidParameter(f"the request's body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidParameter("the request's body is not a JSON object")
    return found
