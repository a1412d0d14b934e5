"""VirtualLoop is an asyncio event loop whose time jumps to the next timer.  A Process is code that runs on a
VirtualLoop.

The loop has one thread, uses no sockets and never waits, so the same seed always runs in the same way.  All tasks,
callbacks, timers and threads of a process have the process in their context, and stop at the moment when the process
dies.
"""

import asyncio
import contextlib
import contextvars
from asyncio import base_events
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

# The base of asyncio's own loops, as `Any` because its types do not describe its private parts.
_Base: Any = base_events.BaseEventLoop
_current: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)
BEGIN_S = 1000.0
SHORTEST_S = 1e-6


class Process:
    """Tasks and callbacks that die together.  When the process dies, each `on_death` callback is called once."""

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.loop = loop
        self.name = name
        self.died = False
        self.on_death: list[Callable[[], None]] = []
        self.has_failed: Callable[[], bool] = lambda: False  # true if the process's machine has stopped in this call
        self._context = contextvars.copy_context()
        self._context.run(_current.set, self)

    @property
    def is_alive(self) -> bool:
        return not self.died and not self.has_failed()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.create_task(work, context=self._context)
        self.loop.kept.append(task)
        return task

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_at(when, callback, *args, context=self._context)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        return self.loop.call_soon(callback, *args, context=self._context)

    def die(self) -> None:
        if not self.died:
            self.died = True
            for callback in self.on_death:
                callback()

    def __str__(self) -> str:
        return self.name


def current_process() -> Process | None:
    return _current.get()


class _Numbered:
    """A task or future whose hash is its number, so that sets iterate in the order of creation instead of the order of
    addresses.
    """

    def __hash__(self) -> int:
        return self.number  # type: ignore[attr-defined,no-any-return]

    def __eq__(self, other: object) -> bool:
        return self is other


class _Task(_Numbered, asyncio.Task):  # type: ignore[type-arg]
    def __init__(self, *args: Any, number: int, **more: Any) -> None:
        self.number = number
        super().__init__(*args, **more)


class _Future(_Numbered, asyncio.Future):  # type: ignore[type-arg]
    def __init__(self, *, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)


class _Selector:
    """A selector that waits by moving the clock forward."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the loop has nothing to run, and no timer that could change this")
        if timeout > 0:
            self._loop.now += timeout
        return []


class VirtualLoop(_Base):  # type: ignore[misc]
    """An event loop with a virtual clock.  `faults` has the errors of callbacks and of tasks that nobody awaits."""

    def __init__(self) -> None:
        self.now = BEGIN_S
        super().__init__()
        self._clock_resolution = 1e-9
        self._selector = _Selector(self)
        self._numbers = count()
        self.kept: list[Any] = []  # tasks of dead processes, which must not be collected while others run
        self.faults: list[str] = []
        self.executor: Callable[..., asyncio.Future[Any]] | None = None
        self.set_exception_handler(self._note)
        self.set_task_factory(self._make_task)

    # --- an event loop's calls ------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(number=next(self._numbers), loop=self)

    def _make_task(self, _: Any, coroutine: Any, **more: Any) -> "asyncio.Task[Any]":
        task = _Task(coroutine, loop=self, number=next(self._numbers), **more)
        self.kept.append(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(_run, process, callback, args, context=context)

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, _run, process, callback, args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        # A virtual clock does not advance by itself, so a wait for a mere rounding error would never end.
        return self.call_at(
            self.now + (max(delay, SHORTEST_S) if delay > 0 else delay), callback, *args, context=context
        )

    def run_in_executor(self, _: Any, function: Any, *args: Any) -> "asyncio.Future[Any]":
        assert self.executor is not None
        return self.executor(function, *args)

    def _process_events(self, _: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # --- the simulation's calls -----------------------------------------------------------------------------------

    def run_for(self, seconds: float) -> None:
        """Runs all processes until `seconds` of virtual time have passed."""
        super().call_at(self.now + seconds, self.stop)
        self.run_forever()

    def run_until(self, holds: Callable[[], bool], within_s: float, look_s: float = 0.05) -> bool:
        """Runs until the condition is true.  Returns False if the condition stays false for `within_s`."""
        until = self.now + within_s
        while not holds():
            if self.now >= until:
                return False
            self.run_for(look_s)
        return True

    def abandon(self) -> None:
        """Ends a run: drops what still runs, without cleaning up."""
        self._ready.clear()
        self._scheduled.clear()
        tasks, self.kept = self.kept, []
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    def _check_closed(self) -> None:
        """Does nothing, so that late cleanup code can use the loop after its end without an error."""

    def __del__(self) -> None:
        pass

    def _note(self, _: Any, context: dict[str, Any]) -> None:
        exception = context.get("exception")
        if exception is None or type(exception).__name__ in ("PowerCut", "CancelledError"):
            return
        self.faults.append(f"{context['message']}: {type(exception).__name__}: {exception}")


def _run(process: Process, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if process.died:
        return
    try:
        callback(*args)
    finally:
        if process.has_failed():
            process.die()
