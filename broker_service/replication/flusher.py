"""Flusher has the flush thread, in which one sync serves all puts and acks that wait (group commit).

A failed sync is fatal and is never repeated, because the kernel may have marked pages clean that are not on disk.
After a failed sync, the failure is reported once, and the thread ends.
"""

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

from broker_service.errors import ServiceNotAvailable
from broker_service.runtime.histogram import Histogram


class Flushable(Protocol):
    @property
    def flushed_offset(self) -> int:
        """The log offset up to which everything is on disk.

        A flush raises this offset, and a cut of the log lowers it.
        """

    def flush(self) -> int:
        """Syncs the log, on the flush thread; returns the offset up to which everything is on disk.

        The flush thread calls `flush` even if nothing was appended, since a store has other files to sync now and then.
        """


class Flusher:
    """Flushes every `interval_s`, and at once on request.  Methods and callbacks run on the event loop's thread."""

    def __init__(
        self,
        log: Flushable,
        *,
        interval_s: float,
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self.flushed: list[Callable[[int], None]] = []  # called with the offset up to which the log is on disk
        self.failed: list[Callable[[BaseException], None]] = []  # called once, when a flush fails; no flush follows
        self.failure: BaseException | None = None
        self.seconds = Histogram(
            "rocketsim_flush_seconds", "Duration of the flushes of the log that had something to flush."
        )
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()
        # The event loop and the flush thread share `_requested` and `_closing`, which the condition protects.
        self._condition = threading.Condition()
        self._requested = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def flushed_offset(self) -> int:
        """The flushed offset of the log itself, which a cut lowers at once."""
        return self._log.flushed_offset

    async def close(self) -> None:
        """Flushes once more and ends the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def request(self, offset: int) -> None:
        """Requests a flush, unless everything up to `offset` is on disk already."""
        if offset > self.flushed_offset:
            with self._condition:
                self._requested = True
                self._condition.notify()

    async def wait(self, offset: int) -> None:
        """Waits until everything up to `offset` is on disk; raises ServiceNotAvailable after a failed flush."""
        if offset <= self.flushed_offset:
            return
        self._refuse_after_failure()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (offset, next(self._number), future))
        self.request(offset)
        await future

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._requested or self._closing, timeout=self._interval_s)
                self._requested = False
                closing = self._closing
            # The flush covers everything appended before this line, and a put after this line sets `_requested` again.
            before, began = self._log.flushed_offset, time.monotonic()
            try:
                self._log.flush()
            except BaseException as failure:
                self._loop.call_soon_threadsafe(self._failed, failure)
                return
            if self._log.flushed_offset > before:
                self.seconds.observe(time.monotonic() - began)
            self._loop.call_soon_threadsafe(self._flushed)
            if closing:
                return

    def _flushed(self) -> None:
        offset = self.flushed_offset  # read only now, since the log may have been cut after the flush
        while self._waiting and self._waiting[0][0] <= offset:
            _finish(heapq.heappop(self._waiting)[2])
        for listener in self.flushed:
            listener(offset)

    def _failed(self, failure: BaseException) -> None:
        self.failure = failure
        while self._waiting:
            _finish(heapq.heappop(self._waiting)[2], self._refusal())
        for listener in self.failed:
            listener(failure)

    def _refuse_after_failure(self) -> None:
        if self.failure is not None:
            raise self._refusal()

    def _refusal(self) -> ServiceNotAvailable:
        return ServiceNotAvailable(f"a flush failed, nothing is written any more: {self.failure}")


def _finish(future: asyncio.Future[None], failure: Exception | None = None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
