"""PendingPuts has the puts and commits that wait for a disk or a slave.  Pure: callers pass the time as the argument
`now`.

A put waits for a flush and for a slave at the same time.  A commit waits until a slave's log has the records that the
offset covers, and a slave's journal has the offset.  Each wait ends once, with OK, or at its deadline with another
status.  A put ends when all its waits have ended.  If several waits failed, the slave's status is the answer, as in
RocketMQ (table D4 of docs/decision_tables.md).
"""

import heapq
from dataclasses import dataclass
from itertools import count

from broker_service.put_result import PutStatus

SLACK = 1000  # ended waits that a heap may hold before it is rebuilt


@dataclass(slots=True, eq=False)
class PendingPut:
    """A put or commit with its three waits.  The status of a put is None until all three waits have ended.

    `flush` and `replica` wait for a log offset; `metadata` waits for a sequence number of changes.
    """

    end_offset: int
    flush: "Wait"
    replica: "Wait"
    metadata: "Wait"

    @property
    def status(self) -> PutStatus | None:
        flush, replica, metadata = self.flush.status, self.replica.status, self.metadata.status
        if flush is None or replica is None or metadata is None:
            return None
        if replica is not PutStatus.PUT_OK:
            return replica
        return flush if metadata is PutStatus.PUT_OK else metadata


@dataclass(slots=True, eq=False)
class Wait:
    """One wait of a put or commit.  A wait that is created with a status has already ended."""

    status: PutStatus | None
    deadline: float = 0.0


NO_WAIT = Wait(PutStatus.PUT_OK)


# An entry begins with an end offset, a sequence or a deadline; a number, the put and the wait follow.  A float compares
# exactly with log offsets, which stay far below 2**53.
_Heap = list[tuple[float, int, PendingPut, Wait]]


class PendingPuts:
    def __init__(self) -> None:
        self._flushes = _Queue(PutStatus.FLUSH_DISK_TIMEOUT)
        self._replicas = _Queue(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._metadata = _Queue(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._pending = 0

    def __len__(self) -> int:
        return self._pending

    def add(
        self,
        end_offset: int,
        flush: Wait = NO_WAIT,
        replica: Wait = NO_WAIT,
        metadata: Wait = NO_WAIT,
        sequence: int = 0,
    ) -> PendingPut:
        """Adds a put, which ends when all its waits have ended.  A put without open waits is not kept."""
        put = PendingPut(end_offset, flush, replica, metadata)
        if put.status is None:
            self._pending += 1
            if flush.status is None:
                self._flushes.add(end_offset, put, flush)
            if replica.status is None:
                self._replicas.add(end_offset, put, replica)
            if metadata.status is None:
                self._metadata.add(sequence, put, metadata)
        return put

    def on_flushed(self, offset: int) -> list[PendingPut]:
        """Ends the waits for a flush up to `offset`.  Returns the puts that now wait for nothing more, oldest first."""
        return self._ended(self._flushes.reach(offset))

    def on_confirmed(self, offset: int) -> list[PendingPut]:
        """Ends the waits for a slave with the log up to `offset`.  Returns the puts that now wait for nothing more,
        oldest first."""
        return self._ended(self._replicas.reach(offset))

    def on_metadata(self, sequence: int) -> list[PendingPut]:
        """Ends the waits for a slave with all changes up to `sequence`; returns the commits that have no wait left."""
        return self._ended(self._metadata.reach(sequence))

    def expire(self, now: float) -> list[PendingPut]:
        """Ends the waits whose deadline has passed; returns the puts that have no wait left."""
        return [put for queue in self._queues for put in self._ended(queue.expire(now))]

    def next_deadline(self) -> float | None:
        """Returns when `expire` must be called next; None if nothing waits."""
        deadlines = [queue.next_deadline() for queue in self._queues]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def _queues(self) -> "tuple[_Queue, ...]":
        return self._flushes, self._replicas, self._metadata

    def _ended(self, decided: list[PendingPut]) -> list[PendingPut]:
        ended = [put for put in decided if put.status is not None]
        self._pending -= len(ended)
        return ended


class _Queue:
    """The waits for one kind of offset or sequence, in two heaps: one is ordered by this number, the other by deadline.

    Waits that have ended are removed from the heaps later.
    """

    def __init__(self, late: PutStatus) -> None:
        self._late = late
        self._number = count()
        self._by_end: _Heap = []
        self._by_deadline: _Heap = []
        self._undecided = 0

    def add(self, end: int, put: PendingPut, wait: Wait) -> None:
        number = next(self._number)
        heapq.heappush(self._by_end, (end, number, put, wait))
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
