"""The messages that a consumer has received and not yet settled, which means acknowledged or given back.  Pure: the
caller passes the time in seconds."""

import math
from collections import deque
from dataclasses import dataclass

from rocketsim_client.received_message import ReceivedMessage

# (broker name, topic of the record, queue id, message group), for a group that consumes in order.
OrderKey = tuple[str, str, int, str]


@dataclass(slots=True)
class _Held:
    """A received message.  Until `deadline` the broker gives the message to no other consumer, as far as this client
    knows.  From `renew_at` until `renew_until`, the consumer asks the broker to move the deadline."""

    message: ReceivedMessage
    deadline: float
    renew_at: float
    renew_until: float
    order_key: OrderKey | None
    is_handed_out: bool = False


class InFlight:
    """Holds at most `most` messages, or more if a pop returns the batch of an earlier attempt.  When the held messages
    have `most_bytes`, the consumer asks for no further messages.  Messages are handed out once, in the order in which
    they came.  In a group that consumes in order, one message of a message group is handed out at a time."""

    def __init__(self, most: int, most_bytes: int, invisible_s: float, renew_for_s: float) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._invisible_s = invisible_s
        self._renew_for_s = renew_for_s
        self.size_bytes = 0  # bytes of the stored records of all held messages
        self._held: dict[str, _Held] = {}  # receipt handle -> message
        self._waiting: deque[str] = deque()
        self._busy: dict[OrderKey | None, str] = {}  # order key -> receipt handle of the message that is handed out

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, handle: str) -> bool:
        return handle in self._held

    @property
    def room(self) -> int:
        """How many more messages may be asked for, or 0 while `most` or `most_bytes` is reached."""
        return self._most - len(self._held) if self.size_bytes < self._most_bytes else 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, message: ReceivedMessage, left_s: float, now: float, *, in_order: bool) -> None:
        handle = message.receipt_handle
        key = None
        if in_order:
            key = (message.broker_name, message.record.topic, message.queue_id, message.message_group or "")
            self._forget_overdue(key, now)
        if handle not in self._held:
            self._waiting.append(handle)
            self.size_bytes += message.store_size
        deadline = now + left_s
        self._held[handle] = _Held(message, deadline, deadline - self._invisible_s / 2, now + self._renew_for_s, key)

    def _forget_overdue(self, key: OrderKey, now: float) -> None:
        """Forgets a message of this group that is past its deadline, because it may never be acknowledged or given
        back.  The messages behind an overdue message are forgotten, too, because the broker delivers all of them again.
        The method is called when the broker delivers the message group again."""
        handle = self._busy.get(key, "")
        if (held := self._held.get(handle)) is not None and held.deadline <= now:
            self.settle_with_those_behind(handle)

    def hand_out(self, at_most: int, now: float) -> list[ReceivedMessage]:
        """Returns at most `at_most` of the waiting messages that a caller may process now."""
        found: list[ReceivedMessage] = []
        passed_over: list[str] = []
        while self._waiting and len(found) < at_most:
            handle = self._waiting.popleft()
            held = self._held.get(handle)
            if held is None:
                continue
            if held.deadline <= now:
                self._remove(handle)
            elif held.order_key in self._busy:
                passed_over.append(handle)
            else:
                held.is_handed_out = True
                if held.order_key is not None:
                    self._busy[held.order_key] = handle
                found.append(held.message)
        self._waiting.extendleft(reversed(passed_over))
        return found

    def has_ready(self, now: float) -> bool:
        """Returns True if `hand_out` would return a message."""
        for handle in self._waiting:
            held = self._held.get(handle)
            if held is not None and now < held.deadline and held.order_key not in self._busy:
                return True
        return False

    def _remove(self, handle: str) -> _Held | None:
        held = self._held.pop(handle, None)
        if held is not None:
            self.size_bytes -= held.message.store_size
        return held

    def settle(self, handle: str) -> None:
        """Forgets a message that is acknowledged or given back, or whose delivery is over."""
        held = self._remove(handle)
        if held is not None and held.order_key is not None and self._busy.get(held.order_key) == handle:
            del self._busy[held.order_key]

    def behind(self, handle: str) -> list[ReceivedMessage]:
        """Returns the messages that wait behind this message in its message group."""
        first = self._held.get(handle)
        if first is None or first.order_key is None:
            return []
        return [
            held.message for held in self._held.values() if held.order_key == first.order_key and not held.is_handed_out
        ]

    def settle_with_those_behind(self, handle: str) -> None:
        """Forgets the message and the messages behind it in its message group, because the broker delivers all of them
        again."""
        for message in self.behind(handle):
            self._remove(message.receipt_handle)
        self.settle(handle)

    def expire(self, now: float) -> None:
        """Forgets messages past their deadlines, because the broker delivers them to other consumers."""
        for handle in [handle for handle, held in self._held.items() if held.deadline <= now]:
            self.settle(handle)

    def to_renew(self, now: float) -> list[ReceivedMessage]:
        """Returns the messages that have less than half of their invisible time left."""
        return [held.message for held in self._held.values() if held.renew_at < now < held.renew_until]

    def next_renewal(self, now: float) -> float:
        """Returns when the next renewal is due, or infinity if no message has to be renewed."""
        renewed = (one for one in self._held.values() if max(one.renew_at, now) < one.renew_until)
        return min((one.renew_at for one in renewed), default=math.inf)

    def moved(self, handle: str, now: float, invisible_s: float) -> None:
        """Notes that the broker has reserved the message for `invisible_s` from `now` on."""
        if (held := self._held.get(handle)) is not None:
            held.deadline = now + invisible_s
            held.renew_at = now + invisible_s / 2

    def take_all(self) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        """Removes all messages.  Returns the messages that were handed out, and the messages that were not."""
        held, self._held = list(self._held.values()), {}
        self.size_bytes = 0
        self._waiting.clear()
        self._busy.clear()
        return (
            [one.message for one in held if one.is_handed_out],
            [one.message for one in held if not one.is_handed_out],
        )
