"""A broker answers the requests of mqadmin and RocketMQ's dashboard.  Here a scripted client sends the requests; the
tests in `interop` use the real tools.
"""

import dataclasses
import json
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.loose_json import ObjectKey

from tests.support.brokers import goes_by
from tests.support.remoting import remoting_broker

TOPIC = {"defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG"}


def queue(topic: str, queue_id: int) -> ObjectKey:
    return ObjectKey([("brokerName", "broker-a"), ("queueId", queue_id), ("topic", topic)])


async def test_topics_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        attributes = {"attributes": "+message.type=FIFO"}
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **TOPIC, **attributes)
        wanted = {
            "attributes": {"message.type": "FIFO"},
            "order": False,
            "perm": 6,
            "readQueueNums": 3,
            "topicFilterType": "SINGLE_TAG",
            "topicName": "orders",
            "topicSysFlag": 0,
            "writeQueueNums": 2,
        }
        assert await client.json(RequestCode.GET_TOPIC_CONFIG, topic="orders") == wanted
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **TOPIC | {"writeQueueNums": 3})
        assert node.topics.entries["orders"].message_type == "FIFO", "what is not named stays"
        everything = await client.json(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert everything["topicConfigTable"]["orders"] == wanted | {"writeQueueNums": 3}
        assert everything["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
        system = await client.json(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert "TBW102" in system["topicList"] and "orders" not in system["topicList"]
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
        assert await client.refused(RequestCode.GET_TOPIC_CONFIG, topic="orders") == ResponseCode.TOPIC_NOT_EXIST
        for topic in ("orders", "%RETRY%readers", "%DLQ%readers"):
            await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
        refused = await client.refused(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="bad name", **TOPIC)
        assert refused == ResponseCode.MESSAGE_ILLEGAL


async def test_the_dashboards_form_for_topics_is_taken_with_its_defaults(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **TOPIC | {"perm": 7})
        assert node.topics.entries["orders"].perm == 6
        sent_back = {"attributes": "+message.type=UNSPECIFIED", "writeQueueNums": 3}
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **TOPIC | sent_back)
        assert (node.topics.entries["orders"].write_queue_nums, node.topics.entries["orders"].attributes) == (3, {})


async def test_a_changed_group_that_is_sent_back_keeps_its_retry_policy(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        update = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 7000]}}
        await client.call(update, json.dumps({"groupName": "readers", "groupRetryPolicy": policy}).encode())
        before = node.groups.entries["readers"]
        found = await client.json(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="readers")
        await client.call(update, json.dumps(found | {"retryMaxTimes": 3}).encode())
        assert node.groups.entries["readers"] == dataclasses.replace(before, retry_max_times=3)
        assert before.group_retry_policy


async def test_groups_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        update = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await client.call(update, json.dumps({"groupName": "readers", "retryMaxTimes": 3}).encode())
        await client.call(update, json.dumps({"groupName": "readers", "consumeEnable": False}).encode())
        found = await client.json(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="readers")
        assert (found["retryMaxTimes"], found["consumeEnable"], found["groupName"]) == (3, False, "readers")
        everything = await client.json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        tools = {"groupName": "TOOLS_CONSUMER", "retryMaxTimes": 16, "consumeEnable": True}
        assert everything["subscriptionGroupTable"] == {"readers": found, "TOOLS_CONSUMER": found | tools}
        await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="readers", cleanOffset="true")
        assert not node.groups.entries
        refused = await client.refused(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="readers")
        assert refused == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b'{"groupName":7}', b'{"groupName":"g","retryMaxTimes":"3"}'),
        *(b'{"groupName":"g","consumeEnable":1}', b'{"groupName":"g","groupRetryPolicy":{"type":"none"}}'),
    ],
)
async def test_a_group_that_makes_no_sense_is_refused(tmp_path: Path, body: bytes) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        refused = await client.refused(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        assert refused == ResponseCode.INVALID_PARAMETER and not node.groups.entries


async def test_status_of_topics_and_progress_of_groups(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **TOPIC)
        await client.send("orders", b"0", b"1", b"2", queue_id=1)
        status = await client.json(RequestCode.GET_TOPIC_STATS_INFO, topic="orders")
        assert {key: (one["minOffset"], one["maxOffset"]) for key, one in status["offsetTable"].items()} == {
            queue("orders", 0): (0, 0),
            queue("orders", 1): (0, 3),
            queue("orders", 2): (0, 0),
        }
        assert status["offsetTable"][queue("orders", 1)]["lastUpdateTimestamp"] > 0
        commit = RequestCode.UPDATE_CONSUMER_OFFSET
        await client.call(commit, consumerGroup="readers", topic="orders", queueId=1, commitOffset=2)
        stats = await client.json(RequestCode.GET_CONSUME_STATS, consumerGroup="readers")
        found = stats["offsetTable"][queue("orders", 1)]
        assert (found["brokerOffset"], found["consumerOffset"]) == (3, 2) and found["lastTimestamp"] > 0
        assert stats["consumeTps"] == 0.0
        assert await client.json(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders") == {"groupList": ["readers"]}
        assert await client.json(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="readers") == {"topicList": ["orders"]}
        unknown = await client.refused(RequestCode.GET_CONSUME_STATS, consumerGroup="others")
        assert unknown == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        reset = {"topic": "orders", "group": "readers", "timestamp": 0, "isForce": "true"}
        table = (await client.json(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset))["offsetTable"]
        assert table == {queue("orders", number): 0 for number in range(3)}


async def test_messages_are_found_by_key_by_id_and_by_their_place(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        first = await client.send("orders", b"first", KEYS="k", UNIQ_KEY="U1")
        await client.send("orders", b"second", KEYS="k", UNIQ_KEY="U2")
        ask = {"topic": "orders", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
        _, found = await client.call(RequestCode.QUERY_MESSAGE, key="k", **ask)
        assert found.count(b"second") == found.count(b"first") == 1
        fields, found = await client.call(RequestCode.QUERY_MESSAGE, key="U1", **ask)
        assert record.decode(found).body == b"first"
        assert fields.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
        assert await client.refused(RequestCode.QUERY_MESSAGE, key="none", **ask) == ResponseCode.QUERY_NOT_FOUND
        offset = record.parse_offset_message_id(first["msgId"])[2]
        _, found = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
        assert record.decode(found).body == b"first"
        view = RequestCode.VIEW_MESSAGE_BY_ID
        assert await client.refused(view, offset=offset + 1) == ResponseCode.QUERY_NOT_FOUND
        assert await client.refused(view, offset=offset, topic="other") == ResponseCode.QUERY_NOT_FOUND


# The keys that clusterList, brokerStatus and the dashboard read: without one of them a line of their output is missing.
READ_BY_TOOLS = {
    *("brokerVersionDesc", "brokerActive", "putTps", "getTransferredTps", "sendThreadPoolQueueSize"),
    *("pullThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills"),
    *("pageCacheLockTimeMills", "earliestMessageTimeStamp", "commitLogDiskRatio", "timerReadBehind"),
    *("timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps", "msgPutTotalYesterdayMorning"),
    *("msgPutTotalTodayMorning", "msgPutTotalTodayNow", "msgGetTotalTodayNow", "commitLogMaxOffset"),
}


async def test_the_broker_and_its_configuration(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        before = await client.json(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert before["table"]["earliestMessageTimeStamp"] == "0", "nothing was stored yet"
        await client.send("orders", b"0")
        table = (await client.json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        assert table.keys() >= READ_BY_TOOLS and all(isinstance(value, str) for value in table.values())
        assert table["msgPutTotalTodayNow"] == "1" and int(table["earliestMessageTimeStamp"]) > 0
        _, config = await client.call(RequestCode.GET_BROKER_CONFIG)
        assert b"brokerName=broker-a\n" in config
        await client.call(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=1000\n")
        assert node.broker.config.max_message_size == 1000
        refused = await client.refused(RequestCode.UPDATE_BROKER_CONFIG, b"listenPort=1\n")
        assert refused == ResponseCode.INVALID_PARAMETER
        assert await client.refused(RequestCode.UPDATE_BROKER_CONFIG, b"") == ResponseCode.INVALID_PARAMETER


async def test_the_statistics_of_topics_groups_and_the_broker(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):

        async def stats(name: str, key: str) -> Any:
            found = await client.json(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
            assert found.keys() == {"statsMinute", "statsHour", "statsDay"}
            minute = found["statsMinute"]
            assert minute["tps"] > 0 and minute.keys() == {"sum", "tps", "avgpt"}
            assert found["statsHour"]["sum"] == found["statsDay"]["sum"] == minute["sum"], "all were sent just now"
            return minute["sum"], minute["avgpt"]

        await client.send("orders", b"0", b"1", b"2")
        await client.send("orders", b"3")
        assert await stats("TOPIC_PUT_NUMS", "orders") == (4, 2.0), "two sends"
        size, average = await stats("TOPIC_PUT_SIZE", "orders")
        assert size > 4 * 80 and average == size / 2, "records, which have headers"
        _, records = await client.pull("orders", 0)
        assert await stats("GROUP_GET_NUMS", "orders@readers") == (4, 4.0)
        assert await stats("GROUP_GET_SIZE", "orders@readers") == (len(records), len(records))
        assert await stats("BROKER_PUT_NUMS", "DefaultCluster") == (4, 0.0)
        assert await stats("BROKER_GET_NUMS", "DefaultCluster") == (4, 0.0)
        commit = RequestCode.UPDATE_CONSUMER_OFFSET
        await client.call(commit, consumerGroup="readers", topic="orders", queueId=0, commitOffset=4)
        progress = await client.json(RequestCode.GET_CONSUME_STATS, consumerGroup="readers")
        assert progress["consumeTps"] > 0

        others = [("TOPIC_PUT_NUMS", "other"), ("GROUP_GET_NUMS", "orders"), ("GROUP_GET_NUMS", "orders@others")]
        for name, key in [*others, ("BROKER_PUT_NUMS", "south"), ("SNDBCK_PUT_NUMS", "orders@readers"), ("", "")]:
            refused = await client.refused(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
            assert refused == ResponseCode.SYSTEM_ERROR, (name, key)

        clock = node.broker.clock
        for seconds in range(0, 101, 10):
            node.broker.clock = lambda seconds=seconds: clock() + seconds
            node.status.sample()
            node.status.sample()  # one call takes one sample
        found = await client.json(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
        assert (found["statsMinute"]["sum"], found["statsHour"]["sum"]) == (0, 4)


async def test_the_counts_of_a_day_end_at_local_midnight(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        midnight = int(datetime.combine(date.today() + timedelta(days=1), time()).timestamp() * 1000)

        async def counts_at(now_ms: int, what: str) -> tuple[int, int]:
            """Returns the counts of yesterday and today, as RocketMQ's tools compute them."""
            goes_by(node.broker, lambda: now_ms)
            node.status.sample()
            table = (await client.json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
            parts = ("YesterdayMorning", "TodayMorning", "TodayNow")
            before, morning, now = (int(table[f"msg{what}Total{part}"]) for part in parts)
            return morning - before, now - morning

        await counts_at(midnight - 1, "Put")
        await client.send("orders", b"0", b"1")
        await client.pull("orders", 0)
        assert await counts_at(midnight - 1, "Put") == await counts_at(midnight - 1, "Get") == (0, 2)
        assert await counts_at(midnight, "Put") == await counts_at(midnight, "Get") == (2, 0)
        await client.send("orders", b"2")
        assert await counts_at(midnight, "Put") == (2, 1)
        assert await counts_at(midnight + 30 * 3600_000, "Put") == (1, 0)


async def test_the_pair_as_ha_status_shows_it(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        status: Any = await client.json(RequestCode.GET_BROKER_HA_STATUS)
        assert status["master"] is True and status["haConnectionInfo"] == []
        assert status["masterCommitLogMaxOffset"] == 0
