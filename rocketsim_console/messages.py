"""Finds messages by key, id, offset or time, or the newest messages.  Messages are read without a consumer group, so no
offset changes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError

from rocketsim_client.admin import MAX_QUERY_MESSAGES, Admin
from rocketsim_client.errors import BadAnswer, InvalidParameter, NotFound
from rocketsim_client.message_view import Messages, MessageView
from rocketsim_client.model import MessageQueue, QueueBounds, QueueRange, by_broker
from rocketsim_console.message_json import message_of, row_of

WAYS = ("newest", "time", "offset", "key", "id")
SHOWN = 50
MAX_QUEUES = 64  # the most queues for one search, so in a larger topic the user has to name a queue
FRAME_BYTES = 256 << 10  # the most bytes of one broker's answer


def find(admin: Admin, topic: str, by: str, value: str, queue: str) -> dict[str, Any]:
    """Finds messages of a topic.  `by` is one of WAYS.  `value` is the key, id, offset or time to look for.  `queue` is
    a queue such as `broker-a:3`, or empty for all queues.

    Returns the messages as `rows`.  `more` is True if further messages may exist.  Raises InvalidParameter, NotFound
    and the errors of the cluster.
    """
    if not topic:
        raise InvalidParameter("name a topic")
    by = by or WAYS[0]
    if by == "key":
        keyed = admin.query_msg_by_key(topic, _given(value, "a key"), max_num=MAX_QUERY_MESSAGES)
        return {"rows": [row_of(message) for message in keyed], "more": keyed.more}
    if by == "id":
        return {"rows": [row_of(admin.query_msg_by_id(topic, _given(value, "a message id")))], "more": False}
    if by not in WAYS:
        raise InvalidParameter(f"{by!r} is not one of {', '.join(WAYS)}")
    bounds = _bounds(admin, topic, queue)
    if by == "newest":
        starts = {one: max(place.min_offset, place.max_offset - SHOWN) for one, place in bounds.items()}
        messages = _read(admin, starts, bounds)
        messages.sort(key=lambda message: (-message.store_timestamp, -message.queue_offset))
    elif by == "time":
        starts = admin.cluster.search(topic, dict.fromkeys(bounds, _number(value, "a time in ms since 1970")))
        messages = _read(admin, starts, bounds)
        messages.sort(key=lambda message: (message.store_timestamp, message.queue_offset))
    else:
        offset = _number(value, "an offset")
        if len(bounds) > 1:
            raise InvalidParameter("name the queue in which the offset is")
        ((one, place),) = bounds.items()
        if not place.min_offset <= offset < place.max_offset:
            raise NotFound(f"{one} has offsets {place.min_offset} to {place.max_offset - 1}, not {offset}")
        messages = _read(admin, {one: offset}, bounds)
    return {"rows": [row_of(message) for message in messages[:SHOWN]], "more": len(messages) > SHOWN}


def one(admin: Admin, topic: str, broker: str, queue: str, offset: str) -> MessageView:
    """Returns the message at this offset."""
    where = MessageQueue(topic, broker, _number(queue, "a queue id"))
    return admin.query_msg_by_offset(where, _number(offset, "an offset"))


def shown(message: MessageView) -> dict[str, Any]:
    return message_of(message)


def _given(value: str, what: str) -> str:
    if not value:
        raise InvalidParameter(f"give {what}")
    return value


def _number(value: str, what: str) -> int:
    if not (value.isascii() and value.isdecimal()) or len(value) > 18:
        raise InvalidParameter(f"{value[:40]!r} is not {what}")
    return int(value)


def _bounds(admin: Admin, topic: str, queue: str) -> dict[MessageQueue, QueueBounds]:
    if queue:
        broker, _, queue_id = queue.rpartition(":")
        named = MessageQueue(topic, broker, _number(queue_id, "a queue, as broker-a:0"))
        found = admin.cluster.bounds(topic, [named])
        if named not in found:
            raise NotFound(f"queue {named} does not exist")
        return {named: found[named]}
    bounds = {one: place for one, place in admin.cluster.bounds(topic, fresh=True).items() if place.readable}
    if len(bounds) > MAX_QUEUES:
        raise InvalidParameter(f"topic {topic!r} has {len(bounds)} queues: name one of them, as broker-a:0")
    return bounds


def _read(
    admin: Admin, starts: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> list[MessageView]:
    """Reads up to SHOWN + 1 messages of each queue from its start on, or fewer if their bodies are large."""
    found: list[MessageView] = []
    for _, name, queues in by_broker(starts):
        ranges = [
            QueueRange(queue.topic, queue.queue_id, start, min(start + SHOWN + 1, bounds[queue].max_offset))
            for queue in queues
            if (start := starts[queue]) < bounds[queue].max_offset
        ]
        if ranges:
            found += _frames(admin, name, ranges)
    return found


def _frames(admin: Admin, broker_name: str, ranges: list[QueueRange]) -> Iterator[MessageView]:
    left = 16  # the most frames, which bounds the work if bodies are large
    frames = admin.cluster.pull_range(broker_name, ranges, max_frame_bytes=FRAME_BYTES)
    for frame in frames:
        data = bytes(frame.records)
        try:
            records = Records.walk(data, frame.count)
        except RecordError as error:
            raise BadAnswer(f"messages of broker {broker_name} cannot be decoded: {error}") from error
        yield from Messages(records, data, broker_name)
        left -= 1
        if not left:
            break
