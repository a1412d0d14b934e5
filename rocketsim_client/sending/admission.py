"""What a caller gives to a producer: checked, and with the queue that it goes to."""

import math
from collections.abc import Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from rocketsim_client import validation
from rocketsim_client.errors import InvalidParameter, MessageIllegal
from rocketsim_client.model import Message, MessageQueue
from rocketsim_client.sending import selection
from rocketsim_client.sending.accumulator import Kind
from rocketsim_client.sending.pending import Pending
from rocketsim_client.sending.publish_info import PublishTable

if TYPE_CHECKING:
    from rocketsim_client.sending.spooling_sender import AcceptingTable

T = TypeVar("T")


class Admission:
    """Thread-safe."""

    def __init__(self, max_message_size: int) -> None:
        self._max_message_size = max_message_size
        self._good_topics: set[str] = set()

    def check_topic(self, topic: str) -> None:
        validation.check_topic_for_sending(topic)
        self._good_topics.add(topic)

    def message(
        self,
        message: Message,
        queue: MessageQueue | None,
        message_group: str | None,
        kind: Kind,
        choice: "PublishTable | AcceptingTable",
    ) -> tuple[Kind, Pending, int]:
        """How the message is sent, with its queue, and its size; MessageIllegal says what is wrong with it.

        An empty message group is no group, as an empty text is no property.
        """
        message_group = message_group or None
        topic = message.topic
        if topic not in self._good_topics:
            self.check_topic(topic)
        size = validation.check(message, self._max_message_size)
        if queue is None and message_group is None:
            entry = Pending(message, choice.choose(topic))
        elif queue is not None:
            kind, entry = Kind.ORDERED, Pending(message, own_queue(queue, topic), message_group, pinned=True)
        else:
            assert message_group is not None
            validation.check_message_group(message_group)
            target = selection.by_group(choice.queues(topic), message_group)
            kind, entry = Kind.ORDERED, Pending(message, target, message_group, pinned=True, by_group=True)
        if message.delay_level or message.deliver_ms:
            if message.delay_level < 0:
                raise MessageIllegal(f"delay level {message.delay_level}: 1 or more, or 0 for no delay")
            kind = Kind.ALONE
        return kind, entry, size

    def frames(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        if not messages:
            raise MessageIllegal("an empty batch")
        first = messages[0]
        self.check_topic(first.topic)
        whole = validation.size_if_usual(messages, self._max_message_size)
        if whole is not None and whole <= self._max_message_size:
            return [messages]
        frames: list[Sequence[Message]] = []
        start = total = 0
        for index, message in enumerate(messages):
            if message.topic != first.topic or message.wait_store_msg_ok != first.wait_store_msg_ok:
                raise MessageIllegal(
                    f"a batch has one topic and one WAIT flag: {message!r} in a batch of {first.topic!r}"
                )
            if message.delay_level:
                raise MessageIllegal("delayed messages are not possible in a batch")
            size = validation.check(message, self._max_message_size)
            if total and total + size > self._max_message_size:
                frames.append(messages[start:index])
                start, total = index, 0
            total += size
        frames.append(messages[start:])
        return frames


def own_queue(queue: MessageQueue, topic: str) -> MessageQueue:
    if queue.topic != topic:
        raise InvalidParameter(f"queue {queue} is not one of topic {topic!r}")
    return queue


def delivered_at(message: Message, deliver_at: datetime | float) -> Message:
    """The message with that delivery time."""
    if message.delay_level:
        raise MessageIllegal(f"topic {message.topic!r}: a message has a delay level or a delivery time, not both")
    try:
        seconds = deliver_at.timestamp() if isinstance(deliver_at, datetime) else deliver_at
        is_time = 0 < seconds < 10**11
    except (TypeError, ValueError, OverflowError):  # no number; a local time that this machine cannot tell
        is_time = False
    if not is_time:
        raise MessageIllegal(
            f"topic {message.topic!r}: deliver_at={deliver_at!r}: a datetime, or seconds, after the beginning of 1970"
        )
    delivered = copy(message)
    delivered.deliver_ms = math.ceil(seconds * 1000)
    return delivered


def one_of(message_group: T | None, older_name: T | None) -> T | None:
    if message_group is None:
        return older_name
    if older_name is not None:
        raise InvalidParameter("the message group is given twice, once by its older name")
    return message_group
