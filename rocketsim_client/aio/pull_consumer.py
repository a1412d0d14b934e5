"""The pull consumer for asyncio."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from rocketsim_client.aio.blocking_calls import BlockingCalls, Closing, arguments_of
from rocketsim_client.expression import SqlExpression
from rocketsim_client.model import CommitResult, MessageQueue, QueueBounds
from rocketsim_client.pull_consumer import PullConsumer, PullResult

MOST_READS = 32  # threads for pulls and reads; a pull that a broker holds occupies its thread
MOST_CALLS = 8  # threads for calls that brokers answer at once


class AsyncPullConsumer:
    """A PullConsumer whose calls are awaited.  The constructor takes the arguments of PullConsumer.  An object belongs
    to one event loop.

        async with AsyncPullConsumer(name_server, group="billing") as consumer:
            for queue in await consumer.message_queues("TopicTest"):
                pulled = await consumer.pull(queue, await consumer.min_offset(queue))

    A pull changes nothing, so it can be repeated after a cancellation.  A commit continues in its thread when its task
    is cancelled.  At most 32 pulls and reads are under way at a time, and further ones wait.  Each call returns and
    raises the same as PullConsumer's call of that name.
    """

    @arguments_of(PullConsumer.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._blocking = PullConsumer(*arguments, **options)
        self._reads = BlockingCalls("AsyncPullConsumer", MOST_READS)
        self._calls = BlockingCalls("AsyncPullConsumer", MOST_CALLS)
        self._closing = Closing()

    async def __aenter__(self) -> "AsyncPullConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def blocking(self) -> PullConsumer:
        """The PullConsumer that this object uses.  Call the PullConsumer's other methods with `asyncio.to_thread`."""
        return self._blocking

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._blocking.group

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Returns all readable queues of the topic, by the newest route."""
        return await self._calls.result(partial(self._blocking.message_queues, topic))

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_msg_nums: int = 32,
        expression: str | SqlExpression | None = "*",
        *,
        suspend: bool | float = False,
        timeout_s: float | None = None,
        max_msg_bytes: int = 0,
        commit_offset: int | None = None,
    ) -> PullResult:
        """Pulls once, like `PullConsumer.pull`."""
        pull = partial(
            self._blocking.pull,
            queue,
            offset,
            max_msg_nums,
            expression,
            suspend=suspend,
            timeout_s=timeout_s,
            max_msg_bytes=max_msg_bytes,
            commit_offset=commit_offset,
        )
        return await self._reads.result(pull)

    async def read(
        self,
        topic: str,
        *,
        queues: Collection[MessageQueue] | None = None,
        start: str | int | Mapping[MessageQueue, int] = "earliest",
        end: Mapping[MessageQueue, int] | None = None,
        expression: str | SqlExpression | None = "*",
        columns: Sequence[str] | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Yields the batches of `PullConsumer.read`."""
        open_reader = partial(
            self._blocking.read, topic, queues=queues, start=start, end=end, expression=expression, columns=columns
        )
        batches = iter(await self._reads.result(open_reader))
        while (batch := await self._reads.result(partial(next, batches, None))) is not None:
            yield batch

    async def committed(self, queue: MessageQueue) -> int:
        """Returns the offset of the next message that the group reads, or -1 if the group has no offset."""
        return await self._calls.result(partial(self._blocking.committed, queue))

    async def committed_all(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Returns, for each queue, the offset of the next message that the group reads."""
        return await self._calls.result(partial(self._blocking.committed_all, queues))

    async def commit(self, queue: MessageQueue, offset: int) -> int:
        """Commits the offset of the next message to read, and returns the queue's offset after the commit."""
        return await self._calls.result(partial(self._blocking.commit, queue, offset))

    async def commit_all(self, offsets: Mapping[MessageQueue, int]) -> CommitResult:
        """Commits, for several queues, the offset of the next message to read."""
        return await self._calls.result(partial(self._blocking.commit_all, offsets))

    async def bounds(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        """Returns the first offset and the exclusive end of each readable queue of the topic."""
        return await self._calls.result(partial(self._blocking.bounds, topic))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Returns the first offset that can be read."""
        return await self._calls.result(partial(self._blocking.min_offset, queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Returns the offset after the last message."""
        return await self._calls.result(partial(self._blocking.max_offset, queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the first offset that was stored at or after the timestamp, or the queue's end if all messages are
        older."""
        return await self._calls.result(partial(self._blocking.search_offset, queue, timestamp_ms))

    async def close(self) -> None:
        """Waits for commits and other short calls, ends pulls and reads, then stops.  If the task is cancelled,
        closing continues, and a second `close` waits for its end."""
        await self._closing.result(self._close)

    def _close(self) -> None:
        self._calls.finish()
        self._blocking.close()
        self._reads.finish()
