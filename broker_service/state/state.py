"""State keeps the messages that each group has taken and not settled.  The state follows from the transitions alone.

Each message of a queue from `committed` to `next` is either under way or settled, so only those under way are kept:

    committed: the lowest under way, or next         next: the first that is not taken yet
        |  under way  . settled .  under way  . . . |

For a group that consumes in order, messages that wait for others of their message group are kept, too (`locks.py`).
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_service.state.locks import Locks
from broker_service.state.open_transactions import OpenTransactions
from broker_service.state.timers import Timers
from broker_service.state.transaction_changes import Checked, Ended, Prepared, Resolved
from broker_service.state.transitions import (
    Change,
    Copied,
    Copying,
    Deadline,
    DeliveryId,
    Drop,
    Move,
    Place,
    Remember,
    Reset,
    Return,
    Settle,
    Step,
    Take,
    TakeInOrder,
    Timer,
    Waiting,
)

MAX_RECENT = 20_000  # number of settled deliveries to remember, so that a repeated ack of one of them is valid
_HEAP_SLACK = 1000
_TAKEN_SLACK = 1000


class UnderWay(NamedTuple):
    """A delivery that is neither settled nor moved."""

    pop: int
    attempt: int
    popped_ms: int
    deadline_ms: int
    renewed_until_ms: int
    counted: bool
    client_id: str


class Due(NamedTuple):
    place: Place
    queue_offset: int
    delivery: UnderWay


@dataclass(slots=True)
class QueueState:
    """The messages of one queue for one group.  `locks` is None unless the group consumes in order and has locks."""

    next: int
    under_way: dict[int, UnderWay] = field(default_factory=dict)  # queue offset -> delivery
    locks: Locks | None = None
    _taken: list[int] = field(default_factory=list)  # a heap of offsets; those of settled messages are removed later

    @property
    def committed(self) -> int:
        while self._taken and not self.is_pending(self._taken[0]):
            heapq.heappop(self._taken)
        return self._taken[0] if self._taken else self.next

    def is_pending(self, queue_offset: int) -> bool:
        """Returns True if the message is under way, or waits for others of its message group."""
        return queue_offset in self.under_way or self.is_ordered(queue_offset)

    def is_ordered(self, queue_offset: int) -> bool:
        """Returns True if the message was taken in order, and the lock of its message group still has it."""
        return self.locks is not None and queue_offset in self.locks.group_of

    def pending_from(self, first: int) -> int:
        """Counts the messages from this offset on that were taken and are not settled."""
        ordered = self.locks.group_of if self.locks is not None else {}
        pending = self.under_way.keys() | ordered.keys() if ordered else self.under_way.keys()
        return len(pending) if self.committed >= first else sum(offset >= first for offset in pending)

    def take(self, queue_offset: int) -> None:
        heapq.heappush(self._taken, queue_offset)
        ordered = self.locks.group_of if self.locks is not None else {}
        if len(self._taken) > 2 * (len(self.under_way) + len(ordered)) + _TAKEN_SLACK:
            self._taken = sorted({*self.under_way, *ordered})


class State:
    """Keeps the state.  `apply` never fails: a transition that does not fit, such as a second settlement, has no
    effect.
    """

    def __init__(self) -> None:
        self.queues: dict[Place, QueueState] = {}
        self.transactions = OpenTransactions()
        self.under_way_count = 0
        self.ordered_count = 0  # number of messages in all locks
        self.ordered_of: dict[str, int] = {}  # group -> number of messages in its locks; no entry for 0
        self._released: set[Place] = set()
        self.under_way_of: dict[str, int] = {}  # group -> number of its deliveries under way; no entry for 0
        self.timers = Timers()
        # settled delivery -> True if it became a dead letter
        self._recent: OrderedDict[DeliveryId, bool] = OrderedDict()
        self._renewed: dict[str, dict[tuple[Place, int], None]] = {}  # client id -> deliveries that are renewed for it
        self._deadlines: list[tuple[int, Place, int, int]] = []  # a heap; outdated entries are removed later
        self._changed: set[Place] = set()

    # --- asking -----------------------------------------------------------------------------------------------------

    def get(self, place: Place, delivery: DeliveryId) -> UnderWay | None:
        queue = self.queues.get(place)
        found = queue.under_way.get(delivery.queue_offset) if queue else None
        return found if found is not None and found.pop == delivery.pop else None

    def was_settled(self, delivery: DeliveryId) -> bool:
        """Returns True if the delivery is remembered as settled by an ack."""
        return self._recent.get(delivery) is False

    def is_dead_letter(self, delivery: DeliveryId) -> bool:
        """Returns True if the message is remembered as moved to the dead letters."""
        return self._recent.get(delivery) is True

    def recent(self) -> list[tuple[DeliveryId, bool]]:
        """Returns the remembered deliveries, the oldest first, each with True if it is a dead letter."""
        return list(self._recent.items())

    def renewing_clients(self) -> list[str]:
        """Returns the ids of the clients for which deliveries are renewed."""
        return list(self._renewed)

    def renewed_for(self, client_id: str) -> list[tuple[Place, DeliveryId]]:
        return [
            (place, DeliveryId(self.queues[place].under_way[offset].pop, offset))
            for place, offset in self._renewed.get(client_id, ())
        ]

    def last_renewed_pop_ms(self) -> int:
        """Returns the pop time of the newest delivery that is renewed; 0 if no delivery is renewed."""
        renewed = (one for deliveries in self._renewed.values() for one in deliveries)
        return max((self.queues[place].under_way[offset].popped_ms for place, offset in renewed), default=0)

    def taken_by(self, place: Place, attempt_id: str) -> list[tuple[DeliveryId, UnderWay]]:
        """Returns the deliveries under way that a pop with this attempt id took in order."""
        queue = self.queues.get(place)
        if queue is None or queue.locks is None:
            return []
        offsets = [one.queue_offset for one in queue.locks.taken_by(attempt_id) if one.step is Step.DELIVERED]
        return [(DeliveryId(queue.under_way[offset].pop, offset), queue.under_way[offset]) for offset in offsets]

    def is_ordered(self, place: Place, queue_offset: int) -> bool:
        queue = self.queues.get(place)
        return queue is not None and queue.is_ordered(queue_offset)

    def take_released(self) -> set[Place]:
        """Returns the queues in which a message group has become free since the last call."""
        released, self._released = self._released, set()
        return released

    def next_deadline_ms(self) -> int | None:
        self._clean_deadlines()
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now_ms: int, limit: int) -> list[Due]:
        """Returns overdue deliveries, the oldest first.  A delivery stays overdue until a transition changes it."""
        found: list[Due] = []
        entries: list[tuple[int, Place, int, int]] = []
        while len(found) < limit:
            self._clean_deadlines()
            if not self._deadlines or self._deadlines[0][0] > now_ms:
                break
            entry = heapq.heappop(self._deadlines)
            if entries and entry == entries[-1]:
                continue  # the deadline was set to the same value twice
            entries.append(entry)
            _, place, offset, _ = entry
            found.append(Due(place, offset, self.queues[place].under_way[offset]))
        for entry in entries:
            heapq.heappush(self._deadlines, entry)
        return found

    def take_changed(self) -> Iterator[tuple[Place, int | None]]:
        """Yields places that changed since the last call, with their committed offsets; None for a dropped place."""
        changed, self._changed = self._changed, set()
        for place in changed:
            queue = self.queues.get(place)
            yield place, queue.committed if queue is not None else None

    # --- changing ---------------------------------------------------------------------------------------------------

    def apply(self, transition: Change) -> None:
        match transition:
            case Take():
                self._take(transition)
            case TakeInOrder():
                self._take_in_order(transition)
            case Return(place, deliveries):
                for delivery in deliveries:
                    self._return(place, delivery)
            case Settle(place, deliveries):
                for delivery in deliveries:
                    self._settle(place, delivery, is_dead_letter=False, is_final=True)
            case Move(place, delivery, is_dead_letter):
                self._settle(place, delivery, is_dead_letter=is_dead_letter, is_final=is_dead_letter)
            case Deadline():
                self._change(transition)
            case Remember(deliveries, is_dead_letter):
                for delivery in deliveries:
                    self._remember(delivery, is_dead_letter)
            case Prepared() | Checked() | Ended() | Resolved():
                self.transactions.apply(transition)
            case Timer() | Copying() | Copied() | Waiting():
                self.timers.apply(transition)
            case Reset(place, queue_offset):
                if place in self.queues:
                    self._forget([place])
                    self.queues[place] = QueueState(queue_offset)
            case Drop(group, topic):
                self._forget(
                    [place for place in self.queues if group in ("", place.group) and topic in ("", place.topic)]
                )

    def _take(self, take: Take) -> None:
        queue = self.queues.setdefault(take.place, QueueState(take.start))
        shared: dict[int, UnderWay] = {}
        for offset, attempt in zip(take.offsets, take.attempts, strict=True):
            if offset < queue.next or queue.is_ordered(offset):
                continue  # the message was taken before
            self._deliver(queue, take, offset, attempt, shared)
            queue.take(offset)
        queue.next = max(queue.next, take.next)
        self._changed.add(take.place)

    def _take_in_order(self, take: TakeInOrder) -> None:
        queue = self.queues.setdefault(take.place, QueueState(take.start))
        locks = queue.locks = queue.locks or Locks()
        before = len(locks.group_of)
        shared: dict[int, UnderWay] = {}

        def is_new(offset: int) -> bool:
            return offset >= queue.next and offset not in queue.under_way

        for group, messages in take.groups:
            for offset, attempt, _ in locks.take(group, messages, take.attempt_id, is_new):
                self._deliver(queue, take, offset, attempt, shared)
            for message in messages:
                if message.queue_offset in locks.group_of:
                    queue.take(message.queue_offset)
        self._count_ordered(take.place, queue, before)
        queue.next = max(queue.next, take.next)
        self._changed.add(take.place)

    def _deliver(
        self, queue: QueueState, take: Take | TakeInOrder, offset: int, attempt: int, shared: dict[int, UnderWay]
    ) -> None:
        """Adds a delivery.  `shared` maps an attempt to the UnderWay that the messages of this pop share in memory."""
        if (delivery := shared.get(attempt)) is None:
            times = take.popped_ms, take.deadline_ms, take.renewed_until_ms
            delivery = shared[attempt] = UnderWay(take.pop, attempt, *times, True, take.client_id)
        queue.under_way[offset] = delivery
        self._count(take.place.group, 1)
        self._watch(take.place, offset)

    def _settle(self, place: Place, delivery: DeliveryId, *, is_dead_letter: bool, is_final: bool) -> None:
        if (found := self.get(place, delivery)) is None:
            return
        queue = self._end(place, delivery, found)
        if queue.locks is not None and queue.is_ordered(delivery.queue_offset):
            before = len(queue.locks.group_of)
            if queue.locks.settle(delivery.queue_offset):
                self._released.add(place)
            self._count_ordered(place, queue, before)
        if is_final:
            self._remember(delivery, is_dead_letter)

    def _return(self, place: Place, delivery: DeliveryId) -> None:
        if (found := self.get(place, delivery)) is None or not self.is_ordered(place, delivery.queue_offset):
            return
        queue = self._end(place, delivery, found)
        assert queue.locks is not None
        before = len(queue.locks.group_of)
        if queue.locks.give_back(delivery.queue_offset, counted=found.counted):
            self._released.add(place)
        self._count_ordered(place, queue, before)

    def _end(self, place: Place, delivery: DeliveryId, found: UnderWay) -> QueueState:
        queue = self.queues[place]
        self._unwatch(place, delivery.queue_offset, found)
        del queue.under_way[delivery.queue_offset]
        if not queue.under_way:
            queue.under_way.clear()  # frees the dict's memory, because most queues of most groups have no deliveries
        self._count(place.group, -1)
        self._changed.add(place)
        return queue

    def _count_ordered(self, place: Place, queue: QueueState, before: int) -> None:
        assert queue.locks is not None
        more = len(queue.locks.group_of) - before
        self.ordered_count += more
        _add(self.ordered_of, place.group, more)
        if not queue.locks.group_of:
            queue.locks = None

    def _remember(self, delivery: DeliveryId, is_dead_letter: bool) -> None:
        self._recent[delivery] = is_dead_letter
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)

    def _change(self, change: Deadline) -> None:
        for delivery in change.deliveries:
            if (found := self.get(change.place, delivery)) is None:
                continue
            self._unwatch(change.place, delivery.queue_offset, found)
            self.queues[change.place].under_way[delivery.queue_offset] = found._replace(
                deadline_ms=change.deadline_ms,
                counted=change.counted,
                renewed_until_ms=found.renewed_until_ms if change.renewed else 0,
            )
            self._watch(change.place, delivery.queue_offset)
            locks = self.queues[change.place].locks
            if locks is not None and delivery.queue_offset in locks.group_of and not change.renewed:
                locks.forget_attempt(delivery.queue_offset)

    def _forget(self, places: Iterable[Place]) -> None:
        for place in places:
            queue = self.queues.pop(place)
            for offset, delivery in queue.under_way.items():
                self._unwatch(place, offset, delivery)
            self._count(place.group, -len(queue.under_way))
            ordered = len(queue.locks.group_of) if queue.locks is not None else 0
            self.ordered_count -= ordered
            _add(self.ordered_of, place.group, -ordered)
            self._changed.add(place)

    def _count(self, group: str, more: int) -> None:
        self.under_way_count += more
        _add(self.under_way_of, group, more)

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _watch(self, place: Place, offset: int) -> None:
        delivery = self.queues[place].under_way[offset]
        if len(self._deadlines) > 2 * self.under_way_count + _HEAP_SLACK:
            self._deadlines = [
                (one.deadline_ms, at, number, one.pop)
                for at, queue in self.queues.items()
                for number, one in queue.under_way.items()
            ]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (delivery.deadline_ms, place, offset, delivery.pop))
        if delivery.renewed_until_ms:
            self._renewed.setdefault(delivery.client_id, {})[place, offset] = None

    def _unwatch(self, place: Place, offset: int, delivery: UnderWay) -> None:
        """Forgets a delivery, whose deadline stays in the heap until it comes to the top."""
        renewed = self._renewed.get(delivery.client_id)
        if renewed is not None and renewed.pop((place, offset), True) is None and not renewed:
            del self._renewed[delivery.client_id]

    def _clean_deadlines(self) -> None:
        while self._deadlines:
            deadline_ms, place, offset, pop = self._deadlines[0]
            found = self.get(place, DeliveryId(pop, offset))
            if found is not None and found.deadline_ms == deadline_ms:
                return
            heapq.heappop(self._deadlines)


def _add(counts: dict[str, int], name: str, more: int) -> None:
    """Adds to a count.  A count of 0 is removed."""
    if now := counts.get(name, 0) + more:
        counts[name] = now
    else:
        counts.pop(name, None)
