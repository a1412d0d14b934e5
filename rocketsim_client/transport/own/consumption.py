"""Makes the calls of the Consumption service, and converts between generated messages and the client's values."""

from collections.abc import Sequence
from typing import Any

from rocketsim_proto import consumption_pb2 as pb
from rocketsim_proto.consumption_pb2_grpc import ConsumptionStub
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import commit_status
from rocketsim_client.received_message import ReceivedMessage
from rocketsim_client.transport.consumption import Change, PopAnswer, PopCall, Settled
from rocketsim_client.transport.own.channels import Channels
from rocketsim_client.transport.under_way import UnderWay


class GrpcConsumption:
    """Implements `ConsumptionCalls` over gRPC."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def pop(self, address: str, call: PopCall, timeout_s: float, under_way: UnderWay) -> PopAnswer:
        request = pb.PopRequest(
            consumer_group=call.group,
            topic=call.topic,
            broker_name=call.broker_name,
            client_id=call.client_id,
            max_messages=call.max_messages,
            invisible_ms=int(call.invisible_s * 1000),
            sub_expression=call.expression,
            expression_type=call.expression_type,
            poll_ms=int(call.poll_s * 1000),
            attempt_id=call.attempt_id,
        )
        answer = self._channels.held(address, ConsumptionStub, "Pop", request, timeout_s, under_way)
        if not answer.deliveries:
            return PopAnswer()
        try:
            records = Records.walk(answer.records, len(answer.deliveries))
            records.check()
        except RecordError as error:
            raise BadAnswer(
                f"{call.topic} at {address}: the broker sent damaged records: {error}; the messages come "
                "again after their invisible time; check the broker's store with `rocketsim store verify` if it "
                "happens again",
                address=address,
            ) from error
        columns = (records.starts, records.sizes, records.body_start, records.body_size, records.sys_flag)
        places = zip(*(column.tolist() for column in columns), strict=True)
        messages = [
            ReceivedMessage(
                answer.records[
                    start : start + size
                ],  # a copy, so that one message does not keep the whole answer in memory
                0,
                body_start - start,
                body_size,
                flags,
                call.broker_name,
                call.topic,
                one.receipt_handle,
                one.attempt,
            )
            for (start, size, body_start, body_size, flags), one in zip(places, answer.deliveries, strict=True)
        ]
        return PopAnswer(messages, [one.left_ms / 1000 for one in answer.deliveries], answer.in_order)

    def end_polls(self, address: str, call: PopCall, timeout_s: float) -> None:
        request = pb.PopRequest(
            consumer_group=call.group,
            topic=call.topic,
            broker_name=call.broker_name,
            client_id=call.client_id,
            ends_polls=True,
        )
        self._channels.call(address, ConsumptionStub, "Pop", request, timeout_s)

    def ack(
        self, address: str, group: str, topic: str, broker_name: str, handles: Sequence[str], timeout_s: float
    ) -> Settled:
        request = pb.AckRequest(consumer_group=group, topic=topic, broker_name=broker_name, receipt_handles=handles)
        return self._settled(address, "Ack", request, len(handles), timeout_s)

    def change_invisible(
        self, address: str, group: str, topic: str, broker_name: str, changes: Sequence[Change], timeout_s: float
    ) -> Settled:
        request = pb.ChangeInvisibleRequest(consumer_group=group, topic=topic, broker_name=broker_name)
        for change in changes:
            request.entries.add(
                receipt_handle=change.receipt_handle,
                invisible_ms=None if change.invisible_s is None else int(change.invisible_s * 1000),
                uncounted=not change.counted,
            )
        return self._settled(address, "ChangeInvisible", request, len(changes), timeout_s)

    def _settled(self, address: str, method: str, request: Any, count: int, timeout_s: float) -> Settled:
        answer = self._channels.call(address, ConsumptionStub, method, request, timeout_s)
        if len(answer.valid) != count:
            raise BadAnswer(f"{address} answered for {len(answer.valid)} of {count} receipt handles", address=address)
        return Settled(list(answer.valid), answer.again, commit_status(answer.status))
