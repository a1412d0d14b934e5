"""OffsetAnswers: answers remoting requests for bounds of queues, offsets by time, and committed offsets."""

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from broker_service.broker.core.broker import Broker
from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.broker.reads.queue_lookup import Bounds, QueueLookup
from broker_service.runtime.remoting.calls import Answer, Handlers, Request
from broker_service.wire.remoting.resets import Resets

# longest wait for the slave if this broker is a SYNC_MASTER; RocketMQ's clients wait 5 s for the answer
COMMIT_WAIT_S = 2.0
LAST_MS = 1 << 62  # no message is stored later


class OffsetAnswers:
    def __init__(self, broker: Broker, queues: QueueLookup, commits: Commits, resets: Resets) -> None:
        self._broker = broker
        self._queues = queues
        self._commits = commits
        self._resets = resets

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    async def query(self, request: Request) -> Answer:
        """Answers with the group's committed offset of one queue.

        As in RocketMQ, a new group gets 0 for a queue that still has its first message, unless the request says
        `setZeroIfNotFound=false`.
        """
        queue = self._queue(request)
        zero = request.boolean("setZeroIfNotFound", default=True)
        found = await self._commits.query(request.text("consumerGroup"), [queue], zero_for_new_group=zero)
        if found[0].offset < 0:
            return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark="Not found, maybe this group consumer boot first")
        return Answer(fields={"offset": str(found[0].offset)})

    async def commit(self, request: Request) -> Answer:
        group = request.text("consumerGroup")
        entry = CommitEntry(*self._queue(request), request.number("commitOffset"))
        if not self._resets.is_reached(group, entry.topic, entry.queue_id, entry.offset):
            return Answer(remark=f"offset {entry.offset} is ignored: the consumer has not followed a reset yet")
        standing, status = await self._commits.commit_and_share(group, [entry], COMMIT_WAIT_S)
        return Answer(remark=f"{status.name}: offset {standing[0]}")

    async def search(self, request: Request) -> Answer:
        """Answers with the offset of the first message that was stored at a time or after it, else the queue's end.

        With `boundaryType=UPPER`, answers with the offset of the last message that was stored at the time or before it.
        """
        topic, queue_id = self._queue(request)
        timestamp = min(request.number("timestamp"), LAST_MS)
        if self._broker.lacks_retry_topic(topic):
            return _offset(0)
        if request.text("boundaryType", "LOWER") != "UPPER":
            return _offset((await self._queues.search(topic, [(queue_id, timestamp)]))[0])
        behind = (await self._queues.search(topic, [(queue_id, timestamp + 1)]))[0]
        return _offset(max((await self._bounds(request)).min_offset, behind - 1))

    async def max_offset(self, request: Request) -> Answer:
        return _offset((await self._bounds(request)).max_offset)

    async def min_offset(self, request: Request) -> Answer:
        return _offset((await self._bounds(request)).min_offset)

    async def earliest_time(self, request: Request) -> Answer:
        """Answers with the store time of the queue's first message; -1 for an empty queue."""
        return Answer(fields={"timestamp": str(await self._queues.first_timestamp(*self._queue(request)))})

    async def _bounds(self, request: Request) -> Bounds:
        topic, queue_id = self._queue(request)
        if self._broker.lacks_retry_topic(topic):
            return Bounds(queue_id, 0, 0)
        return (await self._queues.bounds(topic, [queue_id]))[0]

    def _queue(self, request: Request) -> tuple[str, int]:
        return request.text("topic"), request.number("queueId", bits=32)


def _offset(offset: int) -> Answer:
    return Answer(fields={"offset": str(offset)})
