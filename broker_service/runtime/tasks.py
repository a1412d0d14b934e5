"""OwnedTasks are the background tasks of a process: if one of them fails, the process ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnedTasks:
    """The tasks of one event loop, which must be running when this object is made."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def own(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def run_until(self, shutdown: asyncio.Event) -> None:
        """Returns when `shutdown` is set.  If a task fails before `shutdown` is set, raises the task's exception."""
        waiting = asyncio.ensure_future(shutdown.wait())
        try:
            await asyncio.wait((waiting, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
        finally:
            waiting.cancel()

    async def cancel(self) -> None:
        """Cancels all tasks and returns when all have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failed.done():
            self._failed.exception()  # `run_until` has raised this error; without this line asyncio would log it


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, which runs to its end even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    # without this callback asyncio would log an exception as never retrieved
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)
