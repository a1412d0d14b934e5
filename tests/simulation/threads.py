"""The threads of simulated processes: real threads, of which one runs at a time, at a virtual time that the seed
chooses.

Brokers use `Threading` in place of the module `threading`.  A simulated thread runs until it waits (for a lock, a
condition, its disk) and gives control back to the event loop, which resumes the thread later.  For example, a flush
takes virtual time, in which the event loop can append more records.
"""

import asyncio
import contextlib
import contextvars
import random
import threading as real
from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.virtual_loop import Process, VirtualLoop, current_process
from tests.support.memory_files import PowerCut


class _Running(real.local):
    """Tells which simulated thread this real thread is.  A function that `asyncio.to_thread` runs has the context of
    its caller.
    """

    thread: "Thread | None" = None


_running = _Running()
LONGEST_STEP_S = 0.004


class Threading:
    """The object that `import threading` gives a simulated broker.  Outside of a simulated process, the object acts as
    the real module.
    """

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        loop.executor = self._in_a_thread

    def Lock(self) -> Any:
        return Lock() if current_process() else real.Lock()

    def RLock(self) -> Any:
        return Lock() if current_process() else real.RLock()

    def Condition(self, lock: Any = None) -> Any:
        return Condition(self.loop) if current_process() else real.Condition(lock)

    def Thread(self, target: Callable[..., Any], name: str = "", daemon: bool = True, args: Any = ()) -> Any:
        process = current_process()
        if process is None:
            return real.Thread(target=target, name=name, daemon=daemon, args=args)
        return Thread(self, process, lambda: target(*args), name)

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def _in_a_thread(self, function: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        future = self.loop.create_future()
        process = current_process()
        assert process is not None

        def settle(error: BaseException | None, value: Any) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def work() -> None:
            try:
                value = function(*args)
            except PowerCut:
                raise
            except BaseException as error:
                self.loop.call_soon_threadsafe(settle, error, None)
            else:
                self.loop.call_soon_threadsafe(settle, None, value)

        Thread(self, process, work, "executor").start()
        return future

    @contextlib.contextmanager
    def installed(self, *modules: Any) -> Iterator[None]:
        """Gives the brokers' modules this object under the name `threading` in a `with` block."""
        before = [module.threading for module in modules]
        for module in modules:
            module.threading = self
        try:
            yield
        finally:
            for module, threading in zip(modules, before, strict=True):
                module.threading = threading


class Thread:
    def __init__(self, threading: Threading, process: Process, target: Callable[[], Any], name: str) -> None:
        self.ident: int | None = None
        self.name = name
        self.process = process
        self._threading = threading
        self._loop = threading.loop
        self._context = contextvars.copy_context()
        self._target = target
        self._go = real.Semaphore(0)
        self._back = real.Semaphore(0)
        self._over = False
        self._doomed = False
        self._timer: asyncio.TimerHandle | None = None
        self._joined: list[Thread] = []
        self._thread = real.Thread(target=self._context.run, args=(self._body,), daemon=True, name=f"{process}-{name}")
        process.on_death.append(self._end)

    # --- as threading has it --------------------------------------------------------------------------------------

    def start(self) -> None:
        self.ident = 1
        self._thread.start()
        self.wake_in(self._threading.chance.uniform(0, LONGEST_STEP_S))

    def is_alive(self) -> bool:
        return self.ident is not None and not self._over

    def join(self) -> None:
        me = _running.thread
        while not self._over:
            if me is None:
                self.resume()
            else:
                self._joined.append(me)
                me.sleep(None)

    # --- handing over ---------------------------------------------------------------------------------------------

    def wake_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.process.call_at(self._loop.now + seconds, self.resume)

    def resume(self) -> None:
        """Lets the thread run until it waits again or ends.  Call this method only in the event loop."""
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._go.release()
        self._back.acquire()

    def sleep(self, seconds: float | None) -> None:
        """Returns control to the event loop until `seconds` have passed, or until the thread is notified.  Call this
        method only in this thread.
        """
        if seconds is not None:
            self.wake_in(seconds)
        self._back.release()
        self._go.acquire()
        if self._doomed:
            raise PowerCut

    def pause(self) -> None:
        """Lets virtual time pass for the work that the thread does now."""
        if not self._doomed:
            self.sleep(self._threading.chance.uniform(0, LONGEST_STEP_S))

    def _body(self) -> None:
        _running.thread = self
        self._go.acquire()
        try:
            if not self._doomed:
                self._target()
        except PowerCut:
            pass
        except BaseException as error:
            if self._doomed:
                return
            self._loop.faults.append(f"thread {self.name} of {self.process}: {type(error).__name__}: {error}")
        finally:
            self._over = True
            for other in self._joined:
                other.wake_in(0.0)
            self._back.release()

    def _end(self) -> None:
        """Ends the thread, because its process has died."""
        self._doomed = True
        if self.ident is not None and _running.thread is not self:
            while not self._over:
                self.resume()


class Lock:
    def __init__(self) -> None:
        self._owner: Any = None

    def acquire(self) -> bool:
        me = _running.thread or "loop"
        while self._owner is not None:
            if isinstance(self._owner, Thread):
                if me == "loop":
                    self._owner.resume()  # the event loop waits for the lock's owner, and nothing else runs meanwhile
                else:
                    me.pause()
            else:
                assert isinstance(me, Thread), "the loop waits for itself"
                me.pause()
        self._owner = me
        return True

    def release(self) -> None:
        self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._waiting: list[Thread] = []

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        me = _running.thread
        assert me is not None
        until = None if timeout is None else self._loop.now + timeout
        while not holds():
            left = None if until is None else until - self._loop.now
            if left is not None and left <= 0:
                return False
            self._waiting.append(me)
            self.release()
            try:
                me.sleep(left)
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
            self.acquire()
        return True

    def notify(self, n: int = 1) -> None:
        for thread in self._waiting[:n]:
            thread.wake_in(0.0001)
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


def running_thread() -> Thread | None:
    return _running.thread
