"""Locks hold back messages that wait for earlier messages of their message group, in ordered consumption.

A message is delivered when all earlier popped messages of its message group are settled.  A lock has the messages of
one message group:

    | batch: the messages that one pop took, from the first one without an ack on | waiting . . . |

A batch ends when none of its deliveries is under way any more.  The remaining messages of an ended batch wait again,
before all other waiting messages.  As in RocketMQ, the batch also keeps a message that was acknowledged before an
earlier message of the batch.  A message group without messages has no lock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from broker_service.state.transitions import Ordered, Step


@dataclass(slots=True)
class Lock:
    """The messages of one message group.  `attempt_id` is the attempt id of the pop that took the batch, or empty.
    `under_way` counts the batch's open deliveries.
    """

    attempt_id: str = ""
    batch: list[Ordered] = field(default_factory=list)
    under_way: int = 0
    _waiting: deque[Ordered] | None = None  # None if empty: a deque takes more memory than the rest of a lock

    @property
    def waiting(self) -> deque[Ordered] | tuple[()]:
        return self._waiting or ()

    def wait(self, message: Ordered) -> None:
        if self._waiting is None:
            self._waiting = deque()
        delivered = message.step is Step.DELIVERED  # if a delivered message must wait again, the attempt does not count
        self._waiting.append(Ordered(message.queue_offset, max(0, message.attempt - delivered), Step.WAITS))

    def end_batch(self) -> None:
        """Ends the batch, whose remaining messages wait again, before all others."""
        if self.batch:
            self._waiting = self._waiting or deque()
            self._waiting.extendleft(one._replace(step=Step.WAITS) for one in reversed(self.batch))
            self.batch = []

    def takes(self, queue_offset: int) -> bool:
        """Takes this message and returns True if it is the first that waits; otherwise returns False."""
        if not self._waiting or self._waiting[0].queue_offset != queue_offset:
            return False
        self._waiting.popleft()
        if not self._waiting:
            self._waiting = None
        return True


class Locks:
    """Keeps the locks of one queue."""

    def __init__(self) -> None:
        self.by_group: dict[str, Lock] = {}
        self.ready: dict[str, None] = {}  # free message groups that have waiting messages
        self.group_of: dict[int, str] = {}  # queue offset -> message group
        self._attempts: dict[str, dict[str, None]] = {}  # attempt id -> message groups with a batch under way

    def take(
        self, group: str, messages: Iterable[Ordered], attempt_id: str, is_new: Callable[[int], bool]
    ) -> list[Ordered]:
        """Takes messages for a consumer, and returns those that were taken.

        Nothing is taken while a batch of the message group is under way.  Otherwise the first waiting message is taken,
        and a new message if no message waits.  A new message that is not taken waits.
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
        """Ends a delivery with an ack or a dead letter.  Returns True if this frees the message group."""
        return self._ended(queue_offset, Step.ACKED, 0)

    def give_back(self, queue_offset: int, *, counted: bool) -> bool:
        """Ends a delivery without an ack.  Returns True if this frees the message group."""
        return self._ended(queue_offset, Step.RETURNED, not counted)

    def forget_attempt(self, queue_offset: int) -> None:
        """Drops the batch's attempt id, because the client's answer for a delivery shows that it has got the batch."""
        group = self.group_of[queue_offset]
        self._forget_attempt(group, self.by_group[group])

    def taken_by(self, attempt_id: str) -> Iterator[Ordered]:
        """Yields the messages of the batches that a pop with this attempt id took."""
        for group in self._attempts.get(attempt_id, ()):
            yield from self.by_group[group].batch

    def groups(self) -> list[tuple[str, str, tuple[Ordered, ...]]]:
        """Returns message group, attempt id and messages of each lock, from which `take` can rebuild the lock."""
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
        """Removes acknowledged messages at the front of the batch, and ends the batch if no delivery is under way."""
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
