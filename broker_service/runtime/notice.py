"""Notice wakes all tasks that wait for a change.  Each task that was woken finds out by itself what has changed."""

import asyncio


class Notice:
    """A notice for the tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []

    def waiter(self) -> asyncio.Event:
        """Returns an event that every later `notify` sets.

        The owner of the event must clear it before looking for changes.
        """
        waiter = asyncio.Event()
        self._waiting.append(waiter)
        return waiter

    def wakes(self, waiter: asyncio.Event) -> None:
        """Makes every later `notify` set this event, too."""
        self._waiting.append(waiter)

    def notify(self) -> None:
        for waiter in self._waiting:
            waiter.set()
