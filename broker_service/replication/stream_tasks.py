"""Runs the tasks of a slave's stream, and ends a stream whose master is silent, for either replication protocol."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from broker_service.replication.refusals import PeerSilent


async def run_together(*work: Coroutine[Any, Any, object]) -> None:
    """Runs the coroutines as tasks until one of them fails, ends the others, and raises its error.

    If several tasks have failed, the error of the first of them in the argument list is raised.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # No TaskGroup is used, because a TaskGroup loses a cancellation from outside if it comes while one of the tasks
        # fails.
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    ended[0].result()


async def end_in_silence(heard_at: Callable[[], float], longest_s: float) -> NoReturn:
    """Raises PeerSilent once the master was silent for `longest_s`.

    `heard_at` returns when the last message came, on the event loop's clock.
    """
    clock = asyncio.get_running_loop().time
    while True:
        silent_s = clock() - heard_at()
        if silent_s >= longest_s:
            raise PeerSilent(f"nothing heard for {longest_s} s")
        await asyncio.sleep(longest_s - silent_s)
