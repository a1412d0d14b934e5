"""Notice: tells everybody who waits that something has changed.  Each of them looks up by itself what that is."""

import asyncio


class Notice:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []

    def waiter(self) -> asyncio.Event:
        """An event that every `notify` sets from now on.  Its owner clears it before it looks."""
        waiter = asyncio.Event()
        self._waiting.append(waiter)
        return waiter

    def wakes(self, waiter: asyncio.Event) -> None:
        """Every `notify` sets this event, too."""
        self._waiting.append(waiter)

    def notify(self) -> None:
        for waiter in self._waiting:
            waiter.set()
