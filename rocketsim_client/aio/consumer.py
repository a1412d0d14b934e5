"""The consumer of a group for asyncio.

Tasks that wait for a message share one thread, which asks brokers.  The thread puts messages into the inbox of the
Consumer, and wakes the tasks, which take them from the inbox.
"""

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from rocketsim_client.aio.blocking_calls import BlockingCalls, Closing, arguments_of, wake
from rocketsim_client.consuming.consumer import BATCH, Consumer
from rocketsim_client.consuming.poller import POLL_S, Poller
from rocketsim_client.errors import ClientClosed, InvalidParameter, RocketSimError
from rocketsim_client.model import CommitStatus
from rocketsim_client.received_message import ReceivedMessage

MOST_THREADS = 8  # threads that make acks and similar calls


class AsyncConsumer:
    """A Consumer whose calls are awaited.  The constructor takes the arguments of Consumer.  An object belongs to one
    event loop.

        async with AsyncConsumer(name_server, "billing", "TopicTest") as consumer:
            async for message in consumer:
                await consumer.ack(message)

    Any number of tasks may iterate, receive and acknowledge.  A receive that is cancelled, for example by
    `asyncio.timeout`, takes no message.  Messages that no task waits for are kept for the next receive, and `close`
    gives back those that no task has acknowledged.  The thread that asks brokers ends within 15 seconds when no task
    waits.  Cancelling a task does not cancel its `ack`, `nack` or `extend`.
    """

    @arguments_of(Consumer.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._blocking = Consumer(*arguments, **options)
        self._asking = BlockingCalls("AsyncConsumer", 1)
        self._settling = BlockingCalls("AsyncConsumer", MOST_THREADS)
        self._closing = Closing()
        self._round: Future[None] | None = None  # done when the thread has stopped asking brokers
        self._waiters: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> "AsyncConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def blocking(self) -> Consumer:
        """The Consumer that this object uses.  Call the Consumer's other methods with `asyncio.to_thread`."""
        return self._blocking

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._blocking.group

    @property
    def in_flight(self) -> int:
        """The number of messages that are received and neither acknowledged nor given back, including those that no
        task has taken yet."""
        return self._blocking.in_flight

    @property
    def in_flight_bytes(self) -> int:
        """The bytes of the stored records of the messages in flight."""
        return self._blocking.in_flight_bytes

    # --- receiving ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> "AsyncConsumer":
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Waits for a message.  The iteration ends when the consumer is closed.  Several tasks may iterate."""
        try:
            (message,) = await self._receive(1, BATCH, None)
        except ClientClosed:
            raise StopAsyncIteration from None
        return message

    async def receive(self, max_messages: int = BATCH, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Waits up to `timeout_s` (None: no limit) for a message.  Returns at most `max_messages` of the messages that
        have come.  Returns an empty list if no message came.  Errors are those of `Consumer.receive`."""
        if max_messages < 1:
            raise InvalidParameter(f"receive of {max_messages} messages: ask for at least 1")
        return await self._receive(max_messages, min(max_messages, BATCH), timeout_s)

    async def _receive(self, at_most: int, batch: int, timeout_s: float | None) -> list[ReceivedMessage]:
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        has_asked = False
        while not (found := self._poller.take(at_most)):
            left_s = until - time.monotonic()
            if left_s <= 0 and has_asked:
                if (error := self._poller.failure()) is not None:
                    raise error
                break
            has_asked = await self._ask(batch, max(0.0, left_s))
        return found

    @property
    def _poller(self) -> Poller:
        return self._blocking._poller  # a property, because a forked child has another poller

    async def _ask(self, batch: int, left_s: float) -> bool:
        """Makes sure that a thread asks brokers, and returns when the inbox may have a message, or when `left_s` is
        over.  Returns False if an ack or nack has woken the task while brokers are still being asked.  Raises an error
        of the thread that asked, if the same error would come again at the next call."""
        loop = asyncio.get_running_loop()
        asked = self._round
        if asked is None or asked.done():
            asked = self._round = self._asking.start(partial(self._poller.wait, batch, min(left_s, POLL_S)))
            asked.add_done_callback(lambda _: self._wake_in(loop))
            patience_s = None
        else:
            patience_s = None if left_s == float("inf") else left_s
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        try:
            if not asked.done():
                await asyncio.wait([waiter], timeout=patience_s)
        finally:
            self._waiters.discard(waiter)
        if asked.done() and not asked.cancelled() and (error := asked.exception()) is not None:
            raise error.again() if isinstance(error, RocketSimError) else error
        return asked.done() or not waiter.done()

    def _wake_in(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._wake_all)
        except RuntimeError:
            pass  # the loop and its tasks have ended meanwhile

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            wake(waiter)

    # --- settling -------------------------------------------------------------------------------------------------

    async def ack(
        self, messages: ReceivedMessage | Iterable[ReceivedMessage], *, timeout_s: float | None = None
    ) -> CommitStatus:
        """Acknowledges the messages.  Status and errors are those of `Consumer.ack`."""
        return await self._settle(partial(self._blocking.ack, messages, timeout_s=timeout_s))

    async def nack(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        delay_s: float | None = None,
        *,
        timeout_s: float | None = None,
    ) -> CommitStatus:
        """Gives back messages that could not be processed, like `Consumer.nack`."""
        return await self._settle(partial(self._blocking.nack, messages, delay_s, timeout_s=timeout_s))

    async def extend(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        invisible_s: float,
        *,
        timeout_s: float | None = None,
    ) -> CommitStatus:
        """Keeps the messages for `invisible_s` from now on, like `Consumer.extend`."""
        return await self._settle(partial(self._blocking.extend, messages, invisible_s, timeout_s=timeout_s))

    async def _settle(self, call: "partial[CommitStatus]") -> CommitStatus:
        try:
            return await self._settling.result(call)
        finally:
            self._wake_all()  # the message that was acknowledged may have blocked the next one of its message group

    # --- the end --------------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float = 5.0) -> None:
        """First waits for acks that are under way, at most for `timeout_s`.  After the acks, ends receives and gives
        back messages that are not acknowledged, so that other consumers get them at once.  Giving back takes at most
        another `timeout_s`.  If the task is cancelled, closing continues, and a second `close` waits for its end."""
        await self._closing.result(partial(self._close, timeout_s))

    def _close(self, timeout_s: float) -> None:
        self._settling.finish(timeout_s)
        self._blocking.close(timeout_s)
        self._asking.finish(timeout_s)
