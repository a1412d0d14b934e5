"""A sink: reads one topic, transforms its messages, and writes them to another topic.

    python examples/spark_sink.py 127.0.0.1:9876 TopicTest Alarms alarms-checkpoint

With `sinkMode=idempotent`, a row that is written a second time, because its batch was repeated, gets the same message
id again, so that readers can recognize the second copy and drop it.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def start(
    spark: SparkSession, name_server: str, source: str, target: str, checkpoint: str, **trigger: bool
) -> StreamingQuery:
    options = {"nameServer": name_server, "subscribe": source, "group": "alarms", "startingOffsets": "earliest"}
    messages = spark.readStream.format("rocketsim").options(**options).load()
    alarms = messages.where("tags = 'alarm'").selectExpr("upper(CAST(body AS STRING)) AS body", "keys", "tags")
    writer = alarms.writeStream.format("rocketsim").options(
        nameServer=name_server, topic=target, sinkMode="idempotent", sinkName="alarms", checkpointLocation=checkpoint
    )
    return (writer.trigger(**trigger) if trigger else writer).start()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start(SparkSession.builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
