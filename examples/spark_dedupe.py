"""Drops duplicates, because delivery is at least once: the copies of a message have the same `msgId`.

    python examples/spark_dedupe.py 127.0.0.1:9876 TopicTest once

Spark forgets an id ten minutes after its message, so all copies of a message must arrive within ten minutes.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, name_server: str, topic: str, folder: str, **trigger: bool) -> StreamingQuery:
    options = {"nameServer": name_server, "subscribe": topic, "group": "once", "startingOffsets": "earliest"}
    messages = spark.readStream.format("rocketsim").options(**options).load()
    once = messages.withWatermark("storeTimestamp", "10 minutes").dropDuplicatesWithinWatermark(["msgId"])
    rows = once.selectExpr("msgId", "CAST(body AS STRING) AS body")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start(f"{folder}/data")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start(SparkSession.builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
