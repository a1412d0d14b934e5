"""Visibility knows up to which log offset consumers see the log, and wakes readers when records become visible."""

from collections import deque
from collections.abc import Callable, Iterable

from broker_service.broker.core.long_polling import LongPolling, Queue
from broker_service.store.message_store import MessageStore


class Visibility:
    """Keeps the visible end, which is the log offset up to which consumers see records.  On a SYNC_MASTER a record
    becomes visible once a slave has it, on an ASYNC_MASTER at once.
    """

    def __init__(self, store: MessageStore, long_polling: LongPolling) -> None:
        self._store = store
        self.long_polling = long_polling
        self.arrived: list[Callable[[Iterable[Queue]], None]] = [long_polling.arrived]
        # (end offset, queues) of appended records that are not visible yet.
        self._unseen: deque[tuple[int, list[Queue]]] = deque()

    def appended(self, queues: Iterable[Queue], end_offset: int) -> None:
        visible = self._store.queues.confirm_offset
        if visible is None or visible >= end_offset:
            self._notify(queues)
        else:
            self._unseen.append((end_offset, list(queues)))

    def changed(self, visible_offset: int | None) -> None:
        """Moves the visible end to `visible_offset`, where None stands for the end of the log."""
        self._store.queues.confirm_offset = visible_offset
        while self._unseen and (visible_offset is None or self._unseen[0][0] <= visible_offset):
            self._notify(self._unseen.popleft()[1])

    def _notify(self, queues: Iterable[Queue]) -> None:
        for listener in self.arrived:
            listener(queues)
