"""Polls: pops that wait for a message.  An arrival wakes one of each group, which wakes the next if there is more."""

import asyncio
from collections.abc import Iterable

from broker_service.consumption.retries import retry_topic
from broker_service.errors import SystemBusy

Waiters = dict[asyncio.Future[None], None]  # the oldest first


class Polls:
    """A poll is registered before anything is awaited, on the loop that also appends: no arrival is missed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, dict[str, Waiters]] = {}  # topic or retry topic -> group
        self.held = 0
        self.closed = False

    async def wait(self, group: str, topic: str, timeout_s: float) -> bool:
        """True when there may be something new; False when the time is over, or the broker stops."""
        if self.closed or timeout_s <= 0:
            return False
        if self.held >= self._most:
            raise SystemBusy(f"{self.held} pops are held already; pop again in a moment")
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        topics = topic, retry_topic(group, topic)
        for name in topics:
            self._waiting.setdefault(name, {}).setdefault(group, {})[woken] = None
        self.held += 1
        try:
            async with asyncio.timeout(timeout_s):
                await woken
            return not self.closed
        except TimeoutError:
            return woken.done() and not woken.cancelled() and not self.closed
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self.wake(group, topic)  # somebody else takes what this one was woken for
            raise
        finally:
            self.held -= 1
            for name in topics:
                self._remove(name, group, woken)

    def arrived(self, queues: Iterable[tuple[str, int]]) -> None:
        for topic in {topic for topic, _ in queues}:
            for waiters in self._waiting.get(topic, {}).values():
                _wake_one(waiters)

    def wake(self, group: str, topic: str) -> None:
        _wake_one(self._waiting.get(topic, {}).get(group, {}))

    def close(self) -> None:
        """Wake everybody for good; who asks from now on is answered at once."""
        self.closed = True
        for groups in self._waiting.values():
            for waiters in groups.values():
                for woken in waiters:
                    if not woken.done():
                        woken.set_result(None)

    def _remove(self, topic: str, group: str, woken: asyncio.Future[None]) -> None:
        groups = self._waiting[topic]
        del groups[group][woken]
        if not groups[group]:
            del groups[group]
            if not groups:
                del self._waiting[topic]


def _wake_one(waiters: Waiters) -> None:
    for woken in waiters:
        if not woken.done():
            woken.set_result(None)
            return
