"""Pure functions that make and read retry copies and dead letters, and name their topics.

To move a message, the broker appends a copy to one of its own topics.  A property of the copy names the delivery that
the copy settles, so copy and settlement are one record.  The names of the topics and the numbers of attempts are those
of RocketMQ 5.
"""

from collections.abc import Mapping

from rocketsim_proto.records.record import MAX_PROPERTIES_SIZE, Record, encode_properties
from rocketsim_proto.reserved import DLQ_PREFIX, RETRY_PREFIX

from broker_service.state.state import Due
from broker_service.state.transitions import DeliveryId, Move, Place

PROPERTY_SOURCE = "__SOURCE"  # in a retry or dead-letter copy: the delivery that ends with this copy
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_ORIGIN_GROUP = "ORIGIN_GROUP"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

_LEFT_OUT_FIRST = (
    PROPERTY_RETRY_TOPIC,
    PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_DLQ_ORIGIN_TOPIC,
)


def retry_topic(group: str, topic: str) -> str:
    """Returns the name of the broker's own retry topic, in the form of RocketMQ's `enableRetryTopicV2`.

    No group has a `+` in its name, so this name belongs to only one group and topic.
    """
    return f"{RETRY_PREFIX}{group}+{topic}"


def retry_topic_v1(group: str, topic: str) -> str:
    """Returns the retry topic's name in RocketMQ's default form.

    Two different pairs of group and topic can have the same name in this form.
    """
    return f"{RETRY_PREFIX}{group}_{topic}"


def group_of(topic: str) -> str:
    """Returns the group of a retry topic that has the broker's own form; empty for other topics."""
    group, plus, _ = topic.removeprefix(RETRY_PREFIX).partition("+")
    return group if plus and topic.startswith(RETRY_PREFIX) else ""


def dlq_topic(group: str) -> str:
    return f"{DLQ_PREFIX}{group}"


def original_topic(place: Place) -> str:
    """Returns the topic that the group subscribes to, for a place in that topic or in one of its retry topics."""
    prefixes = retry_topic(place.group, ""), retry_topic_v1(place.group, "")
    return next((place.topic.removeprefix(one) for one in prefixes if place.topic.startswith(one)), place.topic)


def copy_topic(place: Place, *, is_dead_letter: bool) -> str:
    """Returns the topic to which a message that was delivered in this place is moved."""
    return dlq_topic(place.group) if is_dead_letter else retry_topic(place.group, original_topic(place))


def retry_copy(message: Record, due: Due) -> Record:
    """Makes the copy for the retry topic, which delivers the message next.

    The copy's properties can be too long, which the caller must check with `fits`.
    """
    place, _, delivery = due
    topic = copy_topic(place, is_dead_letter=False)
    copy = _copy(message, due, topic, delivery.attempt if delivery.counted else delivery.attempt - 1)
    copy.properties.setdefault(PROPERTY_FIRST_POP_TIME, str(delivery.popped_ms))
    copy.properties[PROPERTY_ORIGIN_GROUP] = place.group
    return copy


def dead_letter(message: Record, due: Due) -> Record:
    """Makes the copy for the group's dead letter topic, which delivers nothing by itself.

    Properties that do not fit are left out: first the broker's own, then the message's largest.
    """
    copy = _copy(message, due, copy_topic(due.place, is_dead_letter=True), due.delivery.attempt)
    copy.properties[PROPERTY_RETRY_TOPIC] = due.place.topic
    copy.properties[PROPERTY_DLQ_ORIGIN_TOPIC] = original_topic(due.place)
    copy.properties[PROPERTY_DLQ_ORIGIN_MESSAGE_ID] = message.message_id
    _make_fit(copy.properties)
    return copy


def _make_fit(properties: dict[str, str]) -> None:
    others = [name for name in properties if name not in (PROPERTY_SOURCE, *_LEFT_OUT_FIRST)]
    others.sort(key=lambda name: len(properties[name].encode()), reverse=True)
    for name in (*_LEFT_OUT_FIRST, *others):
        if fits(properties):
            break
        properties.pop(name, None)


def fits(properties: Mapping[str, str]) -> bool:
    """Returns True if a record has room for these properties."""
    return len(encode_properties(properties)) <= MAX_PROPERTIES_SIZE


def _copy(message: Record, due: Due, topic: str, reconsume_times: int) -> Record:
    place, queue_offset, delivery = due
    source = f"{delivery.pop:x} {queue_offset} {place.queue_id} {place.group} {place.topic}"
    return Record(
        topic=topic,
        body=message.body,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        reconsume_times=reconsume_times,
        properties={**message.properties, PROPERTY_SOURCE: source},
    )


def move_of(message: Record) -> Move | None:
    """Returns the move in a record of a retry or dead letter topic; None if the record is not a copy of a delivery."""
    parts = message.properties.get(PROPERTY_SOURCE, "").split(" ")
    if len(parts) != 5:
        return None
    try:
        pop, queue_offset, queue_id = int(parts[0], 16), int(parts[1]), int(parts[2])
    except ValueError:
        return None
    place = Place(parts[3], parts[4], queue_id)
    return Move(place, DeliveryId(pop, queue_offset), message.topic.startswith(DLQ_PREFIX))
