"""Sends live data to the pages.  While a view has viewers, one task asks the cluster for its data, for all viewers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from typing import Any

from rocketsim_client.errors import RocketSimError
from rocketsim_console.views import View

MAX_FEEDS = 32  # the most different views at the same time
MAX_VIEWERS = 200
ALIVE_S = 15.0  # a stream sends something at least this often, to notice that the browser is gone


class TooManyViewers(Exception):
    """Raised if another live page would be too much work for the cluster or this process."""


def event(kind: str, value: dict[str, Any]) -> str:
    """Returns a server-sent event.  JSON in one line has no line breaks, so a value cannot begin another event."""
    return f"event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"


def trouble_of(error: RocketSimError) -> dict[str, Any]:
    """Returns an error of the cluster as JSON for the pages."""
    return {"error": type(error).__name__, "message": str(error)}


class _Feed:
    """The newest event of one view, and the number of its viewers."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.viewers = 0
        self.number = 0
        self.text = ""
        self.failure: BaseException | None = None
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def publish(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self.number += 1
            self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Feeds:
    """All live views.  Feeds belong to one event loop.  `threads` make the blocking calls."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._feeds: dict[str, _Feed] = {}
        self._has_ended = False

    @property
    def viewers(self) -> int:
        return sum(feed.viewers for feed in self._feeds.values())

    def __len__(self) -> int:
        return len(self._feeds)

    async def follow(self, key: str, make: Callable[[], View]) -> AsyncGenerator[str, None]:
        """Yields the events of a view, beginning with the newest.  A slow viewer misses some events.  Viewers that give
        the same `key` share one view.  Call `check_room` before.
        """
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(make())
            feed.task = asyncio.create_task(self._run(feed))
        feed.viewers += 1
        seen = 0
        try:
            while not self._has_ended:
                if feed.failure is not None:
                    raise feed.failure
                if feed.number > seen:
                    seen = feed.number
                    yield feed.text
                    continue
                try:
                    async with asyncio.timeout(ALIVE_S):
                        await feed.changed.wait()
                except TimeoutError:
                    yield ": nothing new\n\n"
        finally:
            feed.viewers -= 1
            if not feed.viewers:
                if self._feeds.get(key) is feed:
                    del self._feeds[key]
                if feed.task is not None:
                    feed.task.cancel()

    def end(self) -> None:
        """Ends all streams, so that a server that stops does not wait for its viewers."""
        self._has_ended = True
        for feed in self._feeds.values():
            feed.wake()

    def check_room(self, key: str) -> None:
        """Raises TooManyViewers if `follow` may not be called for another viewer."""
        if self.viewers >= MAX_VIEWERS:
            raise TooManyViewers(f"{MAX_VIEWERS} live pages are open already: close some of them")
        if key not in self._feeds and len(self._feeds) >= MAX_FEEDS:
            raise TooManyViewers(f"{MAX_FEEDS} different live pages are open already: close some of them")

    async def _run(self, feed: _Feed) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    text = event("view", await loop.run_in_executor(self._threads, feed.view.ask))
                except RocketSimError as error:
                    text = event("trouble", trouble_of(error))
                feed.publish(text)
                await asyncio.sleep(feed.view.every_s)
        except Exception as error:
            feed.failure = error  # the viewers' streams raise this error
            feed.wake()
