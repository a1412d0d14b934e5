"""An enrichment join: adds to each reading the room of its device, from a table.

    python examples/spark_enrichment.py 127.0.0.1:9876 TopicTest devices.csv enrichment-checkpoint

The body of a message is JSON, such as {"device": "d1", "celsius": 21.5}.  The table has the columns `device` and
`room`.  The left join keeps a reading of an unknown device, without a room.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import from_json
from pyspark.sql.streaming.query import StreamingQuery


def start(
    spark: SparkSession,
    name_server: str,
    topic: str,
    devices: str,
    checkpoint: str,
    sink: str = "console",
    **trigger: bool,
) -> StreamingQuery:
    options = {"nameServer": name_server, "subscribe": topic, "group": "rooms", "startingOffsets": "earliest"}
    messages = spark.readStream.format("rocketsim").options(**options).load()
    readings = messages.select(
        "storeTimestamp", from_json(messages.body.cast("string"), "device STRING, celsius DOUBLE").alias("reading")
    ).select("storeTimestamp", "reading.*")
    # Spark sends the small table to every task, so that no reading is shuffled.
    rooms = spark.read.csv(devices, header=True, schema="device STRING, room STRING").hint("broadcast")
    writer = readings.join(rooms, "device", "left").writeStream.format(sink).queryName("rooms")
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start(SparkSession.builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
