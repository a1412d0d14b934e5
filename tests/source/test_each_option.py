"""Tests of options whose behaviour no other file tests.  `tests/config/behaviours.py` lists the test of each option."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from rocketsim_proto.records.columnar import Records

from rocketsim_client.arrow import OfQueue
from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import CommitFailed
from rocketsim_client.model import MessageQueue, OffsetRange, PullFrame
from rocketsim_source import stream_query
from rocketsim_source.commits.committer import Committer
from rocketsim_source.options.sink_options import sink_options
from rocketsim_source.options.source_options import SourceOptions, source_options
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.planning.partition import QueueRangesPartition
from rocketsim_source.reading import partition_reader
from rocketsim_source.reading.decode import Decoder
from rocketsim_source.reading.partition_reader import read_partition
from rocketsim_source.reading.prefetch import FrameLate
from rocketsim_source.reading.range_fetch import RangeFetch
from rocketsim_source.schema import source_schema
from rocketsim_source.sink import task
from rocketsim_source.sink.row_ids import OldIds, PlaceIds
from rocketsim_source.sink.sink_columns import SinkColumns
from rocketsim_source.sink.task import row_ids, worker_producer, write_rows
from rocketsim_source.sink.writer import SinkPlan
from rocketsim_source.source_cluster import ClientCluster
from rocketsim_source.stream_query import StreamQuery
from testbed.polling import wait_until
from tests.source.memory_cluster import MemoryCluster, message
from tests.support.fake_broker import Break, FakeCluster, Hang

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def options(**given: str) -> SourceOptions:
    base = {"nameServer": "h:1", "topic": "T", "startingOffsets": "earliest", "idlePollMs": "0"}
    return source_options(base | given, streaming=True)


def filled(*counts: int, broker_ids: tuple[int, ...] = (0,)) -> MemoryCluster:
    cluster = MemoryCluster(*broker_ids)
    for queue, count in zip((Q0, Q1), counts, strict=False):
        cluster.put(queue, count)
    return cluster


def next_offsets(cluster: MemoryCluster, start: dict[MessageQueue, int], **given: str) -> dict[MessageQueue, int]:
    return StreamQuery(options(**given), cluster).latest_offset(StreamOffset(start), unlimited=False).offsets


# --- how far a batch goes ---------------------------------------------------------------------------------------------


def test_max_offsets_per_queue() -> None:
    found = next_offsets(filled(100, 7), {Q0: 0, Q1: 0}, maxOffsetsPerQueue="10")
    assert found == {Q0: 10, Q1: 7}


def test_max_bytes_per_trigger() -> None:
    """Records of the cluster in memory have 100 bytes each."""
    found = next_offsets(filled(1000, 1000), {Q0: 0, Q1: 0}, maxBytesPerTrigger="5000")
    assert sum(found.values()) == 50


@pytest.mark.parametrize(("delay", "delay_ms"), [("1h", 3_600_000), ("1m", 60_000)])
def test_max_trigger_delay(monkeypatch: pytest.MonkeyPatch, delay: str, delay_ms: int) -> None:
    """The first batch is not delayed, as in Kafka's source."""
    now = 1000
    monkeypatch.setattr(stream_query, "now_ms", lambda: now)
    cluster = filled(1)
    query = StreamQuery(options(minOffsetsPerTrigger="10", maxTriggerDelay=delay), cluster)
    first = query.latest_offset(StreamOffset({Q0: 0}), unlimited=False)
    assert first.offsets == {Q0: 1}
    cluster.put(Q0, 9)
    now += delay_ms - 1
    assert query.latest_offset(first, unlimited=False).offsets == {Q0: 1}
    now += 1
    assert query.latest_offset(first, unlimited=False).offsets == {Q0: 10}


@pytest.mark.parametrize(("interval", "interval_ms"), [("1h", 3_600_000), ("200", 200)])
def test_queue_discovery_interval_ms(monkeypatch: pytest.MonkeyPatch, interval: str, interval_ms: int) -> None:
    now = 1000
    monkeypatch.setattr(stream_query, "now_ms", lambda: now)
    cluster = filled(5)
    query = StreamQuery(options(queueDiscoveryIntervalMs=interval), cluster)
    first = query.latest_offset(StreamOffset({Q0: 0}), unlimited=False)
    cluster.put(Q1, 5)
    now += interval_ms - 1
    assert query.latest_offset(first, unlimited=False).offsets == {Q0: 5}
    now += 1
    assert query.latest_offset(first, unlimited=False).offsets == {Q0: 5, Q1: 0}


def test_ending_offsets_by_timestamp() -> None:
    """Offset n was stored at 2000 + n ms, and a queue that is not named has no end."""
    ends = '{"T":{"broker-a":{"0":2040}}}'
    cluster = filled(100, 100)
    assert next_offsets(cluster, {Q0: 0, Q1: 0}, endingOffsetsByTimestamp=ends) == {Q0: 40, Q1: 100}
    assert next_offsets(cluster, {Q0: 40, Q1: 100}, endingOffsetsByTimestamp=ends) == {Q0: 40, Q1: 100}


def test_suggest_scope_driver() -> None:
    """A call to the master when the batch is planned decides which broker each queue's task asks first."""
    cluster = filled(10, 10, broker_ids=(0, 1))
    cluster.brokers[0].suggest = 1
    start, end = StreamOffset({Q0: 0, Q1: 0}), StreamOffset({Q0: 10, Q1: 10})
    for scope, hints in (("driver", {Q0: 1, Q1: 1}), ("task+worker", {})):
        (planned,) = StreamQuery(options(suggestScope=scope), cluster).partitions(start, end)
        assert isinstance(planned, QueueRangesPartition)
        assert planned.hints == hints


# --- how a task reads -------------------------------------------------------------------------------------------------


def test_pull_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = filled(25)
    cluster.packed = True
    monkeypatch.setattr(partition_reader, "worker_cluster", lambda options: cluster)
    for given, sizes in (({}, [25]), ({"pullBatchSize": "10"}, [10, 10, 5])):
        found = options(**given)
        partition = QueueRangesPartition([OffsetRange(Q0, 0, 25)])
        assert [batch.num_rows for batch in read_partition(partition, source_schema(found), found)] == sizes


def test_pull_timeout_leaves_a_broker_that_is_silent_in_the_middle() -> None:
    cluster, released = filled(30, broker_ids=(0, 1)), threading.Event()
    frames = cluster.pull

    def pull(ranges: Any, *, broker_id: int, **kwargs: Any) -> Iterator[PullFrame]:
        for number, frame in enumerate(frames(ranges, broker_id=broker_id, **kwargs)):
            if frame.broker_id == 0 and number == 1:
                cluster.brokers[0].up = False  # for who asks anew
                released.wait(60)
            yield frame

    cluster.pull = pull  # type: ignore[method-assign]
    with pytest.raises(FrameLate, match=r"no frame within 0\.1 s"):
        list(RangeFetch(cluster, [OffsetRange(Q0, 0, 30)], {}, options(pullTimeoutMs="100", pullRetries="0")).frames())
    cluster.brokers[0].up = True
    cluster.suspected.clear()
    found = options(pullTimeoutMs="400", pullRetryBackoffMs="1")
    fetched = list(RangeFetch(cluster, [OffsetRange(Q0, 0, 30)], {}, found).frames())
    released.set()
    assert [one.broker_id for one in fetched] == [0, 1, 1]
    assert cluster.suspected[0] == 0


@pytest.mark.parametrize(("ahead", "taken"), [(0, 1), (1, 3), (4, 6)])
def test_prefetch_pulls(ahead: int, taken: int) -> None:
    cluster, count = filled(500), 0
    frames = cluster.pull

    def pull(*args: Any, **kwargs: Any) -> Iterator[PullFrame]:
        nonlocal count
        for frame in frames(*args, **kwargs):
            count += 1
            yield frame

    cluster.pull = pull  # type: ignore[method-assign]
    reading = RangeFetch(cluster, [OffsetRange(Q0, 0, 500)], {}, options(prefetchPulls=str(ahead))).frames()
    next(reading)
    wait_until(lambda: count == taken, "the frames that are taken while the first is looked at")
    assert sum(len(fetched.records) for fetched in reading) == 490


def test_pull_transport() -> None:
    """The source passes the option to the client, whose own tests show that it obeys."""
    for given, expected in (({}, True), ({"pullTransport": "auto"}, True), ({"pullTransport": "grpc"}, False)):
        with Cluster(options(**given).connection) as cluster:
            assert (cluster.transport.reads.streams is not None) is expected  # type: ignore[attr-defined]


def test_send_transport() -> None:
    """The sink passes the option to the client.  `pullTransport` does not affect sends."""
    given = {"nameServer": "127.0.0.1:1", "topic": "T", "pullTransport": "grpc"}
    for more, expected in (({}, True), ({"sendTransport": "auto"}, True), ({"sendTransport": "grpc"}, False)):
        with Cluster(sink_options(given | more).connection) as cluster:
            assert (cluster.transport.reads.streams is not None) is expected  # type: ignore[attr-defined]


def test_include_properties() -> None:
    for given, names in (({}, {"properties"}), ({"includeProperties": "false"}, set())):
        found = options(**given)
        decoder = Decoder(source_schema(found), found)
        (batch,) = decoder.batches(Records.walk(message(Q0, 0)), [OfQueue(Q0, 1)], 0)
        assert {"properties"} & set(batch.schema.names) == names


# --- over calls to brokers in this process ----------------------------------------------------------------------------


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster("T") as cluster:
        for broker_id in (0, 1):
            cluster.start("broker-a", broker_id)
        yield cluster


@pytest.mark.parametrize(("refresh", "calls"), [("1h", 1), ("0", 6)])
def test_metadata_refresh_ms(fake: FakeCluster, refresh: str, calls: int) -> None:
    cluster = ClientCluster.open(options(nameServer=fake.address, metadataRefreshMs=refresh).connection)
    for _ in range(6):
        assert cluster.bounds([Q0]).bounds
    cluster.close()
    assert len(fake.route_calls) == calls


@pytest.mark.parametrize(("target", "brokers"), [("masterFirst", {0}), ("masterOnly", {0}), ("both", {0, 1})])
def test_commit_target(fake: FakeCluster, target: str, brokers: set[int]) -> None:
    found = options(nameServer=fake.address, group="g", commitTarget=target, commitAsync="false")
    committer = Committer(ClientCluster.open(found.connection), found)
    committer.processed({Q0: 5})
    assert fake.brokers["broker-a", 0].store.offsets["g", "T", 0] == 5
    assert {broker.broker_id for broker in fake.brokers.values() if broker.calls["CommitOffsets"]} == brokers
    committer.close(1)


def test_commit_timeout_ms(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketsim_source.commits.ledger.RETRY_MS", 3_600_000)  # only the test's own calls commit
    for broker in fake.brokers.values():
        broker.script["CommitOffsets"].extend([Hang()] * 3)
    found = options(nameServer=fake.address, group="g", commitTimeoutMs="70", commitRetries="0", commitAsync="false")
    committer = Committer(ClientCluster.open(found.connection), found)
    committer.processed({Q0: 5})
    assert committer.status()["failures"] == 1
    failing = Committer(ClientCluster.open(found.connection), replace(found, commit_failures_max=1))
    with pytest.raises(CommitFailed, match=r"no answer within 0\.07 s"):
        failing.processed({Q0: 5})
    failing.close(0)
    committer.close(0)


@pytest.mark.parametrize(("given", "committed"), [({}, {Q0: 0}), ({"commitInitialOffset": "false"}, {})])
def test_commit_initial_offset(given: dict[str, str], committed: dict[MessageQueue, int]) -> None:
    cluster = filled(10)
    query = StreamQuery(options(group="g", commitAsync="false", **given), cluster)
    assert query.initial_offset().offsets == {Q0: 0}
    assert cluster.offsets["g"] == committed
    query.close()


@pytest.mark.parametrize(("retries", "failures"), [("2", 0), ("1", 1)])
def test_commit_retries(retries: str, failures: int) -> None:
    cluster = filled(10)
    cluster.commit_fails = 2
    committer = Committer(cluster, options(group="g", commitRetries=retries, commitAsync="false"))
    committer.processed({Q0: 5})
    assert (cluster.offsets["g"] == {Q0: 5}) is (failures == 0)
    assert (committer.status()["failures"] > 0) is (failures > 0)
    committer.close(0)


@pytest.mark.parametrize(("interval", "again"), [("20", True), ("1h", False)])
def test_commit_reconcile_interval_ms(interval: str, again: bool) -> None:
    cluster = filled(10)
    committer = Committer(cluster, options(group="g", commitReconcileIntervalMs=interval))
    committer.processed({Q0: 5})
    wait_until(lambda: cluster.commits, "the first commit")
    if again:
        wait_until(lambda: len(cluster.commits) >= 4, "the same offset again")
    else:
        committer.processed({Q0: 5})
        committer.processed({Q1: 1})
        wait_until(lambda: cluster.offsets["g"] == {Q0: 5, Q1: 1}, "the second commit")
        assert cluster.commits[1:] == [("masterFirst", {Q1: 1})]
    assert all(offset == 5 for _, offsets in cluster.commits for queue, offset in offsets.items() if queue == Q0)
    committer.close(1)


# --- how a task writes ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: dict[Any, Any] = {}
    monkeypatch.setattr(task, "producers_of_process", made)
    yield
    for producer in made.values():
        producer.close()


def plan(address: str, **given: str) -> SinkPlan:
    found = sink_options({"nameServer": address, "topic": "T"} | given)
    return SinkPlan(found, SinkColumns(body=0), "job")


def rows(*bodies: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"body": pa.array(bodies, pa.binary())})


def sends(fake: FakeCluster) -> list[int]:
    """Returns how many messages each call had."""
    return [request.count for request in fake.brokers["broker-a", 0].calls["Send"]]


def test_send_batch_size(fake: FakeCluster) -> None:
    write_rows(plan(fake.address, sendBatchSize="4", maxInflight="1"), rows(*[b"x"] * 10))
    assert sends(fake) == [4, 4, 2]
    write_rows(plan(fake.address), rows(*[b"x"] * 10))
    assert sends(fake)[3:] == [10]


def test_retry_times_when_send_failed(fake: FakeCluster) -> None:
    fake.brokers["broker-a", 0].script["Send"].extend([Break()] * 3)
    assert write_rows(plan(fake.address, retryTimesWhenSendFailed="3"), rows(b"x")).rows == 1
    fake.brokers["broker-a", 0].script["Send"].extend([Break()] * 2)
    with pytest.raises(Exception, match="after 2 attempts"):
        write_rows(plan(fake.address, retryTimesWhenSendFailed="1"), rows(b"x"))


def test_send_timeout_ms_is_for_all_attempts_together(fake: FakeCluster) -> None:
    fake.brokers["broker-a", 0].script["Send"].extend([Break()] * 1000)
    with pytest.raises(Exception, match="not acknowledged after") as failure:
        write_rows(plan(fake.address, sendTimeoutMs="1s", retryTimesWhenSendFailed="1000"), rows(b"x"))
    assert len(sends(fake)) < 100, failure


def test_max_inflight_is_how_many_frames_a_broker_has_at_once(fake: FakeCluster) -> None:
    lock, under_way, most = threading.Lock(), 0, 0
    all_there = threading.Barrier(3)

    def before_send() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        all_there.wait(60)
        with lock:
            under_way -= 1

    fake.brokers["broker-a", 0].before_send = before_send
    assert (
        write_rows(plan(fake.address, sendBatchSize="1", maxInflight="3", sendTimeoutMs="30s"), rows(*[b"x"] * 9)).rows
        == 9
    )
    assert most == 3


def test_sink_group(fake: FakeCluster) -> None:
    write_rows(plan(fake.address), rows(b"x"))
    write_rows(plan(fake.address, group="mine"), rows(b"x"))
    groups = [request.producer_group for request in fake.brokers["broker-a", 0].calls["Send"]]
    assert groups == ["rocketsim-spark-sink", "mine"]


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({}, {0, 0x301}),
        ({"compressMsgBodyOverHowmuch": "1g"}, {0}),
        ({"compressMsgBodyOverHowmuch": "10", "compressType": "ZSTD"}, {0x201}),
        ({"compressType": "LZ4"}, {0, 0x101}),
    ],
)
def test_compression(fake: FakeCluster, given: dict[str, str], flags: set[int]) -> None:
    write_rows(plan(fake.address, **given), rows(b"x" * 4095, b"y" * 4096))
    assert {stored.sys_flag for stored in fake.messages("T")} == flags


def test_max_message_size(fake: FakeCluster) -> None:
    write_rows(plan(fake.address, maxMessageSize="5m"), rows(b"x" * (5 << 20)))
    assert len(fake.messages("T")) == 1
    with pytest.raises(Exception, match="maxMessageSize, is 1024"):
        write_rows(plan(fake.address, maxMessageSize="1k"), rows(b"x" * 1025))


def test_id_version(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {task.QUERY_ID: "q", task.BATCH_ID: "7"}

    class Context:
        @classmethod
        def get(cls) -> "Context":
            return cls()

        def getLocalProperty(self, name: str) -> str | None:
            return properties.get(name)

        def partitionId(self) -> int:
            return 3

    monkeypatch.setattr(task, "TaskContext", Context)
    batch = next(rows(b"x", b"y"))

    def made(**given: str) -> list[str]:
        found = row_ids(plan("h:1", sinkMode="idempotent", **given))
        assert isinstance(found, PlaceIds | OldIds)
        names: list[str] = found.of(batch, None).to_pylist()
        return names

    assert made(idVersion="0") == ["q-7-3-0", "q-7-3-1"]
    assert made(sinkName="out") == made(sinkName="out", idVersion="1")
    seven = made(sinkName="out")
    properties[task.BATCH_ID] = "8"
    assert not set(seven) & set(made(sinkName="out"))
    assert made(sinkName="out") != made(sinkName="in")
    properties.clear()  # a batch job
    assert made(idVersion="0") == ["job-3-0", "job-3-1"]
    assert row_ids(plan("h:1")) is None


def test_a_workers_producer_outlives_its_task(fake: FakeCluster) -> None:
    found = plan(fake.address)
    write_rows(found, rows(b"x"))
    assert worker_producer(found.options) is worker_producer(plan(fake.address, sendBatchSize="1").options)
