"""Receives the next frames while the last frame is decoded."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rocketsim_client.errors import CallTimeout

T = TypeVar("T")

END = object()


class FrameLate(CallTimeout):
    """Raised if no frame came in time."""


@contextmanager
def prefetched(stream: Iterator[T], ahead: int, timeout_s: float) -> Iterator[Iterator[T]]:
    """Yields the stream's items, which a thread receives.  Raises FrameLate if an item takes longer than `timeout_s`.

    The thread receives up to `ahead` items before a slow caller (Spark) asks for them, and holds one more.  With
    `ahead` 0 the thread receives an item only when the caller asks for it.  The thread ends when the `with` block is
    left, or, if the broker sends nothing, at the deadline of the call.
    """
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wanted = threading.Semaphore(ahead + 1 if ahead else 0)
    left = threading.Event()

    def run() -> None:
        try:
            while wanted.acquire() and not left.is_set():
                item = next(stream, END)
                ready.put(item)
                if item is END:
                    break
        except BaseException as error:  # the caller's thread gets the error and raises it
            ready.put(error)
        finally:
            stream.close()  # type: ignore[attr-defined]  # it is a generator, and closing it cancels the call

    def items() -> Iterator[T]:
        while True:
            wanted.release()
            try:
                item = ready.get(timeout=timeout_s)
            except queue.Empty:
                raise FrameLate(f"no frame within {timeout_s:.3g} s") from None
            if item is END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    threading.Thread(target=run, name="rocketsim-prefetch", daemon=True).start()
    try:
        yield items()
    finally:
        left.set()
        wanted.release()
