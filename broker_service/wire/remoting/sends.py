"""SendAnswers: appends messages that producers send in the remoting protocol, one by one or in batches."""

from collections.abc import Sequence

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.remoting import message_batch, send_fields
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from broker_service.broker.core.broker import Broker
from broker_service.broker.put import Placed, PutPath, RecordsSend
from broker_service.errors import MessageIllegal
from broker_service.put_result import Appended, PutStatus
from broker_service.runtime.remoting.calls import Answer, Handlers, Request
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
        codes = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
        return dict.fromkeys(codes, self.send)

    async def send(self, request: Request) -> Answer:
        """Appends the messages of a request.  The field `batch`, not the request code, says if the body is a batch."""
        code = request.header.code
        if code != RequestCode.SEND_MESSAGE:
            request.header.fields = send_fields.long_names(request.fields)
        topic = request.text("topic")
        records = self._records(request, topic)
        send = RecordsSend(topic=topic, records=records, default_queue_nums=request.number("defaultTopicQueueNums", 0))
        begins = records[0].properties.pop(PROPERTY_PREPARED, "") == "true"
        if request.number("sysFlag", 0) & _TRANSACTION and not begins:
            raise MessageIllegal(f"topic {topic}: sysFlag says transaction, but the property TRAN_MSG is missing")
        placed = await (self._begun(send, request.user) if begins else self._puts.append(send))
        # a single record needs no entry for its size
        sizes = [record.size_of(one) for one in records] if len(records) > 1 else [0]
        status = await self._puts.safe(placed, SAFE_WAIT_S)
        fields = self._fields(placed.appended, sizes)
        if len(records) == 1 and (unique := records[0].properties.get(record.PROPERTY_UNIQ_KEY)):
            fields["transactionId"] = unique
        return put_answer(status, fields)

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
        sys_flag = request.number("sysFlag", 0)
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
            messages = [message_batch.BatchMessage(request.number("flag", 0), request.body, properties)]
        host, _, port = request.connection.address.rpartition(":")
        born_host, store_host = record.encode_host(host.strip("[]"), int(port)), bytes(len(self._broker.store_host))
        queue_id, reconsumed = self._queue(topic, request.number("queueId", -1)), request.number("reconsumeTimes", 0)
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

    def _fields(self, appended: Appended, sizes: Sequence[int]) -> dict[str, str]:
        queue = appended.queues[0]
        ids, number = [], 0
        for commit_log_offset, count in appended.extents:
            for size in sizes[number : number + count]:
                ids.append(record.offset_message_id(self._broker.store_host, commit_log_offset))
                commit_log_offset += size
            number += count
        return {
            "msgId": ",".join(ids),
            "queueId": str(queue.queue_id),
            "queueOffset": str(queue.first_queue_offset),
            **TRACING,
        }
