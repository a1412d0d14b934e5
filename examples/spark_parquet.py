"""`foreachBatch` to Parquet: writes each batch into a folder of its own, so that a repeated batch replaces the first
one.

    python examples/spark_parquet.py 127.0.0.1:9876 TopicTest messages

If the job dies during a batch, Spark runs this batch again, with the same number and the same messages.  So each
message is in the files exactly once.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, name_server: str, topic: str, folder: str, **trigger: bool) -> StreamingQuery:
    options = {"nameServer": name_server, "subscribe": topic, "group": "parquet", "startingOffsets": "earliest"}
    messages = spark.readStream.format("rocketsim").options(**options).load()

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("msgId", "storeTimestamp", "tags", "CAST(body AS STRING) AS body")
        rows.write.mode("overwrite").parquet(f"{folder}/data/batch={batch_id}")

    writer = messages.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start(SparkSession.builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
