"""Waits for something that another process or thread does.  The only place in the tests that sleeps: between two polls.

The sleep is only the time between two looks; a test is as quick as what it waits for and never right because of it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(look: Callable[[], T], what: str, timeout_s: float = 20.0) -> T:
    """The first true answer of `look`; an AssertionError that names `what` when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (answer := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} (last look: {answer!r})"
        time.sleep(0.02)
    return answer


async def until(look: Callable[[], T], what: str, timeout_s: float = 20.0) -> T:
    """The same on an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (answer := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} (last look: {answer!r})"
        await asyncio.sleep(0.01)
    return answer
