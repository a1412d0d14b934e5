"""A server that takes and delivers messages but stores nothing, which shows how fast RocketMQ 5's protocol can be in
Python.

`python -m benchmarks.null_broker SIZE` is a load process, and its command `port` returns the server's port.
"""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from rocketmq_v2 import service_pb2 as calls
from rocketmq_v2 import service_pb2_grpc
from rocketsim_proto.limits import MAX_BODY_BYTES
from rocketsim_proto.records.record import Record, encode_host

from benchmarks.driver_loop import serve
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.wire.v2 import route_answers
from broker_service.wire.v2.delivered_message import message_of
from broker_service.wire.v2.settings import reply_to
from broker_service.wire.v2.status import OK

BROKER, QUEUES = "null", 4
MAX_BODY = 4 << 20
Context = grpc.aio.ServicerContext[Any, Any]


class NullBroker(service_pb2_grpc.MessagingServiceServicer):
    def __init__(self, size: int) -> None:
        self.address = ""
        self._body = b"x" * size
        self._offsets = itertools.count()

    async def QueryRoute(self, request: calls.QueryRouteRequest, context: Context) -> calls.QueryRouteResponse:
        queues = route_answers.Queues(
            broker_name=BROKER, address=self.address, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6
        )
        found = route_answers.message_queues(request.topic, [queues], BROKER, request.endpoints)
        return calls.QueryRouteResponse(status=OK, message_queues=found)

    async def Telemetry(self, request_iterator: AsyncIterator[calls.TelemetryCommand], context: Context) -> None:
        async for command in request_iterator:
            if command.WhichOneof("command") == "settings":
                settings = reply_to(command.settings, SubscriptionGroup("group"), MAX_BODY)
                await context.write(calls.TelemetryCommand(status=OK, settings=settings))

    async def Heartbeat(self, request: calls.HeartbeatRequest, context: Context) -> calls.HeartbeatResponse:
        return calls.HeartbeatResponse(status=OK)

    async def NotifyClientTermination(
        self, request: calls.NotifyClientTerminationRequest, context: Context
    ) -> calls.NotifyClientTerminationResponse:
        return calls.NotifyClientTerminationResponse(status=OK)

    async def SendMessage(self, request: calls.SendMessageRequest, context: Context) -> calls.SendMessageResponse:
        entries = [
            calls.SendResultEntry(
                status=OK, message_id=message.system_properties.message_id, offset=next(self._offsets)
            )
            for message in request.messages
        ]
        return calls.SendMessageResponse(status=OK, entries=entries)

    async def ReceiveMessage(
        self, request: calls.ReceiveMessageRequest, context: Context
    ) -> AsyncIterator[calls.ReceiveMessageResponse]:
        """Makes all messages before sending the first one, as RocketSim's broker does, because consecutive writes cost
        less.
        """
        host = encode_host("127.0.0.1", 1)
        topic = request.message_queue.topic
        answers = [calls.ReceiveMessageResponse(status=OK)]
        for offset in itertools.islice(self._offsets, request.batch_size):
            stored = Record(
                topic.name,
                self._body,
                born_host=host,
                store_host=host,
                queue_offset=offset,
                properties={"UNIQ_KEY": f"01{offset:032X}"},
            )
            message = message_of(
                stored,
                topic,
                queue_id=0,
                queue_offset=offset,
                attempt=1,
                receipt_handle=f"handle-{offset:040}",
                max_body_size=MAX_BODY_BYTES,
            )
            answers.append(calls.ReceiveMessageResponse(message=message))
        for answer in answers:
            yield answer

    async def AckMessage(self, request: calls.AckMessageRequest, context: Context) -> calls.AckMessageResponse:
        entries = [
            calls.AckMessageResultEntry(status=OK, message_id=entry.message_id, receipt_handle=entry.receipt_handle)
            for entry in request.entries
        ]
        return calls.AckMessageResponse(status=OK, entries=entries)


async def main(size: int) -> None:
    server = grpc.aio.server()
    broker = NullBroker(size)
    service_pb2_grpc.add_MessagingServiceServicer_to_server(broker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    broker.address = f"127.0.0.1:{port}"
    await server.start()
    await asyncio.to_thread(serve, {"port": lambda: {"port": port}})  # ends with the input
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
