"""The producer for asyncio."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from rocketsim_client.aio.blocking_calls import BlockingCalls, Closing, arguments_of, outcome
from rocketsim_client.aio.transaction import AsyncTransaction
from rocketsim_client.model import Message, MessageQueue, ProducerStats, SendResult, SendResults
from rocketsim_client.producer import Producer

MOST_THREADS = 8  # threads for calls that wait for brokers: batches, columns, flushes


class AsyncProducer:
    """A Producer whose calls are awaited.  The constructor takes the arguments of Producer.  An object belongs to one
    event loop.

        async with AsyncProducer(name_server, group="orders") as producer:
            result = await producer.send(Message("TopicTest", b"a body"))

    Cancelling a task does not cancel its send: the message is still sent, and `close` waits for it.
    """

    @arguments_of(Producer.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._blocking = Producer(*arguments, **options)
        # One thread accepts messages, so that they keep the order of the calls.  The thread may have to wait for a
        # route, or for space in the buffer.
        self._accepting = BlockingCalls("AsyncProducer", 1)
        self._calls = BlockingCalls("AsyncProducer", MOST_THREADS)
        self._closing = Closing()

    async def __aenter__(self) -> "AsyncProducer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def blocking(self) -> Producer:
        """The Producer that this object uses.  Call the Producer's other methods with `asyncio.to_thread`."""
        return self._blocking

    @property
    def group(self) -> str:
        """The producer group."""
        return self._blocking.group

    @property
    def stats(self) -> ProducerStats:
        """Live counters of what happened to the messages."""
        return self._blocking.stats

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        message_group: str | None = None,
        deliver_at: datetime | float | None = None,
    ) -> SendResult:
        """Sends the message, and returns when a broker has acknowledged it.  Messages of many tasks share batches,
        and are sent in the order in which `send` is called.  Arguments and errors are those of
        `Producer.send_async`."""
        accept = partial(
            self._blocking.send_async, message, queue=queue, message_group=message_group, deliver_at=deliver_at
        )
        return await outcome(await self._accepting.result(accept))

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResults:
        """Sends messages of one topic into one queue, like `Producer.send_batch`."""
        return await self._calls.result(partial(self._blocking.send_batch, messages, queue=queue, timeout_s=timeout_s))

    async def send_columns(
        self,
        topic: str,
        bodies: pa.Array,
        *,
        tags: pa.Array | None = None,
        keys: pa.Array | None = None,
        properties: pa.Array | None = None,
        message_groups: pa.Array | None = None,
        msg_ids: pa.Array | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResults:
        """Sends Arrow columns, one message for each row, like `Producer.send_columns`."""
        send = partial(
            self._blocking.send_columns,
            topic,
            bodies,
            tags=tags,
            keys=keys,
            properties=properties,
            message_groups=message_groups,
            msg_ids=msg_ids,
            queue=queue,
            timeout_s=timeout_s,
        )
        return await self._calls.result(send)

    def transaction(self, *, timeout_s: float | None = None) -> AsyncTransaction:
        """Begins a transaction, like `Producer.transaction`.  The end of an `async with` block commits the
        transaction's message, unless the block ends with an exception.

            async with producer.transaction() as transaction:
                await transaction.send(Message("Orders", b"paid"))
                await database.commit()
        """
        return AsyncTransaction(self._blocking.transaction(timeout_s=timeout_s), self._calls)

    def check_transactions(self, *topics: str) -> None:
        """Lets brokers ask this producer's `checker` about transactions of these topics, like
        `Producer.check_transactions`.  The checker is a plain function, which is called in a thread."""
        self._blocking.check_transactions(*topics)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns when all messages passed to `send` are acknowledged or have failed.  Raises CallTimeout if some
        messages are still not acknowledged after `timeout_s`."""
        await self._accepting.result(lambda: None)  # this call ends after all sends that were accepted before it
        await self._calls.result(partial(self._blocking.flush, timeout_s))

    async def close(self) -> None:
        """Sends the accepted messages, waits for the answers, then stops.  If the task is cancelled, closing
        continues, and a second `close` waits for its end."""
        await self._closing.result(self._close)

    def _close(self) -> None:
        self._accepting.finish()
        self._calls.finish()
        self._blocking.close()
