"""Every call refuses the same names of topics, groups and clients, with the same code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s

from tests.support.v2 import CLIENT, message, resource, v2_broker

Make = Callable[[str, str], Any]


def _queue(topic: str) -> d.MessageQueue:
    return d.MessageQueue(topic=resource(topic))


OF_A_TOPIC: list[Make] = [
    lambda topic, _: s.QueryRouteRequest(topic=resource(topic)),
    lambda topic, _: s.SendMessageRequest(messages=[message(topic)]),
    lambda topic, _: s.EndTransactionRequest(topic=resource(topic), transaction_id="a"),
    lambda topic, _: s.RecallMessageRequest(topic=resource(topic), recall_handle="a"),
    lambda topic, _: s.QueryOffsetRequest(message_queue=_queue(topic), query_offset_policy=d.END),
]
OF_A_TOPIC_AND_A_GROUP: list[Make] = [
    lambda topic, group: s.QueryAssignmentRequest(topic=resource(topic), group=resource(group)),
    lambda topic, group: s.ReceiveMessageRequest(
        message_queue=_queue(topic),
        group=resource(group),
        invisible_duration=Duration(seconds=60),
        long_polling_timeout=Duration(),
    ),
    lambda topic, group: s.AckMessageRequest(
        topic=resource(topic), group=resource(group), entries=[s.AckMessageEntry(receipt_handle="h")]
    ),
    lambda topic, group: s.ChangeInvisibleDurationRequest(topic=resource(topic), group=resource(group)),
    lambda topic, group: s.ForwardMessageToDeadLetterQueueRequest(topic=resource(topic), group=resource(group)),
    lambda topic, group: s.GetOffsetRequest(message_queue=_queue(topic), group=resource(group)),
]
OF_NEITHER: list[Make] = [lambda *_: s.NotifyClientTerminationRequest()]


def name_of(make: Make) -> str:
    return type(make("", "")).__name__.removesuffix("Request")


async def code_of(calls: Any, request: Any, metadata: Any = CLIENT) -> str:
    call = getattr(calls, type(request).__name__.removesuffix("Request"))(request, metadata=metadata, timeout=60)
    if isinstance(request, s.ReceiveMessageRequest):
        first, *_ = [answer async for answer in call]
        return d.Code.Name(first.status.code)
    return d.Code.Name((await call).status.code)


@pytest.mark.parametrize("make", [*OF_A_TOPIC, *OF_A_TOPIC_AND_A_GROUP], ids=name_of)
async def test_an_invalid_topic_name_is_refused(tmp_path: Path, make: Make) -> None:
    async with v2_broker(tmp_path) as (_, client):
        for bad in (
            "",
            " ",
            "a b",
            "a\n",
            "t" * 128,
            "TBW102",
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRACE_TOPIC",
            "rmq_sys_x",
        ):
            assert await code_of(client.calls, make(bad, "g")) == "ILLEGAL_TOPIC", bad
        assert await code_of(client.calls, make("t" * 127, "g")) != "ILLEGAL_TOPIC"


@pytest.mark.parametrize("make", OF_A_TOPIC_AND_A_GROUP, ids=name_of)
async def test_an_invalid_group_name_is_refused(tmp_path: Path, make: Make) -> None:
    async with v2_broker(tmp_path) as (_, client):
        for bad in ("", " ", "a b", "a\n", "g" * 121, "CID_RMQ_SYS_x"):
            assert await code_of(client.calls, make("T", bad)) == "ILLEGAL_CONSUMER_GROUP", bad
        assert await code_of(client.calls, make("T", "g" * 120)) != "ILLEGAL_CONSUMER_GROUP"


@pytest.mark.parametrize("make", [*OF_A_TOPIC, *OF_A_TOPIC_AND_A_GROUP, *OF_NEITHER], ids=name_of)
async def test_a_client_that_does_not_say_who_it_is(tmp_path: Path, make: Make) -> None:
    async with v2_broker(tmp_path) as (_, client):
        for metadata in ((), (("x-mq-client-id", ""),)):
            assert await code_of(client.calls, make("T", "g"), metadata) == "CLIENT_ID_REQUIRED"


async def test_a_namespace_changes_no_name(tmp_path: Path) -> None:
    """The broker returns the namespace of a resource unchanged.  Node sends the namespace only as a header, which may
    also be empty.
    """
    async with v2_broker(tmp_path) as (_, client):
        namespace = "n" * 255  # as long as it may be
        topic, group = (d.Resource(name=name, resource_namespace=namespace) for name in ("T", "g"))
        await client.send(message("T"))
        request = s.ReceiveMessageRequest(
            message_queue=d.MessageQueue(topic=topic),
            group=group,
            batch_size=1,
            invisible_duration=Duration(seconds=60),
        )
        answers = [answer async for answer in client.ReceiveMessage(request)]
        (found,) = [answer.message for answer in answers if answer.HasField("message")]
        assert found.topic == topic
        settled = s.AckMessageRequest(
            topic=resource("T"),
            group=resource("g"),
            entries=[s.AckMessageEntry(receipt_handle=found.system_properties.receipt_handle)],
        )
        for header in ("", "other"):
            metadata = (*CLIENT, ("x-mq-namespace", header), ("x-mq-protocol", "GRPC_V2"))
            assert await code_of(client.calls, settled, metadata) == "OK"
        answer = await client.QueryAssignment(s.QueryAssignmentRequest(topic=topic, group=group))
        assert answer.assignments[0].message_queue.topic == topic
