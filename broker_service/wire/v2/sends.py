"""SendPath: checks messages of RocketMQ 5's clients, and appends them through the put path that all protocols use."""

import asyncio
from collections.abc import Sequence
from functools import partial

from rocketmq_v2 import definition_pb2, service_pb2
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.put import Placed, PutPath, RecordsSend
from broker_service.put_result import Appended, PutStatus
from broker_service.runtime import cold_reads
from broker_service.state import timer_record
from broker_service.transactions.transactions import Transactions
from broker_service.wire.v2 import message_rules, names, recall_handle, sent_message
from broker_service.wire.v2.accumulator import Accumulator, SendCall, SentCall
from broker_service.wire.v2.queue_choice import RoundRobin, queue_of_group
from broker_service.wire.v2.recall_handle import RecallHandle
from broker_service.wire.v2.recent_sends import REMEMBERED_S, RecentSends, SendId, Stored
from broker_service.wire.v2.status import OK, STORED_BUT, Refused, status

pb = definition_pb2

FOR_EVER_MS = 2**62
# most messages of a call, because a call's messages are encoded without a pause; official clients send one
MAX_MESSAGES = 1024

_NOT_YET = {
    pb.PRIORITY: "messages with a priority",
    pb.LITE: "lite topics",
}


class SendPath:
    def __init__(self, broker: Broker, puts: PutPath, transactions: Transactions) -> None:
        self._broker = broker
        self._puts = puts
        self._transactions = transactions
        self._turns = RoundRobin()
        self._recent = RecentSends()
        self._accumulator = Accumulator(puts, self._recent, broker.clock)
        # (topic, ids) of a call -> future that is done when its messages are appended or refused.
        self._under_way: dict[tuple[str, tuple[SendId, ...]], asyncio.Future[None]] = {}
        self._asks_index_until = 0.0
        self._opened_at = 0  # the log's end when the port was opened

    def opened(self) -> None:
        """Forgets recent sends.  Must be called each time the port opens.

        For a minute after the port has opened, repeated sends are looked up in the index, because only the index knows
        messages that another master stored, or that this broker stored before a restart.
        """
        self._recent.clear()
        self._asks_index_until = self._broker.clock() + REMEMBERED_S
        self._opened_at = self._broker.store.end_offset

    async def send(
        self, messages: Sequence[pb.Message], peer: tuple[str, bytes], timeout_s: float, client_id: str
    ) -> service_pb2.SendMessageResponse:
        """Stores or refuses all messages of one call together.  All messages of a call have the same topic.  The answer
        has an entry for each message.
        """
        until = self._broker.clock() + timeout_s
        topic = self._checked(messages)
        ids = tuple(SendId(message.system_properties.message_id, record.body_crc(message.body)) for message in messages)
        call = topic.name, ids
        while (under_way := self._under_way.get(call)) is not None:
            await asyncio.wait([under_way])
        is_over = self._under_way[call] = asyncio.get_running_loop().create_future()
        try:
            sent = await self._appended(topic, ids, messages, peer, client_id)
        finally:  # from now on a repeated send finds these messages
            del self._under_way[call]
            is_over.set_result(None)
        put_status = await self._puts.safe(sent.placed, max(0.0, until - self._broker.clock()))
        if put_status is not PutStatus.PUT_OK:  # clients then send the message again, with the same id
            failed = status(STORED_BUT[put_status], f"send message failed, sendStatus={put_status.name}")
            entries = [service_pb2.SendResultEntry(status=failed) for _ in messages]
            return service_pb2.SendMessageResponse(status=failed, entries=entries)
        return service_pb2.SendMessageResponse(
            status=OK,
            entries=[
                service_pb2.SendResultEntry(
                    status=OK,
                    message_id=message.system_properties.message_id,
                    transaction_id=message.system_properties.message_id,
                    offset=offset,
                    recall_handle=self._recall_handle(topic.name, message),
                )
                for message, offset in zip(messages, sent.offsets, strict=True)
            ],
        )

    def _recall_handle(self, topic: str, message: pb.Message) -> str:
        """Returns the recall handle of a message; empty if the message does not wait for a delivery time."""
        system = message.system_properties
        if not system.HasField("delivery_timestamp"):
            return ""
        deliver_ms = message_rules.in_ms(system.delivery_timestamp)
        if deliver_ms <= self._broker.day_ms():
            return ""
        own = self._broker.config.broker_name
        return recall_handle.encode(RecallHandle(topic, own, deliver_ms, system.message_id))

    def elsewhere(self, request: service_pb2.RecallMessageRequest) -> str:
        """Returns the name of another broker that has the message of a recall; empty for this broker or an invalid
        handle.
        """
        recalled = recall_handle.decode(request.recall_handle)
        if recalled is None or recalled.topic != names.topic_of(request.topic):
            return ""
        return "" if recalled.broker_name == self._broker.config.broker_name else recalled.broker_name

    async def recall(self, resource: pb.Resource, handle: str, timeout_s: float) -> str:
        """Cancels the delivery of a message that has a delivery time.  Returns the message's id.

        As in RocketMQ, the id is also returned if no message with this id waits for delivery.
        """
        topic = self._topic(names.topic_of(resource))
        message_rules.check_type(pb.DELAY, topic.message_type)
        recalled = recall_handle.decode(handle)
        if recalled is None:
            raise Refused(pb.BAD_REQUEST, "recall handle is invalid")
        if recalled.topic != topic.name:
            raise Refused(pb.BAD_REQUEST, f"recall failed, topic not match: the handle is of topic {recalled.topic}")
        own = self._broker.config.broker_name
        if recalled.broker_name != own:
            raise Refused(
                pb.BAD_REQUEST, f"the message was sent to broker {recalled.broker_name}, not {own}: recall it there"
            )
        message_rules.check_id(recalled.message_id)
        waiting = timer_record.recall_record(
            topic.name, recalled.message_id, recalled.deliver_ms, self._broker.day_ms()
        )
        put_status = await self._puts.safe(self._puts.append_own(waiting), timeout_s)
        if put_status is not PutStatus.PUT_OK:
            raise Refused(STORED_BUT[put_status], f"recall failed, sendStatus={put_status.name}")
        return recalled.message_id

    async def _appended(
        self,
        topic: TopicConfig,
        ids: Sequence[SendId],
        messages: Sequence[pb.Message],
        peer: tuple[str, bytes],
        client_id: str,
    ) -> SentCall:
        """Appends the messages of a call, unless they were appended before."""
        host_size, now_ms = len(self._broker.store_host), self._broker.now_ms()
        records = [
            sent_message.record_of(message, topic.name, peer=peer, store_host_size=host_size, now_ms=now_ms)
            for message in messages
        ]
        begins = message_rules.type_of(messages[0]) == pb.TRANSACTION
        if (before := await self._appended_before(topic.name, ids, records, begins)) is not None:
            return before
        for one, queue_id in zip(records, self._queues(messages, topic), strict=True):
            one.queue_id = queue_id
        if not begins:
            return await self._accumulator.append(SendCall(topic.name, records, ids))
        recovery = messages[0].system_properties.orphaned_transaction_recovery_duration
        placed = await self._transactions.begin(
            self._puts,
            RecordsSend(topic=topic.name, records=records),
            client_id=client_id,
            immunity_s=max(0, recovery.seconds),
        )
        (queue,) = placed.appended.queues
        self._recent.put(
            topic.name, ids[0], Stored(queue.first_queue_offset, placed.appended.end_offset), self._broker.clock()
        )
        return SentCall([queue.first_queue_offset], placed)

    async def _appended_before(
        self, topic: str, ids: Sequence[SendId], records: Sequence[Record], begins: bool
    ) -> SentCall | None:
        """Returns the offsets of these messages if all of them were appended within the last minute, else None.

        `begins` says that the message begins a transaction.  A message that begins a transaction is also found later,
        as long as its transaction is open.
        """
        broker = self._broker
        broker.check_writable()
        if len(set(ids)) < len(ids):
            return None
        if broker.clock() < self._asks_index_until:
            for one, message in zip(ids, records, strict=True):
                for where in (TIMER_TOPIC, topic) if record.PROPERTY_DELIVER_MS in message.properties else (topic,):
                    await self._look_up(topic, one, where)
        if begins and (half := await self._transactions.stored_half(records[0])) is not None:
            return _found([Stored(half.queue_offset, broker.store.end_offset)])
        now = broker.clock()
        found = [self._recent.get(topic, one, now) for one in ids]
        return None if None in found else _found([stored for stored in found if stored is not None])

    async def _look_up(self, topic: str, sent: SendId, where: str) -> None:
        """Looks a message up in the index, unless it is known already.  `where` is the topic in which the message would
        be stored.

        Messages that were stored after the port was opened are in memory.  The search therefore ends at the log offset
        at which the port was opened, and the index need not be updated for each search.
        """
        broker = self._broker
        if self._recent.get(topic, sent, broker.clock()) is not None:
            return
        since_ms = broker.now_ms() - int(REMEMBERED_S * 1000)
        search = broker.store.key_search(where, sent.message_id, 1, since_ms, FOR_EVER_MS, self._opened_at)
        for offset in (await cold_reads.read(broker.store, search.run)).offsets:
            data = await cold_reads.read(broker.store, partial(broker.store.log.record_at, offset))
            found = record.decode(data, check_crc=False)
            is_it = SendId(found.properties.get(record.PROPERTY_UNIQ_KEY, ""), record.body_crc(found.body)) == sent
            if is_it and (where == topic or found.properties.get(record.PROPERTY_REAL_TOPIC) == topic):
                stored = Stored(found.queue_offset, offset + len(data))
                self._recent.put(topic, sent, stored, broker.clock())

    def _checked(self, messages: Sequence[pb.Message]) -> TopicConfig:
        """Checks all messages of a call, and returns their topic.  Raises Refused."""
        if not messages:
            raise Refused(pb.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > MAX_MESSAGES:
            raise Refused(pb.BAD_REQUEST, f"the call has {len(messages)} messages; at most {MAX_MESSAGES} are allowed")
        name = names.topic_of(messages[0].topic)
        if any(message.topic != messages[0].topic for message in messages[1:]):
            raise Refused(pb.MESSAGE_CORRUPTED, "topic in message is not same")
        topic = self._topic(name)
        day_ms = self._broker.day_ms()
        for message in messages:
            message_rules.check(message, self._broker.config.max_message_size, day_ms)
            message_type = message_rules.type_of(message)
            message_rules.check_type(message_type, topic.message_type)
            if message_type == pb.TRANSACTION and len(messages) > 1:
                raise Refused(pb.BAD_REQUEST, "a transaction has exactly one message; send the others by themselves")
            if what := _NOT_YET.get(message_type):
                raise Refused(pb.UNSUPPORTED, f"{what} are not supported yet")
        return topic

    def _topic(self, name: str) -> TopicConfig:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise names.topic_not_found(name)
        return topic

    def _queues(self, messages: Sequence[pb.Message], topic: TopicConfig) -> list[int]:
        """Returns the queue of each message.

        Messages of the same message group always go to the same queue.  The queue that the client has chosen is
        ignored, because clients in different languages choose different queues for a message group.  Messages without a
        message group go to the topic's queues in turns: each call uses one queue, and the next call the next queue.
        """
        queue_nums = topic.write_queue_nums
        if not queue_nums:
            raise Refused(pb.FORBIDDEN, f"no writable queue of topic {topic.name}: its writeQueueNums is 0")
        groups = [message.system_properties.message_group for message in messages]
        turn = -1 if all(groups) else self._turns.queue_of(topic.name, queue_nums)
        return [queue_of_group(group, queue_nums) if group else turn for group in groups]


def _found(stored: Sequence[Stored]) -> SentCall:
    end_offset = max(one.end_offset for one in stored)
    return SentCall([one.queue_offset for one in stored], Placed(Appended([], [], end_offset, 0)))
