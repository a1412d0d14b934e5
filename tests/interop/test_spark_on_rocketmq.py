"""Tests Spark's source and sink on a pair of real RocketMQ brokers, whose master is killed.

`./run test --interop` runs these tests.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketsim_client import Admin, Cluster, Producer
from rocketsim_client.connection import Connection
from rocketsim_client.errors import TopicNotExist
from rocketsim_client.model import MessageQueue, QueueRange
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT
from testbed.real_rocketmq import BROKER_NAME, NEWEST, RocketMQ, is_fetched, running
from tests.interop.marks import INTEROP
from tests.interop.programs import MqAdmin, read
from tests.source.bench import source_progress
from tests.support.readme_program import output_of, ten_lines_on_rocketmq

pytestmark = [*INTEROP, pytest.mark.spark]
VERSIONS = [
    NEWEST,
    "5.1.4",
    pytest.param("4.9.8", marks=pytest.mark.skipif(not is_fetched("4.9.8"), reason="it has to be built (is_fetched)")),
]
DOCUMENT = ROOT / "docs/rocketmq.md"
QUEUES = 4
numbers = itertools.count()


class Bench:
    """A running pair, mqadmin, a client of ours, and Spark."""

    def __init__(self, spark: Any, rocketmq: RocketMQ, mqadmin: MqAdmin) -> None:
        self.spark = spark
        self.rocketmq = rocketmq
        self._mqadmin = mqadmin
        where = Connection.of(rocketmq.name_server, timeout_s=20.0, poll_interval_s=1.0)
        self.cluster = Cluster(where)
        self.admin = Admin(where)
        self.producer = Producer(cluster=self.cluster, timeout_s=120.0, retry_times_when_send_failed=20)
        self._rows: dict[str, dict[int, list[Any]]] = {}

    def close(self) -> None:
        for query in self.spark.streams.active:
            query.stop()
        self.producer.close()
        self.admin.close()
        self.cluster.close()

    def mqadmin(self, line: str) -> str:
        return self._mqadmin.run(f"{line} -n {self.rocketmq.name_server}")

    def topic(self, messages: int = 0, name: str = "") -> str:
        name = name or f"spark{next(numbers)}"
        self.admin.update_topic(name, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        wait_until(lambda: name in self.cluster.topics(), f"the name server to know {name}")
        if messages:
            self.send(name, range(messages))
        return name

    def send(self, topic: str, bodies: range) -> None:
        """Sends messages, and waits until the master has all of them in its queues."""
        before = sum(self.ends(topic).values())
        tags = pa.array(["even" if number % 2 == 0 else "odd" for number in bodies])
        self.producer.send_columns(topic, pa.array([b"%d" % number for number in bodies]), tags=tags)
        wait_until(lambda: sum(self.ends(topic).values()) == before + len(bodies), f"all messages in {topic}")

    def ends(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: one.max_offset for queue, one in self.cluster.bounds(topic, fresh=True).items()}

    def wait_for_slave(self, topic: str) -> None:
        assert self.rocketmq.slave is not None
        slave, wanted = self.rocketmq.slave.address, sorted(self.ends(topic).values())

        def has_all() -> bool:
            try:
                found = self.cluster.transport.reads.queue_bounds(slave, topic, range(QUEUES), 20.0)
            except TopicNotExist:  # a slave of 5.x asks for its master's topics once a minute
                return False
            return sorted(one.max_offset for one in found.values()) == wanted

        wait_until(has_all, f"the slave has all of {topic}")

    def options(self, **options: object) -> dict[str, str]:
        return {"nameServer": self.rocketmq.name_server} | {name: str(value) for name, value in options.items()}

    def batch(self, topic: str, **options: object) -> Any:
        return self.spark.read.format("rocketsim").options(**self.options(subscribe=topic, **options)).load()

    def start(self, topic: str, checkpoint: Path, trigger: dict[str, Any], **options: object) -> Any:
        """Starts a query, whose rows are kept by checkpoint and batch."""
        kept = self._rows.setdefault(str(checkpoint), {})
        given = self.options(subscribe=topic, **{"startingOffsets": "earliest", **options})
        stream = self.spark.readStream.format("rocketsim").options(**given).load()

        def keep(frame: Any, batch_id: int) -> None:
            kept[batch_id] = [int(row.body) for row in frame.select("body").collect()]

        return (
            stream.writeStream.option("checkpointLocation", str(checkpoint))
            .foreachBatch(keep)
            .trigger(**trigger)
            .start()
        )

    def run(self, topic: str, checkpoint: Path, **options: object) -> Any:
        """Runs a query over all messages that the topic has now."""
        query = self.start(topic, checkpoint, {"availableNow": True}, **options)
        assert query.awaitTermination(PROCESS_PATIENCE_S), "the query has not ended"
        return query

    def rows(self, checkpoint: Path) -> list[int]:
        """Returns what the queries of that checkpoint have read."""
        return sorted(one for rows in self._rows[str(checkpoint)].values() for one in rows)

    def wait_lag_zero(self, group: str) -> None:
        """Waits until mqadmin says that the group's lag is 0.  A master that was killed has no offset of the group
        before the next commit.
        """

        def is_zero() -> bool:
            try:
                return re.search(r"Diff Total: 0\b", self.mqadmin(f"consumerProgress -g {group}")) is not None
            except AssertionError as failure:
                assert "CODE: 206" in str(failure), failure
                return False

        wait_until(is_zero, f"{group}: lag 0")


@pytest.fixture(scope="module", params=VERSIONS)
def bench(spark: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    work = tmp_path_factory.mktemp("rocketmq")
    settings = {"slaveReadEnable": "true"}
    with running(work / "servers", version=request.param, pair=True, settings=settings) as rocketmq:
        mqadmin = MqAdmin(request.param, work / "mqadmin")
        found = Bench(spark, rocketmq, mqadmin)
        try:
            wait_until(lambda: len(found.admin.cluster_list()) == 2, "the name server to know both brokers")
            yield found
        finally:
            found.close()
            mqadmin.close()


def test_a_batch_reads_all_rows_and_some_by_tag_and_time(bench: Bench) -> None:
    topic = bench.topic(3000)
    rows = bench.batch(topic).select("body", "tags", "topic", "brokerName", "queueId", "queueOffset").collect()
    assert sorted(int(row.body) for row in rows) == list(range(3000))
    assert {(row.queueId, row.queueOffset) for row in rows} == {
        (queue.queue_id, offset) for queue, end in bench.ends(topic).items() for offset in range(end)
    }
    assert {(row.topic, row.brokerName) for row in rows} == {(topic, BROKER_NAME)}
    even = bench.batch(topic, subExpression="even").collect()
    assert sorted(int(row.body) for row in even) == list(range(0, 3000, 2))
    (last,) = bench.batch(topic).selectExpr("max(storeTimestamp)").collect()
    moment = int(last[0].timestamp() * 1000)
    some = bench.batch(topic, startingTimestamp=moment, startingOffsetsByTimestampStrategy="latest").collect()
    assert 0 < len(some) <= 3000 and all(int(row.storeTimestamp.timestamp() * 1000) >= moment for row in some)


def test_the_pyspark_of_the_readme_works_when_pasted(bench: Bench, tmp_path: Path) -> None:
    bench.topic(100, "TopicTest")
    printed = output_of(ten_lines_on_rocketmq(bench.rocketmq.name_server), tmp_path)
    for tag in ("even", "odd"):
        assert re.search(rf"\|\s*{BROKER_NAME}\|\s*{tag}\|\s*50\|", printed), printed
    bench.wait_lag_zero("people")


def test_the_batch_of_the_document_works_when_pasted(bench: Bench) -> None:
    (code,) = re.findall(r"^```python\n(spark\.read\.format.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert "rocketmq-namesrv:9876" in code
    bench.topic(100, "orders")
    frame = eval(code.replace("rocketmq-namesrv:9876", bench.rocketmq.name_server), {"spark": bench.spark})
    assert sorted(int(row.body) for row in frame.collect()) == list(range(100))


def test_a_stream_commits_and_goes_on_from_its_checkpoint(bench: Bench, tmp_path: Path) -> None:
    topic, group = bench.topic(2000), f"group{next(numbers)}"
    query = bench.run(topic, tmp_path / "all", group=group, maxOffsetsPerTrigger=600)
    assert bench.rows(tmp_path / "all") == list(range(2000))
    bench.wait_lag_zero(group)
    assert source_progress(query)["latestOffset"]["lag"]["total"] == 0
    bench.send(topic, range(2000, 2500))
    bench.run(topic, tmp_path / "all", group=group)
    assert bench.rows(tmp_path / "all") == list(range(2500))
    bench.wait_lag_zero(group)
    bench.send(topic, range(2500, 2600))
    bench.run(topic, tmp_path / "again", group=group, startingOffsets="committed")
    assert bench.rows(tmp_path / "again") == list(range(2500, 2600))


def test_queues_that_are_added_are_read_from_their_first_message(bench: Bench, tmp_path: Path) -> None:
    topic, twice = bench.topic(400), 2 * QUEUES
    always = {"processingTime": "0 seconds"}
    query = bench.start(topic, tmp_path / "query", always, queueDiscoveryIntervalMs=200)
    wait_until(lambda: len(bench.rows(tmp_path / "query")) == 400 or query.exception(), "the first messages")
    bench.admin.update_topic(topic, read_queue_nums=twice, write_queue_nums=twice)
    wait_until(lambda: len(bench.cluster.queues(topic, fresh=True)) == twice, "the name server to know the queues")
    bench.send(topic, range(400, 800))
    assert all(end > 0 for end in bench.ends(topic).values())
    wait_until(lambda: len(bench.rows(tmp_path / "query")) >= 800 or query.exception(), "the new messages")
    assert query.exception() is None
    query.stop()
    assert bench.rows(tmp_path / "query") == list(range(800))


def test_a_stream_of_an_instance_has_names_without_the_instance(bench: Bench, tmp_path: Path) -> None:
    topic, group, instance = f"orders{next(numbers)}", f"group{next(numbers)}", "MQ_INST_1"
    where = Connection.of(bench.rocketmq.name_server, timeout_s=20.0, namespace=instance)
    with Admin(where) as admin, Cluster(where) as cluster, Producer(cluster=cluster) as producer:
        admin.update_topic(topic, read_queue_nums=1, write_queue_nums=1)
        wait_until(lambda: topic in cluster.topics(), "the instance's topic")
        assert f"{instance}%{topic}" in bench.mqadmin("topicList").split()
        producer.send_columns(topic, pa.array([b"%d" % number for number in range(100)]))
        queue = MessageQueue(topic, BROKER_NAME, 0)
        wait_until(lambda: cluster.bounds(topic, fresh=True)[queue].max_offset == 100, "all messages")
        starts = json.dumps({topic: {BROKER_NAME: {"0": 40}}})
        named = bench.options(namespace=instance, subscribePattern=f".*{topic}", group=group, startingOffsets=starts)
        rows: list[tuple[str, int]] = []

        def keep(frame: Any, _: int) -> None:
            rows.extend((row.topic, int(row.body)) for row in frame.select("topic", "body").collect())

        stream = bench.spark.readStream.format("rocketsim").options(**named).load().writeStream
        stream = stream.option("checkpointLocation", str(tmp_path / "query")).foreachBatch(keep)
        query = stream.trigger(availableNow=True).start()
        assert query.awaitTermination(PROCESS_PATIENCE_S), "the query has not ended"
        assert sorted(rows) == [(topic, number) for number in range(40, 100)]
        assert source_progress(query)["endOffset"]["q"] == {topic: {BROKER_NAME: {"0": 100}}}
        checkpoint = [path.read_text() for path in (tmp_path / "query/offsets").iterdir() if path.name.isdigit()]
        assert checkpoint and not any(instance in text for text in checkpoint)
        wait_until(lambda: cluster.committed(group, [queue]) == {queue: 100}, f"the offset of {group}")


def test_views_show_the_cluster(bench: Bench) -> None:
    def view(name: str, **options: object) -> list[Any]:
        rows: list[Any] = (
            bench.spark.read.format("rocketsim").options(**bench.options(view=name, **options)).load().collect()
        )
        return rows

    topic, group = bench.topic(100), f"group{next(numbers)}"
    ends = bench.ends(topic)
    half = {queue: end // 2 for queue, end in ends.items()}
    ranges = [QueueRange(topic, queue.queue_id, 0, end) for queue, end in half.items()]
    assert sum(frame.count for frame in bench.cluster.pull_range(BROKER_NAME, ranges, group=group)) == sum(
        half.values()
    )
    bench.cluster.commit(group, half)
    behind = {queue.queue_id: end - end // 2 for queue, end in ends.items()}
    (lag,) = view("lag", group=group, topic=topic)
    assert (lag.lag, lag.queues) == (sum(behind.values()), QUEUES)
    assert {row.queueId: row.lag for row in view("offsets", group=group, topic=topic)} == behind
    assert sum(row.messages for row in view("queues", topic=topic)) == 100
    assert topic in {row.topic for row in view("queues")}
    (found,) = view("groups", group=group)
    assert (found.brokerName, found.topics, found.lag) == (BROKER_NAME, [topic], sum(behind.values()))
    brokers = {row.brokerId: row for row in view("brokers")}
    assert {broker_id: (row.role, row.isMaster) for broker_id, row in brokers.items()} == {
        0: ("MASTER", True),
        1: ("SLAVE", False),
    }
    assert brokers[0].logEndOffset > 0 and 0 < brokers[0].diskUsedRatio <= 1


def test_the_sink_writes_what_java_reads(bench: Bench, tmp_path: Path) -> None:
    source, target = bench.topic(500), bench.topic()
    frame = bench.batch(source).selectExpr("body", "tags", "cast(queueId as string) as keys")
    frame.write.format("rocketsim").options(**bench.options(topic=target)).mode("append").save()
    stream = bench.spark.readStream.format("rocketsim")
    query = (
        stream.options(**bench.options(subscribe=source, startingOffsets="earliest"))
        .load()
        .select("body")
        .writeStream.format("rocketsim")
        .options(**bench.options(topic=target), checkpointLocation=str(tmp_path / "sink"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PROCESS_PATIENCE_S)
    wait_until(lambda: sum(bench.ends(target).values()) == 1000, "both writes are there")
    found = read(bench.rocketmq, [("queue", target, str(queue)) for queue in range(QUEUES)])
    messages = [one for one in found if one["kind"] == "message"]
    assert len(messages) == 1000
    assert [one["tags"] for one in messages].count("even") == 250
    assert len({one["bodySha1"] for one in messages}) == 500


def test_a_query_goes_on_while_a_master_is_killed_and_started_again(bench: Bench, tmp_path: Path) -> None:
    topic, group = bench.topic(4000), f"group{next(numbers)}"
    bench.wait_for_slave(topic)
    always = {"processingTime": "0 seconds"}
    query = bench.start(topic, tmp_path / "query", always, group=group, maxOffsetsPerTrigger=500)
    wait_until(lambda: len(bench.rows(tmp_path / "query")) >= 1000, "the query is under way")
    bench.rocketmq.master.kill()
    wait_until(lambda: len(bench.rows(tmp_path / "query")) == 4000 or query.exception(), "the slave serves the rest")
    assert query.exception() is None
    assert bench.batch(topic).count() == 4000
    bench.rocketmq.master.start()
    wait_until(lambda: len(bench.admin.cluster_list()) == 2, "the master is registered again")
    bench.send(topic, range(4000, 4500))
    wait_until(lambda: len(bench.rows(tmp_path / "query")) >= 4500 or query.exception(), "the new messages")
    assert query.exception() is None
    bench.wait_lag_zero(group)
    query.stop()
    assert bench.rows(tmp_path / "query") == list(range(4500))
