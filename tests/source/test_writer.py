"""The rows of one task are written through a producer of the test."""

import itertools
import pickle
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from rocketsim_proto.records import kernels

from rocketsim_client.errors import BrokerNotExist, MessageIllegal, NameServerUnavailable, NoRoute
from rocketsim_client.model import BatchPart, MessageQueue, ProducerStats, SendStatus
from rocketsim_client.producer import Producer
from rocketsim_client.sending.pending import Pending
from rocketsim_source.options.sink_options import sink_options
from rocketsim_source.partition_numbers import partition_number
from rocketsim_source.sink import task
from rocketsim_source.sink.sink_columns import SinkColumns
from rocketsim_source.sink.task import RowSender, SendStuck
from rocketsim_source.sink.writer import SinkPlan, report
from testbed.polling import PATIENCE_S
from tests.support.broker_thread import broker_thread
from tests.support.fake_broker import FakeCluster


class MemoryProducer:
    """Keeps what it is given, and lets the test decide how each send ends."""

    def __init__(self, future: type[Pending] = Pending) -> None:
        self._future = future
        self.stats = ProducerStats()
        self.sent: list[dict[str, Any]] = []
        self.futures: list[Pending] = []
        self.refuses: list[Exception] = []  # errors of the next sends
        self.answers: list[Any] = []  # for the next frames: a status, an exception, or None for no answer yet

    def __str__(self) -> str:
        return "the memory producer"

    def send_columns_async(self, topic: str, bodies: pa.Array, **columns: Any) -> list[Future[BatchPart]]:
        if self.refuses:
            raise self.refuses.pop(0)
        self.sent.append({"topic": topic, "bodies": bodies.to_pylist(), **columns})
        future = self._future(None, MessageQueue(topic, "broker-a", 0))
        self.futures.append(future)
        answer = self.answers.pop(0) if self.answers else SendStatus.SEND_OK
        if isinstance(answer, SendStatus):
            self.answer(future, answer, len(bodies))
        elif answer is not None:
            self.stats.failed += len(bodies)
            future.fail(answer)
        return [future]

    def answer(self, future: Pending, status: SendStatus = SendStatus.SEND_OK, rows: int = 1) -> None:
        self.stats.acknowledged += rows
        future.succeed(BatchPart(status, "T", "broker-a", ["id"] * rows, [0] * rows, range(rows)))


def sender(producer: MemoryProducer, **given: str) -> RowSender:
    options = sink_options({"nameServer": "h:1", "topic": "T"} | given)
    return RowSender(SinkPlan(options, SinkColumns(body=0), "job"), producer, None)  # type: ignore[arg-type]


def rows(*bodies: bytes) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(bodies, pa.binary())})


def test_a_task_counts_its_rows_by_what_brokers_said() -> None:
    producer = MemoryProducer()
    producer.answers = [SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT]
    found = sender(producer)
    found.send(rows(b"1", b"2"))
    found.send(rows(b"3"))
    assert found.finish().statuses == {"SEND_OK": 2, "FLUSH_SLAVE_TIMEOUT": 1}


def test_unsynced_sends_fail_the_task_if_the_options_say_so() -> None:
    producer = MemoryProducer()
    producer.answers = [SendStatus.FLUSH_DISK_TIMEOUT]
    found = sender(producer, unsyncedSendPolicy="fail")
    found.send(rows(b"1", b"2"))
    with pytest.raises(
        RuntimeError, match=r"2 messages were stored with FLUSH_DISK_TIMEOUT \(unsyncedSendPolicy=fail\)"
    ):
        found.finish()


def test_a_frame_that_is_never_answered_fails_the_task_and_says_what_was_waited_for() -> None:
    producer = MemoryProducer()
    producer.answers = [None, None]
    found = sender(producer, sendTimeoutMs="20")
    found.send(rows(b"1"))
    found.send(rows(b"2"))
    with pytest.raises(SendStuck) as stuck:
        found.finish()
    assert (
        "within 40 ms (twice sendTimeoutMs): this task waits for 2 frames, the first of which goes to topic T at broker"
        in str(stuck.value)
    )


def test_as_long_as_others_are_answered_a_frame_is_waited_for() -> None:
    """A frame may wait long behind other ordered frames of the same message group."""

    class Slow(Pending):
        waits = 0

        def result(self, timeout: float | None = None) -> Any:
            self.waits += 1
            if self.waits < 4:  # this frame has no answer yet, but another frame is acknowledged
                producer.stats.acknowledged += 1
                raise TimeoutError
            if not self.done():
                producer.answer(self)
            return super().result(timeout)

    producer = MemoryProducer(Slow)
    producer.answers = [None]
    found = sender(producer, sendTimeoutMs="20")
    found.send(rows(b"1"))
    assert found.finish().statuses == {"SEND_OK": 1}
    assert [cast(Slow, one).waits for one in producer.futures] == [4]


def test_a_frame_that_is_answered_just_when_its_time_is_up_counts_as_answered() -> None:
    class JustThen(Pending):
        def result(self, timeout: float | None = None) -> Any:
            if not self.done():
                producer.answer(self)
                raise TimeoutError
            return super().result(timeout)

    producer = MemoryProducer(JustThen)
    producer.answers = [None]
    found = sender(producer)
    found.send(rows(b"1"))
    assert found.finish().statuses == {"SEND_OK": 1}


def test_an_error_of_any_kind_fails_the_task() -> None:
    for error in (ZeroDivisionError("a bug"), TimeoutError("of its own")):
        producer = MemoryProducer()
        producer.answers = [error]
        found = sender(producer)
        found.send(rows(b"1"))
        with pytest.raises(type(error), match=str(error)):
            found.finish()


# --- frames -----------------------------------------------------------------------------------------------------------

TWO_FRAMES = (b"x" * 3000,) * 2000  # 6 MB; a frame has 4 MiB at most


class WatchedKernels:
    """The compiled codec, which notes where the bodies are that it encodes."""

    def __init__(self, compiled: kernels.Kernels) -> None:
        self.compiled = compiled
        self.bodies: list[tuple[int, int, int]] = []  # address of the offsets, number of rows, address of the bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def encode(self, topic: bytes, queue_ids: Any, bodies: Any, *others: Any) -> Any:
        offsets, data = bodies
        self.bodies.append((offsets.ctypes.data, len(offsets) - 1, data.address))
        return self.compiled.encode(topic, queue_ids, bodies, *others)


def received(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch as a worker gets it from Spark, as the bytes of an Arrow stream."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(stream.getvalue()).read_next_batch()


@pytest.mark.skipif(kernels.compiled is None, reason="the record codec is not compiled")
@pytest.mark.parametrize("kind", [pa.binary(), pa.string()], ids=str)
def test_bodies_are_encoded_from_the_memory_of_sparks_batch(kind: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.compiled is not None
    watched = WatchedKernels(kernels.compiled)
    monkeypatch.setattr(kernels, "compiled", watched)
    keys = pa.array([str(number) for number in range(len(TWO_FRAMES))])
    batch = received(pa.record_batch({"keys": keys, "body": pa.array(TWO_FRAMES, pa.binary()).cast(kind)}))
    with FakeCluster("T") as cluster:
        cluster.start("broker-a", 0)
        options = sink_options({"nameServer": cluster.address, "topic": "T", "sendTimeoutMs": "600000"})
        with Producer(cluster.address, send_msg_timeout_ms=600_000) as producer:
            one = RowSender(SinkPlan(options, SinkColumns(body=1, keys=0), "job"), producer, None)
            one.send(batch)
            assert one.finish().rows == batch.num_rows
    _, offsets, data = batch.column("body").buffers()
    assert len(watched.bodies) == 2
    assert {address for _, _, address in watched.bodies} == {data.address}
    parts = [((address - offsets.address) // 4, rows) for address, rows, _ in sorted(watched.bodies)]
    assert parts == [(0, parts[0][1]), (parts[0][1], batch.num_rows - parts[0][1])]


@pytest.mark.parametrize("batches", [[(b"1",), (b"2",)], [TWO_FRAMES]], ids=["of the next batch", "of the same batch"])
def test_the_next_frame_is_planned_and_encoded_while_the_first_has_no_answer(batches: list[tuple[bytes, ...]]) -> None:
    """The broker withholds its answer to the first frame until another frame has arrived."""
    arrivals, another, overlaps = itertools.count(), threading.Event(), list[bool]()

    def before_send() -> None:
        if next(arrivals) == 0:
            overlaps.append(another.wait(PATIENCE_S))
        else:
            another.set()

    with FakeCluster("T") as cluster:
        cluster.start("broker-a", 0).before_send = before_send
        options = sink_options({"nameServer": cluster.address, "topic": "T", "sendTimeoutMs": "600000"})
        with Producer(cluster.address, send_msg_timeout_ms=600_000) as producer:
            one = RowSender(SinkPlan(options, SinkColumns(body=0), "job"), producer, None)
            for batch in batches:
                one.send(rows(*batch))
            assert one.finish().rows == sum(map(len, batches))
    assert overlaps == [True]


# --- which queue ------------------------------------------------------------------------------------------------------


def test_a_partition_that_was_read_goes_back_to_its_broker_and_queue() -> None:
    there = [MessageQueue("T", name, queue_id) for name in ("broker-a", "broker-b") for queue_id in range(2)]
    producer = MemoryProducer()
    producer.publish_queues = lambda topic: there  # type: ignore[attr-defined]
    options = sink_options({"nameServer": "h:1", "topic": "T"})
    found = RowSender(SinkPlan(options, SinkColumns(body=0, queue_id=1), "job"), producer, None)  # type: ignore[arg-type]

    def send(numbers: list[int]) -> list[MessageQueue]:
        producer.sent.clear()
        columns = {"body": pa.array([b"x"] * len(numbers)), "partition": pa.array(numbers, pa.int32())}
        found.send(pa.record_batch(columns))
        return [sent["queue"] for sent in producer.sent]

    assert send([partition_number(queue) for queue in there]) == there
    assert {queue.queue_id for queue in send([1, 0])} == {0, 1}  # a number that is only a queue id fits any broker
    with pytest.raises(ValueError, match=r"no writable queue .*another name.* at broker-a, broker-b"):
        send([partition_number(MessageQueue("T", "elsewhere", 1))])
    with pytest.raises(ValueError, match="no writable queue 7 at broker-a, broker-b"):
        send([7])


def test_what_may_pass_is_waited_for_and_anything_else_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MASTER_WAIT_S", 0.001)
    producer = MemoryProducer()
    producer.refuses = [BrokerNotExist("no master"), NameServerUnavailable("none"), NoRoute("not yet")]
    found = sender(producer)
    found.send(rows(b"1"))
    assert found.finish().statuses == {"SEND_OK": 1}
    producer.refuses = [MessageIllegal("too strange")] * 2
    with pytest.raises(MessageIllegal):
        found.send(rows(b"1"))
    assert len(producer.refuses) == 1
    producer.refuses = [BrokerNotExist("no master")] * 10_000
    with pytest.raises(BrokerNotExist):
        sender(producer, sendTimeoutMs="5").send(rows(b"1"))


def test_a_workers_producer_is_kept_for_tasks_with_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "producers_of_process", {})
    base = {"nameServer": "127.0.0.1:1"}
    made = [
        task.worker_producer(sink_options(base | other))
        for other in ({}, {"topic": "T"}, {"compressMsgBodyOverHowmuch": "1g"}, {"compressType": "LZ4"}, {"group": "g"})
    ]
    assert made[0] is made[1]
    assert len(set(map(id, made))) == 4
    for producer in made:
        producer.close()


def test_an_error_names_the_row_of_the_partition_though_rows_are_parted() -> None:
    """The producer counts rows within the part that it gets, which has only the rows of one batch for one topic or
    queue.
    """
    headers = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))

    def batch(topics: list[str], found: list[Any]) -> pa.RecordBatch:
        return pa.record_batch({"value": [b"x"] * len(topics), "topic": topics, "headers": pa.array(found, headers)})

    twice = [{"key": "trace", "value": b"1"}, {"key": "trace", "value": b"2"}]
    with FakeCluster("A", "B") as cluster:
        cluster.start("broker-a", 0)
        plan = SinkPlan(
            sink_options({"nameServer": cluster.address}), SinkColumns(body=0, topic=1, properties=2), "job"
        )
        with Producer(cluster.address) as producer:
            one = RowSender(plan, producer, None)
            one.send(batch(["A", "B"], [[], []]))
            with pytest.raises(MessageIllegal) as refused:
                one.send(batch(["A", "B", "A", "B"], [[], [], [], twice]))
    assert str(refused.value).startswith("topic 'B': row 5: property 'trace' is there twice")
    assert "invalidProperties=skip leaves it out" in str(refused.value)


def test_properties_that_were_left_out_are_told_on_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    producer = MemoryProducer()
    options = sink_options({"nameServer": "h:1", "topic": "T", "invalidProperties": "skip"})
    plan = SinkPlan(options, SinkColumns(body=0, properties=1), "job")
    maps = pa.array([[("a", ""), ("b", "1")], [("a", "")]], pa.map_(pa.string(), pa.string()))
    one = RowSender(plan, producer, None)  # type: ignore[arg-type]
    one.send(pa.record_batch({"body": [b"1", b"2"], "properties": maps}))
    sent = pickle.loads(pickle.dumps(one.finish()))
    assert producer.sent[0]["properties"].to_pylist() == [[("b", "1")], []]
    report(plan, [sent, None], "batch 7")
    assert "batch 7: 2 properties were left out" in caplog.text and "a (2)" in caplog.text


def test_what_a_broker_refuses_names_the_broker_its_key_and_the_row(tmp_path: Path) -> None:
    """The broker's limit is lower than the sink's, so only the broker refuses the message.  A frame has the rows for
    one broker, and rows with message groups are in another order there.
    """
    with broker_thread(tmp_path, max_message_size=1000) as broker:
        broker.make_topic("T", queues=4)
        options = sink_options({"brokers": f"broker-a=0@{broker.node.address}", "topic": "T"})
        plan = SinkPlan(options, SinkColumns(body=0, message_group=1), "job")
        with Producer(brokers=broker.brokers, send_msg_timeout_ms=600_000) as producer:
            one = RowSender(plan, producer, None)
            one.send(pa.record_batch({"body": [b"x"] * 3, "group": pa.array([None] * 3, pa.string())}))
            bodies = [bytes([n]) * (1200 if n == 5 else 20) for n in range(1, 9)]
            one.send(pa.record_batch({"body": bodies, "group": [None, "a", "b", "c", None, "a", "b", "c"]}))
            with pytest.raises(MessageIllegal) as refused:
                one.finish()
    assert str(refused.value) == (
        "topic 'T': row 7: broker broker-a refuses the message: it has a body of 1200 bytes; this broker's "
        "maxMessageSize is 1000"
    )
