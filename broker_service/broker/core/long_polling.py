"""LongPolling: pulls that wait until their queue has a message, or until their time is over.

A waiter is registered before anything is awaited, on the loop that also appends, so no arrival falls between the read
and the wait.  Nothing scans the waiters: an arrival notifies those of its queue, on a slave as on a master.
"""

import asyncio
from collections.abc import Callable, Iterable

from broker_service.errors import SystemBusy

Queue = tuple[str, int]


class LongPolling:
    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Queue, dict[asyncio.Future[None], int]] = {}  # -> the offset that is waited for
        self.held = 0
        self.closed = False

    async def wait(self, topic: str, queue_id: int, queue_offset: int, timeout_s: float) -> bool:
        """True when the queue may have something new; False when the time is over, or the broker stops."""
        if self.closed or timeout_s <= 0:
            return False
        if self.held >= self._most:
            raise SystemBusy(f"{self.held} pulls are held already; pull again in a moment")
        queue = (topic, queue_id)
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(queue, {})[arrival] = queue_offset
        self.held += 1
        try:
            async with asyncio.timeout(timeout_s):
                await arrival
            return not self.closed
        except TimeoutError:
            return False
        finally:
            self.held -= 1
            waiting = self._waiting.get(queue)
            if waiting is not None:
                waiting.pop(arrival, None)
                if not waiting:
                    del self._waiting[queue]

    def arrived(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            for arrival in self._waiting.pop(queue, ()):
                if not arrival.done():
                    arrival.set_result(None)

    def queues(self) -> list[Queue]:
        """The queues that somebody waits for."""
        return list(self._waiting)

    def arrived_somewhere(self, end_of: Callable[[str, int], int]) -> None:
        """Where is not known, only where queues end now: for a slave, which copies the log of all queues."""
        self.arrived(
            [queue for queue, waiting in self._waiting.items() if end_of(*queue) > min(waiting.values(), default=0)]
        )

    def close(self) -> None:
        """Notify everybody who waits; whoever asks from now on is answered at once."""
        self.closed = True
        self.arrived(list(self._waiting))
