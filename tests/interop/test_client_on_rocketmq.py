"""Tests our client on a real RocketMQ, over its remoting protocol and beside RocketMQ's own tools.

`./run test --interop` runs these tests.
"""

import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha1
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rocketsim_proto.records.columnar import Records

from rocketsim_cli.main import main
from rocketsim_client import Admin, Cluster, Consumer, Message, Producer, PullConsumer
from rocketsim_client.connection import Connection
from rocketsim_client.errors import NoRoute, NotSupported, RocketSimError
from rocketsim_client.model import MessageQueue, PullStatus, QueueRange, SendStatus
from rocketsim_client.transport.opening import with_detected_protocol
from testbed.polling import wait_until
from testbed.real_rocketmq import BROKER_NAME, CLUSTER, NEWEST, RocketMQ, is_fetched, is_version_4, java, running
from tests.interop.marks import INTEROP
from tests.interop.programs import HERE, MqAdmin, read
from tests.support.programs import Program

pytestmark = INTEROP
VERSIONS = [
    NEWEST,
    "5.1.4",
    pytest.param(
        "4.9.8", marks=pytest.mark.skipif(not is_fetched("4.9.8"), reason="4.9.8 has to be built: is_fetched")
    ),
]
QUEUES = 4
BACKLOG = 100_000
numbers = itertools.count()


class Bench:
    """A running RocketMQ, one client of ours there, and mqadmin."""

    def __init__(self, rocketmq: RocketMQ, mqadmin: MqAdmin) -> None:
        self.rocketmq = rocketmq
        self.where = Connection.of(rocketmq.name_server, timeout_s=20.0, poll_interval_s=1.0)
        self.cluster = Cluster(self.where)
        self.admin = Admin(self.where)
        self.producer = Producer(cluster=self.cluster, timeout_s=60.0)
        self._mqadmin = mqadmin

    def close(self) -> None:
        self.producer.close()
        self.admin.close()
        self.cluster.close()

    def mqadmin(self, line: str) -> str:
        return self._mqadmin.run(f"{line} -n {self.rocketmq.name_server}")

    def topic(self, queues: int = QUEUES) -> str:
        """Creates a topic, and returns its name when the name server knows the topic."""
        name = f"topic{next(numbers)}"
        self.admin.update_topic(name, read_queue_nums=queues, write_queue_nums=queues)
        wait_until(lambda: name in self.cluster.topics(), f"the name server to know {name}")
        return name

    def consumer(self, group: str = "readers") -> PullConsumer:
        return PullConsumer(cluster=self.cluster, group=group)

    def read(self, topic: str, **options: Any) -> pa.Table:
        """Returns what our client reads of a topic."""
        with self.consumer() as consumer:
            return consumer.read(topic, **options).read_all()

    def read_by_java(self, topic: str, queues: int = QUEUES) -> list[dict[str, Any]]:
        """Returns the messages that RocketMQ's client reads of a topic."""
        found = read(self.rocketmq, [("queue", topic, str(queue)) for queue in range(queues)])
        return [one for one in found if one["kind"] == "message"]

    def ends(self, topic: str, messages: int | None = None) -> dict[MessageQueue, int]:
        """Returns the ends of the topic's queues.  With `messages`, waits until the queues have so many messages,
        because a broker acknowledges a message some milliseconds before the message is in its queue.
        """

        def found() -> dict[MessageQueue, int]:
            return {queue: one.max_offset for queue, one in self.cluster.bounds(topic, fresh=True).items()}

        if messages is not None:
            wait_until(lambda: sum(found().values()) >= messages, f"{messages} messages in {topic}")
        return found()

    @contextmanager
    def java_consumer(self, topic: str, group: str, home: Path, *namespace: str) -> Iterator[Program]:
        """Runs a push consumer of RocketMQ's client, which prints what it gets."""
        home.mkdir()
        main = (str(HERE / "Beside.java"), self.rocketmq.name_server, topic, group, *namespace)
        with Program(home, java(self.rocketmq.jars, home, "128m", *main)) as program:
            yield program


@pytest.fixture(scope="module", params=VERSIONS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    work = tmp_path_factory.mktemp("rocketmq")
    with running(work / "servers", version=request.param, settings={"timerWheelEnable": "true"}) as rocketmq:
        mqadmin = MqAdmin(request.param, work / "mqadmin")
        found = Bench(rocketmq, mqadmin)
        try:
            wait_until(lambda: bool(found.admin.cluster_list()), "the name server to know the broker")
            yield found
        finally:
            found.close()
            mqadmin.close()


def test_auto_finds_the_protocol_and_routes_are_read(bench: Bench) -> None:
    assert with_detected_protocol(bench.where).protocol == "remoting"
    topic = bench.topic(3)
    assert bench.cluster.queues(topic) == [MessageQueue(topic, BROKER_NAME, number) for number in range(3)]
    assert topic in bench.cluster.topics()
    assert not {BROKER_NAME, CLUSTER} & {*bench.cluster.topics()}
    (member,) = bench.admin.cluster_list()
    assert (member.cluster_name, member.broker_name, member.broker_id) == (CLUSTER, BROKER_NAME, 0)
    assert member.address == bench.rocketmq.address
    with pytest.raises(NoRoute, match="no_such_topic"):
        bench.cluster.queues("no_such_topic")


def test_java_and_we_read_what_our_producer_sends(bench: Bench) -> None:
    topic = bench.topic()
    producer = bench.producer
    odd = {"height": "5 m", "naïve": "😀"}
    results = [producer.send(Message(topic, b"one", "TagA", "k1 k2", odd, flag=7))]
    results += producer.send_batch([Message(topic, b"batch %d" % number, "TagB", f"b{number}") for number in range(50)])
    futures = [producer.send_async(Message(topic, b"later %d" % number)) for number in range(200)]
    results += [future.result(60) for future in futures]
    results += [producer.send(Message(topic, b"large" * 100_000))]  # the client compresses this body
    assert {one.send_status for one in results} == {SendStatus.SEND_OK}

    bench.ends(topic, len(results))
    theirs = bench.read_by_java(topic)
    by_id = {one["properties"]["UNIQ_KEY"]: one for one in theirs}
    assert by_id.keys() == {one.msg_id for one in results}
    for one in results:
        message = by_id[one.msg_id]
        assert (message["queueId"], message["queueOffset"]) == (one.message_queue.queue_id, one.queue_offset)
    first = by_id[results[0].msg_id]
    assert (first["tags"], first["keys"], first["flag"]) == ("TagA", "k1 k2", 7)
    assert odd.items() <= first["properties"].items()

    ours = bench.read(topic).to_pylist()
    assert {one["msgId"] for one in ours} == by_id.keys()
    for row in ours:
        message = by_id[row["msgId"]]
        assert (row["queueId"], row["queueOffset"]) == (message["queueId"], message["queueOffset"])
        assert (row["tags"], row["keys"]) == (message["tags"], message["keys"])
        if row["body"] != b"large" * 100_000:  # Java's reader has the body as it is stored
            assert sha1(row["body"]).hexdigest() == message["bodySha1"]
    assert sorted(row["body"] for row in ours if row["tags"] == "TagB") == sorted(b"batch %d" % n for n in range(50))
    assert bench.read(topic, expression="TagA || TagC")["body"].to_pylist() == [b"one"]


def test_we_read_what_javas_producer_sends(bench: Bench) -> None:
    topic = bench.topic()
    bench.rocketmq.run(str(HERE / "Clients.java"), bench.rocketmq.name_server, topic, f"group-{topic}")
    bodies = sorted(bench.read(topic)["body"].to_pylist())
    assert bodies == sorted([b"one-%d" % n for n in range(40)] + [b"batch-%d" % n for n in range(60)])
    # Java's consumer has committed with this group.  A consumer of 4.9.8 sometimes leaves out a queue.
    group, queues = f"group-{topic}", bench.cluster.queues(topic)
    theirs = read(bench.rocketmq, [("offset", group, topic, str(queue.queue_id)) for queue in queues])
    with bench.consumer(group) as consumer:
        ours = consumer.committed_all(queues)
    assert max(ours.values()) > 0
    assert [at for at in ours.values() if at >= 0] == [
        one["offset"] for one, at in zip(theirs, ours.values(), strict=True) if at >= 0
    ]


def test_delayed_messages_come_when_they_are_due(bench: Bench) -> None:
    topic = bench.topic(1)
    before = time.time()
    bench.producer.send(Message(topic, b"by level", delay_level=1))
    due = {b"by level": before + 0.9}
    if is_version_4(bench.rocketmq.version):
        with pytest.raises(NotSupported, match="RocketMQ 4"):
            bench.producer.send(Message(topic, b"by time"), deliver_at=before + 2)
    else:
        bench.producer.send(Message(topic, b"by time"), deliver_at=before + 2)
        due[b"by time"] = before + 1
    bench.ends(topic, len(due))
    rows = {row["body"]: row["storeTimestamp"].timestamp() for row in bench.read(topic).to_pylist()}
    assert rows.keys() == due.keys()
    assert all(rows[body] >= due[body] for body in due)


@pytest.fixture(scope="module")
def backlog(bench: Bench) -> str:
    """Creates a topic with so many messages that our client sends pulls ahead."""
    topic = bench.topic()
    rows = BACKLOG // 10
    for part in range(10):
        bodies = pa.array([b"%06d" % (part * rows + number) + b"x" * 94 for number in range(rows)])
        tags = pa.array(["even" if number % 2 == 0 else "odd" for number in range(rows)])
        bench.producer.send_columns(topic, bodies, tags=tags, timeout_s=120)
    assert sum(bench.ends(topic, BACKLOG).values()) == BACKLOG
    return topic


def test_a_backlog_is_read_once(bench: Bench, backlog: str) -> None:
    table = bench.read(backlog)
    assert sorted(int(body[:6]) for body in table["body"].to_pylist()) == list(range(BACKLOG))
    for queue, end in bench.ends(backlog).items():
        offsets = [row for row in table.select(["queueId", "queueOffset"]).to_pylist()]
        assert [one["queueOffset"] for one in offsets if one["queueId"] == queue.queue_id] == list(range(end))


def test_ranges_of_a_backlog_are_read_once(bench: Bench, backlog: str) -> None:
    ranges = []
    for queue, end in bench.ends(backlog).items():
        cuts = [0, 1, 33, 1000, end - 1, end]
        ranges += [QueueRange(backlog, queue.queue_id, *pair) for pair in itertools.pairwise(cuts)]
    with bench.consumer() as consumer:
        found: list[tuple[int, int]] = []
        for frame in consumer.pull_range(BROKER_NAME, ranges):
            records = Records.walk(frame.records, frame.count)
            records.check()
            found += zip(records.queue_id.tolist(), records.queue_offset.tolist(), strict=True)
        tagged = 0
        for frame in consumer.pull_range(BROKER_NAME, ranges, expression="even"):
            tagged += frame.count
    assert found == [(one.queue_id, at) for one in ranges for at in range(one.from_offset, one.until_offset)]
    assert tagged == BACKLOG // 2


def test_single_pulls_walk_through_a_queue(bench: Bench, backlog: str) -> None:
    queue = MessageQueue(backlog, BROKER_NAME, 0)
    with bench.consumer() as consumer:
        end = consumer.max_offset(queue)
        offset, seen = end - 500, []
        while offset < end:
            pulled = consumer.pull(queue, offset)
            assert pulled.status is PullStatus.FOUND and pulled.max_offset == end
            seen += [message.queue_offset for message in pulled.messages]
            offset = pulled.next_begin_offset
        assert seen == list(range(end - 500, end))
        assert consumer.pull(queue, end).status is PullStatus.NO_NEW_MSG
        sender = threading.Timer(0.3, bench.producer.send, [Message(backlog, b"awaited" * 15)], {"queue": queue})
        sender.start()
        held = consumer.pull(queue, end, suspend=30)
        sender.join()
        assert [message.body for message in held.messages] == [b"awaited" * 15]
        beyond = consumer.pull(queue, end + 1000)
        assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, end + 1)


def test_bounds_and_search_by_time(bench: Bench) -> None:
    topic = bench.topic(2)
    queue = MessageQueue(topic, BROKER_NAME, 0)
    empty = MessageQueue(topic, BROKER_NAME, 1)
    for number in range(30):
        bench.producer.send(Message(topic, b"%d" % number), queue=queue)
        if number % 10 == 9:
            sent = time.time()
            wait_until(lambda sent=sent: time.time() > sent + 0.01, "the next messages get another time")  # type: ignore[misc]
    bench.ends(topic, 30)
    bounds = bench.cluster.bounds(topic)
    assert (bounds[queue].min_offset, bounds[queue].max_offset, bounds[queue].is_master) == (0, 30, True)
    assert (bounds[empty].min_offset, bounds[empty].max_offset) == (0, 0)
    stored = [int(row.timestamp() * 1000 + 0.5) for row in bench.read(topic)["storeTimestamp"].to_pylist()]
    for moment in sorted({0, 1, *stored, *(one + 1 for one in stored), stored[-1] + 100_000}):
        wanted = next((offset for offset, one in enumerate(stored) if one >= moment), 30)
        assert bench.cluster.search(topic, {queue: moment, empty: moment}) == {queue: wanted, empty: 0}, moment


def test_mqadmin_shows_what_our_group_has_committed(bench: Bench) -> None:
    topic, group = bench.topic(), f"committers{next(numbers)}"
    bench.producer.send_columns(topic, pa.array([b"%d" % number for number in range(100)]))
    queues = bench.cluster.queues(topic)
    ends = bench.ends(topic, 100)
    with bench.consumer(group) as consumer:
        assert consumer.committed_all(queues) == dict.fromkeys(queues, -1)
        halves = {queue: end // 2 for queue, end in ends.items()}
        assert consumer.commit_all(halves).offsets == halves
        assert consumer.committed_all(queues) == halves
        printed = bench.mqadmin(f"consumerProgress -g {group}")
        assert re.search(rf"Diff Total: {sum(ends.values()) - sum(halves.values())}\b", printed), printed
        assert consumer.commit_all(ends).offsets == ends
        assert consumer.commit_all(halves).offsets == ends  # a lower offset changes nothing
        printed = bench.mqadmin(f"consumerProgress -g {group}")
        assert re.search(r"Diff Total: 0\b", printed), printed
        wait_until(lambda: group in bench.mqadmin("consumerProgress"), "the group is listed")
        bench.producer.send(Message(topic, b"new"))
        bench.ends(topic, 101)
        assert consumer.read(topic, start="committed").read_all()["body"].to_pylist() == [b"new"]
    assert [one.consumer_offset for one in bench.admin.consumer_progress(group, topic)] == list(ends.values())


def got(program: Program) -> list[bytes]:
    """Returns the messages that a Java consumer has printed, without the lines of its logging."""
    return [line.split(maxsplit=2)[2].encode() for line in program.lines if line.startswith("got ")]


def test_our_consumer_beside_javas_in_the_same_group(bench: Bench, tmp_path: Path) -> None:
    """Our consumer does not become a member of the group, so RocketMQ gives all queues to the Java consumer."""
    topic, group = bench.topic(), f"beside{next(numbers)}"
    bench.producer.send_columns(topic, pa.array([b"early %d" % number for number in range(40)]))
    with bench.java_consumer(topic, group, tmp_path / "first") as program, bench.consumer(group) as consumer:
        wait_until(lambda: len(got(program)) >= 40, "the Java consumer has all messages")
        for number in range(60):
            bench.producer.send(Message(topic, b"late %d" % number))
        bench.ends(topic, 100)
        ours = consumer.read(topic).read_all()["body"].to_pylist()
        wait_until(lambda: len(got(program)) >= 100, "the Java consumer has the new messages, too")
        program.end()
        assert sorted(ours) == sorted(got(program))
        assert consumer.committed_all(bench.cluster.queues(topic)) == bench.ends(topic)
        bench.producer.send_columns(topic, pa.array([b"ours %d" % number for number in range(20)]))
        bench.ends(topic, 120)
        assert consumer.read(topic, start="committed").read_all().num_rows == 20
        consumer.commit_all(bench.ends(topic))
    bench.producer.send(Message(topic, b"theirs"))
    with bench.java_consumer(topic, group, tmp_path / "second") as program:
        wait_until(lambda: got(program), "the Java consumer goes on")
        program.end()
        assert got(program) == [b"theirs"]


def test_an_instance_is_used_as_javas_client_does(bench: Bench, tmp_path: Path) -> None:
    topic, group, instance = f"orders{next(numbers)}", f"group{next(numbers)}", "MQ_INST_1"
    where = replace(bench.where, namespace=instance)
    with Admin(where) as admin, Producer(where) as producer, PullConsumer(where, group=group) as consumer:
        admin.update_topic(topic, read_queue_nums=1, write_queue_nums=1)
        wait_until(lambda: topic in admin.topic_list(), "the instance's topic")
        assert f"{instance}%{topic}" in bench.mqadmin("topicList").split()
        for number in range(100):
            producer.send(Message(topic, b"%d" % number, keys=f"k{number}"))
        (queue,) = consumer.message_queues(topic)
        wait_until(lambda: consumer.max_offset(queue) == 100, "all messages")
        rows = consumer.read(topic).read_all().to_pylist()
        assert [(row["topic"], row["body"]) for row in rows] == [(topic, b"%d" % number) for number in range(100)]
        assert [one.topic for one in consumer.pull(queue, 40).messages] == [topic] * 32
        assert consumer.commit(queue, 50) == 50
        assert [(one.group, one.queue, one.diff) for one in admin.consumer_progress(group, topic)] == [
            (group, queue, 50)
        ]
        (found,) = admin.query_msg_by_key(topic, "k7")
        assert (found.topic, found.body) == (topic, b"7")
    with bench.java_consumer(topic, group, tmp_path / "java", instance) as program:
        wait_until(lambda: len(got(program)) >= 50, "the Java consumer has the rest")
        program.end()
    assert sorted(map(int, got(program))) == list(range(50, 100))
    assert f"got {topic} 50" in program.lines


def admin_rows(bench: Bench, capsys: pytest.CaptureFixture[str], line: str) -> list[dict[str, Any]]:
    """Returns the JSON lines that `rocketsim admin` prints."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["admin", *line.split(), "-n", bench.rocketmq.name_server, "--json"])
    printed, said = capsys.readouterr()
    assert not ended.value.code, (line, printed, said)
    return [json.loads(row) for row in printed.splitlines()]


def test_the_command_line_administers(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    topic, group = f"orders{next(numbers)}", f"shippers{next(numbers)}"

    def rows(line: str) -> list[dict[str, Any]]:
        return admin_rows(bench, capsys, line)

    assert [row["brokerName"] for row in rows("clusterList")] == [BROKER_NAME]
    rows(f"updateTopic -t {topic} -r 2 -w 2")
    wait_until(lambda: {"topic": topic} in rows("topicList"), "the topic is listed")
    assert "2" in bench.mqadmin(f"topicRoute -t {topic}")
    (route,) = rows(f"topicRoute -t {topic}")
    assert bench.rocketmq.address in json.dumps(route)
    rows(f"updateSubGroup -g {group}")
    assert group in bench.rocketmq.mqadmin("getConsumerConfig", "-g", group)
    sent = bench.producer.send(Message(topic, b"hello", "tag", "the-key"))
    bench.ends(topic, 1)
    assert sorted(row["maxOffset"] for row in rows(f"topicStatus -t {topic}")) == [0, 1]
    (by_key,) = rows(f"queryMsgByKey -t {topic} -k the-key")
    assert by_key["msgId"] == sent.msg_id
    for name in (sent.msg_id, by_key.get("offsetMsgId", sent.msg_id)):
        (found,) = rows(f"queryMsgById -t {topic} -i {name}")
        assert found["msgId"] == sent.msg_id
    with bench.consumer(group) as consumer:
        consumer.commit_all(bench.ends(topic))
    assert [row["diff"] for row in rows(f"consumerProgress -g {group}")] == [0, 0]
    rows(f"resetOffsetByTime -g {group} -t {topic} -s 0")
    assert sorted(row["diff"] for row in rows(f"consumerProgress -g {group}")) == [0, 1]
    assert re.search(r"Diff Total: 1\b", bench.mqadmin(f"consumerProgress -g {group}"))
    assert "commitLogMaxOffset" in json.dumps(rows(f"brokerStatus -b {bench.rocketmq.address}"))


def test_what_is_not_supported_says_so_by_name(bench: Bench) -> None:
    topic = bench.topic(1)
    with Consumer(bench.where, "poppers", topic) as consumer, pytest.raises(NotSupported, match="consuming"):
        list(consumer.receive(timeout_s=10))
    with pytest.raises(NotSupported, match="transactions"):
        with bench.producer.transaction() as transaction:
            transaction.send(Message(topic, b"half"))
    calls: list[Callable[[], object]] = [bench.admin.ha_status, lambda: bench.admin.delete_topic(topic)]
    for call, name in zip(calls, ("haStatus", "deleteTopic"), strict=True):
        with pytest.raises(NotSupported, match=name):
            call()


def test_kinds_of_topics_that_cannot_be_read_are_refused_by_name(bench: Bench) -> None:
    if is_version_4(bench.rocketmq.version):
        pytest.skip("RocketMQ 4 has no such topics")
    compacted, batched, static = (f"{kind}{next(numbers)}" for kind in ("compacted", "batched", "static"))
    bench.admin.update_topic(compacted, attributes={"cleanup.policy": "COMPACTION"})
    bench.admin.update_topic(batched, attributes={"queue.type": "BatchCQ"})
    bench.mqadmin(f"updateStaticTopic -b {BROKER_NAME} -t {static} -qn 2")
    wait_until(lambda: {compacted, batched, static} <= {*bench.cluster.topics()}, "the name server to know all three")
    for topic, says in ((compacted, "COMPACTION"), (batched, "BatchCQ"), (static, "static topic")):
        with pytest.raises(NotSupported, match=says):
            bench.read(topic)


def test_a_wrong_address_is_told_what_answers_there(bench: Bench) -> None:
    def said(address: str, protocol: str) -> str:
        where = Connection.of(address, timeout_s=5.0, protocol=protocol)
        with Cluster(where) as cluster, pytest.raises(RocketSimError) as refused:
            cluster.queues("orders")
        return str(refused.value)

    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    for protocol in ("auto", "remoting"):
        assert re.search("is a broker.*9876", said(bench.rocketmq.address, protocol)), protocol
        assert nobody in said(nobody, protocol), protocol
    assert "protocol=grpc" in said(bench.rocketmq.name_server, "grpc")
