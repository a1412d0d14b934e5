"""Tests ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue against a broker."""

import asyncio
import errno
import os
import zlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto.records.record import SYS_FLAG_COMPRESSED, Record
from rocketsim_proto.reserved import STATE_TOPIC

from broker_service.admin.operations import Operations
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import MessageIllegal, ReadFailed, SystemBusy
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop, Popped, PopStatus
from broker_service.runtime.deadlines import NO_DEADLINE_S
from broker_service.store.files import DiskUsage
from broker_service.wire.v2 import delivered_message, servicer, status
from broker_service.wire.v2.receiving import Receiving
from broker_service.wire.v2.unsent import Unsent
from testbed.polling import until
from tests.support.brokers import answers_early, put
from tests.support.v2 import CLIENT, Client, client_of, message, resource, v2_broker

T, G = resource("T"), resource("g")


def receive(**fields: Any) -> s.ReceiveMessageRequest:
    """Returns a request like a simple consumer's: it names a queue, and does not wait for messages."""
    topic = fields.pop("topic", "T")
    defaults: dict[str, Any] = {
        "group": G,
        "message_queue": d.MessageQueue(topic=resource(topic), id=0, broker=d.Broker(name="broker-a")),
        "filter_expression": d.FilterExpression(type=d.TAG, expression="*"),
        "batch_size": 32,
        "invisible_duration": Duration(seconds=30),
        "long_polling_timeout": Duration(),
    }
    request = s.ReceiveMessageRequest(**defaults | fields)
    if request.auto_renew:
        request.ClearField("invisible_duration")
    return request


async def answers(client: Client, request: s.ReceiveMessageRequest) -> list[s.ReceiveMessageResponse]:
    return [answer async for answer in client.ReceiveMessage(request)]


async def received(client: Client, **fields: Any) -> list[d.Message]:
    return [answer.message for answer in await answers(client, receive(**fields)) if answer.HasField("message")]


async def status_of(client: Client, **fields: Any) -> d.Status:
    return (await answers(client, receive(**fields)))[0].status


def handle_of(one: d.Message) -> str:
    return one.system_properties.receipt_handle


def ack_of(*messages: d.Message, group: d.Resource = G, topic: d.Resource = T) -> s.AckMessageRequest:
    entries = [
        s.AckMessageEntry(message_id=one.system_properties.message_id, receipt_handle=handle_of(one))
        for one in messages
    ]
    return s.AckMessageRequest(group=group, topic=topic, entries=entries)


def change_of(one: d.Message, seconds: float, **fields: Any) -> s.ChangeInvisibleDurationRequest:
    duration = Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
    return s.ChangeInvisibleDurationRequest(
        group=G, topic=T, receipt_handle=handle_of(one), invisible_duration=duration, **fields
    )


async def test_a_message_is_received_acknowledged_and_does_not_come_again(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        await client.send(message(tag="A", keys=["k"], user={"a": "1"}))
        status, found, sent_at = await answers(client, receive())
        assert (status.status.code, status.status.message) == (d.OK, "OK")
        assert sent_at.HasField("delivery_timestamp")
        assert (found.message.body, found.message.user_properties["a"]) == (b"hello", "1")
        assert found.message.system_properties.delivery_attempt == 1
        assert found.message.topic == T
        acked = await client.AckMessage(ack_of(found.message))
        entry = s.AckMessageResultEntry(
            message_id=found.message.system_properties.message_id,
            receipt_handle=handle_of(found.message),
            status=acked.status,
        )
        assert acked == s.AckMessageResponse(status=d.Status(code=d.OK, message="OK"), entries=[entry])
        assert (await status_of(client)).code == d.MESSAGE_NOT_FOUND


async def test_settings_may_come_after_the_first_receive_or_never(tmp_path: Path) -> None:
    """Python's simple consumer receives before it sends settings.  Go's simple consumer sends no settings for minutes
    after a restart.
    """
    async with v2_broker(tmp_path) as (_, client):
        await client.send(message())
        assert len(await received(client)) == 1


async def test_a_message_of_any_queue_comes_whichever_queue_is_named(tmp_path: Path) -> None:
    """A receive returns messages of all queues of the topic, although the request names one queue."""
    async with v2_broker(tmp_path) as (_, client):
        for number in range(4):
            await client.send(message(message_id=str(number)))
        found = await received(client)
        assert sorted(one.system_properties.message_id for one in found) == ["0", "1", "2", "3"]
        assert {one.system_properties.queue_id for one in found} == {0, 1, 2, 3}


async def test_nothing_there_is_message_not_found_with_its_reason(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        status, last = await answers(client, receive())
        assert status.status.code == d.MESSAGE_NOT_FOUND and "no new message" in status.status.message
        assert last.HasField("delivery_timestamp")
        await client.send(message(tag="A"))
        filtered = await status_of(client, filter_expression=d.FilterExpression(type=d.TAG, expression="B"))
        assert filtered.code == d.MESSAGE_NOT_FOUND and "no match message" in filtered.message


@pytest.mark.parametrize(
    ("topic", "group", "text"),
    [
        ("W", "g", "topic W cannot be read: its perm is 2"),
        ("T", "off", "consumer group off may not consume: its consumeEnable is false"),
    ],
)
async def test_who_may_not_consume_is_told_so(tmp_path: Path, topic: str, group: str, text: str) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.topics.update(TopicConfig("W", 1, 1, perm=2), 0)
        node.groups.update(SubscriptionGroup("off", consume_enable=False), 0)
        status = await status_of(client, topic=topic, group=resource(group))
        assert (status.code, text in status.message) == (d.FORBIDDEN, True), status


async def test_tags_are_compared_whole(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        for tag in ("Aa", "BB", "aA", ""):  # Aa and BB have the same hash
            await client.send(message(tag=tag, body=tag.encode() or b"none"))
        for group, expression, bodies in (
            ("one", "Aa", [b"Aa"]),
            ("two", "BB || aA", [b"BB", b"aA"]),
            ("close", "BB||aA", [b"BB", b"aA"]),
            ("forgiven", "|| Aa ||", [b"Aa"]),
            ("blank", " ", [b"Aa", b"BB", b"aA", b"none"]),
            ("all", "", [b"Aa", b"BB", b"aA", b"none"]),
            ("star", "*", [b"Aa", b"BB", b"aA", b"none"]),
        ):
            found = await received(
                client, group=resource(group), filter_expression=d.FilterExpression(type=d.TAG, expression=expression)
            )
            assert sorted(one.body for one in found) == sorted(bodies), group
        wanted = d.FilterExpression(expression="Aa")  # of no type: by tags
        assert [one.body for one in await received(client, group=resource("h"), filter_expression=wanted)] == [b"Aa"]


async def test_sql_selects_by_user_properties_and_tag(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, enable_property_filter=True) as (_, client):
        for number, price in enumerate((10, 20, 30)):
            await client.send(message(tag=f"T{number}", body=b"%d" % price, user={"price": str(price)}))
        await client.send(message(body=b"none"))
        for group, expression, bodies in (
            ("one", "price > 15", [b"20", b"30"]),
            ("two", "price BETWEEN 10 AND 20 AND TAGS <> 'T0'", [b"20"]),
            ("three", "unknown > 5", []),
            ("four", "price IS NULL OR TAGS IN ('T2')", [b"30", b"none"]),
        ):
            wanted = d.FilterExpression(type=d.SQL, expression=expression)
            found = await received(client, group=resource(group), filter_expression=wanted)
            assert sorted(one.body for one in found) == bodies, group
        for expression in ("", "price >", "*", " OR ".join(["a = 1"] * 100)):
            wanted = d.FilterExpression(type=d.SQL, expression=expression)
            refused = await status_of(client, filter_expression=wanted)
            assert refused.code == d.ILLEGAL_FILTER_EXPRESSION and "SQL92" in refused.message


async def test_a_poll_is_notified_of_a_message(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        polling = asyncio.create_task(received(client, long_polling_timeout=Duration(seconds=20)))
        await until(lambda: node.consumption.polls_held, "the poll is held")
        await client.send(message())
        assert [one.body for one in await polling] == [b"hello"]


async def test_a_poll_ends_before_the_callers_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rust's deadline is the time of its poll."""
    answers_early(monkeypatch)
    async with v2_broker(tmp_path) as (_, client):
        request = receive(long_polling_timeout=Duration(seconds=30))
        found = [answer async for answer in client.ReceiveMessage(request, timeout=10)]
        assert found[0].status.code == d.MESSAGE_NOT_FOUND


async def poll_of(node: BrokerNode, client_id: str, asked: Duration | None, left_s: float) -> float:
    """Returns for how many seconds a receive is held."""
    polls: list[float] = []

    class Calls:
        async def pop(self, pop: Pop) -> Popped:
            polls.append(pop.poll_s)
            return Popped(status=PopStatus.NO_MESSAGE, popped_ms=0)

    receiving = Receiving(node.broker, Calls(), node.clients)  # type: ignore[arg-type]
    await receiving.pop(receive(long_polling_timeout=asked), client_id, left_s)
    (poll_s,) = polls
    return poll_s


@pytest.mark.parametrize(
    ("asked", "left_s", "poll_s"),
    [
        (None, 8.0, 5.0),  # the deadline of official clients is 3 s after the end of the poll
        (None, 2.0, 0.0),
        (Duration(seconds=5), 8.0, 5.0),
        (Duration(seconds=40), 40.0, 39.0),  # Rust's deadline is the poll's time, and the answer has to come before it
        (Duration(seconds=1 << 36), NO_DEADLINE_S, NO_DEADLINE_S - 1),
        (Duration(seconds=-5), 8.0, 0.0),
    ],
)
async def test_how_long_a_poll_lasts_of_a_client_without_settings(
    tmp_path: Path, asked: Duration | None, left_s: float, poll_s: float
) -> None:
    async with v2_broker(tmp_path) as (node, _):
        assert await poll_of(node, "nobody", asked, left_s) == pytest.approx(poll_s)


async def test_a_poll_without_a_time_lasts_as_the_settings_say_and_without_a_deadline_works(tmp_path: Path) -> None:
    """Go's simple consumer never sends a time for its polls."""
    async with v2_broker(tmp_path) as (node, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        subscription = d.Subscription(group=G, long_polling_timeout=Duration(seconds=7))
        settings = d.Settings(client_type=d.SIMPLE_CONSUMER, subscription=subscription)
        await stream.write(s.TelemetryCommand(settings=settings))
        await stream.read()
        for asked, poll_s in ((None, 7.0), (Duration(seconds=2), 2.0)):
            assert await poll_of(node, "client-1", asked, NO_DEADLINE_S) == poll_s
        await client.send(message())
        request = receive(long_polling_timeout=None)
        found = [answer async for answer in client.ReceiveMessage(request, timeout=None)]
        assert found[0].status.code == d.OK
        stream.cancel()


async def test_batches_of_more_than_are_allowed_are_cut(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        for number in range(10):
            await client.send(*[message(message_id=f"{number}-{part}") for part in range(5)])
        assert len(await received(client, batch_size=100_000)) == 32
        assert len(await received(client, batch_size=5)) == 5
        assert len(await received(client, batch_size=0)) == 13


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"group": resource("")}, d.ILLEGAL_CONSUMER_GROUP, ""),
        ({"group": resource("CID_RMQ_SYS_x")}, d.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group"),
        ({"topic": "TBW102"}, d.ILLEGAL_TOPIC, "cannot access system topic"),
        (
            {"topic": "none"},
            d.TOPIC_NOT_FOUND,
            "CODE: 17  DESC: No topic route info in name server for the topic: none",
        ),
        ({"batch_size": -1}, d.BAD_REQUEST, "negative"),
        (
            {"invisible_duration": Duration(seconds=9)},
            d.ILLEGAL_INVISIBLE_TIME,
            "invisibleTime is too small. min is 10000",
        ),
        ({"invisible_duration": None}, d.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 10000"),
        ({"invisible_duration": Duration(seconds=10)}, d.MESSAGE_NOT_FOUND, "no new message"),
        ({"invisible_duration": Duration(seconds=43_200)}, d.MESSAGE_NOT_FOUND, "no new message"),
        (
            {"invisible_duration": Duration(seconds=43_200, nanos=1_000_000)},
            d.ILLEGAL_INVISIBLE_TIME,
            "the invisibleTime is too large. max is 43200000",
        ),
        ({"filter_expression": d.FilterExpression(type=d.TAG, expression="||")}, d.ILLEGAL_FILTER_EXPRESSION, "tag"),
        (
            {"filter_expression": d.FilterExpression(type=d.TAG, expression="A || *")},
            d.ILLEGAL_FILTER_EXPRESSION,
            "* must stand alone",
        ),
        ({"filter_expression": d.FilterExpression(type=d.SQL, expression="a > 1")}, d.UNSUPPORTED, "SQL92"),
        ({"message_queue": d.MessageQueue(topic=T, broker=d.Broker(name="z"))}, d.BAD_REQUEST, "not z"),
    ],
)
async def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], code: d.Code, text: str) -> None:
    async with v2_broker(tmp_path) as (_, client):
        status = await status_of(client, **fields)
        assert (d.Code.Name(status.code), text in status.message) == (d.Code.Name(code), True), status


async def test_without_a_client_id_nothing_is_received_or_settled(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        first, _ = [answer async for answer in client.calls.ReceiveMessage(receive(), timeout=60)]
        assert first.status.code == d.CLIENT_ID_REQUIRED
        one = message()
        for call, request in (
            ("AckMessage", ack_of(one)),
            ("ChangeInvisibleDuration", change_of(one, 1)),
            ("ForwardMessageToDeadLetterQueue", s.ForwardMessageToDeadLetterQueueRequest(group=G, topic=T)),
        ):
            assert (await getattr(client.calls, call)(request, timeout=60)).status.code == d.CLIENT_ID_REQUIRED


async def test_a_handle_dies_at_its_deadline_and_the_message_comes_again(tmp_path: Path) -> None:
    """The answer and its entry have INVALID_RECEIPT_HANDLE, the only code at which push consumers stop trying."""
    async with v2_broker(tmp_path, min_invisible_time_mills_for_recv=0) as (_, client):
        await client.send(message())
        (first,) = await received(client, invisible_duration=Duration(nanos=50_000_000))
        (second,) = await received(client, long_polling_timeout=Duration(seconds=8))
        assert second.system_properties.delivery_attempt == 2
        assert second.system_properties.message_id == first.system_properties.message_id
        assert second.topic == T
        acked = await client.AckMessage(ack_of(first))
        assert acked.status.code == acked.entries[0].status.code == d.INVALID_RECEIPT_HANDLE
        assert "INVALID_RECEIPT_HANDLE" in acked.entries[0].status.message
        changed = await client.ChangeInvisibleDuration(change_of(first, 20))
        assert (changed.status.code, changed.receipt_handle) == (d.INVALID_RECEIPT_HANDLE, handle_of(first))
        both = await client.AckMessage(ack_of(first, second))
        assert both.status.code == d.MULTIPLE_RESULTS
        assert [entry.status.code for entry in both.entries] == [d.INVALID_RECEIPT_HANDLE, d.OK]


@pytest.mark.parametrize("handle", ["", "x", "A" * 24, "0 1 2 3 0 broker-a 0 0 0", "\x00é"], ids=range(5))
async def test_a_handle_that_is_none_is_invalid_and_nothing_worse(tmp_path: Path, handle: str) -> None:
    async with v2_broker(tmp_path) as (_, client):
        await client.send(message())
        await received(client)
        one = message(receipt_handle=handle)
        assert (await client.AckMessage(ack_of(one))).status.code == d.INVALID_RECEIPT_HANDLE
        changed = await client.ChangeInvisibleDuration(change_of(one, 20))
        assert (changed.status.code, changed.receipt_handle) == (d.INVALID_RECEIPT_HANDLE, handle)
        request = s.ForwardMessageToDeadLetterQueueRequest(group=G, topic=T, receipt_handle=handle)
        assert (await client.ForwardMessageToDeadLetterQueue(request)).status.code == d.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(("group", "topic"), [("other", "T"), ("g", "M"), ("other", "M"), ("g", "%RETRY%g+T")])
async def test_a_handle_of_another_group_or_topic_is_invalid(tmp_path: Path, group: str, topic: str) -> None:
    """The handle is invalid even if the caller has the rights for the named group and topic.  The delivery itself stays
    valid.
    """
    async with v2_broker(tmp_path) as (_, client):
        await client.send(message())
        (one,) = await received(client)
        named = {"group": resource(group), "topic": resource(topic)}
        acked = await client.AckMessage(ack_of(one, **named))
        assert acked.status.code == acked.entries[0].status.code == d.INVALID_RECEIPT_HANDLE
        change = change_of(one, 0)
        change.MergeFrom(s.ChangeInvisibleDurationRequest(**named))
        assert (await client.ChangeInvisibleDuration(change)).status.code == d.INVALID_RECEIPT_HANDLE
        request = s.ForwardMessageToDeadLetterQueueRequest(**named, receipt_handle=handle_of(one))
        assert (await client.ForwardMessageToDeadLetterQueue(request)).status.code == d.INVALID_RECEIPT_HANDLE
        assert (await client.AckMessage(ack_of(one))).status.code == d.OK


async def test_handles_of_a_topic_that_is_gone_are_invalid(tmp_path: Path) -> None:
    """With any other code, push consumers would try to acknowledge the topic's messages every second for ever."""
    async with v2_broker(tmp_path) as (node, client):
        await client.send(message())
        (one,) = await received(client)
        await Operations(node.broker, node.leadership).delete_topic("T")
        acked = await client.AckMessage(ack_of(one))
        assert acked.status.code == acked.entries[0].status.code == d.INVALID_RECEIPT_HANDLE
        changed = await client.ChangeInvisibleDuration(change_of(one, 20))
        assert (changed.status.code, changed.receipt_handle) == (d.INVALID_RECEIPT_HANDLE, handle_of(one))
        request = s.ForwardMessageToDeadLetterQueueRequest(group=G, topic=T, receipt_handle=handle_of(one))
        assert (await client.ForwardMessageToDeadLetterQueue(request)).status.code == d.INVALID_RECEIPT_HANDLE
        assert (await status_of(client)).code == d.TOPIC_NOT_FOUND


async def test_a_changed_time_keeps_the_handle_and_zero_gives_the_message_back(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        await client.send(message())
        (one,) = await received(client)
        changed = await client.ChangeInvisibleDuration(change_of(one, 60))
        assert (changed.status.code, changed.receipt_handle) == (d.OK, handle_of(one))
        changed = await client.ChangeInvisibleDuration(change_of(one, 0))
        assert changed.status.code == d.OK
        (again,) = await received(client, long_polling_timeout=Duration(seconds=8))
        assert again.system_properties.delivery_attempt == 2
        assert (await client.AckMessage(ack_of(again))).status.code == d.OK


async def test_a_group_that_is_not_made_by_itself_is_not_found(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, auto_create_subscription_group=False) as (node, client):
        assert (await status_of(client)).code == d.CONSUMER_GROUP_NOT_FOUND
        node.groups.update(SubscriptionGroup("g"), 0)
        assert (await status_of(client)).code == d.MESSAGE_NOT_FOUND


async def test_consumers_make_a_bounded_number_of_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_service.broker.metadata.groups.MOST_MADE", 2)
    async with v2_broker(tmp_path) as (node, client):
        found = await asyncio.gather(*(status_of(client, group=resource(name)) for name in "abcd"))
        assert sorted(status.code for status in found) == [d.MESSAGE_NOT_FOUND] * 2 + [d.TOO_MANY_REQUESTS] * 2
        assert len(node.groups.entries) == 2
        (made, *_), (refused, *_) = (
            [name for name, status in zip("abcd", found, strict=True) if status.code == code]
            for code in (d.MESSAGE_NOT_FOUND, d.TOO_MANY_REQUESTS)
        )
        assert (await status_of(client, group=resource(made))).code == d.MESSAGE_NOT_FOUND
        text = (await status_of(client, group=resource(refused))).message
        assert "there are 2 consumer groups" in text and "updateSubGroup" in text
        node.groups.update(SubscriptionGroup(refused), 0)
        assert (await status_of(client, group=resource(refused))).code == d.MESSAGE_NOT_FOUND


async def test_more_than_a_group_may_have_under_way_are_too_many(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, max_under_way_per_group=1) as (_, client):
        await client.send(message(message_id="1"))
        (one,) = await received(client)
        await client.send(message(message_id="2"))
        assert (await status_of(client)).code == d.TOO_MANY_REQUESTS
        assert (await status_of(client, group=resource("h"))).code == d.OK
        await client.AckMessage(ack_of(one))
        assert len(await received(client)) == 1


async def test_a_clients_polls_do_not_take_the_place_of_others(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, max_long_polls=4) as (node, client), client_of(node, "other") as other:
        waits = {"long_polling_timeout": Duration(seconds=20)}
        polls = [asyncio.create_task(status_of(client, **waits))]
        await until(lambda: node.consumption.polls_held == 1, "a poll waits")
        assert (await status_of(client, **waits)).code == d.TOO_MANY_REQUESTS
        polls.append(asyncio.create_task(status_of(other, **waits)))
        await until(lambda: node.consumption.polls_held == 2, "another client's poll waits")
        for number in range(2):
            await client.send(message(message_id=str(number)))
        assert [status.code for status in await asyncio.gather(*polls)] == [d.OK, d.OK]


async def test_a_suspended_message_counts_no_attempt(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        await client.send(message())
        (one,) = await received(client)
        assert (await client.ChangeInvisibleDuration(change_of(one, 0, suspend=True))).status.code == d.OK
        (again,) = await received(client, long_polling_timeout=Duration(seconds=8))
        assert again.system_properties.delivery_attempt == 1


async def test_half_a_day_is_the_longest_time_and_with_renewal_none_is_asked_for(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        await client.send(message())
        request = receive(auto_renew=True)
        request.invisible_duration.CopyFrom(Duration(seconds=1))
        _, found, _ = await answers(client, request)
        assert (await client.ChangeInvisibleDuration(change_of(found.message, 43_200))).status.code == d.OK


@pytest.mark.parametrize(("seconds", "text"), [(-1, "too small. min is 0"), (43_201, "too large. max is 43200000")])
async def test_a_time_that_cannot_be_is_refused_and_the_handle_given_back(
    tmp_path: Path, seconds: int, text: str
) -> None:
    async with v2_broker(tmp_path) as (_, client):
        changed = await client.ChangeInvisibleDuration(change_of(message(receipt_handle="h"), seconds))
        assert (changed.status.code, changed.receipt_handle) == (d.ILLEGAL_INVISIBLE_TIME, "h")
        assert text in changed.status.message


@pytest.mark.parametrize("settings_came", [True, False])
async def test_a_push_consumers_zero_means_the_groups_back_off(tmp_path: Path, settings_came: bool) -> None:
    """Node's push consumer returns a failed message with an invisible time of 0, perhaps before the broker has its
    settings.
    """
    async with v2_broker(tmp_path) as (node, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        if settings_came:
            settings = d.Settings(client_type=d.PUSH_CONSUMER, subscription=d.Subscription(group=G))
            await stream.write(s.TelemetryCommand(settings=settings))
            await stream.read()
        await client.send(message())
        (one,) = await received(client, auto_renew=True)
        before = node.machine.now_ms()
        assert (await client.ChangeInvisibleDuration(change_of(one, 0))).status.code == d.OK
        (again,) = await received(client, auto_renew=True, long_polling_timeout=Duration(seconds=8))
        assert again.system_properties.delivery_attempt == 2
        assert node.machine.now_ms() - before >= 1000  # the first step
        stream.cancel()


async def test_the_dead_letters_get_one_copy_however_often_they_are_asked(tmp_path: Path) -> None:
    """Clients repeat a move to the dead letters until its answer is OK."""
    async with v2_broker(tmp_path) as (node, client):
        await client.send(message())
        (one,) = await received(client)
        request = s.ForwardMessageToDeadLetterQueueRequest(group=G, topic=T, receipt_handle=handle_of(one))
        for _ in range(2):
            assert (await client.ForwardMessageToDeadLetterQueue(request)).status.code == d.OK
        assert node.store.queues.end("%DLQ%g", 0) == 1
        dlq = resource("%DLQ%g")
        route = await client.QueryRoute(s.QueryRouteRequest(topic=dlq))
        assert [(queue.topic, queue.id) for queue in route.message_queues] == [(dlq, 0)]
        assigned = await client.QueryAssignment(s.QueryAssignmentRequest(topic=dlq, group=resource("undertaker")))
        assert assigned.status.code == d.OK
        (dead,) = await received(client, topic="%DLQ%g", group=resource("undertaker"))
        assert (dead.topic, dead.system_properties.message_id) == (dlq, one.system_properties.message_id)
        origin = d.DeadLetterQueue(topic="T", message_id=one.system_properties.message_id)
        assert (dead.body, dead.system_properties.dead_letter_queue) == (b"hello", origin)
        sent = await client.send(message("%DLQ%g"))
        assert sent.status.code == d.FORBIDDEN and "belongs to the broker" in sent.status.message


async def test_a_message_that_nobody_settles_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.groups.update(SubscriptionGroup("g", retry_max_times=1), 0)
        await client.send(message())
        for attempt in (1, 2):
            (one,) = await received(client, long_polling_timeout=Duration(seconds=8))
            assert one.system_properties.delivery_attempt == attempt
            await client.ChangeInvisibleDuration(change_of(one, 0))
        await until(lambda: node.store.queues.end("%DLQ%g", 0) == 1, "the dead letter")


async def test_without_its_slave_a_master_still_takes_acks(tmp_path: Path) -> None:
    """If the master refused, a push consumer would repeat its acks every second for as long as the slave is away."""
    keys = {"broker_role": BrokerRole.SYNC_MASTER, "slave_wait_time_ms": 0}
    async with v2_broker(tmp_path, **keys) as (_, client):
        assert (await client.send(message())).status.code == d.HA_NOT_AVAILABLE
        (one,) = await received(client)
        assert (await client.ChangeInvisibleDuration(change_of(one, 20))).status.code == d.OK
        assert (await client.AckMessage(ack_of(one))).status.code == d.OK
        assert await received(client) == []


async def test_what_a_caller_did_not_get_comes_again_and_counts_no_attempt(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        call = client.calls.ReceiveMessage(receive(long_polling_timeout=Duration(seconds=20)), metadata=CLIENT)
        await until(lambda: node.consumption.polls_held, "the poll is held")
        call.cancel()
        await until(lambda: not node.consumption.polls_held, "the poll has ended")
        await client.send(message())
        (one,) = await received(client, long_polling_timeout=Duration(seconds=8))
        assert one.system_properties.delivery_attempt == 1


class ReadsLittle:
    """The context of a call whose client takes so many answers and then reads no more."""

    def __init__(self, answers: int) -> None:
        self.taken: list[s.ReceiveMessageResponse] = []
        self.is_full = asyncio.Event()
        self._answers = answers

    def invocation_metadata(self) -> Any:
        return CLIENT

    def time_remaining(self) -> float:
        return 60.0

    async def write(self, answer: s.ReceiveMessageResponse) -> None:
        if len(self.taken) == self._answers:
            self.is_full.set()
            await asyncio.Event().wait()
        self.taken.append(answer)

    async def receives(self, node: BrokerNode, **fields: Any) -> asyncio.Task[None]:
        """Starts a receive, waits until the call cannot write any more, and returns the call."""
        servicer = node.v2_port.servicer
        call = asyncio.create_task(servicer.ReceiveMessage(receive(**fields), self))  # type: ignore[arg-type]
        await self.is_full.wait()
        return call


async def ended(call: asyncio.Task[None]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_of_an_answer_that_breaks_off_only_what_was_being_sent_counts(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        await client.send(*[message(body=b"%d" % number) for number in range(4)])
        call = await ReadsLittle(2).receives(node)  # the client reads the status and one message
        assert await received(client) == []
        await ended(call)
        attempts: dict[bytes, int] = {}
        while len(attempts) < 4:
            for one in await received(client, long_polling_timeout=Duration(seconds=8)):
                attempts[one.body] = one.system_properties.delivery_attempt
        assert attempts == {b"0": 2, b"1": 2, b"2": 1, b"3": 1}


async def test_who_does_not_read_holds_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts bytes as they are sent.  A body with our own clients' compression counts with its unpacked size,
    because the broker unpacks it for these clients.
    """
    unsent = Unsent(most=40_000)
    monkeypatch.setattr(servicer, "Unsent", lambda: unsent)
    async with v2_broker(tmp_path) as (node, client), client_of(node, "client-2") as other:
        await put(node, "T", zlib.compress(bytes(9_000)), sys_flag=SYS_FLAG_COMPRESSED)
        call = await ReadsLittle(1).receives(node, group=resource("a"))
        refused = await status_of(client, group=resource("b"))
        assert refused.code == d.TOO_MANY_REQUESTS and "bytes of messages yet" in refused.message
        # The message that the first client has not read was given back.
        (one,) = await received(other, group=resource("b"), long_polling_timeout=Duration(seconds=8))
        assert one.system_properties.delivery_attempt == 1
        await ended(call)
        assert len(await received(client, group=resource("c"))) == 1
        for client_id in ("client-1", "client-2"):
            unsent.check(client_id, 40_000)  # raises if the client still had bytes to read


def test_bytes_that_are_not_sent_are_bounded_of_all_clients_and_of_each() -> None:
    unsent = Unsent(most=100)
    assert unsent.take("large", 1000) == 1000  # a single answer may be larger than the limit
    with pytest.raises(SystemBusy, match="1000 bytes of messages are being sent to clients"):
        unsent.check("b")
    unsent.give("large", 1000)
    for client in "abc":
        unsent.take(client, 25)
        with pytest.raises(SystemBusy, match="this client has not read 25 bytes"):
            unsent.check(client)
    unsent.take("d", 25)
    with pytest.raises(SystemBusy, match="100 bytes of messages are being sent"):
        unsent.take("e", 1)
    unsent.give("d", 25)
    unsent.take("e", 1)


async def test_each_call_of_a_consumer_says_that_it_is_there(tmp_path: Path) -> None:
    """A consumer that makes any of its calls counts as alive, even without a stream, and its messages are renewed.  A
    producer's heartbeat does not count as a consumer's.
    """
    async with v2_broker(tmp_path) as (node, _):
        for request in (
            s.QueryAssignmentRequest(topic=T, group=G),
            ack_of(message(receipt_handle="x")),
            change_of(message(receipt_handle="x"), 10),
            s.ForwardMessageToDeadLetterQueueRequest(group=G, topic=T, receipt_handle="x"),
            s.HeartbeatRequest(group=G, client_type=d.PUSH_CONSUMER),
        ):
            name = type(request).__name__.removesuffix("Request")
            async with client_of(node, name) as client:
                await getattr(client, name)(request)
                assert node.clients.is_connected(name), name
        async with client_of(node, "ReceiveMessage") as client:
            await received(client)
            assert node.clients.is_connected("ReceiveMessage")
        async with client_of(node, "producer") as client:
            await client.Heartbeat(s.HeartbeatRequest(client_type=d.PRODUCER))
            await client.send(message())
            assert not node.clients.is_connected("producer")


async def test_a_push_consumer_that_says_goodbye_leaves_its_messages_to_others(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client), client_of(node, "client-2") as other:
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand())
        await client.send(message())
        assert len(await received(client, auto_renew=True)) == 1
        assert await received(other, auto_renew=True) == []
        ended = await client.NotifyClientTermination(s.NotifyClientTerminationRequest(group=G))
        assert ended.status.code == d.OK
        assert len(await received(other, auto_renew=True, long_polling_timeout=Duration(seconds=8))) == 1
        stream.cancel()


async def test_a_push_consumer_that_dies_does_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_service.wire.clients.STREAM_GONE_S", 0.05)
    async with v2_broker(tmp_path) as (node, client), client_of(node, "client-2") as other:
        stream = client.calls.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand())
        await until(lambda: node.clients.stream_of("client-1"), "its stream")
        await client.send(message())
        assert len(await received(client, auto_renew=True)) == 1
        stream.cancel()
        assert len(await received(other, auto_renew=True, long_polling_timeout=Duration(seconds=8))) == 1


async def test_a_full_disk_refuses_what_is_sent_in_rocketmqs_words_without_a_path_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with v2_broker(tmp_path, disk_space_warning_level_ratio=90) as (node, client):
        await client.send(message())
        (found,) = await received(client)
        half = message("X", message_type=d.TRANSACTION)
        assert (await client.send(half)).status.code == d.OK
        monkeypatch.setattr(node.store.disk, "disk_usage", lambda _: DiskUsage(100, 5))
        node.store.retention.delete_expired(node.broker.now_ms())
        refused = (await client.send(message())).status
        assert refused.code == d.TOO_MANY_REQUESTS and "95 % full" in refused.message
        assert (await client.AckMessage(ack_of(found))).status.code == d.OK
        ended = await client.EndTransaction(
            s.EndTransactionRequest(
                topic=resource("X"), transaction_id=half.system_properties.message_id, resolution=d.COMMIT
            )
        )
        assert ended.status.code == d.OK

        def no_room(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "commitlog/0"))

        node.store.admission.disk_too_full = None
        monkeypatch.setattr(node.store.log, "write", no_room)
        full = (await client.send(message())).status
        assert full.code == d.TOO_MANY_REQUESTS and "No space left" in full.message
        assert str(tmp_path) not in refused.message + full.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/store/commitlog/0000 cannot be read at 5: EIO", "0000 cannot be read at 5: EIO"),
        (
            "[Errno 5] Input/output error: '/srv/store/config/topics.json'",
            "[Errno 5] Input/output error: 'topics.json'",
        ),
        ("queue 3 of T/a and/or b", "queue 3 of T/a and/or b"),
    ],
)
def test_clients_are_told_the_name_of_a_damaged_file_and_not_its_folder(text: str, told: str) -> None:
    assert status.status_of(ReadFailed(text)).message == f"INTERNAL_SERVER_ERROR: {told}"
    assert status.status_of(MessageIllegal("/srv/a is no topic")).message == "BAD_REQUEST: /srv/a is no topic"


async def test_a_groups_progress_is_what_it_has_acknowledged(tmp_path: Path) -> None:
    """A delivered message is not consumed before it is acknowledged."""
    async with v2_broker(tmp_path) as (_, client):
        for number in range(4):
            await client.send(message(message_id=str(number)))
        found = await received(client)

        async def offsets() -> list[int]:
            queues = [d.MessageQueue(topic=T, id=queue_id) for queue_id in range(4)]
            return [
                (await client.GetOffset(s.GetOffsetRequest(group=G, message_queue=queue))).offset for queue in queues
            ]

        assert await offsets() == [0, 0, 0, 0]
        await client.AckMessage(ack_of(*found))
        assert await offsets() == [1, 1, 1, 1]


async def test_a_message_that_the_client_cannot_receive_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, mapped_file_size_commit_log=32 << 20) as (node, client):
        node.groups.update(SubscriptionGroup("g", retry_max_times=0), 0)
        await put(node, "T", b"x" * (4 << 20))  # with the other fields, the answer is larger than gRPC's limit
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await received(client)
        await until(lambda: node.store.queues.end("%DLQ%g", 0) == 1, "the dead letter")
        assert node.store.queues.end("%RETRY%g_T", 0) == 0


async def test_a_message_that_cannot_be_made_counts_as_sent_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with v2_broker(tmp_path) as (node, client):
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [3_600_000]}}
        node.groups.update(SubscriptionGroup("g", group_retry_policy=policy), 0)
        await put(node, "T", b"a", b"bad", b"c")
        made = delivered_message.message_of

        def refusing(stored: Record, *args: Any, **fields: Any) -> d.Message:
            if stored.body == b"bad":
                raise ValueError("this record cannot become a message")
            return made(stored, *args, **fields)

        with monkeypatch.context() as patched:
            patched.setattr(delivered_message, "message_of", refusing)
            with pytest.raises(grpc.aio.AioRpcError, match="this record cannot become a message"):
                await received(client)
        found: list[d.Message] = []
        while len(found) < 2:
            found += await received(client, long_polling_timeout=Duration(seconds=8))
        assert {one.body: one.system_properties.delivery_attempt for one in found} == {b"a": 2, b"c": 1}
        assert await received(client) == []


async def test_acks_that_come_together_are_stored_together_and_each_is_answered(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        await put(node, "T", *(b"%d" % number for number in range(32)))
        found = await received(client)
        before = node.store.queues.end(STATE_TOPIC, 0)
        answered = await asyncio.gather(*(client.AckMessage(ack_of(one)) for one in found))
        assert [one.entries[0].receipt_handle for one in answered] == [handle_of(one) for one in found]
        assert {one.status.code for one in answered} == {d.OK}
        # A busy machine receives the calls one after the other, so how many share a record varies.
        assert node.store.queues.end(STATE_TOPIC, 0) - before < len(found)
        assert await received(client) == []


def bodies(messages: list[d.Message]) -> list[bytes]:
    return [one.body for one in messages]


async def test_a_group_that_consumes_in_order_gets_a_message_when_those_before_it_are_acknowledged(
    tmp_path: Path,
) -> None:
    """A receive with the same attempt id returns the same batch.  A poll waits while earlier messages of the message
    group are not acknowledged.
    """
    async with v2_broker(tmp_path) as (node, client):
        node.groups.update(SubscriptionGroup("g", consume_message_orderly=True), 0)
        for body in (b"a1", b"b1", b"a2", b"b2"):
            fifo = {"message_type": d.FIFO, "message_group": body.decode()[0]}
            assert (await client.send(message("F", body, **fifo))).status.code == d.OK
        first = await received(client, topic="F", batch_size=2, attempt_id="x", auto_renew=True)
        again = await received(client, topic="F", batch_size=2, attempt_id="x", auto_renew=True)
        assert bodies(first) == bodies(again) and [handle_of(one) for one in first] == [handle_of(one) for one in again]
        assert {one.system_properties.delivery_attempt for one in again} == {1}
        rest = await received(client, topic="F", attempt_id="y", auto_renew=True)
        while len(first) + len(rest) < 4:
            polling = asyncio.create_task(
                received(client, topic="F", attempt_id="z", auto_renew=True, long_polling_timeout=Duration(seconds=20))
            )
            await until(lambda: node.consumption.polls_held, "the poll is held")
            acked = await client.AckMessage(ack_of(*first, *rest, topic=resource("F")))
            assert acked.status.code == d.OK
            rest += await polling
        found = bodies([*first, *rest])
        for group in (b"a", b"b"):
            assert [body for body in found if body.startswith(group)] == [group + b"1", group + b"2"]


async def test_a_group_that_becomes_ordered_late_is_in_order_for_clients_that_were_told_otherwise(
    tmp_path: Path,
) -> None:
    """A push consumer that started before its group was made consumes in parallel, as the broker told it.  The broker
    keeps the order nevertheless, and tells the client so when the client sends its settings again.
    """
    async with v2_broker(tmp_path) as (node, client):
        stream = client.calls.Telemetry(metadata=CLIENT)
        settings = d.Settings(client_type=d.PUSH_CONSUMER, subscription=d.Subscription(group=G))

        async def is_told_fifo() -> bool:
            await stream.write(s.TelemetryCommand(settings=settings))
            return bool((await stream.read()).settings.subscription.fifo)

        assert not await is_told_fifo()
        node.groups.update(SubscriptionGroup("g", consume_message_orderly=True), 0)
        for body in (b"1", b"2"):
            fifo = {"message_type": d.FIFO, "message_group": "a"}
            assert (await client.send(message("F", body, **fifo))).status.code == d.OK
        first = await received(client, topic="F", batch_size=1, auto_renew=True)
        parallel = await received(client, topic="F", batch_size=1, auto_renew=True)
        assert (bodies(first), parallel) == ([b"1"], [])
        assert (await client.AckMessage(ack_of(*first, topic=resource("F")))).status.code == d.OK
        assert bodies(await received(client, topic="F", batch_size=1, auto_renew=True)) == [b"2"]
        assert await is_told_fifo()
        stream.cancel()


async def test_redelivery_in_order_begins_at_the_first_message_without_an_ack(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.groups.update(SubscriptionGroup("g", consume_message_orderly=True), 0)
        for number in range(5):
            await client.send(message("F", b"%d" % number, message_type=d.FIFO, message_group="a"))
        first = await received(client, topic="F", batch_size=3)
        assert bodies(first) == [b"0", b"1", b"2"]
        await client.AckMessage(ack_of(*first[1:], topic=resource("F")))
        change = change_of(first[0], 0)
        change.topic.name = "F"
        assert (await client.ChangeInvisibleDuration(change)).status.code == d.OK
        again = await received(client, topic="F", batch_size=3, long_polling_timeout=Duration(seconds=8))
        assert bodies(again) == [b"0", b"1", b"2"]
        assert {one.system_properties.delivery_attempt for one in again} == {2}
