"""SendAnswers: appends messages that producers send in the remoting protocol, one by one or in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.remoting import message_batch, send_fields
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Header

from broker_service.broker.core.broker import Broker
from broker_service.broker.put import Placed, PutPath, RecordsSend
from broker_service.errors import InvalidParameter, MessageIllegal, RocketSimError
from broker_service.put_result import PutStatus
from broker_service.runtime.remoting.calls import Answer, Handlers, HandlersAtOnce, Outcome, Request
from broker_service.state.half_messages import PROPERTY_IMMUNITY_S, PROPERTY_PREPARED
from broker_service.transactions.producers import remoting_client_id
from broker_service.transactions.transactions import Transactions

SAFE_WAIT_S = 2.5  # longest wait for disk and slave; RocketMQ's producers wait 3 s for an answer
# RocketMQ's producers trace their messages only if the answers have these fields.  Consumers trace only messages that
# have these properties.
TRACING = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
_TRANSACTION = 0xC  # the transaction bits of the system flag
_KEPT_FLAGS = record.SYS_FLAG_COMPRESSED | record.SYS_FLAG_COMPRESSION_TYPE | record.SYS_FLAG_MULTI_TAGS
# The answer's code for each put status.  Each put status in this table means that the message is stored.
_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
_SENDS = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
_DELAYED = {record.PROPERTY_DELAY, record.PROPERTY_DELIVER_MS}
_DELAYS_MS = {"TIMER_DELAY_SEC": 1000, "TIMER_DELAY_MS": 1}


def put_answer(status: PutStatus, fields: dict[str, str] | None = None) -> Answer:
    remark = "" if status is PutStatus.PUT_OK else status.name
    return Answer(fields=fields or {}, code=_CODES[status], remark=remark)


class SendAnswers:
    def __init__(self, broker: Broker, puts: PutPath, transactions: Transactions) -> None:
        self._broker = broker
        self._puts = puts
        self._transactions = transactions
        self._turn = 0

    def handlers(self) -> Handlers:
        return dict.fromkeys(_SENDS, self.send)

    def handlers_at_once(self) -> HandlersAtOnce:
        return dict.fromkeys(_SENDS, self.send_at_once)

    def send_at_once(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Appends the messages of sends that came together, with one put for each topic.  Delayed messages go alone."""
        outcomes: list[Outcome] = [None] * len(requests)
        if self._broker.acknowledgements.makes_puts_wait:
            return outcomes
        together: dict[tuple[str, int], list[tuple[int, RecordsSend]]] = {}  # topic, number of a delayed message or -1
        for number, request in enumerate(requests):
            try:
                send, begins = self._send_of(request)
            except Exception as error:
                outcomes[number] = error
            else:
                if not begins:
                    key = send.topic, number if _DELAYED & send.message.properties.keys() else -1
                    together.setdefault(key, []).append((number, send))
        for numbered in together.values():
            found = self._appended([send for _, send in numbered])
            for (number, _), outcome in zip(numbered, found, strict=True):
                outcomes[number] = outcome
        return outcomes

    def _appended(self, sends: Sequence[RecordsSend]) -> Sequence[Outcome]:
        """Appends sends to one topic with one put.  If the put is refused because of a message, appends each send with
        a put of its own, so that only the send with that message is refused.
        """
        first = sends[0]
        together = first if len(sends) == 1 else replace(first, records=[one for send in sends for one in send.records])
        try:
            placed = self._puts.append_at_once(together)
        except RocketSimError as error:
            if isinstance(error, MessageIllegal) and len(sends) > 1:
                return [outcome for send in sends for outcome in self._appended([send])]
            self._puts.count_refused(error, len(sends))
            return [error] * len(sends)
        except Exception as error:
            return [error] * len(sends)
        if placed is None:
            return [None] * len(sends)
        for _ in sends:
            self._puts.observe(placed)
        return self._answers(sends, placed, PutStatus.PUT_OK)

    async def send(self, request: Request) -> Answer:
        """Appends the messages of a request, and waits until they are safe."""
        send, begins = self._send_of(request)
        placed = await (self._begun(send, request.user) if begins else self._puts.append(send))
        return self._answers([send], placed, await self._puts.safe(placed, SAFE_WAIT_S))[0]

    def _send_of(self, request: Request) -> tuple[RecordsSend, bool]:
        """Returns the messages of a request, and True if they begin a transaction.  The field `batch`, not the request
        code, says if the body is a batch.
        """
        code = request.header.code
        fields = request.fields if code == RequestCode.SEND_MESSAGE else send_fields.long_names(request.fields)
        named = Request(Header(code, fields=fields), request.body, request.connection)
        topic = send_fields.topic_of(code, request.fields)
        if not topic:
            raise InvalidParameter(f"request {code} names no topic")
        records = self._records(named, topic)
        send = RecordsSend(topic=topic, records=records, default_queue_nums=named.number("defaultTopicQueueNums", 0))
        begins = records[0].properties.pop(PROPERTY_PREPARED, "") == "true"
        if named.number("sysFlag", 0) & _TRANSACTION and not begins:
            raise MessageIllegal(f"topic {topic}: sysFlag says transaction, but the property TRAN_MSG is missing")
        return send, begins

    async def _begun(self, send: RecordsSend, user: str) -> Placed:
        """Begins a transaction with the only message of the send."""
        message = send.message
        if len(send.records) > 1:
            raise MessageIllegal(f"topic {send.topic}: a batch cannot begin a transaction; send the message by itself")
        immunity = message.properties.pop(PROPERTY_IMMUNITY_S, "")
        return await self._transactions.begin(
            self._puts,
            send,
            client_id=remoting_client_id(user, message.properties.get(record.PROPERTY_PRODUCER_GROUP, "")),
            immunity_s=int(immunity[:9]) if immunity.isascii() and immunity.isdigit() else 0,
        )

    def _records(self, request: Request, topic: str) -> list[Record]:
        sys_flag = request.number("sysFlag", 0, bits=32)
        born_ms = request.number("bornTimestamp", 0) or self._broker.now_ms()
        properties = request.text("properties", "").encode(errors="replace")
        added = TRACING
        if request.boolean("batch"):
            added = {}  # as in RocketMQ
            try:
                messages = message_batch.decode(request.body)
            except message_batch.BatchError as error:
                raise MessageIllegal(f"topic {topic}: {error}") from error
            if not messages:
                raise MessageIllegal(f"topic {topic}: the batch has no message")
        else:
            messages = [message_batch.BatchMessage(request.number("flag", 0, bits=32), request.body, properties)]
        host, _, port = request.connection.address.rpartition(":")
        born_host, store_host = record.encode_host(host.strip("[]"), int(port)), bytes(len(self._broker.store_host))
        queue_id = self._queue(topic, request.number("queueId", -1, bits=32))
        reconsumed = request.number("reconsumeTimes", 0, bits=32)
        return [
            Record(
                topic=topic,
                body=body,
                queue_id=queue_id,
                flag=flag,
                sys_flag=sys_flag & _KEPT_FLAGS,
                born_timestamp=born_ms,
                born_host=born_host,
                store_host=store_host,
                reconsume_times=reconsumed,
                properties=self._properties(encoded) | added,
            )
            for flag, body, encoded in messages
        ]

    def _properties(self, encoded: bytes) -> dict[str, str]:
        """Decodes properties.  Replaces a delay, which RocketMQ's producers may send, by the delivery time that results
        from this delay.
        """
        properties = record.decode_properties(encoded)
        for name, unit_ms in _DELAYS_MS.items():
            if (delay := properties.pop(name, "")) and delay.isascii() and delay.isdigit():
                due_ms = self._broker.day_ms() + int(delay[:15]) * unit_ms
                properties.setdefault(record.PROPERTY_DELIVER_MS, str(due_ms))
        return properties

    def _queue(self, topic: str, asked: int) -> int:
        """Returns the queue that the request names.  If the request names no queue, the topic's queues take turns."""
        if asked >= 0:
            return asked
        found = self._broker.topics.get(topic)
        self._turn += 1
        return self._turn % max(1, found.write_queue_nums) if found is not None else 0

    def _answers(self, sends: Sequence[RecordsSend], placed: Placed, status: PutStatus) -> list[Answer]:
        """Returns the answers to sends that one put has stored."""
        log_offsets, host = _log_offsets(placed), self._broker.store_host
        queues = {queue.queue_id: queue.first_queue_offset for queue in placed.appended.queues}
        (first_queue, *_) = queues
        answers = []
        for send in sends:
            # the only message may wait for its delivery in a queue of another topic
            queue_id = send.records[0].queue_id if len(sends) > 1 else first_queue
            ids = [record.offset_message_id(host, offset) for offset in islice(log_offsets, len(send.records))]
            fields = {
                "msgId": ",".join(ids),
                "queueId": str(queue_id),
                "queueOffset": str(queues[queue_id]),
                **TRACING,
            }
            queues[queue_id] += len(send.records)
            if len(send.records) == 1 and (unique := send.message.properties.get(record.PROPERTY_UNIQ_KEY)):
                fields["transactionId"] = unique
            answers.append(put_answer(status, fields))
        return answers


def _log_offsets(placed: Placed) -> Iterator[int]:
    """Yields the log offset of each record."""
    sizes = chain(map(int, placed.sizes), repeat(0))
    for log_offset, count in placed.appended.extents:
        for size in islice(sizes, count):
            yield log_offset
            log_offset += size
