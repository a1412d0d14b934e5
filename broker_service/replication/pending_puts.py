"""Puts that wait for a disk or a slave, and what ends their wait (table D4).  Pure: `now` is an argument.

A put waits on two things side by side.  Each is decided once: in time, or, at its own deadline, by a status.  A put is
over when both are decided; where both went wrong the replica's status wins, as in RocketMQ.
"""

import heapq
from dataclasses import dataclass
from itertools import count

from broker_service.model import PutStatus

SLACK = 1000  # forgotten waits that a queue may keep before it is tidied up


@dataclass(slots=True, eq=False)
class PendingPut:
    """A side is None while it is undecided."""

    end_offset: int
    flush: "Wait"
    replica: "Wait"

    @property
    def status(self) -> PutStatus | None:
        flush, replica = self.flush.status, self.replica.status
        if flush is None or replica is None:
            return None
        return flush if replica is PutStatus.PUT_OK else replica


@dataclass(slots=True, eq=False)
class Wait:
    """One side of a put.  With a status from the start there is nothing to wait for."""

    status: PutStatus | None
    deadline: float = 0.0


NO_WAIT = Wait(PutStatus.PUT_OK)


# (end offset or deadline, number, put, wait).  Log offsets stay far below 2**53, so a float's key compares exactly.
_Heap = list[tuple[float, int, PendingPut, Wait]]


class PendingPuts:
    def __init__(self) -> None:
        self._flushes = _Queue(PutStatus.FLUSH_DISK_TIMEOUT)
        self._replicas = _Queue(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._pending = 0

    def __len__(self) -> int:
        return self._pending

    def add(self, end_offset: int, flush: Wait = NO_WAIT, replica: Wait = NO_WAIT) -> PendingPut:
        """A put that is over when both sides are; it may be so already."""
        put = PendingPut(end_offset, flush, replica)
        if put.status is None:
            self._pending += 1
            if flush.status is None:
                self._flushes.add(put, flush)
            if replica.status is None:
                self._replicas.add(put, replica)
        return put

    def on_flushed(self, offset: int) -> list[PendingPut]:
        """Everything up to `offset` is on disk; the puts that this ends, oldest first."""
        return self._ended(self._flushes.reach(offset))

    def on_confirmed(self, offset: int) -> list[PendingPut]:
        """A slave has everything up to `offset`; the puts that this ends, oldest first."""
        return self._ended(self._replicas.reach(offset))

    def expire(self, now: float) -> list[PendingPut]:
        """The puts that end because a deadline has passed."""
        return self._ended(self._flushes.expire(now)) + self._ended(self._replicas.expire(now))

    def next_deadline(self) -> float | None:
        """When `expire` is to be called next."""
        deadlines = (self._flushes.next_deadline(), self._replicas.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _ended(self, decided: list[PendingPut]) -> list[PendingPut]:
        ended = [put for put in decided if put.status is not None]
        self._pending -= len(ended)
        return ended


class _Queue:
    """Undecided waits for one offset, by end offset and by deadline.  Each heap forgets the decided lazily."""

    def __init__(self, late: PutStatus) -> None:
        self._late = late
        self._number = count()
        self._by_end: _Heap = []
        self._by_deadline: _Heap = []
        self._undecided = 0

    def add(self, put: PendingPut, wait: Wait) -> None:
        number = next(self._number)
        heapq.heappush(self._by_end, (put.end_offset, number, put, wait))
        heapq.heappush(self._by_deadline, (wait.deadline, number, put, wait))
        self._undecided += 1
        for heap in (self._by_end, self._by_deadline):
            if len(heap) > 2 * self._undecided + SLACK:
                heap[:] = [entry for entry in heap if entry[3].status is None]
                heapq.heapify(heap)

    def reach(self, offset: int) -> list[PendingPut]:
        return self._decide(self._by_end, offset, PutStatus.PUT_OK)

    def expire(self, now: float) -> list[PendingPut]:
        return self._decide(self._by_deadline, now, self._late)

    def next_deadline(self) -> float | None:
        heap = self._by_deadline
        while heap and heap[0][3].status is not None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _decide(self, heap: _Heap, reached: float, status: PutStatus) -> list[PendingPut]:
        decided = []
        while heap and heap[0][0] <= reached:
            _, _, put, wait = heapq.heappop(heap)
            if wait.status is None:
                wait.status = status
                decided.append(put)
        self._undecided -= len(decided)
        return decided
