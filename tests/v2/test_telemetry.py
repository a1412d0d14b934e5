"""Telemetry: settings are exchanged both ways, and no other call depends on them."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.wire.clients import ClientStream
from broker_service.wire.v2.settings import reply_to
from testbed.polling import until
from tests.support.brokers import answers_early
from tests.support.stores import records_of
from tests.support.v2 import CLIENT, DIALLED, client_of, message, resource, v2_broker

TIMEOUT = Duration(seconds=3)


def producer(**fields: Any) -> d.Settings:
    return d.Settings(
        client_type=d.PRODUCER,
        access_point=DIALLED,
        request_timeout=TIMEOUT,
        publishing=d.Publishing(topics=[resource("T")], max_body_size=1 << 27),
        user_agent=d.UA(language=d.PYTHON, version="5.1.2"),
        **fields,
    )


def consumer(
    group: str = "g", client_type: d.ClientType = d.PUSH_CONSUMER, language: d.Language = d.JAVA
) -> d.Settings:
    return d.Settings(
        client_type=client_type,
        access_point=DIALLED,
        user_agent=d.UA(language=language),
        subscription=d.Subscription(group=resource(group), subscriptions=[d.SubscriptionEntry(topic=resource("T"))]),
    )


def test_a_producers_settings() -> None:
    """If one of these settings is missing, Java's client fails, Go's and Node's wait for ever, and Python's never
    sends.
    """
    reply = reply_to(producer(), SubscriptionGroup(), 4 << 20)
    assert reply == d.Settings(
        client_type=d.PRODUCER,
        access_point=DIALLED,
        request_timeout=TIMEOUT,
        backoff_policy=d.RetryPolicy(
            max_attempts=3,
            exponential_backoff=d.ExponentialBackoff(
                initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2.0
            ),
        ),
        publishing=d.Publishing(topics=[resource("T")], max_body_size=4 << 20, validate_message_type=True),
        user_agent=d.UA(language=d.PYTHON, version="5.1.2"),
        metric=d.Metric(on=False),
    )
    assert reply.HasField("metric")  # Python's client refuses settings without a metric
    asked = producer(backoff_policy=d.RetryPolicy(max_attempts=7))
    assert reply_to(asked, SubscriptionGroup(), 1).backoff_policy.max_attempts == 7


def test_a_consumers_settings() -> None:
    """The reply has all settings that official consumers need."""
    reply = reply_to(consumer(), SubscriptionGroup("g", retry_max_times=2, consume_message_orderly=True), 1)
    assert reply.backoff_policy.max_attempts == 3
    minutes = [60 * number for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    times = [delay.seconds for delay in reply.backoff_policy.customized_backoff.next]
    assert times == [1, 5, 10, 30, *minutes]  # RocketMQ's
    assert reply_to(consumer(), SubscriptionGroup("g"), 1).backoff_policy.max_attempts == 17
    assert reply.subscription.group == resource("g")
    assert [entry.topic.name for entry in reply.subscription.subscriptions] == ["T"]
    assert (reply.subscription.fifo, reply.subscription.receive_batch_size) == (True, 32)
    assert reply.subscription.long_polling_timeout == Duration(seconds=20)
    assert (reply.subscription.lite_subscription_quota, reply.subscription.max_lite_topic_size) == (2000, 64)
    assert (reply.client_type, reply.access_point, reply.user_agent.language) == (d.PUSH_CONSUMER, DIALLED, d.JAVA)
    assert reply.HasField("metric") and not reply.metric.on
    assert reply_to(consumer(), SubscriptionGroup(retry_max_times=-1), 1).backoff_policy.max_attempts == 1


def test_node_gets_the_back_off_of_all_others() -> None:
    """Node's client takes the seconds of an exponential back-off for milliseconds, and uses 0 if it does not know the
    kind of back-off.
    """
    reply = reply_to(consumer(language=d.NODE_JS), SubscriptionGroup(), 1)
    assert reply.backoff_policy.WhichOneof("strategy") == "customized_backoff"


def test_a_groups_own_back_off_is_told_as_a_list_of_times() -> None:
    """Python's client knows no other kind of back-off."""
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1500, "max": 6000, "multiplier": 2}}
    reply = reply_to(consumer(), SubscriptionGroup("g", group_retry_policy=policy), 1)
    assert [delay.ToMilliseconds() for delay in reply.backoff_policy.customized_backoff.next] == [1500, 3000, 6000]


async def test_every_settings_are_answered_and_the_stream_ends_with_the_clients_half(tmp_path: Path) -> None:
    """Each answer to settings has a status."""
    async with v2_broker(tmp_path) as (node, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        for _ in range(2):
            await stream.write(s.TelemetryCommand(settings=producer()))
            answer = await asyncio.wait_for(stream.read(), 60)
            assert answer.status == d.Status(code=d.OK, message="OK")
            assert answer.settings.publishing.max_body_size == node.config.max_message_size
        await stream.done_writing()
        assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
async def test_a_stream_that_is_closed_while_it_gets_its_first_message_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The stream is closed `turns` turns of the event loop after the write of its first message has begun."""

    async def close(stream: ClientStream) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        stream.close()

    closing: list[asyncio.Task[None]] = []
    write = ClientStream.write

    async def write_meanwhile(self: ClientStream, command: Any) -> None:
        closing.append(asyncio.create_task(close(self)))
        await write(self, command)

    monkeypatch.setattr(ClientStream, "write", write_meanwhile)
    async with v2_broker(tmp_path) as (_, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=producer()))
        assert (await asyncio.wait_for(stream.read(), 60)).settings.HasField("publishing")
        assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
        await asyncio.gather(*closing)


async def test_a_group_that_is_ordered_says_so(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.groups.update(SubscriptionGroup("o", consume_message_orderly=True, retry_max_times=4), 0)
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=consumer("o")))
        reply = (await asyncio.wait_for(stream.read(), 60)).settings
        assert (reply.subscription.fifo, reply.backoff_policy.max_attempts) == (True, 5)
        stream.cancel()


@pytest.mark.parametrize(
    "settings",
    [d.Settings(client_type=d.PRODUCER), producer(), consumer("a b"), consumer(""), consumer()],
    ids=["neither", "topic", "group", "no group", "subscribed topic"],
)
async def test_settings_that_cannot_be_end_the_stream(tmp_path: Path, settings: d.Settings) -> None:
    for topics in (settings.publishing.topics, [entry.topic for entry in settings.subscription.subscriptions]):
        for topic in topics:
            topic.name = "rmq_sys_x"
    async with v2_broker(tmp_path) as (_, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=settings))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asyncio.wait_for(stream.read(), 60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("client_type", [d.LITE_PUSH_CONSUMER, d.LITE_SIMPLE_CONSUMER])
async def test_a_consumer_of_lite_topics_does_not_start(tmp_path: Path, client_type: d.ClientType) -> None:
    """RocketMQ's proxy also refuses a consumer of lite topics in a group without these, where the consumer would get
    all messages of its topic.
    """
    async with v2_broker(tmp_path) as (_, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=consumer(client_type=client_type)))
        with pytest.raises(grpc.aio.AioRpcError, match="regular group cannot use LITE mode") as refused:
            await asyncio.wait_for(stream.read(), 60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_may_say_goodbye_before_it_ends_its_stream(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=consumer()))
        await asyncio.wait_for(stream.read(), 60)
        ended = await client.NotifyClientTermination(s.NotifyClientTerminationRequest(group=resource("g")))
        assert ended.status.code == d.OK and len(node.clients) == 0
        await stream.done_writing()
        assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_topic_or_group_that_is_not_there_and_a_producer_without_topics_are_fine(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        unknown = producer()
        unknown.publishing.topics[0].name = "nope"
        none = producer()
        del none.publishing.topics[:]
        for settings in (unknown, none, consumer("nope")):
            await stream.write(s.TelemetryCommand(settings=settings))
            assert (await asyncio.wait_for(stream.read(), 60)).status.code == d.OK
        assert node.clients._producers == {}, "nothing is kept of names that anybody may think up"
        stream.cancel()


async def test_a_stream_counts_from_its_start_and_the_newest_of_a_client(tmp_path: Path) -> None:
    """A client that comes back after a restart opens the stream, and sends its settings only minutes later."""
    async with v2_broker(tmp_path) as (node, client):
        clients = node.clients
        first = client.calls.Telemetry(metadata=CLIENT)
        await first.write(s.TelemetryCommand())  # opens the call
        old = await until(lambda: clients.stream_of("client-1"), "the first stream")
        second = client.calls.Telemetry(metadata=CLIENT)
        await second.write(s.TelemetryCommand())
        await until(lambda: clients.stream_of("client-1") is not old, "the second stream")
        first.cancel()
        await until(lambda: clients.stream_count == 1, "the end of the first")
        told = s.TelemetryCommand(print_thread_stack_trace_command=s.PrintThreadStackTraceCommand(nonce="n"))
        stream = clients.stream_of("client-1")
        assert stream is not None and stream.send(told)
        assert await asyncio.wait_for(second.read(), 60) == told
        second.cancel()
        await until(lambda: clients.stream_of("client-1") is None, "the end of both")


async def test_nothing_needs_settings(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        assert (await client.send(message())).status.code == d.OK
        assert (await client.Heartbeat(s.HeartbeatRequest(client_type=d.PUSH_CONSUMER))).status.code == d.OK
        ended = await client.NotifyClientTermination(s.NotifyClientTerminationRequest(group=resource("")))
        assert ended.status.code == d.OK


async def test_a_heartbeat_needs_no_client_id_and_everything_else_does(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        assert (await client.calls.Heartbeat(s.HeartbeatRequest(), timeout=60)).status.code == d.OK
        route = await client.calls.QueryRoute(s.QueryRouteRequest(topic=resource("T")), timeout=60)
        assert route.status.code == d.CLIENT_ID_REQUIRED
        stream = client.calls.Telemetry()  # the broker ends the stream before the client writes anything
        assert (await asyncio.wait_for(stream.read(), 60)).status.code == d.CLIENT_ID_REQUIRED
        assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_deadlines_from_none_to_sixty_years_and_an_unknown_language(tmp_path: Path) -> None:
    """The client opens its Telemetry stream before it asks for any route, as Rust's client does."""
    async with v2_broker(tmp_path) as (_, client):
        request = s.SendMessageRequest(messages=[message()])
        for timeout in (None, 1_892_160_000.0, 3.0):
            assert (await client.SendMessage(request, timeout=timeout)).status.code == d.OK
        stream = client.calls.Telemetry(metadata=(*CLIENT, ("x-mq-language", "COBOL")), timeout=1_892_160_000.0)
        await stream.write(s.TelemetryCommand(settings=producer()))
        assert (await asyncio.wait_for(stream.read(), 60)).status.code == d.OK
        stream.cancel()


async def test_who_does_not_read_gets_a_bounded_number_of_commands_and_disturbs_nobody(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client), client_of(node, "client-2") as other:
        silent = client.calls.Telemetry(metadata=CLIENT)
        await silent.write(s.TelemetryCommand())
        stream = await until(lambda: node.clients.stream_of("client-1"), "the stream")
        large = s.TelemetryCommand(verify_message_command=s.VerifyMessageCommand(message=message(body=bytes(1 << 20))))
        taken = 0
        while stream.send(large):
            taken += 1
            assert taken < 1000
        assert (await other.send(message())).status.code == d.OK
        silent.cancel()


@pytest.mark.parametrize(
    "lies",
    [
        d.Settings(
            client_type=d.PRODUCER,
            publishing=d.Publishing(topics=[resource("T")], max_body_size=-1, validate_message_type=False),
            backoff_policy=d.RetryPolicy(max_attempts=-5, exponential_backoff=d.ExponentialBackoff(multiplier=-1e30)),
            metric=d.Metric(on=True),
        ),
        d.Settings(
            client_type=d.PRODUCER,  # with a subscription
            subscription=d.Subscription(
                group=resource("g"),
                fifo=True,
                receive_batch_size=-1,
                long_polling_timeout=Duration(seconds=-(1 << 36)),
            ),
        ),
        d.Settings(
            client_type=99,  # type: ignore[arg-type]
            subscription=d.Subscription(
                group=resource("g"),
                receive_batch_size=1 << 30,
                long_polling_timeout=Duration(seconds=1 << 36, nanos=-1),
            ),
        ),
    ],
    ids=["producer", "negative poll", "long poll"],
)
async def test_settings_that_lie_change_nothing_of_what_the_broker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: d.Settings
) -> None:
    """The broker's reply has the broker's own values, and a receive that uses the client's settings ends before its
    deadline.
    """
    answers_early(monkeypatch)
    async with v2_broker(tmp_path) as (node, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=lies))
        reply = (await asyncio.wait_for(stream.read(), 60)).settings
        assert not reply.metric.on
        if lies.HasField("publishing"):
            assert reply.publishing.max_body_size == node.config.max_message_size
            assert reply.publishing.validate_message_type
        else:
            assert (reply.subscription.fifo, reply.subscription.receive_batch_size) == (False, 32)
            assert reply.subscription.long_polling_timeout == Duration(seconds=20)
        receive = s.ReceiveMessageRequest(
            group=resource("g"),
            message_queue=d.MessageQueue(topic=resource("T")),
            batch_size=1,
            invisible_duration=Duration(seconds=60),
        )
        answers = [answer async for answer in client.ReceiveMessage(receive, timeout=10)]
        assert answers[0].status.code == d.MESSAGE_NOT_FOUND
        assert (await client.send(message())).status.code == d.OK
        stream.cancel()


async def test_who_floods_with_settings_and_reads_no_answer_is_not_read_either(tmp_path: Path) -> None:
    """The broker takes the next command only when the client has taken the answer to the last one."""

    class Flood:
        """A client that sends without end, and reads nothing."""

        def __init__(self) -> None:
            self.begun = asyncio.Event()
            self.taken = 0

        def invocation_metadata(self) -> Any:
            return CLIENT

        async def read(self) -> s.TelemetryCommand:
            self.taken += 1
            return s.TelemetryCommand(settings=producer())

        async def write(self, command: s.TelemetryCommand) -> None:
            self.begun.set()
            await asyncio.Event().wait()

    async with v2_broker(tmp_path) as (node, client):
        context = Flood()
        servicer: Any = node.v2_port.servicer
        call = asyncio.create_task(servicer.Telemetry(None, context))
        await asyncio.wait_for(context.begun.wait(), 60)
        assert (
            await client.send(message())
        ).status.code == d.OK  # other clients are served, and the event loop has run
        assert context.taken == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_clients_clock_decides_nothing_but_what_it_says_of_itself(tmp_path: Path) -> None:
    """Messages that were born in 1970 or 2200 are stored, delivered and expired by the broker's clock."""
    async with v2_broker(tmp_path) as (node, client):
        now_ms = node.broker.now_ms()
        for born in (Timestamp(seconds=1), Timestamp(seconds=7_258_118_400)):
            assert (await client.send(message(born_timestamp=born))).status.code == d.OK
        found = [one for one in records_of(node.store) if one.topic == "T"]
        assert [one.born_timestamp for one in found] == [1_000, 7_258_118_400_000]
        assert all(now_ms <= one.store_timestamp <= node.broker.now_ms() for one in found)
        receive = s.ReceiveMessageRequest(
            group=resource("g"),
            message_queue=d.MessageQueue(topic=resource("T")),
            batch_size=2,
            invisible_duration=Duration(seconds=60),
        )
        received = 0
        while received < 2:
            answers = [answer async for answer in client.ReceiveMessage(receive)]
            received += sum(answer.HasField("message") for answer in answers)
            assert answers[0].status.code == d.OK
