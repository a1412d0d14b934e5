"""MemoryBudget limits the bytes of requests that a server keeps at once.

A caller takes bytes from the budget before it keeps a request, and gives the bytes back afterwards.  If too few bytes
are left, the caller waits.  Callers that wait get their bytes in the order in which they came.
"""

import asyncio
from collections import deque


class MemoryBudget:
    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.taken_bytes = 0

    async def take(self, size_bytes: int) -> None:
        """Waits until enough bytes are left in the budget, and takes them.

        A request that is larger than the whole budget waits until no other bytes are taken.
        """
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size_bytes)
            else:
                turn.cancel()
                self._admit()
            raise

    def give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.done() and not self._fits(size_bytes):
                return
            self._waiting.popleft()
            if not turn.done():
                self.taken_bytes += size_bytes
                turn.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self._size
