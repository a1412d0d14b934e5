"""Our broker opens stores of a real RocketMQ whose pops have open deliveries."""

import time
from pathlib import Path

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.errors import StoreCorrupt, StoreTooNew
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop
from broker_service.store.json_file import JsonFile
from broker_service.store.offline.verification import verify
from testbed.polling import until
from testbed.real_rocketmq import running as running_rocketmq
from tests.consumption.test_rocketmq_pops import is_taken_over
from tests.interop.marks import NEEDS_MAVEN
from tests.interop.programs import pop, read
from tests.support.brokers import goes_by, running, small_config

pytestmark = NEEDS_MAVEN

SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
# With this interval, RocketMQ has the group's offsets on disk before it is killed.  Without these offsets, all messages
# would come again.
SETTINGS = {"timerWheelEnable": "true", "flushConsumerOffsetInterval": 100, **SIZES}
TOPIC = {
    "attributes": {},
    "order": False,
    "perm": 6,
    "readQueueNums": 2,
    "topicFilterType": "SINGLE_TAG",
    "topicName": "orders",
    "topicSysFlag": 0,
    "writeQueueNums": 2,
}
TEN_MINUTES, FIFTEEN_MINUTES = "600000", "900000"
WORK: list[tuple[str, ...]] = [
    *(("send", "orders", str(number % 2), f"o-{number}") for number in range(10)),
    ("pop", "crew", "orders", "10", TEN_MINUTES),
    *(("ack", "crew", f"o-{number}") for number in (0, 1, 4)),
    ("change", "crew", "o-2", FIFTEEN_MINUTES),
    *(("change", "crew", f"o-{number}", "500") for number in (3, 5)),
    ("pop", "crew", "orders", "2", TEN_MINUTES),  # pops o-3 and o-5 again, from the retry topic
    ("ack", "crew", "o-5"),
    ("change", "crew", "o-6", "500"),
    *(("send", "orders", str(number % 2), f"o-{number}") for number in (10, 11)),
]
# The messages that are not acknowledged, and the attempt of their next delivery.
LEFT = {"o-2": 2, "o-3": 3, "o-6": 2, "o-7": 2, "o-8": 2, "o-9": 2, "o-10": 1, "o-11": 1}


@pytest.mark.parametrize("ends", ["cleanly", "by a kill"])
async def test_what_nobody_acknowledged_at_rocketmq_comes_to_its_group_here(tmp_path: Path, ends: str) -> None:
    store = tmp_path / "store"
    make_topic(store)
    with running_rocketmq(tmp_path / "rocketmq", store=store, settings=SETTINGS) as rocketmq:
        popped = pop(rocketmq, WORK)
        read(rocketmq, [("await", "%RETRY%crew_orders", "3")])
        await until(lambda: offsets_are_on_disk(store), "RocketMQ's offsets are on disk")
        if ends == "by a kill":
            rocketmq.master.kill()
    assert {(one["body"], one["attempt"]) for one in popped[10:]} == {("o-3", 2), ("o-5", 2)}

    async with running(store) as node:
        await is_taken_over(node)
        assert await received(node, {"o-6": 2, "o-10": 1, "o-11": 1})
        real = node.broker.now_ms
        goes_by(node.broker, lambda: real() + 1_000_000)
        await until(lambda: not [*due(node)], "all deadlines have passed")
        got = await received(node, {})
    assert got == {body: LEFT[body] for body in ("o-2", "o-3", "o-7", "o-8", "o-9")}
    assert list(verify(store)) == []


async def test_deliveries_in_rocksdb_are_exported_by_rocketmq_and_come_to_their_group_here(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_topic(store)
    keys = {"popConsumerKVServiceInit": "true", **SETTINGS}
    with running_rocketmq(
        tmp_path / "1", store=store, settings={**keys, "popConsumerKVServiceEnable": "true"}
    ) as rocketmq:
        pop(rocketmq, WORK[:14])
    with pytest.raises(StoreTooNew, match="exportPopRecord"):
        BrokerNode.open(small_config(store))
    with running_rocketmq(
        tmp_path / "2", store=store, settings={**keys, "popConsumerKVServiceEnable": "false"}
    ) as rocketmq:
        rocketmq.mqadmin("exportPopRecord", "-b", rocketmq.address)
        read(rocketmq, [("await", TIMER_TOPIC, "7")])
    (store / "kvStore").rename(tmp_path / "kvStore")
    left = {f"o-{number}" for number in (2, 3, 5, 6, 7, 8, 9)}
    async with running(store) as node:
        await is_taken_over(node)
        assert not node.consumption.state.timers.count, "none of RocketMQ's checkpoints waits"
        real = node.broker.now_ms
        goes_by(node.broker, lambda: real() + 1_000_000)
        await until(lambda: not due(node), "all deadlines have passed")
        got = await received(node, {})
    # Messages from RocketMQ's committed offset on come as new ones, even if they were acknowledged.
    assert left <= got.keys() <= left | {"o-0", "o-1", "o-4"}
    assert list(verify(store)) == []


def make_topic(store: Path) -> None:
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    topics = {"dataVersion": version, "topicConfigTable": {"orders": TOPIC}}
    JsonFile(store / "config" / "topics.json").save(topics)


def offsets_are_on_disk(store: Path) -> bool:
    """Returns True if the file has the group's offsets of both topics, and the offsets of the checkpoints of the three
    messages that RocketMQ has retried.
    """
    try:
        offsets = (JsonFile(store / "config" / "consumerOffset.json").load() or {})["offsetTable"]
    except (StoreCorrupt, KeyError):
        return False  # the file is being written
    revived = offsets.get("rmq_sys_REVIVE_LOG_interop@CID_RMQ_SYS_REVIVE_GROUP", {})
    ours = offsets.get("orders@crew"), offsets.get("%RETRY%crew_orders@crew")
    return ours == ({"0": 5, "1": 5}, {"0": 2}) and sum(revived.values()) + len(revived) == 3


def due(node: BrokerNode) -> list[str]:
    """Returns the topics of the deliveries that RocketMQ has made and that are under way in our broker."""
    queues = node.consumption.state.queues.items()
    return [place.topic for place, queue in queues for one in queue.under_way.values() if not one.client_id]


async def received(node: BrokerNode, at_least: dict[str, int]) -> dict[str, int]:
    """Pops all messages, at least those of `at_least`, without acks, and returns body -> attempt."""
    got: dict[str, int] = {}
    begun = time.monotonic()
    while not got.keys() >= at_least.keys() or not got:
        assert time.monotonic() < begun + 60, got
        for _ in range(4):
            pop = Pop(group="crew", topic="orders", client_id="me", invisible_ms=40_000_000, max_messages=32, poll_s=1)
            deliveries = (await node.consumption.pop(pop)).deliveries
            got |= {record.decode(one.record).body.decode(): one.attempt for one in deliveries}
    assert {body: got[body] for body in at_least} == at_least
    return got
