"""The clusters of the other tests refuse the same calls in the same way as a real broker."""

import asyncio
import zlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.message_pb2 import QueueId

from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.commits import CommitEntry
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.errors import InvalidParameter
from broker_service.node.node import BrokerNode
from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import RocketSimError
from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.source_cluster import ClientCluster, SourceCluster
from tests.source.memory_cluster import MemoryCluster
from tests.support.brokers import message, put, running, stub_of
from tests.support.fake_broker import FakeCluster

QUEUES = 4
Q0, Q3, BEYOND = (MessageQueue("t", "broker-a", number) for number in (0, QUEUES - 1, QUEUES))
ABSENT = MessageQueue("absent", "broker-a", 0)


def questions() -> dict[str, tuple[str, Any]]:
    """Returns four requests of each call: for an absent topic, for a queue beyond the topic's queues, for an existing
    queue together with a queue beyond, and for the existing queue alone.
    """
    found: dict[str, tuple[str, Any]] = {}
    bounds, search, commit = pb.QueueBoundsRequest, pb.SearchOffsetsRequest, pb.CommitOffsetsRequest
    for topic, ids in (("absent", [0]), ("t", [QUEUES]), ("t", [0, QUEUES]), ("t", [0])):
        queues = [QueueId(topic=topic, queue_id=number) for number in ids]
        commits = [commit.Entry(topic=topic, queue_id=number, offset=0) for number in ids]
        ranges = [pb.PullRangeRequest.Range(topic=topic, queue_id=number, until_offset=1) for number in ids]
        records = message(topic, b"x", ids[-1])
        send = {"topic": topic, "records": records, "count": 1, "crc32": zlib.crc32(records)}
        calls: dict[str, Any] = {
            "QueueBounds": bounds(topic=topic, queue_ids=ids),
            "SearchOffsets": search(topic=topic, entries=[search.Entry(queue_id=number) for number in ids]),
            "CommitOffsets": commit(consumer_group="g", entries=commits),
            "QueryOffsets": pb.QueryOffsetsRequest(consumer_group="g", queues=queues),
            "PullRange": pb.PullRangeRequest(ranges=ranges),
            "Pull": pb.PullRequest(consumer_group="g", topic=topic, queue_id=ids[-1], max_msg_nums=1),
        }
        if topic == "t":  # a send to an absent topic creates the topic
            calls["Send"] = pb.SendRequest(**send)
        found |= {f"{call} {topic} {ids}": (call, request) for call, request in calls.items()}
    return found


async def code_of(stub: Any, call: str, request: Any) -> tuple[str, str] | None:
    """Returns the status and the code of the refusal, or None if the call is answered."""
    try:
        answer = getattr(stub, call)(request, timeout=60)
        if call == "PullRange":
            async for _ in answer:
                pass
        else:
            await answer
    except grpc.aio.AioRpcError as refused:
        return refused.code().name, str(dict(refused.trailing_metadata() or ()).get("rocketsim-code"))
    return None


def with_topic(node: BrokerNode, queues: int = QUEUES) -> None:
    node.broker.topics.update(TopicConfig("t", read_queue_nums=queues, write_queue_nums=queues), 0)


async def test_the_fake_broker_refuses_as_a_broker_does(tmp_path: Path) -> None:
    with FakeCluster("t") as cluster:
        fake = cluster.start("broker-a")
        fake.missing.add("absent")
        async with running(tmp_path) as node, stub_of(node) as real, grpc.aio.insecure_channel(fake.address) as channel:
            with_topic(node)
            asked = questions()
            codes = {name: await code_of(real, *question) for name, question in asked.items()}
            assert {name: await code_of(BrokerStub(channel), *question) for name, question in asked.items()} == codes
    beyond = {name.split()[0]: code for name, code in codes.items() if name.endswith(f"t [{QUEUES}]")}
    assert beyond == {
        "QueueBounds": ("INVALID_ARGUMENT", "29"),
        "SearchOffsets": ("INVALID_ARGUMENT", "29"),
        "CommitOffsets": ("INVALID_ARGUMENT", "29"),
        "QueryOffsets": None,
        "PullRange": ("INVALID_ARGUMENT", "1"),
        "Pull": ("INVALID_ARGUMENT", "1"),
        "Send": ("INVALID_ARGUMENT", "29"),
    }


def seen(cluster: SourceCluster) -> list[Any]:
    """Returns the source's results for each question, with the classes of errors in place of errors."""
    found: list[Any] = []
    for queues in ([Q0], [BEYOND], [Q0, BEYOND], [ABSENT], [Q0, ABSENT]):
        states = cluster.bounds(queues)
        found.append((sorted(states.bounds), sorted(states.gone), kinds(states.unreachable)))
        searched = cluster.search(dict.fromkeys(queues, 0))
        found.append((searched.offsets, kinds(searched.unreachable)))
        committed = cluster.commit("g", dict.fromkeys(queues, 0), "masterFirst", 60.0)
        found.append((committed.broker_ids, committed.offsets, kinds(committed.failures)))
        asked = cluster.committed("g", queues)
        found.append((asked.offsets, kinds(asked.unreachable)))
        ranges = [OffsetRange(queue, 0, 1) for queue in queues]
        keys: dict[str, Any] = {
            "broker_id": 0,
            "only_this": False,
            "group": "g",
            "expression": "*",
            "frame_bytes": 1 << 20,
        }
        try:
            found.append(f"{len(list(cluster.pull(ranges, **keys)))} frame")
        except RocketSimError as refused:
            found.append(type(refused))
    return found


def kinds(errors: Any) -> dict[Any, type]:
    return {name: type(error) for name, error in errors.items()}


def memory_cluster() -> MemoryCluster:
    """Returns a cluster in memory in which the absent topic and the queue beyond the others existed once."""
    cluster = MemoryCluster()
    for number in range(QUEUES):
        cluster.put(MessageQueue("t", "broker-a", number), 0)
    for gone in (BEYOND, ABSENT):
        cluster.put(gone, 0)
        cluster.drop(gone)
    return cluster


def ask_of(node: BrokerNode, look: Any) -> Any:
    with Cluster("", brokers={"broker-a": {0: node.address}}, timeout_s=60.0, poll_interval_s=60.0) as cluster:
        return look(ClientCluster(cluster))


async def test_the_cluster_in_memory_refuses_as_a_broker_does(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        with_topic(node)
        assert seen(memory_cluster()) == await asyncio.to_thread(ask_of, node, seen)


async def test_a_master_says_where_a_closed_queue_ended_and_takes_the_last_commits(tmp_path: Path) -> None:
    def look(cluster: ClientCluster) -> Any:
        states = cluster.bounds([Q0, Q3])
        cluster.commit("g", {Q3: 2}, "masterFirst", 30.0)
        return sorted(states.bounds), states.gone, states.closed, cluster.committed("g", [Q3]).offsets

    async with running(tmp_path) as node:
        with_topic(node)
        await put(node, "t", b"a", b"b", queue_id=3)
        with_topic(node, queues=2)
        assert await asyncio.to_thread(ask_of, node, look) == ([Q0], {Q3}, {Q3: 2}, {Q3: 2})
        node.topics.put(TopicConfig("t", read_queue_nums=2, write_queue_nums=4), 0)
        states = await asyncio.to_thread(ask_of, node, lambda cluster: cluster.bounds([Q0, Q3]))
        assert (states.gone, states.closed) == ({Q3}, {}), "messages may come that nobody can read"
        with pytest.raises(InvalidParameter):
            await QueueLookup(node.broker).bounds("t", [9])
        with pytest.raises(InvalidParameter):
            node.commits.commit("g", [CommitEntry("t", 9, 0)])


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_queue_beyond_the_count_is_gone_unless_its_master_was_replaced(tmp_path: Path, fenced: bool) -> None:
    """A replaced master has the number of queues from before the promotion, so the new master may have more queues."""

    def bounds(cluster: SourceCluster) -> tuple[list[MessageQueue], list[MessageQueue], set[MessageQueue]]:
        states = cluster.bounds([Q0, Q3, ABSENT])
        return sorted(states.bounds), sorted(states.gone), set(states.unreachable)

    async with running(tmp_path) as node:
        with_topic(node, queues=2)
        if fenced:
            node.mastership.newer_epoch(10**15, "a test")
        gone = {Q3, ABSENT}
        expected = ([Q0], [], gone) if fenced else ([Q0], sorted(gone), set())
        assert await asyncio.to_thread(ask_of, node, bounds) == expected
