"""LongPolling keeps a call waiting until one of its queues has a new message, or until its time-out.

A call is registered in the same step of the event loop as its read, and appends run on the same loop, so no message can
arrive unnoticed between read and registration.  An arriving message wakes only the calls that wait for its queue.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from broker_service.errors import SystemBusy

Queue = tuple[str, int]


class LongPolling:
    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[
            Queue, dict[asyncio.Future[None], int]
        ] = {}  # queue -> waiting call -> the queue's end that the call knows
        self.held = 0
        self.closed = False

    async def wait(self, ends: Mapping[Queue, int], timeout_s: float) -> bool:
        """Waits for a new message in any of these queues.  `ends` has, for each queue, the end that the caller knows.

        Returns True if a queue may have grown beyond the end that `ends` names.  Returns False after the time-out, or
        when the broker stops.
        """
        if self.closed or timeout_s <= 0:
            return False
        if self.held >= self._most:
            raise SystemBusy(f"{self.held} calls wait for messages already; call again in a moment")
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for queue, end in ends.items():
            self._waiting.setdefault(queue, {})[arrival] = end
        self.held += 1
        try:
            async with asyncio.timeout(timeout_s):
                await arrival
            return not self.closed
        except TimeoutError:
            return False
        finally:
            self.held -= 1
            for queue in ends:
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
        """Returns the queues for which calls are waiting."""
        return list(self._waiting)

    def arrived_somewhere(self, end_of: Callable[[str, int], int]) -> None:
        """Wakes each call that waits for a queue which has grown beyond the end that the call knows.

        Slaves use this method, because they copy the log without a list of the queues that have grown.
        """
        self.arrived(
            [queue for queue, waiting in self._waiting.items() if end_of(*queue) > min(waiting.values(), default=0)]
        )

    def close(self) -> None:
        """Ends all waits.  Later calls of `wait` return at once."""
        self.closed = True
        self.arrived(list(self._waiting))
