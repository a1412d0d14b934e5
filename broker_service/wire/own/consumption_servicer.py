"""ConsumptionServicer: converts the pops of our own consumers to calls of `pop`, and decides nothing itself."""

import asyncio
from collections.abc import Sequence

from rocketsim_proto import consumption_pb2 as pb
from rocketsim_proto import consumption_pb2_grpc

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.errors import InvalidParameter, NoPermission
from broker_service.names import (
    check_group_name,
    check_topic_name,
    is_internal_group,
    is_internal_topic,
)
from broker_service.pop.consumption import Consumption
from broker_service.pop.deliveries import (
    FINAL,
    MAX_MESSAGES,
    Changed,
    ChangeInvisible,
    HandleStatus,
    Pop,
    Settled,
    check_handle_count,
)
from broker_service.put_result import commit_status
from broker_service.runtime.deadlines import answer_s, longest_wait_s, time_left_s, wait_s
from broker_service.runtime.rpc_errors import maps_errors
from broker_service.wire.clients import Context, client_of


class ConsumptionServicer(consumption_pb2_grpc.ConsumptionServicer):
    def __init__(self, broker: Broker, consumption: Consumption) -> None:
        self._broker = broker
        self._consumption = consumption

    @maps_errors
    async def Pop(self, request: pb.PopRequest, context: Context) -> pb.PopResponse:
        self._check(request)
        client_id = client_of(context, request.client_id)
        if request.ends_polls:
            self._consumption.end_polls(request.consumer_group, request.topic, client_id)
            return pb.PopResponse()
        if request.max_messages < 1 or request.invisible_ms < 1:
            raise InvalidParameter(
                f"a pop asks for {request.max_messages} messages for {request.invisible_ms} ms: both must be at least 1"
            )
        left_s = time_left_s(context)
        popped = await self._consumption.pop(
            Pop(
                group=request.consumer_group,
                topic=request.topic,
                client_id=client_id,
                max_messages=min(request.max_messages, MAX_MESSAGES),
                invisible_ms=request.invisible_ms,
                sub_expression=request.sub_expression,
                expression_type=request.expression_type or "TAG",
                poll_s=min(max(request.poll_ms, 0) / 1000, wait_s(left_s)),
                timeout_s=wait_s(answer_s(left_s)),
                attempt_id=request.attempt_id,
            )
        )
        now_ms = self._broker.now_ms()
        group = self._broker.groups.get(request.consumer_group) or SubscriptionGroup()
        return pb.PopResponse(
            records=b"".join(delivery.record for delivery in popped.deliveries),
            deliveries=[
                pb.PopResponse.Delivery(
                    receipt_handle=delivery.receipt_handle,
                    attempt=delivery.attempt,
                    left_ms=delivery.deadline_ms - now_ms,
                )
                for delivery in popped.deliveries
            ],
            in_order=group.consume_message_orderly,
        )

    @maps_errors
    async def Ack(self, request: pb.AckRequest, context: Context) -> pb.SettleResponse:
        self._check(request)
        check_handle_count(len(request.receipt_handles))
        return _settled(
            await self._consumption.ack(
                request.consumer_group, request.topic, request.receipt_handles, longest_wait_s(context)
            )
        )

    @maps_errors
    async def ChangeInvisible(self, request: pb.ChangeInvisibleRequest, context: Context) -> pb.SettleResponse:
        self._check(request)
        check_handle_count(len(request.entries))
        timeout_s = longest_wait_s(context)
        changes = [
            ChangeInvisible(
                group=request.consumer_group,
                topic=request.topic,
                receipt_handle=entry.receipt_handle,
                invisible_ms=entry.invisible_ms if entry.HasField("invisible_ms") else None,
                counted=not entry.uncounted,
                timeout_s=timeout_s,
            )
            for entry in request.entries
        ]
        return _settled(await asyncio.gather(*map(self._consumption.change_invisible, changes)))

    def _check(self, request: pb.PopRequest | pb.AckRequest | pb.ChangeInvisibleRequest) -> None:
        topic, group = request.topic, request.consumer_group
        self._broker.check_name(request.broker_name)
        check_topic_name(topic)
        check_group_name(group)
        if is_internal_topic(topic) or is_internal_group(group):
            raise NoPermission(f"group {group}, topic {topic}: consumers may not pop the broker's own topics or groups")
        self._broker.topics.existing(topic)


def _settled(results: Sequence[Settled | Changed]) -> pb.SettleResponse:
    stored = [one.stored for one in results if one.status is HandleStatus.OK]
    return pb.SettleResponse(
        valid=[one.status is HandleStatus.OK for one in results],
        again=any(one not in FINAL for one in stored),
        status=commit_status(max(stored)).name if stored else None,
    )
