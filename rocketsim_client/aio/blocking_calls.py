"""Makes the blocking calls of a client in threads, so that tasks can await them."""

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
    """Makes calls in at most `most_threads` threads of its own, in the order in which they are given, so that the event
    loop's default executor stays free for the program."""

    def __init__(self, client: str, most_threads: int) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(most_threads, thread_name_prefix=client)
        self._under_way: set[Future[Any]] = set()

    def start(self, call: Callable[[], T]) -> "Future[T]":
        """Starts a call and returns its future, which is never cancelled.  Raises ClientClosed after `finish`."""
        try:
            future = self._threads.submit(call)
        except RuntimeError:
            raise ClientClosed(f"this {self._client} has been closed") from None
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def result(self, call: Callable[[], T]) -> T:
        """Makes the call, and returns or raises what the call does.  If the task is cancelled, the call continues."""
        return await outcome(self.start(call))

    def finish(self, timeout_s: float | None = None) -> None:
        """Blocks until the calls that are under way have ended, at most for `timeout_s`.  Calls that have not begun
        within `timeout_s` are not made."""
        self._threads.shutdown(wait=False)
        wait(list(self._under_way), timeout_s)
        self._threads.shutdown(wait=False, cancel_futures=True)


class Closing:
    """Closes a client by one call in a thread of its own.  All tasks that close the client wait for the end of that one
    call."""

    def __init__(self) -> None:
        self._future: Future[None] | None = None

    async def result(self, call: Callable[[], None]) -> None:
        """Makes the call unless it was made before, and waits for its end.  If the task is cancelled, the call
        continues."""
        if self._future is None:
            thread = ThreadPoolExecutor(1, thread_name_prefix="closing")
            self._future = thread.submit(call)
            thread.shutdown(wait=False)
        await outcome(self._future)


async def outcome(future: "Future[T]") -> T:
    """Waits for a future that a thread completes.  Unlike `asyncio.wrap_future`, does not cancel the future when the
    task is cancelled.  Raises ClientClosed if the client was closed before the call began."""
    if not future.done():
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[None] = loop.create_future()

        def tell(_: "Future[T]") -> None:
            with contextlib.suppress(RuntimeError):  # the loop and its task have ended meanwhile
                loop.call_soon_threadsafe(wake, heard)

        future.add_done_callback(tell)
        await heard
    if future.cancelled():
        raise ClientClosed("the client was closed before this call began")
    return future.result()


def wake(waiter: "asyncio.Future[None]") -> None:
    """Completes a future that a task waits for, unless the task was cancelled."""
    if not waiter.done():
        waiter.set_result(None)


def arguments_of(
    constructor: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Decorates a method so that it has the arguments of the given constructor, for type checkers and for `help`."""

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return cast(Callable[Concatenate[Any, P], None], functools.wraps(constructor)(method))

    return decorate
