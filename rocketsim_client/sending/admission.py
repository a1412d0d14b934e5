"""Checks what a caller passes to a producer, and chooses the queue of each message."""

import math
from collections.abc import Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

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
    """Checks messages before they are accepted.  Thread-safe."""

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
        deliver_at: datetime | float | None = None,
    ) -> tuple[Kind, Pending, int]:
        """Returns three values: the kind of the send, the message's entry with its queue, and the message's size.
        MessageIllegal says what is wrong with the message.

        An empty message group counts as no group, like an empty property.
        """
        if deliver_at is not None or message.deliver_at is not None:
            message = delivered_at(message, deliver_at)
        if message.message_group:
            message_group = _given_once(message, "message_group", message_group or None)
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
                raise MessageIllegal(f"delay level {message.delay_level}: it must be 1 or more, or 0 for no delay")
            kind = Kind.ALONE
        return kind, entry, size

    def frames(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """Checks a caller's batch, and cuts it into frames of at most `max_message_size` bytes."""
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
            if message.delay_level or message.deliver_at is not None:
                name = "delay_level" if message.delay_level else "deliver_at"
                raise MessageIllegal(
                    f"topic {message.topic!r}: delayed messages ({name}) are not possible in a batch; send them with "
                    "`send` or `send_async`"
                )
            if message.message_group:
                raise MessageIllegal(
                    f"topic {message.topic!r}: message_group {message.message_group!r} in a batch, which goes to one "
                    "queue; send the message with `send` or `send_async`, or name the `queue` instead"
                )
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


def delivered_at(message: Message, given: datetime | float | None) -> Message:
    """Returns a copy of the message with its delivery time, which is given in the message or in the call."""
    deliver_at = _given_once(message, "deliver_at", given)
    if message.delay_level:
        raise MessageIllegal(
            f"topic {message.topic!r}: delay_level={message.delay_level} and deliver_at={deliver_at!r}, not both: "
            "deliver_at is for a time, delay_level for a delay of the broker's list"
        )
    try:
        seconds = deliver_at.timestamp() if isinstance(deliver_at, datetime) else deliver_at
        is_time = 0 < seconds < 10**11
    except (TypeError, ValueError, OverflowError):  # not a number, or a local time that this machine cannot convert
        is_time = False
    if not is_time:
        raise MessageIllegal(
            f"topic {message.topic!r}: deliver_at={deliver_at!r} is not a datetime, or seconds, after the "
            "beginning of 1970"
        )
    delivered = copy(message)
    delivered.deliver_ms = math.ceil(seconds * 1000)
    return delivered


def _given_once(message: Message, name: str, given: Any) -> Any:
    """Returns the value of `name` that the message or the call gives.  Raises InvalidParameter if message and call give
    different values."""
    own = getattr(message, name)
    if own is None:
        return given
    if given is not None and given != own:
        raise InvalidParameter(
            f"topic {message.topic!r}: {name} is {own!r} in the message and {given!r} in the call; give it once"
        )
    return own


def one_of(message_group: T | None, older_name: T | None) -> T | None:
    if message_group is None:
        return older_name
    if older_name is not None:
        raise InvalidParameter("the message group is given twice, once by its older name")
    return message_group
