"""Receiving: converts pops, acks, changes of the invisible time and dead letters of RocketMQ 5's clients."""

from collections.abc import Sequence

from rocketmq_v2 import definition_pb2, service_pb2
from rocketsim_proto.limits import MAX_INVISIBLE_MS
from rocketsim_proto.records import record

from broker_service.broker.core.broker import Broker
from broker_service.broker.reads.selection import SQL92
from broker_service.pop.consumption import Consumption
from broker_service.pop.deliveries import (
    FINAL,
    MAX_MESSAGES,
    ChangeInvisible,
    Delivery,
    HandleStatus,
    Pop,
    PopStatus,
    Settled,
    check_handle_count,
)
from broker_service.runtime.deadlines import answer_s, wait_s
from broker_service.wire.clients import Clients
from broker_service.wire.v2 import delivered_message, names
from broker_service.wire.v2.message_rules import milliseconds
from broker_service.wire.v2.status import OK, STORED_BUT, Refused, status

pb = definition_pb2

REQUEST_TIMEOUT_S = 3.0  # official clients set a call's deadline to the time of its long poll plus this time

_EMPTY = {PopStatus.NO_MESSAGE: "no new message", PopStatus.NO_MATCH: "no match message"}
_INVALID = status(pb.INVALID_RECEIPT_HANDLE, "the receipt handle is expired, settled, or of another group or topic")


class Receiving:
    """Answers calls, even before a client has sent settings.  A client's settings supply only values that its call
    leaves out.
    """

    def __init__(self, broker: Broker, consumption: Consumption, clients: Clients) -> None:
        self._broker = broker
        self._consumption = consumption
        self._clients = clients

    async def pop(
        self, request: service_pb2.ReceiveMessageRequest, client_id: str, left_s: float
    ) -> tuple[pb.Status, Sequence[Delivery]]:
        """Pops messages from any queue of the topic.  `left_s` is the time in seconds until the caller's deadline.

        The queue that the request names is ignored, because clients name one queue after another.
        """
        topic, group = names.topic_of(request.message_queue.topic), names.group_of(request.group)
        if self._broker.topics.get(topic) is None:
            raise names.topic_not_found(topic)
        names.check_broker(request.message_queue.broker.name, self._broker.config.broker_name)
        if request.batch_size < 0:
            raise Refused(pb.BAD_REQUEST, f"batch size {request.batch_size} is negative")
        invisible_ms = 0 if request.auto_renew else self._invisible_ms(request)
        is_sql = request.filter_expression.type == pb.SQL
        popped = await self._consumption.pop(
            Pop(
                group=group,
                topic=topic,
                client_id=client_id,
                max_messages=min(request.batch_size or MAX_MESSAGES, MAX_MESSAGES),
                invisible_ms=invisible_ms,
                auto_renew=request.auto_renew,
                sub_expression=request.filter_expression.expression,
                expression_type=SQL92 if is_sql else "TAG",
                poll_s=max(0.0, min(self._poll_s(request, client_id, left_s), wait_s(left_s))),
                timeout_s=wait_s(answer_s(left_s)),
                attempt_id=request.attempt_id,
            )
        )
        if popped.status is PopStatus.FOUND:
            return OK, popped.deliveries
        return status(pb.MESSAGE_NOT_FOUND, _EMPTY[popped.status]), ()

    def message_of(self, delivery: Delivery, topic: pb.Resource) -> pb.Message:
        return delivered_message.message_of(
            record.decode(delivery.record, check_crc=False),
            topic,
            queue_id=delivery.queue_id,
            queue_offset=delivery.queue_offset,
            attempt=delivery.attempt,
            receipt_handle=delivery.receipt_handle,
            max_body_size=self._broker.config.max_message_size,
        )

    def give_back(self, request: service_pb2.ReceiveMessageRequest, deliveries: Sequence[Delivery], begun: int) -> None:
        """Undoes the deliveries of a call that ended before all messages were sent, because the client uses no message
        of an incomplete call.

        `begun` is the number of messages whose sending had begun.
        """
        handles = [delivery.receipt_handle for delivery in deliveries]
        deadlines_ms = [delivery.deadline_ms for delivery in deliveries]
        self._consumption.give_back(request.group.name, request.message_queue.topic.name, handles, begun, deadlines_ms)

    async def ack(self, request: service_pb2.AckMessageRequest, timeout_s: float) -> service_pb2.AckMessageResponse:
        """Acknowledges deliveries.  The response has the status that all entries have in common, or else
        MULTIPLE_RESULTS.

        `ack`, `change_invisible` and `forward_to_dlq` answer that a handle of a deleted topic is invalid, because after
        any other code push consumers would repeat the call every second.
        """
        topic, group = names.topic_of(request.topic), names.group_of(request.group)
        check_handle_count(len(request.entries))
        handles = [entry.receipt_handle for entry in request.entries]
        settled = await self._consumption.ack(group, topic, handles, timeout_s)
        statuses = [_status_of(one) for one in settled]
        codes = {one.code for one in statuses}
        return service_pb2.AckMessageResponse(
            status=status(codes.pop() if len(codes) == 1 else pb.MULTIPLE_RESULTS),
            entries=[
                service_pb2.AckMessageResultEntry(
                    message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=one
                )
                for entry, one in zip(request.entries, statuses, strict=True)
            ],
        )

    async def change_invisible(
        self, request: service_pb2.ChangeInvisibleDurationRequest, timeout_s: float
    ) -> pb.Status:
        topic, group = names.topic_of(request.topic), names.group_of(request.group)
        asked_ms = milliseconds(request.invisible_duration)
        if asked_ms < 0:
            raise Refused(pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 0")
        _check_not_too_long(asked_ms)
        changed = await self._consumption.change_invisible(
            ChangeInvisible(
                group=group,
                topic=topic,
                receipt_handle=request.receipt_handle,
                invisible_ms=asked_ms,
                counted=not request.suspend,
                timeout_s=timeout_s,
            )
        )
        return _status_of(Settled(changed.status, changed.stored))

    async def forward_to_dlq(
        self, request: service_pb2.ForwardMessageToDeadLetterQueueRequest, timeout_s: float
    ) -> pb.Status:
        topic, group = names.topic_of(request.topic), names.group_of(request.group)
        return _status_of(await self._consumption.forward_to_dlq(group, topic, request.receipt_handle, timeout_s))

    def _invisible_ms(self, request: service_pb2.ReceiveMessageRequest) -> int:
        asked_ms = milliseconds(request.invisible_duration)
        least_ms = self._broker.config.min_invisible_time_mills_for_recv
        if asked_ms < least_ms:
            raise Refused(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least_ms}")
        _check_not_too_long(asked_ms)
        return asked_ms

    def _poll_s(self, request: service_pb2.ReceiveMessageRequest, client_id: str, left_s: float) -> float:
        """Returns how many seconds a pop may wait for a message.

        Go's simple consumer sends the time of its long polls only in its settings.  Until the settings have arrived,
        the time of a long poll follows from the call's deadline.
        """
        if request.HasField("long_polling_timeout"):
            return milliseconds(request.long_polling_timeout) / 1000
        poll_s = self._clients.poll_s_of(client_id)
        return left_s - REQUEST_TIMEOUT_S if poll_s is None else poll_s


def _check_not_too_long(invisible_ms: int) -> None:
    if invisible_ms > MAX_INVISIBLE_MS:
        raise Refused(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {MAX_INVISIBLE_MS}")


def _status_of(settled: Settled) -> pb.Status:
    if settled.status is HandleStatus.INVALID_RECEIPT_HANDLE:
        return _INVALID
    if settled.stored in FINAL:
        return OK
    return status(STORED_BUT[settled.stored], f"the call is stored, but {settled.stored.name}; acknowledge again")
