"""Messages with a delivery time, and RecallMessage: sends, deliveries and refusals."""

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto.reserved import TIMER_TOPIC
from rocketsim_proto.signature import Credentials

from broker_service.node.node import BrokerNode
from broker_service.wire.v2 import recall_handle
from broker_service.wire.v2.message_rules import MAX_CLIENTS_DELAY_MS
from broker_service.wire.v2.recall_handle import RecallHandle
from broker_service.wire.v2.topic_routes import PASSED_ON
from testbed.polling import until
from tests.support.access import ADMIN, KEYS, first_user, v2_headers, v2_stub
from tests.support.brokers import goes_by, name_server, put_send, running, send_of
from tests.support.brokers import message as record_of
from tests.support.v2 import Client, make_topics, message, resource, v2_broker
from tests.v2.test_receiving import received

START = 2_000_000_000_000  # in the future, so that no message is due before a test sets the clock


def clock_of(node: BrokerNode) -> list[int]:
    now = [START]
    goes_by(node.broker, lambda: now[0])
    return now


def at(ms: int) -> Timestamp:
    made = Timestamp()
    made.FromMilliseconds(START + ms)
    return made


def delayed(ms: int, topic: str = "D", **system: Any) -> d.Message:
    return message(topic, delivery_timestamp=at(ms), **system)


async def recall(client: Client, handle: str, topic: str = "D") -> s.RecallMessageResponse:
    answer: s.RecallMessageResponse = await client.RecallMessage(
        s.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    )
    return answer


async def delivered(node: BrokerNode) -> None:
    await node.consumption.timer_delivery.deliver_due()


async def test_a_message_is_received_at_its_time_with_the_time_that_was_sent(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        now = clock_of(node)
        first, second = delayed(4321, tag="A", user={"a": "1"}), delayed(4000, "M", message_group="g")
        for one in (first, second):
            sent = await client.send(one)
            assert sent.status.code == d.OK
        assert sent.entries[0].offset == 1  # the offset in the timer topic, as in RocketMQ
        now[0] += 4000
        await delivered(node)
        assert await received(client, topic="D") == []
        (ordered,) = await received(client, topic="M")
        assert (ordered.system_properties.message_group, ordered.system_properties.message_type) == ("g", d.DELAY)
        now[0] += 1000
        await delivered(node)
        (got,) = await received(client, topic="D")
        system = got.system_properties
        assert (got.body, system.tag, dict(got.user_properties)) == (b"hello", "A", {"a": "1"})
        assert (system.message_id, system.message_type) == (first.system_properties.message_id, d.DELAY)
        assert system.delivery_timestamp == at(4321)
        assert await received(client, topic="D") == []


async def test_delay_levels_of_other_clients_are_received_too(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, message_delay_level="1s 2s") as (node, client):
        now = clock_of(node)
        await put_send(node, send_of("D", record_of("D", b"level 2", DELAY="2", UNIQ_KEY="id")))
        now[0] += 2000
        await node.schedule.deliver_due()
        (got,) = await received(client, topic="D")
        assert (got.body, got.system_properties.message_id, dict(got.user_properties)) == (b"level 2", "id", {})


async def test_only_topics_of_their_type_take_messages_with_a_delivery_time(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        clock_of(node)
        for topic, code in (("D", d.OK), ("M", d.OK), ("T", d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)):
            assert (await client.send(delayed(5000, topic))).status.code == code
        assert (await client.send(delayed(MAX_CLIENTS_DELAY_MS))).status.code == d.OK
        assert (await client.send(delayed(MAX_CLIENTS_DELAY_MS + 1))).status.code == d.ILLEGAL_DELIVERY_TIME
        batch = await client.send(delayed(5000), delayed(5000))
        assert batch.status.code == d.BAD_REQUEST and "batch" in batch.status.message


async def test_a_message_that_is_sent_again_waits_once_also_after_a_restart(tmp_path: Path) -> None:
    again = delayed(5000)
    async with v2_broker(tmp_path) as (node, client):
        clock_of(node)
        first = await client.send(again)
        assert (await client.send(again)).entries == first.entries
    async with v2_broker(tmp_path) as (node, client):
        now = clock_of(node)
        assert (await client.send(again)).entries == first.entries
        assert node.store.queues.end(TIMER_TOPIC, 0) == 1
        now[0] += 5000
        await delivered(node)
        assert (await client.send(again)).entries[0].offset == 0
        assert len(await received(client, topic="D")) == 1


async def test_a_recalled_message_is_not_delivered(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        now = clock_of(node)
        sent = [await client.send(message("D", body, delivery_timestamp=at(5000))) for body in (b"a", b"b")]
        handles = [one.entries[0].recall_handle for one in sent]
        assert base64.urlsafe_b64decode(handles[1]).decode() == (
            f"v1 D broker-a {START + 5000} {sent[1].entries[0].message_id}"
        )
        now[0] += 4999
        for _ in range(2):
            answer = await recall(client, handles[1])
            assert (answer.status.code, answer.message_id) == (d.OK, sent[1].entries[0].message_id)
        now[0] += 1
        await delivered(node)
        assert [one.body for one in await received(client, topic="D")] == [b"a"]
        late = await recall(client, handles[0])
        assert late.status.code == d.BAD_REQUEST and "timestamp invalid" in late.status.message


async def test_a_recall_at_another_brokers_port_reaches_the_broker_that_the_handle_names(tmp_path: Path) -> None:
    """Java's and Python's clients send a recall to any of their endpoints, and that broker passes the recall on.  With
    access control, a recall that is passed on has the caller's name.  A broker does not pass on a recall that it gets
    from another broker.
    """
    who = {"namesrv_addr": "", "grpc_server_port": 0} | KEYS
    async with name_server() as names:
        who["namesrv_addr"] = names.address
        async with (
            running(tmp_path / "a", **who) as asked,
            running(tmp_path / "b", broker_name="broker-b", **who) as node,
            v2_stub(asked) as at_a,
            v2_stub(node) as at_b,
        ):
            for one in (asked, node):
                await first_user(one)
            now = clock_of(node)
            make_topics(node)
            await until(lambda: names.table.route("D") and names.table.live()["broker-b"].v2_address, "the route")
            mine, nobody = v2_headers(ADMIN), v2_headers(Credentials("nobody", "x" * 8))
            sent = await at_b.SendMessage(s.SendMessageRequest(messages=[delayed(5000)]), metadata=mine)
            request = s.RecallMessageRequest(topic=resource("D"), recall_handle=sent.entries[0].recall_handle)
            passed_on = await at_a.RecallMessage(request, metadata=[*mine, (PASSED_ON, "1")])
            assert passed_on.status.code != d.OK and asked.store.end_offset == 0
            assert (await at_a.RecallMessage(request, metadata=nobody)).status.code == d.UNAUTHORIZED
            answer = await at_a.RecallMessage(request, metadata=mine)
            assert (answer.status.code, answer.message_id) == (d.OK, sent.entries[0].message_id)
            foreign = recall_handle.encode(GOOD._replace(broker_name="broker-c"))
            request = s.RecallMessageRequest(topic=resource("D"), recall_handle=foreign)
            assert (await at_a.RecallMessage(request, metadata=mine)).status.code != d.OK
            now[0] += 5000
            await delivered(node)
            assert node.store.queues.end("D", 0) == 0


async def test_only_a_message_that_waits_has_a_handle(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        clock_of(node)
        for one in (message("T"), delayed(0), delayed(-15_000)):
            (entry,) = (await client.send(one)).entries
            assert (entry.status.code, entry.recall_handle) == (d.OK, "")


SOON = START + 5000
GOOD = RecallHandle("D", "broker-a", SOON, "id")


def handle(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("topic", "text", "code", "reason"),
    [
        ("D", "", d.BAD_REQUEST, "recall handle is invalid"),
        ("D", "no base64!", d.BAD_REQUEST, "recall handle is invalid"),
        ("D", "ü", d.BAD_REQUEST, "recall handle is invalid"),
        ("D", recall_handle.encode(GOOD)[:-8], d.BAD_REQUEST, "recall handle is invalid"),
        ("D", handle(f"v2 D broker-a {SOON} id"), d.BAD_REQUEST, "recall handle is invalid"),
        ("D", handle("v1 D broker-a soon id"), d.BAD_REQUEST, "recall handle is invalid"),
        ("D", handle(f"v1 D broker-a {SOON} "), d.BAD_REQUEST, "recall handle is invalid"),
        ("D", handle(f"v1 D broker-a {'9' * 30} id"), d.BAD_REQUEST, "recall handle is invalid"),
        ("D", recall_handle.encode(GOOD._replace(deliver_ms=10**14)), d.BAD_REQUEST, "timestamp invalid"),
        ("D", recall_handle.encode(GOOD._replace(deliver_ms=START)), d.BAD_REQUEST, "timestamp invalid"),
        ("M", recall_handle.encode(GOOD), d.BAD_REQUEST, "topic not match"),
        ("D", recall_handle.encode(GOOD._replace(broker_name="broker-b")), d.BAD_REQUEST, "broker-b"),
        (
            "D",
            recall_handle.encode(GOOD._replace(message_id="a\x02TIMER_OUT_MS\x010")),
            d.ILLEGAL_MESSAGE_ID,
            "control",
        ),
        ("D", recall_handle.encode(GOOD._replace(message_id="x" * 5000)), d.ILLEGAL_MESSAGE_ID, "1024"),
        ("T", recall_handle.encode(GOOD._replace(topic="T")), d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "DELAY"),
        ("none", recall_handle.encode(GOOD), d.TOPIC_NOT_FOUND, "none"),
        ("rmq_sys_x", recall_handle.encode(GOOD), d.ILLEGAL_TOPIC, "system topic"),
    ],
)
async def test_a_handle_that_is_forged_foreign_or_late_is_refused(
    tmp_path: Path, topic: str, text: str, code: d.Code, reason: str
) -> None:
    async with v2_broker(tmp_path) as (node, client):
        clock_of(node)
        answer = await recall(client, text, topic)
        assert (d.Code.Name(answer.status.code), answer.message_id) == (d.Code.Name(code), "")
        assert reason in answer.status.message
        assert node.store.end_offset == 0


async def test_a_recall_needs_a_client_id(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        answer = await client.calls.RecallMessage(s.RecallMessageRequest(topic=resource("D")), timeout=60)
        assert answer.status.code == d.CLIENT_ID_REQUIRED


def test_a_handle_survives_its_text() -> None:
    strange = GOOD._replace(message_id="an id with blanks")
    assert recall_handle.decode(recall_handle.encode(strange)) == strange
