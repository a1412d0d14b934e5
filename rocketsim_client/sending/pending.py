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
    """A future that makes its condition (a lock and a queue) only when a thread waits for it.  Most futures never need
    a condition, because their results are read after they are done, or passed to a callback.  Until a future is done,
    it keeps the message.

    While a sender finishes a future that has no condition, the lock `_making` keeps other threads from making one.
    """

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
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
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
                made = self._made = self._made or threading.Condition()
        return made

    def done(self) -> bool:
        return self._state in (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)

    def result(self, timeout: float | None = None) -> Any:
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        with _making:
            if self._made is None and self._state == PENDING:
                self._done_callbacks.append(fn)
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
            if self._done_callbacks:
                self._invoke_callbacks()  # type: ignore[attr-defined]
        elif self.set_running_or_notify_cancel():
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)


def succeed_all(futures: Sequence[Pending], results: Iterable[Any]) -> None:
    """Sets the results of all futures of a batch, as `succeed` sets the result of one future.

    The lock is acquired once for all futures that no thread waits for.
    """
    with_callbacks: list[Pending] = []
    awaited: list[tuple[Pending, Any]] = []
    with _making:
        for future, result in zip(futures, results, strict=True):
            if future._made is not None:
                awaited.append((future, result))
                continue
            future.message = None
            future._result = result
            future._state = FINISHED
            if future._done_callbacks:
                with_callbacks.append(future)
    for future, result in awaited:
        future.succeed(result)
    for future in with_callbacks:
        future._invoke_callbacks()  # type: ignore[attr-defined]
