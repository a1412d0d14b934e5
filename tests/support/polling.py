"""Waits for something that another process or thread does.  The only place in the tests that sleeps: between two polls.

A test is as quick as what it waits for, and its result does not depend on the sleep.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 600.0  # ends a wait for what does not come, and nothing else: a busy machine may be as slow as it likes


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """The first true result of `condition`; an AssertionError that names `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} (last result: {answer!r})"
        time.sleep(0.02)
    return answer


async def until(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """`wait_until` on an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} (last result: {answer!r})"
        await asyncio.sleep(0.01)
    return answer
