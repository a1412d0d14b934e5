"""Locks: which messages of a queue wait for others of their message group, in a consumer group that consumes in order.

A message is delivered when all of its message group that were popped before it are settled.  Pure.

    a message group:  | batch: what one pop took, from its first message without an ack on | waiting . . . |

When no delivery of the batch is under way, what is left of it waits again, first of all, with what was acknowledged
behind its first message without an ack (as in RocketMQ).  A message group of which nothing is left has no lock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from broker_service.state.transitions import Ordered, Step


@dataclass(slots=True)
class Lock:
    """`attempt_id`: of the pop that took the batch, "" without one.  `under_way`: how many of the batch are."""

    attempt_id: str = ""
    batch: list[Ordered] = field(default_factory=list)
    under_way: int = 0
    _waiting: deque[Ordered] | None = None  # an empty one takes more than all the rest of a lock

    @property
    def waiting(self) -> deque[Ordered] | tuple[()]:
        return self._waiting or ()

    def wait(self, message: Ordered) -> None:
        if self._waiting is None:
            self._waiting = deque()
        delivered = message.step is Step.DELIVERED  # it was not: another one of its group is
        self._waiting.append(Ordered(message.queue_offset, max(0, message.attempt - delivered), Step.WAITS))

    def end_batch(self) -> None:
        """Ends the batch: what is left of it waits again, before all others."""
        if self.batch:
            self._waiting = self._waiting or deque()
            self._waiting.extendleft(one._replace(step=Step.WAITS) for one in reversed(self.batch))
            self.batch = []

    def takes(self, queue_offset: int) -> bool:
        """Takes this message if it waits before all others; false if it does not."""
        if not self._waiting or self._waiting[0].queue_offset != queue_offset:
            return False
        self._waiting.popleft()
        if not self._waiting:
            self._waiting = None
        return True


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
        """Takes the messages, and returns those that are under way now.

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
                    lock.wait(message)
                    continue
            elif not (takes and lock.takes(offset)):
                continue
            if step is Step.GONE:
                del self.group_of[offset]
            else:
                lock.batch.append(message)
        delivered = []
        if is_free and lock.batch:
            delivered = [message for message in lock.batch if message.step is Step.DELIVERED]
            lock.under_way = len(delivered)
            if attempt_id and delivered:
                lock.attempt_id = attempt_id
                self._attempts.setdefault(attempt_id, {})[group] = None
        self._end_batch(group, lock)
        return delivered

    def settle(self, queue_offset: int) -> bool:
        """A delivery was acknowledged, or is a dead letter.  Returns true if its message group is free now."""
        return self._ended(queue_offset, Step.ACKED, 0)

    def give_back(self, queue_offset: int, *, counted: bool) -> bool:
        """A delivery has ended without an ack.  Returns true if its message group is free now."""
        return self._ended(queue_offset, Step.RETURNED, not counted)

    def forget_attempt(self, queue_offset: int) -> None:
        """The client has used a delivery of this batch, or given it back: it does not ask for the batch again."""
        group = self.group_of[queue_offset]
        self._forget_attempt(group, self.by_group[group])

    def taken_by(self, attempt_id: str) -> Iterator[Ordered]:
        """The messages of the batches that a pop with this attempt id took."""
        for group in self._attempts.get(attempt_id, ()):
            yield from self.by_group[group].batch

    def groups(self) -> list[tuple[str, str, tuple[Ordered, ...]]]:
        """Message group, attempt id and messages of each lock, from which `take` makes it again."""
        return [(group, lock.attempt_id, (*lock.batch, *lock.waiting)) for group, lock in self.by_group.items()]

    def _ended(self, queue_offset: int, step: Step, uncounted: int) -> bool:
        group = self.group_of[queue_offset]
        lock = self.by_group[group]
        at = next(at for at, one in enumerate(lock.batch) if one.queue_offset == queue_offset)
        lock.batch[at] = Ordered(queue_offset, lock.batch[at].attempt - uncounted, step)
        lock.under_way -= 1
        self._end_batch(group, lock)
        return not lock.batch

    def _end_batch(self, group: str, lock: Lock) -> None:
        """Removes what is acknowledged at the front of the batch, and ends it if nothing of it is under way."""
        while lock.batch and lock.batch[0].step is Step.ACKED:
            del self.group_of[lock.batch.pop(0).queue_offset]
        if lock.under_way:
            self.ready.pop(group, None)
            return
        lock.end_batch()
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
