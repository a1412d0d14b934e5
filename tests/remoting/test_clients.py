"""Producers and pull consumers of RocketMQ 4 at a broker's remoting port, by a scripted client."""

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.remoting import message_batch
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Form

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.errors import ConfigError
from broker_service.modes import FlushDiskType
from broker_service.put_result import PutStatus
from broker_service.wire.remoting import members
from testbed.polling import PATIENCE_S, until
from testbed.real_rocketmq import free_port
from tests.support.brokers import bodies_in, put, running
from tests.support.remoting import Client, port_of, remoting_broker

GROUP = "readers"
TRACING = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_a_message_is_stored_as_it_was_sent_and_pulled_again(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        sent = await client.send("orders", b"hello", queue_id=1, KEYS="k", TAGS="a", UNIQ_KEY="U1")
        assert sent["queueId"] == "1" and sent["queueOffset"] == "0" and sent["transactionId"] == "U1"
        assert record.parse_offset_message_id(sent["msgId"])[2] == 0
        assert record.parse_offset_message_id(sent["msgId"])[1] == port_of(node), "tools ask for the message there"
        header, records = await client.pull("orders", 0, 1)
        found = record.decode(records)
        assert (found.topic, found.body, found.queue_id) == ("orders", b"hello", 1)
        assert found.properties == {"KEYS": "k", "TAGS": "a", "UNIQ_KEY": "U1"} | TRACING
        assert record.decode_host(found.born_host)[0] == "127.0.0.1" and found.born_timestamp == 1
        assert header.remark == "FOUND"
        assert {name: header.fields[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")} == {
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "1",
        }


async def test_the_long_names_of_rocketmq_3_and_a_binary_header(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        names = {"producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 2}
        names |= {"queueId": -1, "sysFlag": 0, "bornTimestamp": 5, "flag": 7, "properties": "TAGS\x01a"}
        await client.call(RequestCode.SEND_MESSAGE, b"x", Form.BINARY, **names)
        found = record.decode((await client.pull("orders", 0))[1])
        assert found.flag == 7 and found.properties == {"TAGS": "a"} | TRACING


async def test_the_messages_of_a_batch_keep_what_each_has_and_get_consecutive_offsets(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"0")
        messages = [
            message_batch.BatchMessage(number, f"{number}".encode(), f"UNIQ_KEY\x01U{number}\x02".encode())
            for number in range(1, 4)
        ]
        fields = {"a": "p", "b": "orders", "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "m": "true"}
        sent, _ = await client.call(RequestCode.SEND_BATCH_MESSAGE, message_batch.encode(messages), **fields)
        assert sent["queueOffset"] == "1"
        header, records = await client.pull("orders", 1)
        assert bodies_in(records) == [b"1", b"2", b"3"] and header.fields["nextBeginOffset"] == "4"
        ids = sent["msgId"].split(",")
        for number, offset_id in enumerate(ids, start=1):
            found = record.decode(node.store.log.record_at(record.parse_offset_message_id(offset_id)[2]))
            assert (found.body, found.flag) == (f"{number}".encode(), number)
            assert found.properties["UNIQ_KEY"] == f"U{number}"
        assert len(ids) == 3


def a_send(topic: str, body: bytes, queue_id: int = 0, **properties: str) -> tuple[int, dict[str, object], bytes]:
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    given = {"a": "p", "b": topic, "c": "", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, "i": encoded}
    return RequestCode.SEND_MESSAGE_V2, given, body


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_sends_that_come_together_get_the_places_of_their_own_messages(
    tmp_path: Path, flush: FlushDiskType
) -> None:
    async with remoting_broker(tmp_path, flush_disk_type=flush) as (node, client):
        await client.send("orders", b"0")
        await client.send("others", b"0")
        batch = message_batch.encode(message_batch.BatchMessage(0, body, b"") for body in (b"2", b"3"))
        many = {**a_send("orders", b"")[1], "m": "true"}
        headers = await client.together(
            a_send("orders", b"1", UNIQ_KEY="U1"),
            (RequestCode.SEND_BATCH_MESSAGE, many, batch),
            a_send("others", b"1"),
            a_send("orders", b"0", queue_id=1),
            a_send("orders", b"4", UNIQ_KEY="U4"),
        )
        assert [(one.fields["queueId"], one.fields["queueOffset"]) for one in headers] == [
            *[("0", "1"), ("0", "2"), ("0", "1"), ("1", "0"), ("0", "4")]
        ]
        assert [one.fields.get("transactionId") for one in headers] == ["U1", None, None, None, "U4"]
        stored = [
            record.decode(node.store.log.record_at(record.parse_offset_message_id(offset_id)[2])).body
            for one in headers
            for offset_id in one.fields["msgId"].split(",")
        ]
        assert stored == [b"1", b"2", b"3", b"1", b"0", b"4"]


async def test_sends_that_come_together_are_one_put_of_an_async_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"first")
        puts, append = [], node.broker.append
        monkeypatch.setattr(node.broker, "append", lambda batch, topic: puts.append(len(batch)) or append(batch, topic))
        await client.together(*(a_send("orders", b"%d" % number) for number in range(9)))
        assert puts == [9]


async def test_a_send_that_is_refused_or_delayed_changes_no_send_that_comes_with_it(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"0")
        headers = await client.together(
            a_send("orders", b"1"),
            a_send("orders", b"2", queue_id=99),
            a_send("orders", b"3", DELAY="18"),
            a_send("new", b"0"),
            a_send("orders", b"4"),
        )
        assert [one.code for one in headers] == [0, ResponseCode.INVALID_PARAMETER, 0, 0, 0]
        assert bodies_in((await client.pull("orders", 0))[1]) == [b"0", b"1", b"4"]
        assert bodies_in((await client.pull("new", 0))[1]) == [b"0"]
        assert node.store.queues.end("SCHEDULE_TOPIC_XXXX", 17) == 1


async def test_each_send_that_is_refused_is_counted_once(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"0")
        await client.together(
            a_send("orders", b"1"),
            a_send("orders", b"2", queue_id=99),
            a_send("SCHEDULE_TOPIC_XXXX", b"3"),
            a_send("SCHEDULE_TOPIC_XXXX", b"4"),
        )
        (refused,) = (one for one in node.puts.figures() if one.name == "rocketsim_sends_refused")
        assert dict(refused.samples) == {("NoPermission",): 2, ("QueueNotExist",): 1}


async def test_what_a_send_is_refused_for(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, auto_create_topic_enable=False) as (_, client):
        given = {"a": "p", "c": "", "d": 4, "e": 0, "g": 1, "h": 0}
        code = RequestCode.SEND_MESSAGE_V2
        assert await client.refused(code, b"x", b="unknown", f=0, **given) == ResponseCode.TOPIC_NOT_EXIST
        assert await client.refused(code, b"x", b="SCHEDULE_TOPIC_XXXX", f=0, **given) == ResponseCode.NO_PERMISSION
        assert await client.refused(code, b"x", b="orders", f=4, **given) == ResponseCode.MESSAGE_ILLEGAL
        assert await client.refused(code, b"x", f=0, **given) == ResponseCode.INVALID_PARAMETER, "no topic"
        batch = {"b": "orders", "f": 0, "m": "true"}
        assert await client.refused(code, b"xxxx", **batch, **given) == ResponseCode.MESSAGE_ILLEGAL
        assert await client.refused(code, b"", **batch, **given) == ResponseCode.MESSAGE_ILLEGAL


async def test_numbers_that_do_not_fit_are_refused_and_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        await client.send("orders", b"0")
        for field, number in (("queueOffset", 1 << 63), ("queueId", 1 << 31), ("maxMsgNums", 1 << 31)):
            header, _ = await client.pull("orders", 0, **{field: number})
            assert header.code == ResponseCode.INVALID_PARAMETER and field in header.remark
        given: dict[str, object] = {"a": "p", "b": "orders", "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        for field in "efhj":
            wrong = given | {field: 1 << 40}
            assert await client.refused(RequestCode.SEND_MESSAGE_V2, b"x", **wrong) == ResponseCode.INVALID_PARAMETER
        search: dict[str, object] = {"topic": "orders", "queueId": 0, "timestamp": (1 << 63) - 1}
        for boundary, found in (("LOWER", "1"), ("UPPER", "0")):
            fields, _ = await client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, boundaryType=boundary, **search)
            assert fields["offset"] == found
        assert not [one for one in caplog.records if one.exc_info]


async def test_a_delayed_message_waits_by_level_and_by_time(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, message_delay_level="1s 2h") as (node, client):
        sent_ms = node.broker.now_ms()
        await client.send("orders", b"level", DELAY="1")
        await client.send("orders", b"seconds", TIMER_DELAY_SEC="1")
        await client.send("orders", b"later", TIMER_DELAY_MS="3600000")
        await until(lambda: node.store.queues.end("orders", 0) == 2, "both are delivered")
        header, records = await client.pull("orders", 0)
        assert {*bodies_in(records)} == {b"level", b"seconds"} and header.fields["maxOffset"] == "2"
        assert record.decode(records).store_timestamp >= sent_ms + 1000, "the first one has waited"


async def test_codes_of_pulls_say_what_a_consumer_does_next(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        await client.send("orders", b"0", TAGS="a")
        await client.send("orders", b"1", TAGS="b")
        header, records = await client.pull("orders", 0, subscription="b")
        assert (bodies_in(records), header.code, header.fields["nextBeginOffset"]) == ([b"1"], 0, "2")
        header, _ = await client.pull("orders", 2)
        assert (header.code, header.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
        header, _ = await client.pull("orders", 99)
        assert (header.code, header.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
        assert (await client.pull("orders", 0, 99))[0].code == ResponseCode.SYSTEM_ERROR, "as 4.9 has it"
        assert (await client.pull("unknown", 0))[0].code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.pull("orders", 0, queueOffset="x"))[0].code == ResponseCode.INVALID_PARAMETER


async def test_conditions_select_by_properties_where_the_broker_filters(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, enable_property_filter=True) as (node, client):
        for price in range(200):
            await client.send("orders", b"%d" % price, price=str(price))

        async def pull(offset: int, condition: str, most: int = 32) -> tuple[int, list[bytes], int]:
            given = {"subscription": condition, "expressionType": "SQL92"}
            header, records = await client.pull("orders", offset, maxMsgNums=most, **given)
            return header.code, bodies_in(records), int(header.fields["nextBeginOffset"])

        assert await pull(0, "price BETWEEN 3 AND 5") == (0, [b"3", b"4", b"5"], 64)
        assert await pull(0, "price > 100", most=2) == (0, [b"101", b"102"], 103)
        assert await pull(103, "price > 198") == (0, [b"199"], 200)
        assert await pull(0, "price > 500") == (ResponseCode.PULL_RETRY_IMMEDIATELY, [], 200)
        assert await pull(200, "price > 1") == (ResponseCode.PULL_NOT_FOUND, [], 200)
        assert await pull(300, "price > 1") == (ResponseCode.PULL_OFFSET_MOVED, [], 200)
        given = {"subscription": "price >", "expressionType": "SQL92"}
        assert (await client.pull("orders", 0, **given))[0].code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        node.broker.config = replace(node.broker.config, max_transfer_bytes_on_message_in_memory=1)
        assert await pull(0, "price > 100") == (0, [b"101"], 102), "at least one message"


async def test_a_pull_that_waits_passes_over_what_its_condition_leaves_out(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, enable_property_filter=True) as (_, client):
        await client.send("orders", b"1", price="1")
        given: dict[str, object] = {"subscription": "price > 1", "expressionType": "SQL92", "sysFlag": 6}
        header, _ = await client.pull("orders", 1, **given)
        assert header.code == ResponseCode.PULL_NOT_FOUND
        waiting = asyncio.create_task(client.pull("orders", 1, suspendTimeoutMillis=60_000, **given))
        await asyncio.sleep(0)  # the pull's request is sent before the messages
        await client.send("orders", b"0", price="0")
        await client.send("orders", b"2", price="2")
        async with asyncio.timeout(PATIENCE_S):
            header, records = await waiting
        assert (bodies_in(records), header.fields["nextBeginOffset"]) == ([b"2"], "3")


async def test_a_pull_waits_for_a_message_if_it_says_so(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"0")
        pull = {"consumerGroup": GROUP, "topic": "orders", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32}
        pull |= {"sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subscription": "*", "subVersion": 0}
        held = client.ask(RequestCode.LITE_PULL_MESSAGE, pull)
        await until(lambda: node.broker.long_polling.held == 1, "the pull is held")
        assert not held.done()
        assert await put(node, "orders", b"1") is PutStatus.PUT_OK
        assert bodies_in((await held)[1]) == [b"1"]


async def test_offsets_of_queues_and_of_groups(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.send("orders", b"0", b"1", b"2")
        queue = {"topic": "orders", "queueId": 0}
        assert (await client.call(RequestCode.GET_MAX_OFFSET, **queue))[0] == {"offset": "3"}
        assert (await client.call(RequestCode.GET_MIN_OFFSET, **queue))[0] == {"offset": "0"}
        stored_ms = record.decode((await client.pull("orders", 0))[1]).store_timestamp
        earliest, _ = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
        assert earliest == {"timestamp": str(stored_ms)}
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert (await client.call(search, timestamp=0, **queue))[0] == {"offset": "0"}
        assert (await client.call(search, timestamp=stored_ms + 10**6, **queue))[0] == {"offset": "3"}
        upper = {"boundaryType": "UPPER", **queue}
        assert (await client.call(search, timestamp=stored_ms + 10**6, **upper))[0] == {"offset": "2"}
        mine = {"consumerGroup": GROUP, **queue}
        query, commit = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
        assert (await client.call(query, **mine))[0] == {"offset": "0"}, "a new group on a young queue"
        assert await client.refused(query, setZeroIfNotFound="false", **mine) == ResponseCode.QUERY_NOT_FOUND
        await client.call(commit, commitOffset=2, **mine)
        assert (await client.call(query, **mine))[0] == {"offset": "2"}
        assert node.offsets.get(GROUP, "orders", 0).offset == 2
        assert await client.refused(commit, commitOffset=9, **mine) == ResponseCode.INVALID_PARAMETER


def heartbeat(client_id: str, group: str = GROUP) -> bytes:
    subscription = {"topic": "orders", "subString": "*", "subVersion": 1}
    consumer = {"groupName": group, "consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING"}
    consumer |= {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription]}  # type: ignore[dict-item]
    beat = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]}
    return json.dumps(beat).encode()


async def test_clients_are_known_by_their_heartbeats_until_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remoting_broker(tmp_path) as (node, client), await Client.connect(port_of(node)) as second:
        await client.call(RequestCode.HEART_BEAT, heartbeat("one"))
        await second.call(RequestCode.HEART_BEAT, heartbeat("two"))
        members_of = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        assert await client.json(members_of, consumerGroup=GROUP) == {"consumerIdList": ["one", "two"]}
        assert GROUP in node.groups.entries
        connections = await client.json(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
        assert [one["clientId"] for one in connections["connectionSet"]] == ["one", "two"]
        assert connections["subscriptionTable"]["orders"]["subString"] == "*"
        seen = [(one.client_id, one.way) for one in node.broker.consumers.of(GROUP, node.broker.clock())]
        assert seen == [("one", "heartbeat"), ("two", "heartbeat")]
        producers = await client.json(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        assert len(producers["connectionSet"]) == 2
        await client.call(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup=GROUP)
        assert await client.json(members_of, consumerGroup=GROUP) == {"consumerIdList": ["two"]}
        assert [one.client_id for one in node.broker.consumers.of(GROUP, node.broker.clock())] == ["two"]
        second.writer.close()
        assert node.remoting is not None
        known = node.remoting.members
        await until(lambda: not known.consumers(GROUP), "a client whose connection has ended is gone")
        assert node.broker.consumers.of(GROUP, node.broker.clock()) == []
        offline = await client.refused(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
        assert offline == ResponseCode.CONSUMER_NOT_ONLINE
        await client.call(RequestCode.HEART_BEAT, heartbeat("silent"))
        monkeypatch.setattr(members, "EXPIRES_S", 0.0)
        assert await client.json(members_of, consumerGroup=GROUP) == {"consumerIdList": []}


async def test_consumers_of_other_protocols_are_listed_but_share_no_queues(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        node.broker.consumers.popped(GROUP, "popping", node.broker.clock())
        node.broker.consumers.committed(GROUP, "spark", 5, node.broker.clock())
        connections = await client.json(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
        assert [one["clientId"] for one in connections["connectionSet"]] == ["popping", "spark"]
        shared = await client.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert shared == {"consumerIdList": []}


async def test_the_vip_channel_is_a_second_port_for_the_same_requests(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, remoting_vip_channel=True) as (node, client):
        async with await Client.connect(port_of(node) - 2) as other:
            await other.call(RequestCode.HEART_BEAT, heartbeat("one"))
            found = await client.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
            assert found == {"consumerIdList": ["one"]}


async def test_a_vip_channel_that_is_taken_is_refused_and_leaves_no_port_open(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port - 2)), pytest.raises(ConfigError, match="two below remotingPort"):
        async with running(tmp_path, remoting_port=port, remoting_vip_channel=True):
            pass
    with socket.create_server(("127.0.0.1", port)):
        pass
    with pytest.raises(ConfigError, match="remotingPort=2 must be at least 3"):
        async with running(tmp_path, remoting_port=2, remoting_vip_channel=True):
            pass


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"clientID":""}', b'{"clientID":"x","consumerDataSet":7}'])
async def test_a_heartbeat_that_says_nothing_useful(tmp_path: Path, body: bytes) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        header, _ = await client.ask(RequestCode.HEART_BEAT, body=body)
        assert header.code == (0 if b'"x"' in body else ResponseCode.INVALID_PARAMETER)


async def test_without_the_key_nothing_listens(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=-1) as node:
        assert node.remoting is None
        assert not node.config.remoting_address_path.exists()
        assert node.replication.membership.registration().remoting_address == ""


async def test_a_stop_answers_pulls_that_are_held(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0) as node:
        client = await Client.connect(port_of(node))
        await client.send("orders", b"0")
        held = client.ask(
            RequestCode.PULL_MESSAGE,
            {
                **{"consumerGroup": GROUP, "topic": "orders", "queueId": 0, "queueOffset": 1, "maxMsgNums": 1},
                **{"sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subVersion": 0},
            },
        )
        await until(lambda: node.broker.long_polling.held == 1, "the pull is held")
    assert (await held)[0].code == ResponseCode.PULL_NOT_FOUND
    await client.__aexit__()


async def test_clients_trace_their_messages(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        assert TRACING.items() <= (await client.send("orders", b"hello")).items()
        trace = "RMQ_SYS_TRACE_TOPIC"
        await client.send(trace, b"Pub\x01", KEYS="U1")
        _, records = await client.call(RequestCode.QUERY_MESSAGE, topic=trace, key="U1", maxNum=64)
        assert record.decode(records).body == b"Pub\x01"
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=trace, readQueueNums=1, writeQueueNums=1, perm=6)
        assert node.topics.entries[trace].write_queue_nums == 1
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=trace)
        assert trace not in node.topics.entries


async def test_a_retry_topic_that_does_not_exist_yet_is_empty_for_tools(tmp_path: Path) -> None:
    """RocketMQ's tools list a retry topic of each group.  The dashboard then reads the topic that a user chooses."""
    async with remoting_broker(tmp_path) as (node, client):
        queue = {"topic": "%RETRY%readers", "queueId": 0}
        bounds = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        for code in bounds:
            assert await client.refused(code, timestamp=1, **queue) == ResponseCode.TOPIC_NOT_EXIST, "no such group"
        node.groups.put(SubscriptionGroup("readers"), 1)
        for code in bounds:
            assert await client.call(code, timestamp=1, **queue) == ({"offset": "0"}, b"")
        header, records = await client.pull("%RETRY%readers", 0)
        assert (header.code, header.fields["nextBeginOffset"], records) == (ResponseCode.PULL_NOT_FOUND, "0", b"")
        status = await client.json(RequestCode.GET_TOPIC_STATS_INFO, topic="%RETRY%readers")
        assert [one["maxOffset"] for one in status["offsetTable"].values()] == [0]
        config = await client.json(RequestCode.GET_TOPIC_CONFIG, topic="%RETRY%readers")
        assert (config["topicName"], config["readQueueNums"], config["perm"]) == ("%RETRY%readers", 1, 6)
        groups = await client.json(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="%RETRY%readers")
        assert groups == {"groupList": []}
        # A pull that would wait is refused, so that the client waits.
        header, _ = await client.pull("%RETRY%readers", 0, sysFlag=6, suspendTimeoutMillis=60_000)
        assert header.code == ResponseCode.TOPIC_NOT_EXIST
