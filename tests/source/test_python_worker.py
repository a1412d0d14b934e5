"""What tasks do for their worker.

A worker whose record codec is not compiled says so in its log.  After the first task of a worker, garbage collection
skips the objects that were loaded until then.  The worker freezes its heap only once and between tasks, because garbage
of later tasks must still be found.  After each task, the kernel acknowledges at once what the worker receives.
"""

import gc
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from rocketsim_proto.records import kernels

from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source import python_worker
from rocketsim_source.options.sink_options import sink_options
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.partition import QueueRangesPartition
from rocketsim_source.reading import partition_reader
from rocketsim_source.reading.partition_reader import read_partition
from rocketsim_source.schema import source_schema
from rocketsim_source.sink import task
from rocketsim_source.sink.sink_columns import SinkColumns
from rocketsim_source.sink.task import write_rows
from rocketsim_source.sink.writer import SinkPlan
from tests.source.memory_cluster import MemoryCluster
from tests.support.fake_broker import FakeCluster

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes this process look like a new worker, and returns the list of its heap freezes, which do nothing here."""
    done = list[str]()
    monkeypatch.setattr(python_worker, "is_heap_frozen", False)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    return done


def two_reads(monkeypatch: pytest.MonkeyPatch, note: Callable[[str], object]) -> None:
    """Runs two tasks that read, and notes each batch of rows."""
    cluster = MemoryCluster(0, rows=10)
    cluster.put(QUEUE, 20)
    monkeypatch.setattr(partition_reader, "worker_cluster", lambda options: cluster)
    options = source_options({"nameServer": "h:1", "topic": "T"}, streaming=True)
    for _ in range(2):
        for batch in read_partition(QueueRangesPartition([OffsetRange(QUEUE, 0, 20)]), source_schema(options), options):
            note(f"{batch.num_rows} rows")


def two_writes(monkeypatch: pytest.MonkeyPatch, note: Callable[[str], object]) -> None:
    """Runs two tasks that write, and notes each batch of rows."""
    producers: dict[Any, Any] = {}
    monkeypatch.setattr(task, "producers_of_process", producers)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": pa.array([b"x"], pa.binary())})
        note("1 row")

    with FakeCluster("T") as fake:
        fake.start("broker-a", 0)
        plan = SinkPlan(sink_options({"nameServer": fake.address, "topic": "T"}), SinkColumns(body=0), "job")
        try:
            for _ in range(2):
                assert write_rows(plan, rows()).rows == 1
        finally:
            for producer in producers.values():
                producer.close()


def test_the_worker_of_a_read_collects_no_garbage_in_what_was_loaded(
    freezes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_reads(monkeypatch, freezes.append)
    assert freezes == ["10 rows", "10 rows", "freeze", "10 rows", "10 rows"]


def test_the_worker_of_a_write_collects_no_garbage_in_what_was_loaded(
    freezes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_writes(monkeypatch, freezes.append)
    assert freezes == ["1 row", "freeze", "1 row"]


# --- the socket to the JVM --------------------------------------------------------------------------------------------


def acknowledges_at_once(endpoint: socket.socket) -> bool:
    return bool(endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yields the JVM's end and the worker's end of a connection.  The worker has answered the JVM quickly, so that the
    kernel delays further acknowledgements of the worker.
    """
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listening,
        socket.create_connection(listening.getsockname()) as jvm,
        closing(listening.accept()[0]) as worker,
    ):
        answer_quickly(jvm, worker)
        assert not acknowledges_at_once(worker)
        yield jvm, worker


def answer_quickly(jvm: socket.socket, worker: socket.socket) -> None:
    """Lets the worker answer the JVM until the kernel takes the connection for one of requests and answers."""
    for _ in range(10):
        jvm.sendall(b"a task")
        assert worker.recv(100) == b"a task"
        worker.sendall(b"its rows")
        assert jvm.recv(100) == b"its rows"


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has TCP_QUICKACK")


@only_linux
@pytest.mark.parametrize("two_tasks", [two_reads, two_writes])
@pytest.mark.usefixtures("freezes")
def test_after_a_task_the_kernel_acknowledges_the_next_one_at_once(
    two_tasks: Callable[..., None], connection: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_tasks(monkeypatch, lambda rows: None)
    assert acknowledges_at_once(connection[1])


@only_linux
@pytest.mark.usefixtures("freezes")
def test_the_last_bytes_of_a_short_task_do_not_delay_the_next_one(
    connection: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm, worker = connection
    monkeypatch.setattr(python_worker, "LAST_BYTES_S", 3600)
    python_worker.prepare_for_next_task()
    answer_quickly(jvm, worker)
    assert not acknowledges_at_once(worker)
    (later,) = (one for one in threading.enumerate() if isinstance(one, threading.Timer) and one.interval == 3600)
    later.cancel()
    later.function()
    assert acknowledges_at_once(worker)


@pytest.mark.usefixtures("freezes")
def test_a_task_does_not_fail_if_the_worker_cannot_find_its_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", missing)
    noted = list[str]()
    two_reads(monkeypatch, noted.append)
    assert noted == ["10 rows"] * 4


# --- the codec --------------------------------------------------------------------------------------------------------


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Makes this process a new worker without a compiled codec, and returns a function that lists its warnings."""
    monkeypatch.setattr(kernels, "compiled", None)
    monkeypatch.delenv("ROCKETSIM_KERNELS", raising=False)
    monkeypatch.setattr(python_worker, "is_codec_reported", False)
    return lambda: [one.getMessage() for one in caplog.records if one.name == python_worker.logger.name]


@pytest.mark.parametrize("two_tasks", [two_reads, two_writes])
@pytest.mark.usefixtures("freezes")
def test_a_worker_without_a_compiled_codec_says_so_once(
    two_tasks: Callable[..., None], warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_tasks(monkeypatch, lambda rows: None)
    (said,) = warnings()
    assert "no compiled record codec (recordKernels=python)" in said
    assert kernels.ADVICE in said


def test_a_worker_says_nothing_of_a_codec_that_is_compiled_or_not_wanted(
    warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETSIM_KERNELS", "python")
    python_worker.report_missing_codec()
    monkeypatch.delenv("ROCKETSIM_KERNELS")
    monkeypatch.setattr(kernels, "compiled", object())
    python_worker.report_missing_codec()
    assert warnings() == []
    monkeypatch.setattr(kernels, "compiled", None)
    python_worker.report_missing_codec()
    assert len(warnings()) == 1
