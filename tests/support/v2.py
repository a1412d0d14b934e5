"""Makes calls of `apache.rocketmq.v2`, as a client of that protocol does, to a broker in the test's process."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketmq_v2.service_pb2_grpc import MessagingServiceStub

from broker_service.broker.metadata.topics import TopicConfig
from broker_service.node.node import BrokerNode
from testbed.polling import until
from tests.support.brokers import running

_NUMBERS = itertools.count()
CLIENT = (("x-mq-client-id", "client-1"),)
DIALLED = d.Endpoints(scheme=d.DOMAIN_NAME, addresses=[d.Address(host="mq.example", port=18081)])


class Client:
    """Makes calls with a client id.  `calls` is the plain stub, whose calls have no client id."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str = "client-1") -> None:
        self.calls: Any = MessagingServiceStub(channel)
        self.metadata = (("x-mq-client-id", client_id),)

    def __getattr__(self, name: str) -> Any:
        def call(request: Any, timeout: float | None = 60.0) -> Any:
            return getattr(self.calls, name)(request, metadata=self.metadata, timeout=timeout)

        return call

    async def send(self, *messages: d.Message) -> s.SendMessageResponse:
        return await self.SendMessage(s.SendMessageRequest(messages=messages))


@asynccontextmanager
async def client_of(node: BrokerNode, client_id: str = "client-1") -> AsyncIterator[Client]:
    await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
    async with grpc.aio.insecure_channel(
        node.v2_port.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        yield Client(channel, client_id)


@asynccontextmanager
async def v2_broker(root: Path, **keys: Any) -> AsyncIterator[tuple[BrokerNode, Client]]:
    """Runs a master with topic T (NORMAL), and with F, D, X and M of the other types."""
    async with running(root, grpc_server_port=0, **keys) as node, client_of(node) as client:
        make_topics(node)
        yield node, client


def make_topics(node: BrokerNode) -> None:
    types = {"T": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION", "M": "MIXED"}
    for name, of_type in types.items():
        node.topics.update(TopicConfig(name, 4, 4, attributes={"message.type": of_type}), 0)


def resource(name: str) -> d.Resource:
    return d.Resource(name=name)


def receive(topic: str = "T", *, size: int = 32, poll_s: int = 50) -> s.ReceiveMessageRequest:
    """Returns a request to receive for group `g`."""
    return s.ReceiveMessageRequest(
        group=resource("g"),
        message_queue=d.MessageQueue(topic=resource(topic)),
        batch_size=size,
        invisible_duration=Duration(seconds=60),
        long_polling_timeout=Duration(seconds=poll_s),
    )


def message(
    topic: str = "T", body: bytes = b"hello", *, user: dict[str, str] | None = None, **system: Any
) -> d.Message:
    """Returns a message as the official clients fill it, with a new id.  `system` are system properties."""
    defaults: dict[str, Any] = {
        "message_id": f"01{next(_NUMBERS):032X}",
        "message_type": d.NORMAL,
        "body_encoding": d.IDENTITY,
    }
    return d.Message(
        topic=resource(topic),
        body=body,
        user_properties=user or {},
        system_properties=d.SystemProperties(**defaults | system),
    )
