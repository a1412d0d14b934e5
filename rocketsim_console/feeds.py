"""Feeds: what pages show, live.  One task asks for a view, for all who look at it, while somebody does."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from typing import Any

from rocketsim_client.errors import RocketSimError
from rocketsim_console.views import View

MAX_FEEDS = 32  # different views that are looked at at once
MAX_VIEWERS = 200
ALIVE_S = 15.0  # a stream says something at least this often, so that a peer that is gone is noticed


class TooManyViewers(Exception):
    """A further live page would cost the cluster or this process too much."""


def event(kind: str, value: dict[str, Any]) -> str:
    """A server-sent event.  JSON has no line break of its own, so nothing in a value can begin another event."""
    return f"event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"


def trouble_of(error: RocketSimError) -> dict[str, Any]:
    """An error of the cluster, as pages show it."""
    return {"error": type(error).__name__, "message": str(error)}


class _Feed:
    """The newest event of one view, and who waits for the next one."""

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
    """To be used by one event loop.  `threads` make the blocking calls."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._feeds: dict[str, _Feed] = {}

    @property
    def viewers(self) -> int:
        return sum(feed.viewers for feed in self._feeds.values())

    def __len__(self) -> int:
        return len(self._feeds)

    async def follow(self, key: str, make: Callable[[], View]) -> AsyncGenerator[str, None]:
        """The events of the view, the newest first seen; those that a slow viewer misses are left out.  `key` is the
        same for all who look at the same view.  Raises TooManyViewers before the first event."""
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(make())
            feed.task = asyncio.create_task(self._run(feed))
        feed.viewers += 1
        seen = 0
        try:
            while True:
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

    def check_room(self, key: str) -> None:
        """Raises TooManyViewers if `follow` would be one too many."""
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
            feed.failure = error  # raised in the streams of those who look at it
            feed.wake()
