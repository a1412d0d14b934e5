"""The driver finds out which protocol the servers speak, and tells the tasks, which need not find out again."""

from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from rocketsim_client.connection import Connection
from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.partition import QueueRangesPartition, parallelism_now, plan_partitions
from rocketsim_source.reading import partition_reader
from rocketsim_source.schema import source_schema
from rocketsim_source.sink.writer import sink_plan
from rocketsim_source.source_cluster import ClientCluster
from tests.source.memory_cluster import MemoryCluster
from tests.support.remoting_peer import TOPIC, RemotingPeer, replaying

QUEUE = MessageQueue(TOPIC, "interop", 0)


def test_tasks_of_a_read_are_told_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    with replaying("5.5.0") as peer:
        given = {"nameServer": peer.address, "subscribe": TOPIC, "suggestScope": "worker"}
        options = source_options(given, streaming=True)
        cluster = ClientCluster.open(options.connection)
        (partition,) = plan_partitions([OffsetRange(QUEUE, 0, 40)], options, cluster, parallelism_now(options))
        cluster.close()
    opened: list[Connection] = []

    def open_cluster(connection: Connection) -> MemoryCluster:
        opened.append(connection)
        memory = MemoryCluster()
        memory.put(QUEUE, 40)
        return memory

    monkeypatch.setattr(ClientCluster, "open", open_cluster)
    assert isinstance(partition, QueueRangesPartition)
    read = partition_reader.read_partition(partition, source_schema(options), options)
    assert sum(batch.num_rows for batch in read) == 40
    assert [(one.protocol, one.name_servers) for one in opened] == [("remoting", (peer.address,))]


@pytest.mark.parametrize(
    ("greeting", "protocol"),
    [(b"", "remoting"), (bytes.fromhex("0000120400000000"), "grpc")],
    ids=["remoting", "grpc"],
)
def test_tasks_of_a_write_are_told_the_protocol(greeting: bytes, protocol: str) -> None:
    def answer(*_: Any) -> bytes:
        return bytes.fromhex("0000006400000050") + b"x" * 96  # the client needs only the beginning of an answer

    with RemotingPeer(answer, greeting=greeting) as peer:
        given = {"nameServer": peer.address, "topic": TOPIC}
        plan = sink_plan(StructType([StructField("body", BinaryType())]), given, overwrite=False)
    assert plan.options.protocol == protocol
