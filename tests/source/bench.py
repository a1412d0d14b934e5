"""Steps of the Spark tests, with which a test operates a cluster and its queries in a few lines."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rocketsim_client import Cluster, Message, MessageQueue, Producer, PullConsumer, RocketSimError
from rocketsim_client.errors import MasterNotExist, TopicNotExist
from rocketsim_client.route import DEFAULT_TOPIC
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes, ServerProcess

TIMEOUT_S = PROCESS_PATIENCE_S
# The defaults of 3 s fail where a process may not run for some seconds.  Tests of a limit give their own.
PATIENT = {"pullTimeoutMs": "60s", "sendTimeoutMs": "60s", "commitTimeoutMs": "60s"}


def run_program(source: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a Python program that uses Spark, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PROCESS_PATIENCE_S,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=cwd,
    )


class Bench:
    """One pair, one producer and one Spark session.  Everything that a test creates gets a new name."""

    _numbers = itertools.count()  # shared by all pairs, because all use one Spark session

    def __init__(
        self, spark: Any, processes: Processes, name_server: ServerProcess, master: ServerProcess, slave: ServerProcess
    ) -> None:
        self.spark = spark
        self.processes = processes
        self.name_server = name_server
        self.master = master
        self.slave = slave
        self.kept: dict[str, dict[int, list[Any]]] = {}

    def __enter__(self) -> "Bench":
        self.cluster = Cluster(self.name_server.address, timeout_s=60.0, poll_interval_s=1.0)
        self.producer = Producer(
            cluster=self.cluster, group="tests", send_msg_timeout_ms=60_000, retry_times_when_send_failed=20
        )
        wait_until(self.is_writable, "a master that takes writes", TIMEOUT_S)
        wait_until(self.takes_commits, "a master that has heard from its slave what groups committed", TIMEOUT_S)
        return self

    def is_writable(self) -> bool:
        try:
            return bool(self.cluster.route(DEFAULT_TOPIC, fresh=True).writable_queues())
        except RocketSimError:
            return False

    def takes_commits(self) -> bool:
        queue = self.cluster.route(DEFAULT_TOPIC).writable_queues()[0]
        with PullConsumer(cluster=self.cluster, group="tests") as consumer:
            try:
                return consumer.committed(queue) == -1
            except MasterNotExist:
                return False

    def __exit__(self, *_: object) -> None:
        self.stop_queries()
        self.producer.close()
        self.cluster.close()

    def stop_queries(self) -> None:
        for query in self.spark.streams.active:
            query.stop()

    def name(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"

    # --- messages -----------------------------------------------------------------------------------------------------

    def topic(self, messages: int = 0, **kwargs: Any) -> str:
        """Creates a topic with that many messages.  By default the topic has a single message, `first`."""
        topic = self.name("topic")
        if messages:
            self.send(topic, range(messages), **kwargs)
        else:
            self.send(topic, ["first"])
        wait_until(lambda: self.is_known(topic), f"the name server to know {topic}", TIMEOUT_S)
        return topic

    def is_known(self, topic: str) -> bool:
        try:
            return bool(self.cluster.queues(topic, fresh=True))
        except TopicNotExist:
            return False

    def send(
        self,
        topic: str,
        bodies: Iterable[object],
        *,
        tags: str | None = None,
        queue_id: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        queue = None if queue_id is None else MessageQueue(topic, "broker-a", queue_id)
        futures = [
            self.producer.send_async(
                Message(topic, str(body).encode(), tags=tags, keys=f"key-{body}", properties=properties), queue=queue
            )
            for body in bodies
        ]
        for future in futures:
            future.result(TIMEOUT_S)

    def end(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: found.max_offset for queue, found in self.cluster.bounds(topic, fresh=True).items()}

    def wait_for_slave(self, topic: str) -> None:
        """Waits until the slave has all of the topic's messages that the master has."""
        want = {queue.queue_id: offset for queue, offset in self.end(topic).items()}

        def has_all() -> bool:
            try:
                found = self.cluster.transport.reads.queue_bounds(self.slave.address, topic, list(want), TIMEOUT_S)
            except TopicNotExist:
                return False
            return all(found[queue_id].max_offset >= offset for queue_id, offset in want.items())

        wait_until(has_all, f"the slave to have {topic}", TIMEOUT_S)

    def delete_topic(self, topic: str) -> None:
        from rocketsim_client import Admin

        with Admin(self.name_server.address) as admin:
            admin.delete_topic(topic)

    # --- groups -------------------------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        return self.cluster.committed(group, self.cluster.queues(topic))

    def wait_committed(self, group: str, topic: str, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Waits until the group has committed those offsets, or the ends of all queues."""
        want = self.end(topic) if offsets is None else offsets
        wait_until(lambda: self.committed(group, topic) == want, f"{group} to stand at {want}", TIMEOUT_S)

    # --- queries ------------------------------------------------------------------------------------------------------

    def options(self, topic: str | None = None, **options: object) -> dict[str, str]:
        given = PATIENT | {"nameServer": self.name_server.address} | ({"topic": topic} if topic else {})
        return given | {
            name.replace("__", "."): str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
        }

    def batch(self, topic: str | None = None, schema: str | None = None, **options: object) -> Any:
        reader = self.spark.read.format("rocketsim").options(**self.options(topic, **options))
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, topic: str | None = None, schema: str | None = None, **options: object) -> Any:
        reader = self.spark.readStream.format("rocketsim").options(**self.options(topic, **options))
        return (reader.schema(schema) if schema else reader).load()

    def start(
        self, stream: Any, checkpoint: str, each_batch: Callable[[Any, int], None] | None = None, **trigger: Any
    ) -> Any:
        """Starts a query, and keeps its rows by checkpoint and batch.  The rows of a replayed batch replace those of
        its first attempt.

        `each_batch` is called before the rows are kept, and may fail.
        """
        kept = self.kept.setdefault(checkpoint, {})

        def keep(frame: Any, batch_id: int) -> None:
            if each_batch is not None:
                each_batch(frame, batch_id)
            kept[batch_id] = frame.collect()

        writer = stream.writeStream.option("checkpointLocation", checkpoint).foreachBatch(keep)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def rows(self, checkpoint: str) -> list[Any]:
        """Returns all rows that the queries of this checkpoint have processed."""
        return [row for _, rows in sorted(self.kept[checkpoint].items()) for row in rows]

    def bodies(self, checkpoint: str) -> list[str]:
        return sorted(bytes(row.body).decode() for row in self.rows(checkpoint))

    def run(self, stream: Any, checkpoint: str, **trigger: Any) -> Any:
        """Runs the query to its end, and raises the query's error."""
        query = self.start(stream, checkpoint, **(trigger or {"availableNow": True}))
        assert query.awaitTermination(TIMEOUT_S), "the query has not ended"
        return query

    def wait_caught_up(self, query: Any, topic: str) -> None:
        """Waits until the query has processed all messages that the topic has now."""
        query_end = {str(q.queue_id): offset for q, offset in self.end(topic).items()}

        def caught_up() -> bool:
            if (failure := query.exception()) is not None:
                raise AssertionError(f"the query ended: {failure}")
            progress = query.lastProgress
            if not progress:
                return False
            offset = source_progress(query)["endOffset"]
            return all(offset["q"].get(topic, {}).get("broker-a", {}).get(q, -1) >= at for q, at in query_end.items())

        wait_until(caught_up, f"the query to be at the end of {topic}", TIMEOUT_S)


def source_progress(query: Any) -> dict[str, Any]:
    """Returns the newest progress of the query's only source."""
    found: dict[str, Any] = json.loads(query.lastProgress.json)["sources"][0]
    return found


def batches(checkpoint: str) -> int:
    """Returns how many batches the checkpoint has planned."""
    return len([path for path in Path(checkpoint, "offsets").glob("*") if path.name.isdigit()])


def wait_idle(query: Any) -> None:
    """Waits until the query has asked for more messages and there were none.  The query needs idlePollMs=0."""
    wait_until(lambda: query.status["message"].startswith("Waiting for data"), "the query to be idle", TIMEOUT_S)


def failure_of(query: Any) -> str:
    """Returns the error that ended the query."""
    wait_until(lambda: not query.isActive, "the query to end", TIMEOUT_S)
    return str(query.exception())
