"""An operator resets a group, and the group's running push consumers of RocketMQ 4 continue at the new offsets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.loose_json import loads

from broker_service.admin.operations import Operations
from broker_service.node.node import BrokerNode
from broker_service.wire.remoting import resets
from tests.remoting.test_admin import queue
from tests.remoting.test_push_groups import GROUP, heartbeat, told
from tests.support.remoting import Client, remoting_broker

QUEUE = {"consumerGroup": GROUP, "topic": "orders", "queueId": 0}
RESET = {"topic": "orders", "group": GROUP, "timestamp": 0, "isForce": "true"}
BY_TIME = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
END = 4


@asynccontextmanager
async def consumed(root: Path, language: str = "JAVA", body: bytes = b"") -> AsyncIterator[tuple[BrokerNode, Client]]:
    """Runs a broker and a push consumer, which has consumed all messages of queue 0 and committed its end."""
    async with remoting_broker(root) as (node, client):
        await client.send("orders", *(b"%d" % number for number in range(END)))
        client.language = language
        await client.call(RequestCode.HEART_BEAT, body or heartbeat("one", GROUP))
        await told(client)
        await commit(client, END)
        yield node, client


async def commit(client: Client, offset: int) -> None:
    await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, **QUEUE, commitOffset=offset)


async def committed(client: Client) -> int:
    fields, _ = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, **QUEUE)
    return int(fields["offset"])


async def pull(client: Client, offset: int, commits: int) -> None:
    header, _ = await client.pull("orders", offset, consumerGroup=GROUP, sysFlag=1, commitOffset=commits)
    assert header.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)


async def test_a_running_consumer_follows_a_reset_although_its_timer_still_commits_the_old_offset(
    tmp_path: Path,
) -> None:
    async with consumed(tmp_path) as (_, client):
        _, answered = await client.call(BY_TIME, **RESET)
        header, body = await client.told.get()
        assert header.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET and header.is_one_way and body == answered
        assert header.fields.items() >= {"topic": "orders", "group": GROUP, "timestamp": "0"}.items()
        assert loads(body)["offsetTable"][queue("orders", 0)] == 0
        await commit(client, END)
        await pull(client, END, commits=END)
        assert await committed(client) == 0
        await commit(client, 0)  # the consumer continues here, 10 s after it has heard of the reset
        await commit(client, 3)
        assert await committed(client) == 3


async def test_a_consumer_that_pulls_from_the_new_offset_has_followed_the_reset(tmp_path: Path) -> None:
    async with consumed(tmp_path) as (_, client):
        await client.call(BY_TIME, **RESET)
        await commit(client, END)
        await pull(client, 0, commits=0)
        await pull(client, 2, commits=2)
        assert await committed(client) == 2


async def test_a_consumer_that_does_not_follow_a_reset_commits_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resets, "PENDING_S", 0.0)
    async with consumed(tmp_path) as (_, client):
        await client.call(BY_TIME, **RESET)
        await commit(client, END)
        assert await committed(client) == END


async def test_commits_of_a_group_without_push_consumers_of_the_topic_count_at_once(tmp_path: Path) -> None:
    broadcast = heartbeat("one", GROUP).replace(b"CLUSTERING", b"BROADCASTING")
    async with consumed(tmp_path, body=broadcast) as (_, client):
        await client.call(BY_TIME, **RESET)
        assert (await client.told.get())[0].code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        await commit(client, END)
        assert await committed(client) == END


async def test_a_consumer_in_c_plus_plus_gets_the_offsets_as_a_list(tmp_path: Path) -> None:
    async with consumed(tmp_path, "CPP") as (_, client):
        await client.call(BY_TIME, **RESET, queueId=0)
        _, body = await client.told.get()
        entry = {"brokerName": "broker-a", "topic": "orders", "queueId": 0, "offset": 0}
        assert json.loads(body) == {"offsetTable": [entry]}


async def test_consumers_hear_of_a_reset_by_our_own_tools(tmp_path: Path) -> None:
    async with consumed(tmp_path) as (node, client):
        await Operations(node.broker, node.leadership).reset_offset_by_time(GROUP, "orders", -1, [0], force=True)
        header, body = await client.told.get()
        assert header.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET and header.fields["timestamp"] == "-1"
        assert loads(body)["offsetTable"] == {queue("orders", 0): END}


async def test_a_queue_is_reset_to_the_offset_that_the_request_names(tmp_path: Path) -> None:
    async with consumed(tmp_path) as (_, client):
        named: dict[str, Any] = RESET | {"isForce": "false", "queueId": 0}  # as mqadmin sends it with -q and -o
        found = await client.json(BY_TIME, **named, offset=3)
        assert found["offsetTable"] == {queue("orders", 0): 3} and await committed(client) == 3
        assert await client.refused(BY_TIME, **named, offset=END + 1) == ResponseCode.INVALID_PARAMETER
        assert await client.refused(BY_TIME, **named | {"queueId": 9}, offset=1) == ResponseCode.INVALID_PARAMETER
        assert await committed(client) == 3
