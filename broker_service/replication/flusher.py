"""The flush thread: one fsync serves every put and ack that waits (group commit).

A failed fsync is fatal: what the page cache holds afterwards may claim to be clean without being on disk, so it is
never tried again.  The failure is reported once, and the thread ends.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Protocol

from broker_service.errors import ServiceNotAvailable


class Flushable(Protocol):
    @property
    def flushed_offset(self) -> int: ...

    def flush(self) -> int:
        """Called on the flush thread.  Returns only when everything up to the returned offset is on disk.

        Called when nothing was appended too: a store has other things to sync from time to time.
        """


class Flusher:
    """Flushes every `interval_s`, and at once when asked.  Callbacks and methods run on the event loop's thread."""

    def __init__(
        self,
        log: Flushable,
        *,
        interval_s: float,
        on_flushed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self.flushed_offset = log.flushed_offset
        self.failure: BaseException | None = None
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()
        # Held by the thread while it flushes; a cut raises the number, and a flush from before it counts for nothing.
        self._flushing = threading.Lock()
        self._cuts = 0
        # Shared with the thread, under the condition.
        self._condition = threading.Condition()
        self._asked = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    async def close(self) -> None:
        """Flush what is there and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def request(self, offset: int) -> None:
        """Somebody waits until everything up to `offset` is on disk."""
        if offset > self.flushed_offset:
            with self._condition:
                self._asked = True
                self._condition.notify()

    async def wait(self, offset: int) -> None:
        """Return when everything up to `offset` is on disk; ServiceNotAvailable if it will never be."""
        if offset <= self.flushed_offset:
            return
        self._refuse_after_failure()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (offset, next(self._number), future))
        self.request(offset)
        await future

    @contextmanager
    def halted(self) -> Iterator[None]:
        """No flush runs inside; to be held while the log is cut back."""
        with self._flushing:
            try:
                yield
            finally:
                self._cuts += 1
                self.flushed_offset = self._log.flushed_offset

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._asked or self._closing, timeout=self._interval_s)
                self._asked = False
                closing = self._closing
            # What was appended before this line is covered; a put that asks from now on sets `_asked` again.
            with self._flushing:
                try:
                    flushed_offset = self._log.flush()
                except BaseException as failure:
                    self._loop.call_soon_threadsafe(self._failed, failure)
                    return
                self._loop.call_soon_threadsafe(self._flushed, flushed_offset, self._cuts)
            if closing:
                return

    def _flushed(self, offset: int, cuts: int) -> None:
        if cuts != self._cuts:
            return
        self.flushed_offset = max(self.flushed_offset, offset)
        while self._waiting and self._waiting[0][0] <= offset:
            _settle(heapq.heappop(self._waiting)[2])
        self._on_flushed(offset)

    def _failed(self, failure: BaseException) -> None:
        self.failure = failure
        while self._waiting:
            _settle(heapq.heappop(self._waiting)[2], self._never())
        self._on_failure(failure)

    def _refuse_after_failure(self) -> None:
        if self.failure is not None:
            raise self._never()

    def _never(self) -> ServiceNotAvailable:
        return ServiceNotAvailable(f"a flush failed, nothing is written any more: {self.failure}")


def _settle(future: asyncio.Future[None], failure: Exception | None = None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
