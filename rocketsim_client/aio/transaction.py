"""A producer's transaction for asyncio."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rocketsim_client.aio.blocking_calls import BlockingCalls, outcome
from rocketsim_client.model import CommitStatus, Message, MessageQueue, SendResult

if TYPE_CHECKING:
    from rocketsim_client import Transaction

T = TypeVar("T")


class AsyncTransaction:
    """A Transaction whose calls are awaited.  The end of an `async with` block commits the transaction.  An exception
    in the block, also a cancellation, rolls the transaction back.  A call whose task is cancelled continues in its
    thread, and the next call of the transaction waits for its end."""

    def __init__(self, blocking: "Transaction", calls: BlockingCalls) -> None:
        self._blocking = blocking
        self._calls = calls
        self._last: Future[Any] | None = None

    async def __aenter__(self) -> "AsyncTransaction":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._result(partial(self._blocking.__exit__, kind, error, None))

    @property
    def transaction_id(self) -> str:
        """The id of the transaction's message.  Empty before `send`."""
        return self._blocking.transaction_id

    @property
    def status(self) -> CommitStatus | None:
        """The status of the commit or rollback, as in `Transaction.status`."""
        return self._blocking.status

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, message_group: str | None = None
    ) -> SendResult:
        """Stores the message as a half message, which no reader sees, like `Transaction.send`."""
        call = partial(self._blocking.send, message, queue=queue, message_group=message_group)
        return await self._result(call)

    async def commit(self) -> CommitStatus:
        """Commits the message, like `Transaction.commit`."""
        return await self._result(self._blocking.commit)

    async def rollback(self) -> CommitStatus:
        """Rolls the message back, like `Transaction.rollback`."""
        return await self._result(self._blocking.rollback)

    async def _result(self, call: Callable[[], T]) -> T:
        """Makes the call when the previous call has ended, because a cancelled task may have left that call running."""
        before = self._last

        def make() -> T:
            if before is not None:
                wait([before])  # the previous call got its thread first, so this wait cannot block it
            return call()

        self._last = started = self._calls.start(make)
        return await outcome(started)
