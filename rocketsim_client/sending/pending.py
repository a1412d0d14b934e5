"""An accepted message and the future of its result, in one object, because a producer may have a hundred thousand of
them."""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from typing import Any

from rocketsim_client.model import Message, MessageQueue
from rocketsim_client.sending.batch import OutgoingBatch

_making = threading.Lock()


def _new_lock() -> None:
    """Replaces the lock in a forked child, because a thread of the parent may have held it during the fork."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class Pending(Future[Any]):
    """A future that makes its condition (a lock and a queue) only when a method of the standard library needs one, for
    example `concurrent.futures.wait`.  Until a future is done, it keeps the message.

    A thread that calls `result` waits for a plain lock of its own, its alarm, because a condition costs both threads
    several times as much.  Most results are read after the future is done, or passed to a callback, and need neither an
    alarm nor a condition.

    While a sender finishes a future that has no condition, the lock `_making` keeps other threads from making one.
    """

    __slots__ = (
        "_alarms",
        "_done_callbacks",
        "_exception",
        "_made",
        "_result",
        "_state",
        "_waiters",
        "by_group",
        "message",
        "message_group",
        "pinned",
        "queue",
    )

    def __init__(
        self,
        message: Message | OutgoingBatch | None,
        queue: MessageQueue | None,
        message_group: str | None = None,
        *,
        pinned: bool = False,
        by_group: bool = False,
    ) -> None:
        # Future.__init__ is not called, because it would make the condition.
        self._made: threading.Condition | None = None
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        # Both are lists as soon as the condition is made.
        self._waiters: Sequence[Any] = ()  # type: ignore[assignment]
        self._done_callbacks: Sequence[Any] = ()
        self._alarms: list[threading.Lock] | None = None  # each is held until the future is done
        self.message = message
        self.queue = queue
        self.message_group = message_group
        self.pinned = pinned  # True if the caller or the message group has chosen the queue
        self.by_group = by_group  # True if the message group has chosen the queue

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        made = self._made
        if made is None:
            with _making:
                made = self._made
                if made is None:
                    self._waiters, self._done_callbacks = [], list(self._done_callbacks)
                    made = self._made = threading.Condition()
        return made

    def done(self) -> bool:
        return self._state in (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)

    def result(self, timeout: float | None = None) -> Any:
        if self._state != FINISHED:
            self._wait(timeout)
            timeout = 0
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)

    def _wait(self, timeout: float | None) -> None:
        """Waits until the future is done, or for `timeout` seconds."""
        alarm = threading.Lock()
        alarm.acquire()
        with _making:
            if self.done():
                return
            if self._alarms is None:
                self._alarms = []
            self._alarms.append(alarm)
        try:
            rang = alarm.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX))
        except BaseException:
            self._forget(alarm)
            raise
        if not rang:
            self._forget(alarm)

    def _forget(self, alarm: threading.Lock) -> None:
        with _making:
            if self._alarms is not None:
                self._alarms.remove(alarm)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        with _making:
            if self._made is None and self._state == PENDING:
                self._done_callbacks = [*self._done_callbacks, fn]
                return
        super().add_done_callback(fn)

    def succeed(self, result: Any) -> None:
        """Completes the future with a result.  Does nothing if the caller has cancelled the future."""
        self._finish(result, None)

    def fail(self, error: BaseException) -> None:
        self._finish(None, error)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        self.message = None
        with _making:
            if self._made is None:
                self._result, self._exception, self._state = result, error, FINISHED
                made = False
            else:
                made = True
        if not made:
            if self._alarms is not None or self._done_callbacks:
                self._invoke_callbacks()
        elif self.set_running_or_notify_cancel():
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)

    def _invoke_callbacks(self) -> None:
        """Wakes the threads in `_wait` before the callbacks run, since a callback may wait for one of these threads.

        The standard library calls this method, too, whenever it has completed or cancelled the future.
        """
        with _making:
            alarms, self._alarms = self._alarms, None
        for alarm in alarms or ():
            alarm.release()
        super()._invoke_callbacks()  # type: ignore[misc]


def succeed_all(futures: Sequence[Pending], results: Iterable[Any]) -> None:
    """Sets the results of all futures of a batch, as `succeed` sets the result of one future.

    The lock is acquired once for all futures without a condition.
    """
    with_callbacks: list[Pending] = []
    with_condition: list[tuple[Pending, Any]] = []
    alarms: list[threading.Lock] = []
    with _making:
        for future, result in zip(futures, results, strict=True):
            if future._made is not None:
                with_condition.append((future, result))
                continue
            future.message = None
            future._result = result
            future._state = FINISHED
            if future._alarms is not None:
                alarms += future._alarms
                future._alarms = None
            if future._done_callbacks:
                with_callbacks.append(future)
    for alarm in alarms:
        alarm.release()
    for future, result in with_condition:
        future.succeed(result)
    for future in with_callbacks:
        future._invoke_callbacks()
