"""Takes the next frames off the network while the last one is decoded."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rocketsim_client.errors import CallTimeout

T = TypeVar("T")

END = object()


class FrameLate(CallTimeout):
    """No frame came in time."""


@contextmanager
def prefetched(stream: Iterator[T], ahead: int, timeout_s: float) -> Iterator[Iterator[T]]:
    """The stream's items, up to `ahead` of them taken in advance by a thread; FrameLate if one takes longer than
    `timeout_s`.

    The thread waits for a reader that is slow, as Spark may be, and goes when the block is left: at once, or with its
    call's deadline if the broker is silent.
    """
    ready: queue.Queue[Any] = queue.Queue(max(1, ahead))
    left = threading.Event()

    def put(item: Any) -> bool:
        while not left.is_set():
            try:
                ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        try:
            for item in stream:
                if not put(item):
                    break
            else:
                put(END)
        except BaseException as error:  # handed to the reader, which raises it
            put(error)
        finally:
            stream.close()  # type: ignore[attr-defined]  # a generator: closing it cancels the call

    def items() -> Iterator[T]:
        while True:
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
