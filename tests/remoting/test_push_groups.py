"""Push consumers of RocketMQ 4: members of a group, messages that are sent back, and locks of queues."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from broker_service.errors import NoPermission
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop
from broker_service.wire.remoting import members, returns
from testbed.polling import PATIENCE_S, until
from tests.support.brokers import bodies_in
from tests.support.remoting import Client, port_of, remoting_broker

GROUP, RETRY, DEAD = "workers", "%RETRY%workers", "%DLQ%workers"
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def heartbeat(client_id: str, *groups: str, tags: str = "*", condition: str = "") -> bytes:
    wanted = {"subString": condition, "expressionType": "SQL92"} if condition else {"subString": tags}
    consumers = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": one, **wanted} for one in ("orders", f"%RETRY%{group}")],
        }
        for group in groups
    ]
    return json.dumps({"clientID": client_id, "consumerDataSet": consumers}).encode()


async def told(client: Client) -> tuple[int, dict[str, str]]:
    header, _ = await client.told.get()
    assert header.is_one_way
    return header.code, header.fields


async def test_members_are_told_when_one_comes_and_when_one_goes(tmp_path: Path) -> None:
    news = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP}
    async with remoting_broker(tmp_path) as (node, first):
        await first.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        assert await told(first) == news
        await first.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        assert first.told.empty(), "nothing has changed"
        async with await Client.connect(port_of(node)) as second:
            await second.call(RequestCode.HEART_BEAT, heartbeat("two", GROUP))
            assert await told(first) == await told(second) == news
        assert await told(first) == news, "the connection of the second has ended"
        async with await Client.connect(port_of(node)) as third:
            await third.call(RequestCode.HEART_BEAT, heartbeat("three", GROUP))
            await told(first)
            await third.call(RequestCode.UNREGISTER_CLIENT, clientID="three", consumerGroup=GROUP)
            assert await told(first) == news


async def test_a_client_id_on_two_open_connections_is_one_member_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [line for line in caplog.messages if "'one'" in line and "setInstanceName" in line]

    async with remoting_broker(tmp_path) as (node, first), await Client.connect(port_of(node)) as second:
        for _ in range(2):
            await first.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        await second.call(RequestCode.HEART_BEAT, heartbeat("two", GROUP))
        assert not warnings(), "each client has its own id"
        for client in (second, first, second):
            await client.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        (warning,) = warnings()
        (_, later), (_, earlier) = (one.writer.get_extra_info("sockname") for one in (second, first))
        assert f"from 127.0.0.1:{later} takes the place of the one from 127.0.0.1:{earlier}" in warning
        listed = await first.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert listed == {"consumerIdList": ["one", "two"]}
        async with await Client.connect(port_of(node)) as third:
            await third.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        assert len(warnings()) == 2, "the first two may have been one client that connected again"


async def test_a_client_that_connects_again_after_its_connection_has_ended_is_no_second_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with remoting_broker(tmp_path) as (node, other):
        await other.call(RequestCode.HEART_BEAT, heartbeat("other", GROUP))
        async with await Client.connect(port_of(node)) as first:
            await first.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
            assert await told(other) == await told(other), "both members have come"
        await told(other)  # the broker has seen the end of the connection
        async with await Client.connect(port_of(node)) as again:
            await again.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        assert "setInstanceName" not in caplog.text


async def test_a_pull_takes_the_subscription_of_the_heartbeat(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        await client.send("orders", b"a", TAGS="a")
        await client.send("orders", b"b", TAGS="b")
        refused = await client.pull("orders", 0, consumerGroup=GROUP, sysFlag=0)
        assert refused[0].code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await client.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP, tags="b"))
        _, records = await client.pull("orders", 0, consumerGroup=GROUP, sysFlag=0)
        assert bodies_in(records) == [b"b"]


async def test_a_pull_takes_the_condition_of_the_heartbeat(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, enable_property_filter=True) as (_, client):
        for price in range(10):
            await client.send("orders", b"%d" % price, price=str(price))
        await client.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP, condition="price > 6"))
        header, records = await client.pull("orders", 0, consumerGroup=GROUP, sysFlag=0)
        assert (bodies_in(records), header.fields["nextBeginOffset"]) == ([b"7", b"8", b"9"], "10")


async def test_a_consumer_hears_at_its_start_what_is_wrong_with_its_subscription(tmp_path: Path) -> None:
    def check(text: str, kind: str = "SQL92") -> dict[str, Any]:
        subscription = {"topic": "orders", "subString": text, "expressionType": kind}
        body = json.dumps({"clientId": "one", "group": GROUP, "subscriptionData": subscription}).encode()
        return {"code": RequestCode.CHECK_CLIENT_CONFIG, "body": body}

    async with remoting_broker(tmp_path, enable_property_filter=True) as (_, client):
        await client.call(**check("price > 6"))
        await client.call(**check("a || b", "TAG"))
        assert await client.refused(**check("price >")) == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    async with remoting_broker(tmp_path / "without") as (_, client):
        assert await client.refused(**check("price > 6")) == ResponseCode.INVALID_PARAMETER


async def retried(node: BrokerNode, client: Client, offset: int) -> record.Record:
    await until(lambda: node.store.queues.end(RETRY, 0) > offset, "the message is in the retry topic")
    header, records = await client.pull(RETRY, offset, consumerGroup=GROUP)
    assert header.code == 0
    return record.decode(records)


async def test_a_message_that_is_given_back_comes_again_and_ends_as_a_dead_letter(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, message_delay_level="1s 1s 1s 1s 1s") as (node, client):
        await client.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        sent = await client.send("orders", b"work", UNIQ_KEY="U1", TAGS="a")
        back: dict[str, Any] = {"group": GROUP, "originTopic": "orders", "delayLevel": 0, "maxReconsumeTimes": 2}
        offset = record.parse_offset_message_id(sent["msgId"])[2]
        for attempt in (1, 2):
            await client.call(SEND_BACK, offset=offset, **back)
            again = await retried(node, client, attempt - 1)
            assert (again.body, again.reconsume_times) == (b"work", attempt)
            wanted = {"RETRY_TOPIC": "orders", "UNIQ_KEY": "U1", "TAGS": "a", "ORIGIN_MESSAGE_ID": sent["msgId"]}
            assert again.properties.items() >= wanted.items()
            offset = again.commit_log_offset
        await client.call(SEND_BACK, offset=offset, **back)
        assert node.store.queues.end(RETRY, 0) == 2 and node.store.queues.end(DEAD, 0) == 1
        _, records = await client.pull(DEAD, 0, consumerGroup=GROUP)
        assert record.decode(records).properties["RETRY_TOPIC"] == "orders"


async def test_what_a_message_that_is_given_back_is_refused_for(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        sent = await client.send("orders", b"work")
        offset = record.parse_offset_message_id(sent["msgId"])[2]
        assert await client.refused(SEND_BACK, group=GROUP, offset=offset + 1) == ResponseCode.QUERY_NOT_FOUND
        other = await client.refused(SEND_BACK, group=GROUP, offset=offset, originTopic="other")
        assert other == ResponseCode.QUERY_NOT_FOUND
        assert await client.refused(SEND_BACK, group="no group!", offset=offset) == ResponseCode.INVALID_PARAMETER
        await client.call(SEND_BACK, group=GROUP, offset=offset, delayLevel=-1)
        assert node.store.queues.end(DEAD, 0) == 1, "the consumer wants no further attempt"


async def test_a_queue_is_locked_by_one_client_until_it_unlocks_or_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [{"brokerName": "broker-a", "queueId": number, "topic": "orders"} for number in range(2)]

    def body(client_id: str, *wanted: dict[str, Any]) -> bytes:
        return json.dumps({"consumerGroup": GROUP, "clientId": client_id, "mqSet": wanted}).encode()

    async with remoting_broker(tmp_path) as (_, client):

        async def locked(client_id: str) -> list[int]:
            _, found = await client.call(RequestCode.LOCK_BATCH_MQ, body(client_id, *queues))
            return [one["queueId"] for one in json.loads(found)["lockOKMQSet"]]

        await client.call(RequestCode.LOCK_BATCH_MQ, body("one", queues[0]))
        assert await locked("two") == [1]
        assert await locked("one") == [0], "its own again"
        await client.call(RequestCode.UNLOCK_BATCH_MQ, body("two", queues[0]))
        assert await locked("two") == [1], "nobody unlocks what another client has"
        await client.call(RequestCode.UNLOCK_BATCH_MQ, body("one", queues[0]))
        assert await locked("two") == [0, 1]
        monkeypatch.setattr(returns, "LOCKED_S", 0.0)
        await locked("two")
        assert await locked("one") == [0, 1], "the locks are over"
        wrong = b'{"clientId":"x","consumerGroup":"workers","mqSet":[7]}'
        assert await client.refused(RequestCode.LOCK_BATCH_MQ, wrong) == ResponseCode.INVALID_PARAMETER


async def test_a_heartbeat_creates_nothing_for_a_group_that_consumers_may_not_create(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, auto_create_subscription_group=False) as (node, client):
        await client.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        assert GROUP not in node.groups.entries and RETRY not in node.topics.entries


@pytest.mark.parametrize("auto_create", [True, False])
@pytest.mark.parametrize("group", ["../../x", "", "x" * 121])
async def test_a_heartbeat_of_a_group_with_an_impossible_name_is_refused(
    tmp_path: Path, group: str, *, auto_create: bool
) -> None:
    async with remoting_broker(tmp_path, auto_create_subscription_group=auto_create) as (node, client):
        before = {*node.topics.entries}, {*node.groups.entries}
        wrong = heartbeat("one", GROUP, group)
        assert await client.refused(RequestCode.HEART_BEAT, wrong) == ResponseCode.INVALID_PARAMETER
        assert ({*node.topics.entries}, {*node.groups.entries}) == before


async def test_a_heartbeat_that_could_be_shown_to_no_tool_is_refused(tmp_path: Path) -> None:
    """RocketMQ's own JSON may have objects as keys, and JSON that others read may not."""
    async with remoting_broker(tmp_path) as (_, client):
        body = b'{"clientID":"one","consumerDataSet":[{"groupName":"workers","subscriptionDataSet":[{{"a":1}:2}]}]}'
        assert await client.refused(RequestCode.HEART_BEAT, body) == ResponseCode.INVALID_PARAMETER
        listed = RequestCode.GET_CONSUMER_CONNECTION_LIST
        assert await client.refused(listed, consumerGroup=GROUP) == ResponseCode.CONSUMER_NOT_ONLINE


async def test_the_heartbeats_that_are_kept_take_no_more_memory_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        first, second = heartbeat("one", GROUP), heartbeat("two", GROUP)
        monkeypatch.setattr(members, "MAX_KEPT_BYTES", len(first))
        for _ in range(2):
            await client.call(RequestCode.HEART_BEAT, first)
            assert await client.refused(RequestCode.HEART_BEAT, second) == ResponseCode.SYSTEM_BUSY
        await client.call(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup=GROUP)
        await client.call(RequestCode.HEART_BEAT, second)
        monkeypatch.setattr(members, "EXPIRES_S", -1.0)
        await client.call(RequestCode.HEART_BEAT, first)


@pytest.mark.parametrize(
    "wrong",
    [
        {"consumerGroup": "x" * 1000},
        {"mqSet": [{"topic": "x" * 1000, "queueId": 0}]},
        {"mqSet": [{"topic": "orders", "queueId": 1 << 40}]},
        {"mqSet": {"topic": "orders"}},
    ],
)
async def test_a_lock_with_impossible_names_or_numbers_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    body = {"consumerGroup": GROUP, "clientId": "one", "mqSet": [{"topic": "orders", "queueId": 0}]} | wrong
    async with remoting_broker(tmp_path) as (_, client):
        refused = await client.refused(RequestCode.LOCK_BATCH_MQ, json.dumps(body).encode())
        assert refused == ResponseCode.INVALID_PARAMETER


async def test_a_group_with_push_consumers_is_refused_to_pops_until_they_have_left(tmp_path: Path) -> None:
    pop = Pop(group=GROUP, topic="orders", client_id="me", invisible_ms=60_000)
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"work")
        await client.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        with pytest.raises(NoPermission, match=r"group workers reads topic orders with push consumers .*one is one"):
            await node.consumption.pop(pop)
        await client.call(RequestCode.HEART_BEAT, heartbeat("one", "others"))
        assert len((await node.consumption.pop(pop)).deliveries) == 1
        others = replace(pop, group="others")
        with pytest.raises(NoPermission):
            await node.consumption.pop(others)
        await client.call(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup="others")
        assert len((await node.consumption.pop(others)).deliveries) == 1


async def test_a_group_may_pop_when_its_push_consumers_are_gone_and_beside_broadcast_consumers(tmp_path: Path) -> None:
    pop = Pop(group=GROUP, topic="orders", client_id="me", invisible_ms=60_000)
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"work")
        async with await Client.connect(port_of(node)) as other:
            await other.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
            with pytest.raises(NoPermission):
                await node.consumption.pop(pop)
        broadcast = heartbeat("two", GROUP).replace(b"CLUSTERING", b"BROADCASTING")
        await client.call(RequestCode.HEART_BEAT, broadcast)
        async with asyncio.timeout(PATIENCE_S):
            while (
                "one"
                in (await client.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP))["consumerIdList"]
            ):
                pass  # the broker has not seen the end of the connection yet
        assert len((await node.consumption.pop(pop)).deliveries) == 1


async def test_a_group_that_pops_is_refused_to_push_consumers(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"work")
        await node.consumption.pop(Pop(group=GROUP, topic="orders", client_id="me", invisible_ms=60_000))
        await client.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
        header, _ = await client.pull("orders", 0, consumerGroup=GROUP, sysFlag=0)
        assert header.code == ResponseCode.NO_PERMISSION and "pops topic orders" in header.remark
