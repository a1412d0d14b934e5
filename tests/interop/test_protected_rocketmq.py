"""Tests our client on a real RocketMQ with access control and TLS, and at the remoting port of its proxy."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketsim_client import Admin, Cluster, Message, Producer, PullConsumer, SubscriptionGroupConfig
from rocketsim_client.connection import Connection
from rocketsim_client.errors import AccessDenied, NameServerUnavailable, NotSupported, RocketSimError
from rocketsim_client.model import QueueRange, SendStatus
from rocketsim_client.transport.opening import with_detected_protocol
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.real_rocketmq import (
    ACCESS_KEY,
    BROKER_NAME,
    NEWEST,
    READER_KEY,
    READER_SECRET,
    SECRET_KEY,
    RocketMQ,
    is_fetched,
    running,
)
from tests.interop.marks import INTEROP
from tests.support.tls import CA, DATA, OTHER_CA

pytestmark = INTEROP
VERSIONS = [
    NEWEST,
    "5.1.4",
    pytest.param("4.9.8", marks=pytest.mark.skipif(not is_fetched("4.9.8"), reason="it has to be built (is_fetched)")),
]
KEYS = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
READER = {"access_key": READER_KEY, "secret_key": READER_SECRET}
numbers = itertools.count()


def at(address: str, **settings: Any) -> Connection:
    return Connection.of(address, timeout_s=20.0, poll_interval_s=1.0, **settings)


def new_topic(where: Connection, messages: int = 0) -> str:
    name = f"topic{next(numbers)}"
    with Admin(where) as admin, Producer(where, timeout_s=60.0) as producer:
        wait_until(lambda: bool(admin.cluster_list()), "the name server to know the broker")
        admin.update_topic(name, read_queue_nums=2, write_queue_nums=2)
        wait_until(lambda: name in admin.topic_list(), f"the name server to know {name}")
        if messages:
            producer.send_columns(name, pa.array([b"%d" % number for number in range(messages)]))
            wait_until(lambda: end_of(admin.cluster, name) == messages, f"{messages} messages in {name}")
    return name


def end_of(cluster: Cluster, topic: str) -> int:
    return sum(one.max_offset for one in cluster.bounds(topic, fresh=True).values())


def bodies(where: Connection, topic: str, **options: Any) -> list[int]:
    with PullConsumer(where, group="readers") as consumer:
        return sorted(map(int, consumer.read(topic, **options).read_all()["body"].to_pylist()))


@pytest.fixture(scope="module", params=VERSIONS)
def protected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Yields RocketMQ with access control, whose ports take TLS as well as plaintext."""
    work = tmp_path_factory.mktemp("protected") / "servers"
    with running(work, version=request.param, access=True, tls=DATA) as rocketmq:
        rocketmq.wait_registered()
        rocketmq.add_reader()
        yield rocketmq


def test_signed_calls_are_served(protected: RocketMQ) -> None:
    where = at(protected.name_server, **KEYS)
    topic, group = new_topic(where, 100), f"group{next(numbers)}"
    assert bodies(where, topic) == list(range(100))
    with Producer(where) as producer:
        odd = Message(topic, b"100", "Tag", "käy", {"naïve": "😀"})
        assert producer.send(odd).send_status is SendStatus.SEND_OK
    with PullConsumer(where, group=group) as consumer, Admin(where) as admin:
        wait_until(lambda: end_of(consumer.cluster, topic) == 101, "the last message")
        ends = {queue: found.max_offset for queue, found in consumer.bounds(topic).items()}
        assert consumer.commit_all(ends).offsets == ends
        assert consumer.committed_all(ends) == ends
        assert [one.diff for one in admin.consumer_progress(group, topic)] == [0, 0]
        assert len(admin.query_msg_by_key(topic, "käy")) == 1
    assert re.search(r"Diff Total: 0\b", protected.mqadmin("consumerProgress", "-g", group))


@pytest.mark.parametrize("keys", [{}, KEYS | {"secret_key": "another-secret"}, KEYS | {"access_key": "stranger"}])
def test_other_calls_are_refused_as_such(protected: RocketMQ, keys: dict[str, str]) -> None:
    topic = new_topic(at(protected.name_server, **KEYS), 1)
    where = at(protected.name_server, **keys)
    with pytest.raises(AccessDenied):
        bodies(where, topic)
    with Producer(where) as producer, pytest.raises(AccessDenied):
        producer.send(Message(topic, b"1"))
    with Admin(where) as admin, pytest.raises(AccessDenied):
        admin.update_topic("another")


def test_a_user_who_may_only_read_does_so_and_commits(protected: RocketMQ) -> None:
    topic, where = new_topic(at(protected.name_server, **KEYS), 50), at(protected.name_server, **READER)
    assert bodies(where, topic) == list(range(50))
    with PullConsumer(where, group="only-readers") as consumer:
        ends = {queue: found.max_offset for queue, found in consumer.bounds(topic).items()}
        assert consumer.commit_all(ends).offsets == ends
        assert consumer.committed_all(ends) == ends
    with Producer(where) as producer, pytest.raises(AccessDenied):
        producer.send(Message(topic, b"x"))


def test_tls_is_spoken_and_the_certificate_checked(protected: RocketMQ) -> None:
    where = at(protected.name_server, tls=True, tls_ca=CA, **KEYS)
    assert with_detected_protocol(where).protocol == "remoting"
    topic = new_topic(where, 2000)
    assert bodies(where, topic) == list(range(2000))
    for settings, says in (({"tls_ca": OTHER_CA}, "certificate is not valid"), ({}, "the public CAs")):
        for protocol in ("auto", "remoting"):
            other = at(protected.name_server, tls=True, protocol=protocol, **settings, **KEYS)
            with Cluster(other) as cluster, pytest.raises(RocketSimError) as refused:
                cluster.queues(topic)
            assert re.search(says, str(refused.value)), (settings, protocol, str(refused.value))


@pytest.fixture(scope="module", params=[NEWEST, "5.1.4"])
def mutual(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Yields RocketMQ that takes TLS only from clients with a certificate."""
    work = tmp_path_factory.mktemp("mutual") / "servers"
    with running(work, version=request.param, tls=DATA, client_ca=CA) as rocketmq:
        rocketmq.wait_registered()
        yield rocketmq


def test_a_client_shows_its_certificate(mutual: RocketMQ) -> None:
    own = {"tls_cert": str(DATA / "client.pem"), "tls_key": str(DATA / "client.key")}
    where = at(mutual.name_server, tls=True, tls_ca=str(CA), **own)
    topic = new_topic(where, 500)
    assert bodies(where, topic) == list(range(500))
    for protocol in ("auto", "remoting"):
        other = at(mutual.name_server, tls=True, tls_ca=str(CA), protocol=protocol)
        with Cluster(other) as cluster, pytest.raises(RocketSimError, match="set tlsCert and tlsKey"):
            cluster.queues(topic)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Starts brokers that make no groups by themselves, and whose slave serves no reads, as by default in 5.x."""
    settings = {"autoCreateSubscriptionGroup": "false"}
    with running(tmp_path_factory.mktemp("strict") / "servers", pair=True, settings=settings) as rocketmq:
        with Admin(at(rocketmq.name_server)) as admin:
            wait_until(lambda: {one.broker_id for one in admin.cluster_list()} == {0, 1}, "both brokers are registered")
        yield rocketmq


def test_a_broker_that_makes_no_groups_serves_those_that_it_has(strict: RocketMQ) -> None:
    where = at(strict.name_server)
    topic, group = new_topic(where, 100), "made-by-hand"
    with Cluster(where) as cluster, Admin(where) as admin:
        ranges = [QueueRange(topic, queue.queue_id, 0, end.max_offset) for queue, end in cluster.bounds(topic).items()]
        assert sum(frame.count for frame in cluster.pull_range(BROKER_NAME, ranges)) == 100
        ends = {queue: found.max_offset for queue, found in cluster.bounds(topic).items()}
        for call in (
            lambda: list(cluster.pull_range(BROKER_NAME, ranges, group=group)),
            lambda: cluster.commit(group, ends),
        ):
            with pytest.raises(RocketSimError, match=rf"makes no groups by itself.*updateSubGroup -g {group}"):
                call()
        admin.update_sub_group(SubscriptionGroupConfig(group_name=group))
        assert sum(frame.count for frame in cluster.pull_range(BROKER_NAME, ranges, group=group)) == 100
        assert cluster.commit(group, ends).offsets == ends


def test_a_slave_that_serves_no_reads_is_left_for_its_master(strict: RocketMQ) -> None:
    where = at(strict.name_server)
    topic = new_topic(where, 200)
    with Cluster(where) as cluster:
        assert {*cluster.addresses(topic, BROKER_NAME)} == {0, 1}
        ranges = [QueueRange(topic, queue.queue_id, 0, end.max_offset) for queue, end in cluster.bounds(topic).items()]
        frames = list(cluster.pull_range(BROKER_NAME, ranges, broker_id_hint=1))
        assert sum(frame.count for frame in frames) == 200
        assert {frame.broker_id for frame in frames} == {0}
        with pytest.raises(RocketSimError, match=r"this slave serves no reads.*slaveReadEnable"):
            list(cluster.pull_range(BROKER_NAME, ranges, broker_id_hint=1, only_this=True))


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Starts RocketMQ with a proxy, only in the newest version, because Maven Central lacks the proxy of 5.1.4."""
    with running(tmp_path_factory.mktemp("proxied") / "servers", proxy=True) as rocketmq:
        yield rocketmq


def test_a_proxy_is_read_written_and_committed_to(proxied: RocketMQ) -> None:
    topic = new_topic(at(proxied.name_server), 3000)
    where = at(proxied.proxy_remoting)
    assert with_detected_protocol(where).protocol == "remoting"
    assert bodies(where, topic) == list(range(3000))
    with Cluster(where) as cluster:
        assert {*cluster.addresses(topic, BROKER_NAME).values()} == {proxied.proxy_remoting}
        (first, *_) = cluster.queues(topic)
        assert cluster.search(topic, {first: 0}) == {first: 0}
    with Producer(where) as producer:
        assert producer.send(Message(topic, b"3000")).send_status is SendStatus.SEND_OK
        producer.send_columns(topic, pa.array([b"%d" % number for number in range(3001, 4000)]))
    with PullConsumer(where, group="through-the-proxy") as consumer:
        wait_until(lambda: end_of(consumer.cluster, topic) == 4000, "all messages")
        ends = {queue: found.max_offset for queue, found in consumer.bounds(topic).items()}
        assert consumer.committed_all(ends) == dict.fromkeys(ends, -1)
        assert consumer.commit_all(ends).offsets == ends
        assert consumer.committed_all(ends) == ends
    assert bodies(where, topic) == list(range(4000))


@pytest.mark.spark
def test_spark_reads_and_commits_through_a_proxy(spark: Any, proxied: RocketMQ, tmp_path: Path) -> None:
    topic, group = new_topic(at(proxied.name_server), 1000), "spark-through-the-proxy"
    options = {"nameServer": proxied.proxy_remoting, "subscribe": topic, "startingOffsets": "earliest"}
    assert spark.read.format("rocketsim").options(**options).load().count() == 1000
    rows: list[int] = []
    query = (
        spark.readStream.format("rocketsim")
        .options(**options, group=group)
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: rows.extend(int(row.body) for row in frame.collect()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PROCESS_PATIENCE_S)
    assert sorted(rows) == list(range(1000))
    with Cluster(at(proxied.name_server)) as cluster:
        ends = {queue: one.max_offset for queue, one in cluster.bounds(topic).items()}
        wait_until(lambda: cluster.committed(group, list(ends)) == ends, "the commits are at the broker")


def test_what_a_proxy_lacks_is_said(proxied: RocketMQ) -> None:
    with Cluster(at(proxied.proxy_remoting)) as cluster, pytest.raises(NotSupported, match=r"proxy.*9876"):
        cluster.topics()
    with Cluster(at(proxied.proxy_remoting)) as cluster, pytest.raises(RocketSimError, match="no_such_topic"):
        cluster.queues("no_such_topic")
    assert proxied.proxy is not None
    with Cluster(at(proxied.proxy.address, protocol="remoting")) as cluster:
        with pytest.raises(NameServerUnavailable, match=r"gRPC port of a RocketMQ proxy.*9876"):
            cluster.queues("any")
    with Cluster(at(proxied.proxy.address)) as cluster:
        with pytest.raises(RocketSimError, match=r"RocketMQ 5's clients.*RocketMQ proxy.*remoting port of the proxy"):
            cluster.queues("any")
