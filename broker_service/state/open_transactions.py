"""OpenTransactions keeps the half messages whose transaction has not ended.  Which half messages are open follows from
the log alone.

A half message replaces an open one with the same topic and id, because it is the same message, sent or appended again.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from broker_service.state.transaction_changes import (
    Checked,
    Ended,
    Prepared,
    Resolution,
    Resolved,
    TransactionChange,
    TransactionId,
)

MAX_RECENT = 20_000  # number of ended transactions to remember, because a client may end a transaction twice
_HEAP_SLACK = 1000


class OpenTransactions:
    """Keeps open transactions.  `apply` never fails, but ignores a change that does not fit, such as a second
    resolution.
    """

    def __init__(self) -> None:
        self.open: dict[TransactionId, Prepared] = {}
        self.open_of: Counter[str] = Counter()  # topic -> number of open transactions
        self.unlogged: dict[int, Resolved] = {}  # queue offset -> settled half message without an op record
        self._by_offset: dict[int, TransactionId] = {}
        self._recent: OrderedDict[TransactionId, Resolution] = OrderedDict()
        self._due: list[tuple[int, int]] = []  # a heap of (time, queue offset); outdated entries are removed later

    # --- asking -----------------------------------------------------------------------------------------------------

    def resolution_of(self, transaction: TransactionId) -> Resolution | None:
        """Returns how the transaction ended, or None if that is not remembered."""
        return self._recent.get(transaction)

    def first(self) -> Prepared | None:
        """Returns the open half message with the lowest offset."""
        return self.open[self._by_offset[min(self._by_offset)]] if self._by_offset else None

    def next_due_ms(self) -> int | None:
        self._clean()
        return self._due[0][0] if self._due else None

    def due(self, now_ms: int, limit: int) -> list[Prepared]:
        """Returns the open half messages whose producer must be asked now, the earliest due first."""
        found: list[Prepared] = []
        entries: list[tuple[int, int]] = []
        while len(found) < limit:
            self._clean()
            if not self._due or self._due[0][0] > now_ms:
                break
            entry = heapq.heappop(self._due)
            if not entries or entry != entries[-1]:  # entries are equal if a time was set to the same value twice
                entries.append(entry)
                found.append(self.open[self._by_offset[entry[1]]])
        for entry in entries:
            heapq.heappush(self._due, entry)
        return found

    # --- changing ---------------------------------------------------------------------------------------------------

    def apply(self, change: TransactionChange) -> None:
        match change:
            case Prepared():
                self._prepare(change)
            case Checked(due_ms, checks):
                for queue_offset, times in checks:
                    if (transaction := self._by_offset.get(queue_offset)) is not None:
                        self.open[transaction] = replace(self.open[transaction], due_ms=due_ms, checks=times)
                        self._watch(due_ms, queue_offset)
            case Ended(queue_offsets, resolution):
                for queue_offset in queue_offsets:
                    self.unlogged.pop(queue_offset, None)
                    if (transaction := self._by_offset.get(queue_offset)) is not None:
                        self._end(transaction, resolution)
            case Resolved(transaction, resolution, None):
                if (ended := self._end(transaction, resolution)) is not None:
                    self.unlogged[ended.queue_offset] = replace(change, unlogged=ended.queue_offset)
            case Resolved(unlogged=int(queue_offset)):
                self.unlogged[queue_offset] = change

    def _prepare(self, prepared: Prepared) -> None:
        before = self.open.get(prepared.transaction)
        if before is not None and before.queue_offset == prepared.queue_offset:
            return
        if before is not None:
            self.apply(Resolved(prepared.transaction, Resolution.UNKNOWN))
        self._recent.pop(prepared.transaction, None)
        self.open[prepared.transaction] = prepared
        self.open_of[prepared.transaction.topic] += 1
        self._by_offset[prepared.queue_offset] = prepared.transaction
        self._watch(prepared.due_ms, prepared.queue_offset)

    def _end(self, transaction: TransactionId, resolution: Resolution) -> Prepared | None:
        ended = self.open.pop(transaction, None)
        if ended is not None:
            del self._by_offset[ended.queue_offset]
            self.open_of[transaction.topic] -= 1
            if not self.open_of[transaction.topic]:
                del self.open_of[transaction.topic]
        if resolution is not Resolution.UNKNOWN:
            self._recent[transaction] = resolution
            if len(self._recent) > MAX_RECENT:
                self._recent.popitem(last=False)
        return ended

    def _watch(self, due_ms: int, queue_offset: int) -> None:
        if len(self._due) > 2 * len(self.open) + _HEAP_SLACK:
            self._due = [(one.due_ms, one.queue_offset) for one in self.open.values()]
            heapq.heapify(self._due)
        else:
            heapq.heappush(self._due, (due_ms, queue_offset))

    def _clean(self) -> None:
        while self._due:
            due_ms, queue_offset = self._due[0]
            transaction = self._by_offset.get(queue_offset)
            if transaction is not None and self.open[transaction].due_ms == due_ms:
                return
            heapq.heappop(self._due)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def rebuilding(self) -> Iterator[Prepared | Resolved]:
        """Returns changes that rebuild the present state from nothing."""
        return _rebuilding(dict(self._recent), dict(self.unlogged), list(self.open.values()))


def _rebuilding(
    recent: Mapping[TransactionId, Resolution], unlogged: Mapping[int, Resolved], prepared: Iterable[Prepared]
) -> Iterator[Prepared | Resolved]:
    for transaction, resolution in recent.items():
        yield Resolved(transaction, resolution)
    yield from unlogged.values()
    yield from prepared
