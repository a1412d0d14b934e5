"""Blocking calls of a client, made in threads and awaited by tasks."""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rocketsim_client.errors import ClientClosed

P = ParamSpec("P")
T = TypeVar("T")


class BlockingCalls:
    """Makes calls in `most_threads` threads of its own, in the order in which they are given.  Threads start when they
    are needed.  The default executor of the event loop stays free for the program."""

    def __init__(self, client: str, most_threads: int) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(most_threads, thread_name_prefix=client)
        self._under_way: set[Future[Any]] = set()

    def start(self, call: Callable[[], T]) -> "Future[T]":
        """The future of a call, which nobody cancels.  ClientClosed: after `finish`."""
        try:
            future = self._threads.submit(call)
        except RuntimeError:
            raise ClientClosed(f"this {self._client} has been closed") from None
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def result(self, call: Callable[[], T]) -> T:
        """What the call returns or raises.  The call goes on when the task is cancelled."""
        return await outcome(self.start(call))

    def finish(self, timeout_s: float | None = None) -> None:
        """Returns when the calls under way have ended, or the time is over.  Calls that have not begun by then are not
        made.  Blocks."""
        self._threads.shutdown(wait=False)
        wait(list(self._under_way), timeout_s)
        self._threads.shutdown(wait=False, cancel_futures=True)


class Closing:
    """The end of a client: one call in a thread of its own, for which everybody who closes the client waits."""

    def __init__(self) -> None:
        self._future: Future[None] | None = None

    async def result(self, call: Callable[[], None]) -> None:
        """Makes the call unless it was made, and waits for its end.  The call goes on when the task is cancelled."""
        if self._future is None:
            thread = ThreadPoolExecutor(1, thread_name_prefix="closing")
            self._future = thread.submit(call)
            thread.shutdown(wait=False)
        await outcome(self._future)


async def outcome(future: "Future[T]") -> T:
    """The result of a future that a thread completes.  Unlike `asyncio.wrap_future`, a cancelled task leaves it alone.
    ClientClosed: its call was not made, because the client was closed first."""
    if not future.done():
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[None] = loop.create_future()

        def tell(_: "Future[T]") -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile, and the task with it
                loop.call_soon_threadsafe(wake, heard)

        future.add_done_callback(tell)
        await heard
    if future.cancelled():
        raise ClientClosed("the client was closed before this call began")
    return future.result()


def wake(waiter: "asyncio.Future[None]") -> None:
    """Completes what a task waits for, unless the task was cancelled."""
    if not waiter.done():
        waiter.set_result(None)


def arguments_of(
    constructor: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """A decorator: the method takes the arguments of this constructor, for type checkers and for `help`."""

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return cast(Callable[Concatenate[Any, P], None], functools.wraps(constructor)(method))

    return decorate
