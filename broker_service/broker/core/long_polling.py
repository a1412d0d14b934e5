"""LongPolling has the pulls that wait until their queue has a message, or until their timeout.

A pull is registered in the same step of the event loop as its read, and appends run on the same loop, so no message can
arrive unnoticed between the two.  An arrival notifies only the pulls of its queue.
"""

import asyncio
from collections.abc import Callable, Iterable

from broker_service.errors import SystemBusy

Queue = tuple[str, int]


class LongPolling:
    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Queue, dict[asyncio.Future[None], int]] = {}  # each with the offset that it waits for
        self.held = 0
        self.closed = False

    async def wait(self, topic: str, queue_id: int, queue_offset: int, timeout_s: float) -> bool:
        """Waits for messages; True if the queue may have some, False after the timeout or when the broker stops."""
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
        """Returns the queues for which a pull waits."""
        return list(self._waiting)

    def arrived_somewhere(self, end_of: Callable[[str, int], int]) -> None:
        """Notifies the pulls whose queue has grown beyond the offset that they wait for.

        A slave calls it, since it copies the log without a list of the queues that have grown.
        """
        self.arrived(
            [queue for queue, waiting in self._waiting.items() if end_of(*queue) > min(waiting.values(), default=0)]
        )

    def close(self) -> None:
        """Ends all waits, and every later one at once."""
        self.closed = True
        self.arrived(list(self._waiting))
