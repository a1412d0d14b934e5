"""Waits for something that another process or thread does, by polling.

No other file of the tests sleeps, and this one sleeps only between two polls.  A test therefore takes no longer than
what it waits for, and its result does not depend on a sleep.

Each wait, and each call of a test, has a time limit, which is PATIENCE_S, PROCESS_PATIENCE_S, or a multiple of one of
these.  A limit is at least ten times as long as the wait takes on two idle cores.  Tests therefore pass on a machine
that is ten times slower, and a wait for something that never happens ends after one minute or three.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0  # the limit for waits on this process, which may include a back-off of some seconds
PROCESS_PATIENCE_S = 180.0  # the limit for waits on other processes, which start, find each other again or run Spark


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = PROCESS_PATIENCE_S) -> T:
    """Waits until `condition` returns something true, and returns that.

    Raises an AssertionError that names `what` after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} (last result: {answer!r})"
        time.sleep(0.02)
    return answer


async def until(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Does the same as `wait_until` on an event loop, which continues to run."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} (last result: {answer!r})"
        await asyncio.sleep(0.01)
    return answer
