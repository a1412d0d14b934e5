"""Accumulator: stores the messages of several calls with one put, as RocketMQ's ProduceAccumulator does in its client.

A put costs nearly the same for one message as for fifty, and official clients with many sends under way make a call of
each.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from isal import isal_zlib

from broker_service.broker.put import PutPath, Send
from broker_service.errors import MessageIllegal
from broker_service.model import Appended, PutStatus
from broker_service.runtime.quiet_turns import QuietTurns

MAX_PARTS = 128  # that wait, of all topics
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The records of one call.  `stored` hears the queue offset of each and the log's end behind all that went with
    them, before the wait for disk and slave.  `alone`: a frame that the put path takes by itself only: with a delivery
    time, or of a transaction.
    """

    send: Send
    queue_ids: Sequence[int]
    stored: Callable[[Sequence[int], int], None]
    alone: bool = False


_Call = tuple[Part, asyncio.Future[PutStatus]]


class Accumulator:
    """`QuietTurns` says which calls wait for others."""

    def __init__(self, puts: PutPath) -> None:
        self._puts = puts
        self._batches: dict[tuple[str, int], list[_Call]] = {}  # by topic and the second in which their time is over
        self._waiting = self._waiting_bytes = 0
        self._quiet_turns = QuietTurns(self._store_all)
        self._storing: set[asyncio.Task[None]] = set()

    async def put(self, part: Part) -> PutStatus:
        """As `PutPath.put`.  Parts of a topic are stored in the order of the calls and refused by themselves, never for
        another one.  A part shares its put with such whose time is over within the same second, and its status comes
        when the first one's time is over.
        """
        was_quiet = self._quiet_turns.call_came()
        if part.alone or was_quiet:
            return await self._put([part])
        size = len(part.send.records)
        if self._waiting == MAX_PARTS or (self._waiting and self._waiting_bytes + size > MAX_BYTES):
            self._store_all()
        self._waiting += 1
        self._waiting_bytes += size
        answer: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        lane = part.send.topic, int(part.send.timeout_s)
        self._batches.setdefault(lane, []).append((part, answer))
        return await answer

    def _store_all(self) -> None:
        batches, self._batches = self._batches, {}
        self._waiting = self._waiting_bytes = 0
        for calls in batches.values():
            batch = [call for call in calls if not call[1].done()]  # who has ended sends again, under the same id
            if not batch:
                continue
            task = asyncio.get_running_loop().create_task(self._store(batch))
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def _store(self, batch: Sequence[_Call]) -> None:
        """Answers each of the batch's calls that has not ended meanwhile."""
        for (_, answer), done in zip(batch, await self._outcomes([part for part, _ in batch]), strict=True):
            if answer.done():
                continue
            if isinstance(done, PutStatus):
                answer.set_result(done)
            else:
                answer.set_exception(done)

    async def _outcomes(self, parts: Sequence[Part]) -> Sequence[PutStatus | BaseException]:
        try:
            return [await self._put(parts)] * len(parts)
        except MessageIllegal as error:  # nothing was stored
            if len(parts) == 1:
                return [error]
            return await asyncio.gather(*(self._put([part]) for part in parts), return_exceptions=True)
        except Exception as error:  # each caller hears it
            return [error] * len(parts)

    async def _put(self, parts: Sequence[Part]) -> PutStatus:
        def stored(appended: Appended) -> None:
            offsets = iter(_offsets([queue_id for part in parts for queue_id in part.queue_ids], appended))
            for part in parts:
                part.stored(list(islice(offsets, len(part.queue_ids))), appended.end_offset)

        _, put_status = await self._puts.put(replace(_joined([part.send for part in parts]), stored=stored))
        return put_status


def _joined(sends: Sequence[Send]) -> Send:
    if len(sends) == 1:
        return sends[0]
    records = b"".join(send.records for send in sends)
    return Send(
        topic=sends[0].topic,
        records=records,
        count=sum(send.count for send in sends),
        crc32=isal_zlib.crc32(records),
        timeout_s=min(send.timeout_s for send in sends),
    )


def _offsets(queue_ids: Sequence[int], appended: Appended) -> list[int]:
    """The queue offset of each record of the frame; offsets of one queue are consecutive, in the frame's order.  A
    message that waits for its delivery time has that of the timer topic."""
    if len(queue_ids) == 1:
        return [appended.queues[0].first_queue_offset]
    following = {queue.queue_id: queue.first_queue_offset for queue in appended.queues}
    offsets = []
    for queue_id in queue_ids:
        offsets.append(following[queue_id])
        following[queue_id] += 1
    return offsets
