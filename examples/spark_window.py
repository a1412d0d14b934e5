"""A windowed aggregate: for each minute and tag, counts the messages that were stored in this minute.

    python examples/spark_window.py 127.0.0.1:9876 TopicTest counts-checkpoint

A message that arrives more than ten minutes late is not counted, because its window is already closed.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming.query import StreamingQuery


def start(
    spark: SparkSession, name_server: str, topic: str, checkpoint: str, sink: str = "console", **trigger: bool
) -> StreamingQuery:
    options = {"nameServer": name_server, "subscribe": topic, "group": "counts", "startingOffsets": "earliest"}
    messages = spark.readStream.format("rocketsim").options(**options).load()
    counts = (
        messages.withWatermark("storeTimestamp", "10 minutes")
        .groupBy(window("storeTimestamp", "1 minute"), "tags")
        .count()
    )
    writer = counts.writeStream.format(sink).outputMode("update").queryName("counts")
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start(SparkSession.builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
