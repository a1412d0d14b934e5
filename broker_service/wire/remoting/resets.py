"""Resets: lets running consumers of the remoting protocol continue at the offsets to which an operator has reset them.

A running consumer keeps offsets of its own, so the broker tells it the new offsets.  RocketMQ's push consumer then
stops for 10 s, commits the new offset, and continues there.  Meanwhile its timer goes on committing the old offset.
Because a commit cannot lower an offset, the old offset would win, and the consumer would continue there as if nothing
had been reset.  The broker therefore ignores other commits until the consumer has reached the new offset.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rocketsim_proto.remoting.codes import RequestCode

from broker_service.broker.core.broker import Broker
from broker_service.broker.reads.push_subscriptions import PushSubscriptions
from broker_service.runtime.remoting.bodies import by_queue, to_json
from broker_service.wire.remoting.members import Members

# After this time commits count again, because not every client follows a reset, and its commits must not be lost for
# ever.
PENDING_S = 60.0

Queue = tuple[str, str, int]  # group, topic, queue id


class Pending(NamedTuple):
    """The offset at which a consumer has yet to continue, and the end of the time that it has for that."""

    offset: int
    until_s: float


class Resets:
    """`clock` returns monotonic seconds."""

    def __init__(self, broker: Broker, members: Members, push: PushSubscriptions, clock: Callable[[], float]) -> None:
        self._broker_name = broker.config.broker_name
        self._members = members
        self._push = push
        self._clock = clock
        self._pending: dict[Queue, Pending] = {}
        broker.offsets_moved.append(self.tell)

    def tell(self, group: str, topic: str, timestamp: int, offsets: Mapping[int, int]) -> None:
        """Tells the members of a group the new offset of each queue, and waits for push consumers to reach it."""
        now_s = self._clock()
        self._pending = {queue: one for queue, one in self._pending.items() if now_s < one.until_s}
        if self._push.reads(group, topic):
            until_s = now_s + PENDING_S
            self._pending |= {(group, topic, queue_id): Pending(one, until_s) for queue_id, one in offsets.items()}
        fields = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true"}
        for member in self._members.consumers(group).values():
            body = body_for(member.language, self._broker_name, topic, offsets)
            member.connection.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)

    def is_reached(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Takes note of an offset that a consumer commits or pulls from.  Returns False if the consumer has yet to
        continue at the offset of a reset, so that its commit must be ignored.
        """
        pending = self._pending.get((group, topic, queue_id))
        if pending is None:
            return True
        if offset != pending.offset and self._clock() < pending.until_s:
            return False
        del self._pending[group, topic, queue_id]
        return True


def body_for(language: str, broker_name: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    """Returns the new offsets in the form that clients of this language read: a list for C++, a map for all others."""
    if language != "CPP":
        return by_queue("offsetTable", broker_name, [(topic, queue_id, one) for queue_id, one in offsets.items()])
    listed = [
        {"brokerName": broker_name, "topic": topic, "queueId": queue_id, "offset": offset}
        for queue_id, offset in offsets.items()
    ]
    return to_json({"offsetTable": listed})
