"""Returns: takes messages that push consumers give back, and locks queues for push consumers that consume in order.

A message that a consumer gives back is copied to the group's retry topic with a delay level, and the group reads the
copy from there.  After the last attempt, the message is copied to the group's dead letter topic and not to the retry
topic.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.remoting.codes import RequestCode

from broker_service.access.remoting import request_topic_check
from broker_service.access.rights import SUB
from broker_service.broker.core.broker import Broker
from broker_service.broker.put import PutPath
from broker_service.broker.reads.commits import Commits
from broker_service.errors import InvalidParameter, NotFound
from broker_service.names import MAX_RETRY_TOPIC_LENGTH, check_group_name
from broker_service.put_result import PutStatus
from broker_service.runtime import cold_reads
from broker_service.runtime.remoting.bodies import from_json, to_json
from broker_service.runtime.remoting.calls import Answer, Handlers, Request
from broker_service.state.moves import PROPERTY_RETRY_TOPIC, PROPERTY_SOURCE, dlq_topic
from broker_service.wire.remoting.members import client_of, push_retry_topic

SAFE_WAIT_S = 2.5  # longest wait for disk and slave; RocketMQ's consumers wait 5 s for an answer
LOCKED_S = 60.0  # how long a lock is held, as in RocketMQ; consumers renew their locks every 20 s
MAX_LOCKS = 100_000
_FIRST_LEVEL = 3  # the delay level after the first attempt, as in RocketMQ
_ORIGIN_ID = "ORIGIN_MESSAGE_ID"
_TRANSACTION = 0xC  # the transaction bits of the system flag


class Lock(NamedTuple):
    client_id: str
    until_s: float


class Returns:
    """Takes messages that consumers give back, and keeps the locks of queues.  `clock` returns monotonic seconds."""

    def __init__(self, broker: Broker, puts: PutPath, commits: Commits, clock: Callable[[], float]) -> None:
        self._broker = broker
        self._puts = puts
        self._commits = commits
        self._clock = clock
        self._locks: dict[tuple[str, str, int], Lock] = {}  # (group, topic, queue id) -> lock

    def handlers(self) -> Handlers:
        return {
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    async def send_back(self, request: Request) -> Answer:
        broker, group_name = self._broker, request.text("group")
        await self._commits.make_group(group_name)
        group = self._commits.group(group_name)
        broker.check_writable()
        offset, level = request.number("offset"), request.number("delayLevel", 0, bits=32)
        data = await cold_reads.read(broker.store, partial(broker.store.log.find_record, offset))
        if data is None:
            raise NotFound(f"no record starts at {offset} of this broker's log")
        message = record.decode(data, check_crc=False)
        origin = request.text("originTopic", "")
        if origin and message.topic not in (origin, push_retry_topic(group_name)):
            raise NotFound(f"the record at {offset} of this broker's log is not of topic {origin}")
        request_topic_check(request, *SUB)(message.topic)
        most = request.number("maxReconsumeTimes", group.retry_max_times)
        is_dead = level < 0 or message.reconsume_times >= max(0, most)
        topic = dlq_topic(group_name) if is_dead else push_retry_topic(group_name)
        await broker.topics.make_of_one_queue(topic, broker.now_ms())
        copy = _copy(message, topic)
        placed = self._puts.append_back(copy, 0 if is_dead else _level(message, level))
        status = await self._puts.safe(placed, SAFE_WAIT_S)
        # The answer is OK with any status, because the copy is stored, and an error would make the consumer send the
        # message back again.
        return Answer(remark="" if status is PutStatus.PUT_OK else status.name)

    async def lock(self, request: Request) -> Answer:
        """Locks queues for the client.  The answer names the queues that the client has locked now."""
        group, client_id, queues = self._of_body(request)
        now_s, mine = self._clock(), []
        if len(self._locks) + len(queues) > MAX_LOCKS:
            self._locks = {place: one for place, one in self._locks.items() if one.until_s > now_s}
        for queue in queues:
            place = (group, queue["topic"], queue.get("queueId", 0))
            held = self._locks.get(place)
            if held is not None and held.client_id != client_id and held.until_s > now_s:
                continue
            if held is None and len(self._locks) >= MAX_LOCKS:
                continue
            self._locks[place] = Lock(client_id, now_s + LOCKED_S)
            mine.append(queue)
        return Answer(to_json({"lockOKMQSet": mine}))

    async def unlock(self, request: Request) -> Answer:
        group, client_id, queues = self._of_body(request)
        for queue in queues:
            place = (group, queue["topic"], queue.get("queueId", 0))
            held = self._locks.get(place)
            if held is not None and held.client_id == client_id:
                del self._locks[place]
        return Answer()

    def _of_body(self, request: Request) -> tuple[str, str, list[dict[str, Any]]]:
        given = from_json(request.body)
        group, queues = str(given.get("consumerGroup") or ""), given.get("mqSet") or []
        check_group_name(group)
        if not isinstance(queues, list) or any(not _is_queue(one) for one in queues):
            raise InvalidParameter("mqSet must be a list of queues")
        return group, client_of(request, str(given.get("clientId") or "")), queues


def _is_queue(one: object) -> bool:
    """Returns True if this is a queue whose topic's name and whose id are short enough to be kept with its lock."""
    if not isinstance(one, dict):
        return False
    topic, queue_id = one.get("topic"), one.get("queueId", 0)
    return (
        isinstance(topic, str)
        and len(topic) <= MAX_RETRY_TOPIC_LENGTH
        and type(queue_id) is int
        and abs(queue_id) < 1 << 31
    )


def _level(message: Record, asked: int) -> int:
    """Returns the delay level for the next attempt.  The level grows with each attempt, unless the consumer asks for a
    certain level.
    """
    return asked or _FIRST_LEVEL + message.reconsume_times


def _copy(message: Record, topic: str) -> Record:
    """Returns the copy for the next attempt.  A property of the copy names the message's own topic, and consumers see
    that topic.
    """
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_IN_COPIES}
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties.setdefault(_ORIGIN_ID, record.offset_message_id(message.store_host, message.commit_log_offset))
    return replace(
        message,
        topic=topic,
        queue_id=0,
        sys_flag=message.sys_flag & ~_TRANSACTION,
        reconsume_times=message.reconsume_times + 1,
        prepared_transaction_offset=0,
        properties=properties,
    )


_NOT_IN_COPIES: Iterable[str] = frozenset(
    (PROPERTY_SOURCE, record.PROPERTY_DELAY, record.PROPERTY_WAIT, "__DELAY_LEVEL", "__DELAY_OFFSET")
)
