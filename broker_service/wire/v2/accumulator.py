"""Accumulator: appends the messages of several calls with one put, as RocketMQ's ProduceAccumulator does in its client.

A put costs nearly the same for one message as for fifty, and official clients make a call for each message.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from rocketsim_proto.records.record import PROPERTY_DELIVER_MS, Record

from broker_service.broker.put import Placed, PutPath, RecordsSend
from broker_service.errors import MessageIllegal
from broker_service.put_result import Appended
from broker_service.runtime.group_commit import GroupCommit
from broker_service.wire.v2.recent_sends import RecentSends, SendId, Stored

MAX_CALLS = 128  # most waiting calls of all topics
MAX_BYTES = 1 << 20  # most bytes of message bodies of all waiting calls


@dataclass(frozen=True, slots=True)
class SendCall:
    """The records of one call, with the id of each record."""

    topic: str
    records: Sequence[Record]
    ids: Sequence[SendId]

    @property
    def goes_alone(self) -> bool:
        """Returns True for a message with a delivery time, which the put path accepts only without other messages."""
        return any(PROPERTY_DELIVER_MS in one.properties for one in self.records)


_Waiting = tuple[SendCall, asyncio.Future["SentCall"]]


@dataclass(frozen=True, slots=True)
class SentCall:
    """The queue offset of each message of a call, and the place of all of them in the log."""

    offsets: Sequence[int]
    placed: Placed


class Accumulator:
    """Appends the messages of a call, possibly together with those of other calls, as `GroupCommit` decides.

    Messages are added to `recent` as soon as they are appended, even if their call has ended meanwhile.
    """

    def __init__(self, puts: PutPath, recent: RecentSends, clock: Callable[[], float]) -> None:
        self._puts = puts
        self._recent = recent
        self._clock = clock
        self._batches: dict[str, list[_Waiting]] = {}  # by topic
        self._waiting = self._waiting_bytes = 0
        self._group_commit = GroupCommit(self._append_all)
        self._appending: set[asyncio.Task[None]] = set()

    async def append(self, call: SendCall) -> SentCall:
        """Appends the messages of a call, like `PutPath.append`.

        The calls of a topic are appended in order.  If a call of a batch is refused, the other calls of the batch are
        still stored.
        """
        was_quiet = self._group_commit.call_came()
        if was_quiet or call.goes_alone:
            return (await self._append([call]))[0]
        size = sum([len(one.body) for one in call.records])
        if self._waiting == MAX_CALLS or (self._waiting and self._waiting_bytes + size > MAX_BYTES):
            self._append_all()
        self._waiting += 1
        self._waiting_bytes += size
        answer: asyncio.Future[SentCall] = asyncio.get_running_loop().create_future()
        self._batches.setdefault(call.topic, []).append((call, answer))
        return await answer

    def _append_all(self) -> None:
        batches, self._batches = self._batches, {}
        self._waiting = self._waiting_bytes = 0
        for calls in batches.values():
            batch = [
                call for call in calls if not call[1].done()
            ]  # drops calls that have ended: their clients send again
            if not batch:
                continue
            task = asyncio.get_running_loop().create_task(self._append_batch(batch))
            self._appending.add(task)
            task.add_done_callback(self._appending.discard)

    async def _append_batch(self, batch: Sequence[_Waiting]) -> None:
        """Appends a batch of calls, and answers each call that has not ended meanwhile."""
        for (_, answer), outcome in zip(batch, await self._outcomes([call for call, _ in batch]), strict=True):
            if answer.done():
                continue
            if isinstance(outcome, SentCall):
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)

    async def _outcomes(self, calls: Sequence[SendCall]) -> Sequence[SentCall | BaseException]:
        try:
            return await self._append(calls)
        except MessageIllegal as error:  # nothing of the batch was stored
            if len(calls) == 1:
                return [error]
            return list(chain.from_iterable([await self._outcomes([call]) for call in calls]))
        except Exception as error:  # every call of the batch fails with this error
            return [error] * len(calls)

    async def _append(self, calls: Sequence[SendCall]) -> list[SentCall]:
        records = calls[0].records if len(calls) == 1 else [one for call in calls for one in call.records]
        placed = await self._puts.append(RecordsSend(topic=calls[0].topic, records=records))
        offsets = iter(_offsets([one.queue_id for one in records], placed.appended))
        share = replace(placed, size=placed.size // len(calls))
        sent = [SentCall(list(islice(offsets, len(call.ids))), share) for call in calls]
        end_offset, now = placed.appended.end_offset, self._clock()
        for call, one in zip(calls, sent, strict=True):
            for send_id, offset in zip(call.ids, one.offsets, strict=True):
                self._recent.put(call.topic, send_id, Stored(offset, end_offset), now)
        return sent


def _offsets(queue_ids: Sequence[int], appended: Appended) -> list[int]:
    """Returns the queue offset of each record of the frame.

    The offsets of one queue are consecutive, in the frame's order.  A message with a delivery time has its offset in
    the timer topic.
    """
    if len(queue_ids) == 1:
        return [appended.queues[0].first_queue_offset]
    following = {queue.queue_id: queue.first_queue_offset for queue in appended.queues}
    offsets = []
    for queue_id in queue_ids:
        offsets.append(following[queue_id])
        following[queue_id] += 1
    return offsets
