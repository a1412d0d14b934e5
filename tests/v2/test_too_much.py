"""Requests with more parts than any client sends are refused before work is done for each part."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto.records.record import tags_code

from broker_service.broker.reads import subscription
from tests.support.v2 import Client, message, resource, v2_broker

T, G = resource("T"), resource("g")
SPACIOUS = d.Resource(name="T", resource_namespace="n" * 300)
MANY = d.Endpoints(scheme=d.IPv4, addresses=[d.Address(host="10.0.0.1", port=8081)] * 1000)
LONG = d.Endpoints(scheme=d.DOMAIN_NAME, addresses=[d.Address(host="h" * 5000, port=8081)])


def receive(topic: d.Resource = T, **fields: Any) -> s.ReceiveMessageRequest:
    queue = d.MessageQueue(topic=topic)
    return s.ReceiveMessageRequest(
        group=G, message_queue=queue, batch_size=1, invisible_duration=Duration(seconds=60), **fields
    )


def by_tags(expression: str) -> s.ReceiveMessageRequest:
    wanted = d.FilterExpression(type=d.TAG, expression=expression)
    return receive(filter_expression=wanted, long_polling_timeout=Duration())


async def status_of(client: Client, request: Any) -> d.Status:
    name = type(request).__name__.removesuffix("Request")
    if name == "ReceiveMessage":
        first, *_ = [answer async for answer in client.ReceiveMessage(request)]
        return first.status
    return (await getattr(client, name)(request)).status


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (s.QueryRouteRequest(topic=T, endpoints=MANY), d.ILLEGAL_ACCESS_POINT, "at most 4096 are allowed"),
        (s.QueryRouteRequest(topic=T, endpoints=LONG), d.ILLEGAL_ACCESS_POINT, "at most 4096 are allowed"),
        (
            s.QueryAssignmentRequest(topic=T, group=G, endpoints=MANY),
            d.ILLEGAL_ACCESS_POINT,
            "at most 4096 are allowed",
        ),
        (s.QueryRouteRequest(topic=SPACIOUS), d.BAD_REQUEST, "namespace has 300 characters; at most 255 are allowed"),
        (receive(SPACIOUS), d.BAD_REQUEST, "namespace has 300 characters; at most 255 are allowed"),
        (
            s.AckMessageRequest(topic=T, group=G, entries=[s.AckMessageEntry(receipt_handle="x")] * 1025),
            d.BAD_REQUEST,
            "1025 receipt handles: 1 to 1024 are allowed",
        ),
        (s.AckMessageRequest(topic=T, group=G), d.BAD_REQUEST, "0 receipt handles: 1 to 1024 are allowed"),
        (
            s.SendMessageRequest(messages=[message(body=b"")] * 1025),
            d.BAD_REQUEST,
            "the call has 1025 messages; at most 1024 are allowed",
        ),
        (
            s.SendMessageRequest(messages=[message(keys=["\x01"] * 16_385)]),
            d.MESSAGE_PROPERTIES_TOO_LARGE,
            "max is 16384",
        ),
        (
            s.SendMessageRequest(messages=[message(user={"a": "\x01" * 16_384})]),
            d.MESSAGE_PROPERTIES_TOO_LARGE,
            "max is 16384",
        ),
        (by_tags("a||" * 6000), d.ILLEGAL_FILTER_EXPRESSION, "18000 characters; 16384 are allowed"),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, str) else one,
)
async def test_a_request_with_too_many_parts_is_refused_for_its_size(
    tmp_path: Path, request_: Any, code: d.Code, text: str
) -> None:
    async with v2_broker(tmp_path) as (node, client):
        status = await status_of(client, request_)
        assert (d.Code.Name(status.code), text in status.message) == (d.Code.Name(code), True), status
        assert len(status.message) < 1000
        assert node.store.end_offset == 0


async def test_a_client_id_is_bounded_because_it_is_kept(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        for client_id, code in (("c" * 255, d.OK), ("c" * 256, d.BAD_REQUEST)):
            headers = (("x-mq-client-id", client_id),)
            route = await client.calls.QueryRoute(s.QueryRouteRequest(topic=T), metadata=headers, timeout=60)
            assert d.Code.Name(route.status.code) == d.Code.Name(code)
        stream = client.calls.Telemetry(metadata=headers)
        answer = await stream.read()
        assert answer.status.code == d.BAD_REQUEST and "255" in answer.status.message
        assert await stream.read() is grpc.aio.EOF
        assert len(node.clients) == 0


@pytest.mark.parametrize("kind", ["publishing", "subscription"])
async def test_settings_with_too_many_topics_end_the_stream(tmp_path: Path, kind: str) -> None:
    settings = d.Settings(publishing=d.Publishing(topics=[T] * 10_001))
    if kind == "subscription":
        entries = [d.SubscriptionEntry(topic=T)] * 10_001
        settings = d.Settings(subscription=d.Subscription(group=G, subscriptions=entries))
    async with v2_broker(tmp_path) as (_, client):
        stream = client.calls.Telemetry(metadata=client.metadata)
        await stream.write(s.TelemetryCommand(settings=settings))
        with pytest.raises(grpc.aio.AioRpcError, match="10001 topics; at most 10000 are allowed"):
            await stream.read()


async def test_the_hashes_of_tags_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hashes are not computed again for each queue, nor each time that a long poll looks for messages."""
    computed: list[str] = []

    def counted(tag: str) -> int:
        computed.append(tag)
        return tags_code(tag)

    monkeypatch.setattr(subscription, "tags_code", counted)
    subscription.codes_of.cache_clear()
    async with v2_broker(tmp_path) as (_, client):
        for _ in range(8):
            await client.send(message(tag="other"))
        for _ in range(3):
            assert (await status_of(client, by_tags("a || b"))).code == d.MESSAGE_NOT_FOUND
    assert sorted(computed) == ["a", "b"]
