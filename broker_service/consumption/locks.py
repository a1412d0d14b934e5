"""Locks: which messages of a queue wait for others of their message group, in a consumer group that consumes in order.

A message is delivered when all of its message group that were popped before it are settled.  Pure.

    a message group:  | batch: what one pop took, from its first message without an ack on | waiting . . . |

When no delivery of the batch is under way, what is left of it waits again, first of all, with what was acknowledged
behind its first message without an ack (as in RocketMQ).  A message group of which nothing is left has no lock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from broker_service.consumption.transitions import Ordered, Step


@dataclass(slots=True)
class Lock:
    """`attempt_id`: of the pop that took the batch, "" without one.  `under_way`: how many of the batch are."""

    attempt_id: str = ""
    batch: dict[int, Ordered] = field(default_factory=dict)  # by queue offset, in order
    under_way: int = 0
    waiting: deque[Ordered] = field(default_factory=deque)


class Locks:
    """The locks of one queue."""

    def __init__(self) -> None:
        self.by_group: dict[str, Lock] = {}
        self.ready: dict[str, None] = {}  # message groups that wait for a pop only
        self.group_of: dict[int, str] = {}  # queue offset -> message group
        self._attempts: dict[str, dict[str, None]] = {}  # attempt id -> message groups with a batch under way

    def take(
        self, group: str, messages: Iterable[Ordered], attempt_id: str, is_new: Callable[[int], bool]
    ) -> list[Ordered]:
        """Those of the messages that are under way now.

        A message is taken if it is new, or the first that waits.  One that cannot be taken now waits if it is new.
        """
        lock = self.by_group.get(group)
        if lock is None:
            lock = self.by_group[group] = Lock()
        is_free = not lock.batch
        for message in messages:
            offset, _, step = message
            takes = is_free and step is not Step.WAITS
            if offset not in self.group_of and is_new(offset):
                if step is Step.GONE:
                    continue
                self.group_of[offset] = group
                if not takes or lock.waiting:
                    lock.waiting.append(_waits(message))
                    continue
            elif takes and lock.waiting and lock.waiting[0].queue_offset == offset:
                lock.waiting.popleft()
            else:
                continue
            if step is Step.GONE:
                del self.group_of[offset]
            else:
                lock.batch[offset] = message
        delivered = []
        if is_free and lock.batch:
            delivered = [message for message in lock.batch.values() if message.step is Step.DELIVERED]
            lock.under_way = len(delivered)
            if attempt_id and delivered:
                lock.attempt_id = attempt_id
                self._attempts.setdefault(attempt_id, {})[group] = None
        self._end_batch(group, lock)
        return delivered

    def settle(self, queue_offset: int) -> bool:
        """A delivery was acknowledged, or is a dead letter.  Whether its message group is free now."""
        return self._ended(queue_offset, Step.ACKED, 0)

    def give_back(self, queue_offset: int, *, counted: bool) -> bool:
        """A delivery has ended without an ack.  Whether its message group is free now."""
        return self._ended(queue_offset, Step.RETURNED, not counted)

    def forget_attempt(self, queue_offset: int) -> None:
        """The client has used a delivery of this batch, or given it back: it does not ask for the batch again."""
        group = self.group_of[queue_offset]
        self._forget_attempt(group, self.by_group[group])

    def taken_by(self, attempt_id: str) -> Iterator[Ordered]:
        """The messages of the batches that a pop with this attempt id took."""
        for group in self._attempts.get(attempt_id, ()):
            yield from self.by_group[group].batch.values()

    def groups(self) -> list[tuple[str, str, tuple[Ordered, ...]]]:
        """Message group, attempt id and messages of each lock, from which `take` makes it again."""
        return [
            (group, lock.attempt_id, (*lock.batch.values(), *lock.waiting)) for group, lock in self.by_group.items()
        ]

    def _ended(self, queue_offset: int, step: Step, uncounted: int) -> bool:
        group = self.group_of[queue_offset]
        lock = self.by_group[group]
        lock.batch[queue_offset] = Ordered(queue_offset, lock.batch[queue_offset].attempt - uncounted, step)
        lock.under_way -= 1
        self._end_batch(group, lock)
        return not lock.batch

    def _end_batch(self, group: str, lock: Lock) -> None:
        """Removes what is acknowledged at the front of the batch, and ends it if nothing of it is under way."""
        settled = []
        for offset, message in lock.batch.items():
            if message.step is not Step.ACKED:
                break
            settled.append(offset)
        for offset in settled:
            del lock.batch[offset], self.group_of[offset]
        if lock.under_way:
            self.ready.pop(group, None)
            return
        lock.waiting.extendleft(_waits(message) for message in reversed(lock.batch.values()))
        lock.batch.clear()
        self._forget_attempt(group, lock)
        if lock.waiting:
            self.ready[group] = None
        else:
            self.ready.pop(group, None)
            del self.by_group[group]

    def _forget_attempt(self, group: str, lock: Lock) -> None:
        if lock.attempt_id:
            same = self._attempts[lock.attempt_id]
            del same[group]
            if not same:
                del self._attempts[lock.attempt_id]
            lock.attempt_id = ""


def _waits(message: Ordered) -> Ordered:
    delivered = message.step is Step.DELIVERED  # in no batch: it was not delivered
    return Ordered(message.queue_offset, max(0, message.attempt - delivered), Step.WAITS)
