"""Tests our slave behind a real RocketMQ master, over RocketMQ's plain HA protocol.

`./run test --interop` runs these tests.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker_service.errors import InvalidParameter
from broker_service.modes import BrokerRole, HaMasterProtocol
from broker_service.node.node import BrokerNode
from rocketsim_client import Admin, Cluster, Message, Producer, PullConsumer
from rocketsim_client.connection import Connection
from rocketsim_client.model import MessageQueue
from testbed.polling import PROCESS_PATIENCE_S, until, wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import BROKER_NAME, NEWEST, RocketMQ, is_fetched, running
from tests.interop.marks import INTEROP
from tests.support.brokers import running as running_broker

pytestmark = INTEROP
VERSIONS = [
    NEWEST,
    "5.1.4",
    pytest.param("4.9.8", marks=pytest.mark.skipif(not is_fetched("4.9.8"), reason="it has to be built (is_fetched)")),
]
FILE_SIZE = 4 << 20
SETTINGS = {"mappedFileSizeCommitLog": FILE_SIZE, "autoCreateSubscriptionGroup": "true"}
TOPIC, GROUP = "orders", "readers"
KEYS: dict[str, Any] = {
    "broker_name": BROKER_NAME,
    "broker_role": BrokerRole.SLAVE,
    "broker_id": 1,
    "ha_master_protocol": HaMasterProtocol.rocketmq,
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 6_000_000,
    "sync_metadata_interval": 1_000,
}


class Sender:
    """Our producer at the RocketMQ master, and the bodies that it has sent."""

    def __init__(self, rocketmq: RocketMQ) -> None:
        self.where = Connection.of(rocketmq.name_server, timeout_s=20.0, poll_interval_s=1.0)
        self.bodies: list[bytes] = []

    def wait_registered(self) -> None:
        """Returns once the name server knows the broker."""
        with Admin(self.where) as admin:
            wait_until(lambda: bool(admin.cluster_list()), "the name server to know the broker")

    def make_topic(self) -> None:
        with Admin(self.where) as admin:
            admin.update_topic(TOPIC, read_queue_nums=4, write_queue_nums=4)
            wait_until(lambda: TOPIC in admin.topic_list(), "the name server to know the topic")

    def send(self, count: int) -> None:
        cluster = Cluster(self.where)
        with Producer(cluster=cluster, timeout_s=60.0) as producer:
            bodies = [b"%06d " % (len(self.bodies) + number) + b"x" * 200 for number in range(count)]
            for first in range(0, count, 500):
                producer.send_batch([Message(TOPIC, body, "TagA") for body in bodies[first : first + 500]])
        cluster.close()
        self.bodies += bodies

    def commit(self, offset: int) -> None:
        cluster = Cluster(self.where)
        with PullConsumer(cluster=cluster, group=GROUP) as consumer:
            queue = MessageQueue(TOPIC, BROKER_NAME, 0)
            consumer.pull(queue, 0)  # it makes the group
            consumer.commit(queue, offset)
        cluster.close()


def masters_log(rocketmq: RocketMQ) -> bytes:
    files = sorted((rocketmq.work / "store" / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)


def our_log(node: BrokerNode) -> bytes:
    found, at = bytearray(), node.store.min_offset
    while at < node.store.end_offset:
        data = node.store.read_log(at, 1 << 20)
        found += data
        at += len(data)
    return bytes(found)


def read(node: BrokerNode) -> list[bytes]:
    """Returns the bodies that our pull client reads from the slave alone."""
    cluster = Cluster(Connection.of(brokers={BROKER_NAME: {1: node.address}}, timeout_s=20.0))
    with PullConsumer(cluster=cluster, group="elsewhere") as consumer:
        bodies: list[bytes] = consumer.read(TOPIC).read_all()["body"].to_pylist()
    cluster.close()
    return sorted(bodies)


async def has_all(node: BrokerNode, sender: Sender) -> None:
    def ends() -> int:
        return sum(node.store.queues.bounds(TOPIC, queue)[1] for queue in range(4))

    await until(lambda: ends() == len(sender.bodies), f"the slave has {len(sender.bodies)} messages", 60.0)


class Query:
    """A query that Spark runs on one cluster after the other, each time from the checkpoint of the run before."""

    def __init__(self, spark: Any, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint

    def run(self, **where: str) -> list[bytes]:
        """Reads all messages that are there now, and returns those that this run has read."""
        rows: list[bytes] = []
        options = {"subscribe": TOPIC, "startingOffsets": "earliest", **where}
        query = (
            self._spark.readStream.format("rocketsim")
            .options(**options)
            .load()
            .writeStream.option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(lambda frame, _: rows.extend(bytes(row.body) for row in frame.select("body").collect()))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PROCESS_PATIENCE_S)
        return sorted(rows)


@pytest.mark.spark
@pytest.mark.parametrize("version", VERSIONS)
def test_a_query_moves_to_the_slave_and_leaves_the_master_alone(spark: Any, tmp_path: Path, version: str) -> None:
    def batch(**where: str) -> list[bytes]:
        rows = spark.read.format("rocketsim").options(subscribe=TOPIC, **where).load().collect()
        assert {row.servedByBrokerId for row in rows} == {1}
        return sorted(bytes(row.body) for row in rows)

    def served_by_master() -> int:
        """Returns how many messages the master has sent to clients."""
        with Admin(sender.where) as admin:
            (status,) = admin.broker_status(broker_addr=rocketmq.address).values()
        return int(status["msgGetTotalTodayNow"])

    def ends(where: Connection) -> int:
        with Cluster(where) as cluster:
            return sum(one.max_offset for one in cluster.bounds(TOPIC).values())

    with (
        running(tmp_path / "rocketmq", version=version, settings=SETTINGS) as rocketmq,
        Processes(tmp_path / "ours") as processes,
    ):
        sender = Sender(rocketmq)
        sender.wait_registered()
        sender.make_topic()
        sender.send(3_000)
        wait_until(lambda: ends(sender.where) == 3_000, "all messages")
        query = Query(spark, tmp_path / "checkpoint")
        assert query.run(nameServer=rocketmq.name_server, group="mover") == sender.bodies

        names = processes.start_namesrv()
        keys = {"haMasterProtocol": "rocketmq", "haMasterAddress": rocketmq.address, "syncMetadataInterval": 1_000}
        slave = processes.start_broker(BROKER_NAME, 1, names, mappedFileSizeCommitLog=FILE_SIZE, **keys)
        here = Connection.of(names.address, timeout_s=20.0)
        with Admin(here) as admin:
            wait_until(lambda: TOPIC in admin.topic_list(), "our name server to know the topic")
        sender.send(1_000)
        wait_until(lambda: ends(here) == 4_000, "the slave has all messages")
        before = served_by_master()
        assert before >= 3_000
        assert query.run(nameServer=names.address, group="moved") == sender.bodies[3_000:]
        assert batch(nameServer=names.address) == sender.bodies
        with Cluster(here) as cluster:
            committed = cluster.committed("moved", cluster.queues(TOPIC))
            assert sum(committed.values()) == 4_000
        assert served_by_master() == before
        rocketmq.master.kill()
        assert batch(brokers=f"{BROKER_NAME}=1@{slave.address}") == sender.bodies
        with Admin(here) as admin:
            admin.promote_slave(slave.address, broker_name=BROKER_NAME, force=True)
        with Producer(here, timeout_s=60.0) as producer:
            producer.send(Message(TOPIC, b"after"))
        assert query.run(nameServer=names.address, group="moved") == [b"after"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_slave_copies_resumes_serves_and_is_promoted(tmp_path: Path, version: str) -> None:
    with running(tmp_path / "rocketmq", version=version, settings=SETTINGS) as rocketmq:
        sender = Sender(rocketmq)
        await asyncio.to_thread(sender.wait_registered)
        await asyncio.to_thread(sender.make_topic)
        await asyncio.to_thread(sender.send, 20_000)
        await asyncio.to_thread(sender.commit, 7)
        async with running_broker(tmp_path / "s", **KEYS, ha_master_address=rocketmq.address) as node:
            await has_all(node, sender)
            offsets = node.broker.offsets
            await until(lambda: offsets.get(GROUP, TOPIC, 0).offset == 7, "the committed offset arrives", 60.0)
            assert node.broker.topics.entries[TOPIC].read_queue_nums == 4
            assert GROUP in node.broker.groups.entries
            ours = our_log(node)
            assert len(ours) > FILE_SIZE
            assert ours == masters_log(rocketmq)[: len(ours)]
            assert await asyncio.to_thread(read, node) == sender.bodies
        # Master and slave are started again, and more messages arrive meanwhile.
        await asyncio.to_thread(rocketmq.master.stop)
        await asyncio.to_thread(rocketmq.master.start)
        await asyncio.to_thread(sender.wait_registered)
        await asyncio.to_thread(sender.send, 1_000)
        async with running_broker(tmp_path / "s", **KEYS, ha_master_address=rocketmq.address) as node:
            await has_all(node, sender)
            await asyncio.to_thread(sender.send, 1_000)
            await has_all(node, sender)
            ours = our_log(node)
            assert ours == masters_log(rocketmq)[: len(ours)]
            with pytest.raises(InvalidParameter, match="follows a RocketMQ master"):
                await node.leadership.promote(BROKER_NAME, 0, None, force=False)
            rocketmq.master.kill()
            await until(lambda: not node.replication.slave.is_following(), "the slave has lost its master", 60.0)
            assert await asyncio.to_thread(read, node) == sender.bodies
            await node.leadership.promote(BROKER_NAME, 0, None, force=True)
            assert not node.broker.is_slave
            assert await asyncio.to_thread(read, node) == sender.bodies
