"""Runs the demo's streaming query: it drops duplicates, aggregates telemetry by window and kind, and keeps the message
ids.

This module starts Spark, which forks, so a process that uses this module must not have opened a gRPC channel before.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW = "5 seconds"
# The watermark is longer than the demo, so that Spark drops no row as late, even if messages of the killed master
# wait long until Spark reads them from the slave.
WATERMARK = "10 minutes"
TRIGGER = "2 seconds"


def start_spark(folder: Path) -> "SparkSession":
    from pyspark.sql import SparkSession

    # By default Spark's workers run the first `python3` on the PATH, which may lack this Python's packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with stderr_to(folder / "spark.log"):
        return _build_session(SparkSession.builder, folder)


def _build_session(builder: "SparkSession.Builder", folder: Path) -> "SparkSession":
    spark = (
        builder.appName("rocketsim demo")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # Spark has to keep the progress of every batch, because `read` adds up the batches' row counts.
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def stderr_to(file: Path) -> Iterator[None]:
    """Redirects standard error to `file` inside the block.  Spark's JVM, which is started inside the block, inherits
    the file.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One row of the aggregation: the readings of one kind in one time window that Spark read from one broker."""

    start: datetime
    kind: str
    unit: str
    broker_name: str
    broker_id: int
    count: int
    mean: float
    peak: float
    ids: list[str]


@dataclass(frozen=True, slots=True)
class KindSummary:
    """The readings of one kind in one time window, from all brokers together, for the screen."""

    start: datetime
    kind: str
    unit: str
    count: int
    mean: float
    peak: float


def summarize(rows: list[WindowRow]) -> list[KindSummary]:
    """Combines the rows of all brokers.  The newest window comes first, and within a window the kinds are sorted."""
    groups: dict[tuple[datetime, str], list[WindowRow]] = {}
    for row in rows:
        groups.setdefault((row.start, row.kind), []).append(row)
    summaries = []
    for (start, kind), members in groups.items():
        count = sum(row.count for row in members)
        mean = sum(row.mean * row.count for row in members) / count
        summaries.append(KindSummary(start, kind, members[0].unit, count, mean, max(row.peak for row in members)))
    return sorted(summaries, key=lambda summary: (-summary.start.timestamp(), summary.kind))


def windowed(messages: "DataFrame") -> "DataFrame":
    """Returns the aggregation as a user would write it, with the message ids of each row added.  The report uses the
    message ids to prove that no message is missing.
    """
    from pyspark.sql import functions as F

    text = F.col("body").cast("string")
    readings = messages.select(
        "msgId",
        "bornTimestamp",
        "brokerName",
        "servedByBrokerId",
        F.col("tags").alias("kind"),
        F.get_json_object(text, "$.unit").alias("unit"),
        F.get_json_object(text, "$.value").cast("double").alias("value"),
    )
    return (
        readings.withWatermark("bornTimestamp", WATERMARK)
        # If an answer is lost, the producer sends the message again under the same id, perhaps to the other pair.
        .dropDuplicatesWithinWatermark(["msgId"])
        .groupBy(F.window("bornTimestamp", WINDOW), "kind", "unit", "brokerName", "servedByBrokerId")
        .agg(
            F.count("*").alias("count"),
            F.avg("value").alias("mean"),
            F.max("value").alias("peak"),
            F.collect_list("msgId").alias("ids"),
        )
    )


class TelemetryQuery:
    """The running query and its newest result, which a thread of Spark updates through `foreachBatch`."""

    def __init__(self, spark: "SparkSession", name_server: str, topic: str, group: str, checkpoint: Path) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[datetime, str, str, int], WindowRow] = {}
        messages = (
            spark.readStream.format("rocketsim")
            .option("nameServer", name_server)
            .option("subscribe", topic)
            .option("group", group)
            .option("startingOffsets", "earliest")
            .load()
        )
        self._query: StreamingQuery = (
            windowed(messages)
            .writeStream.outputMode("update")
            .foreachBatch(self._keep)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=TRIGGER)
            .start()
        )

    def _keep(self, updated: "DataFrame", batch_id: int) -> None:
        rows = [
            WindowRow(
                row["window"]["start"],
                row["kind"],
                row["unit"],
                row["brokerName"],
                row["servedByBrokerId"],
                row["count"],
                row["mean"],
                row["peak"],
                row["ids"],
            )
            for row in updated.collect()
        ]
        with self._lock:
            for row in rows:
                self._rows[row.start, row.kind, row.broker_name, row.broker_id] = row

    def rows(self) -> list[WindowRow]:
        with self._lock:
            return list(self._rows.values())

    def ids(self) -> list[str]:
        """Returns the message ids in the aggregated windows.  A message that the query has counted twice occurs twice
        in the result.
        """
        return [msg_id for row in self.rows() for msg_id in row.ids]

    def served(self) -> Counter[tuple[str, int]]:
        """Returns the number of messages by broker name and by id of the broker that served them."""
        counts: Counter[tuple[str, int]] = Counter()
        for row in self.rows():
            counts[row.broker_name, row.broker_id] += row.count
        return counts

    def read(self) -> int:
        """Returns the number of rows that the source delivered, duplicates included."""
        by_batch = {progress["batchId"]: progress["numInputRows"] for progress in self._query.recentProgress}
        return sum(by_batch.values())

    def failure(self) -> str | None:
        """Returns why the query has ended, in Spark's words without the JVM's stack.  Returns None while the query
        runs.
        """
        error = self._query.exception()
        if error is None:
            return None
        return in_few_words(str(error))

    def stop(self) -> None:
        self._query.stop()


def in_few_words(error: str) -> str:
    """Returns Spark's error message without stack traces, and with a hint if the machine was too busy."""
    words = error.split("JVM stacktrace:")[0].split("=== Streaming Query ===")[0]
    lines = [line for line in words.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    short = "\n".join(lines).rstrip(".")
    if "Python worker failed to connect back" in short:
        short += " (Spark gives its Python process ten seconds to start: this machine is too busy now)"
    return short
