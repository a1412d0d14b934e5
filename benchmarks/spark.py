"""Starts a Spark session for RocketSim and Kafka, measures batches in it, and computes when a micro-batch ran."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.bodies import spark_expression
from benchmarks.contest import SMOKE
from benchmarks.driver import ROOT
from benchmarks.figures import Missing
from benchmarks.peers import kafka
from benchmarks.peers.kafka import Kafka
from testbed import spark_processes

IDLE_S = 60.0
PATIENCE = {"pullTimeoutMs": "60s"}  # a long time-out, because a busy machine must not make a run fail


class Spark:
    """A Spark session with two local cores, and the folder for the checkpoints of its queries."""

    def __init__(self, session: Any, folder: Path) -> None:
        self.session = session
        self.folder = folder

    # --- timed --------------------------------------------------------------------------------------------------------

    def batch(self, source: "Source", rows: int) -> dict[str, float]:
        begun = time.perf_counter()
        source.frame(self.session.read).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - begun
        return {"rate": rows / seconds, "seconds": seconds}

    def write(self, count: int, size: int, name: str, format_: str, options: Mapping[str, str]) -> dict[str, float]:
        """Measures writing generated bodies into a sink."""
        frame = self.generated(count, size, name)
        begun = time.perf_counter()
        frame.write.format(format_).mode("append").options(**options).save()
        seconds = time.perf_counter() - begun
        return {"rate": count / seconds, "seconds": seconds}

    # --- not timed ----------------------------------------------------------------------------------------------------

    def generated(self, count: int, size: int, name: str) -> Any:
        return self.session.range(0, count, 1, 4).selectExpr(spark_expression(size, name))

    def summary(self, source: "Source") -> tuple[int, int]:
        """Returns the number of rows and the checksum of the bodies.  The query counts the values of every column, so
        that Spark must read all of them.
        """
        frame = source.frame(self.session.read)
        others = [f"count(`{name}`)" for name in frame.columns]
        row = frame.selectExpr("count(*)", f"sum(crc32({source.body}))", *others).first()
        return int(row[0]), int(row[1] or 0)

    def checkpoint(self) -> str:
        return tempfile.mkdtemp(dir=self.folder, prefix="checkpoint-")


class Source:
    """What a query reads: a format, its options and the columns.  `body` is the name of the column with the bodies."""

    def __init__(
        self, format_: str, options: Mapping[str, str], *, body: str, schema: str = "", select: tuple[str, ...] = ()
    ) -> None:
        self._format = format_
        self._options = dict(options)
        self._schema = schema
        self._select = select
        self.body = body

    def frame(self, reader: Any) -> Any:
        reader = reader.format(self._format).options(**self._options)
        frame = (reader.schema(self._schema) if self._schema else reader).load()
        return frame.select(*self._select) if self._select else frame

    def having(self, options: Mapping[str, str]) -> "Source":
        """Returns a copy of the source with these options added or replaced."""
        given = self._options | dict(options)
        return Source(self._format, given, body=self.body, schema=self._schema, select=self._select)

    def __str__(self) -> str:
        return f"{self._format} {self._options.get('topic') or self._options.get('subscribe', '')}"


def started_ms(progress: Mapping[str, Any]) -> float:
    """Returns when a micro-batch was triggered, in ms of Unix time."""
    return datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp() * 1000


def ended_ms(progress: Mapping[str, Any]) -> float:
    """Returns when a micro-batch was committed and its trigger had ended, in ms of Unix time."""
    return started_ms(progress) + float(progress["durationMs"]["triggerExecution"])


def rocketsim(name_server: str, topic: str, schema: str = "", **options: str) -> Source:
    given = {"nameServer": name_server, "topic": topic, "startingOffsets": "earliest", **PATIENCE} | options
    kafka_columns = options.get("schemaProfile") == "kafka"
    return Source("rocketsim", given, body="value" if kafka_columns else "body", schema=schema)


def kafka_source(address: str, topic: str, *select: str, **options: str) -> Source:
    given = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"} | options
    return Source("kafka", given, body="value", select=select)


@contextmanager
def session(bench: Bench) -> Iterator[tuple[Spark, Missing | None]]:
    """Starts a Spark session with Kafka's connector.  Yields the session, and the reason if the connector is not
    available.

    The session must be started before any gRPC channel is made, because starting the JVM forks the process, and a fork
    can break gRPC channels.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    jars = bench.peer("Spark's Kafka connector", kafka.connector_jars)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    if bench.plan is SMOKE:
        spark_processes.prepare()
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("rocketsim-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .config("spark.sql.warehouse.dir", str(bench.folder / "warehouse"))
        .config("spark.log.level", "ERROR")
    )
    if not isinstance(jars, Missing):
        builder = builder.config("spark.jars", ",".join(jars))
    made = builder.getOrCreate()
    folder = bench.folder / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield Spark(made, folder), jars if isinstance(jars, Missing) else None
    except PySparkException as error:
        raise RuntimeError(
            str(error)[:2000]
        ) from None  # raised before the JVM is ended below, because the error's text comes from the JVM
    finally:
        for query in made.streams.active:
            query.stop()
        if bench.plan is not SMOKE:  # in a smoke run, all benchmarks share one session
            _end(made)


def kafka_peer(bench: Bench, missing: Missing | None) -> Kafka | Missing:
    """Starts a Kafka broker, unless Spark's Kafka connector is not available."""
    if missing is not None:
        return missing
    return bench.peer("Kafka", lambda: bench.enter(kafka.running(bench.folder / "kafka")))


def _end(session: Any) -> None:
    """Ends the session and its JVM, so that the next benchmark of an `all` run gets a new one."""
    from pyspark import SparkContext

    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(IDLE_S)
    SparkContext._gateway = None
    SparkContext._jvm = None
