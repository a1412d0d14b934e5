"""`foreachBatch` to a Delta table: appends each batch once, because the table keeps the number of the last one.

    pip install deltalake
    python examples/spark_delta.py 127.0.0.1:9876 TopicTest messages

If the job dies during a batch, Spark runs the batch again, with the same number and the same messages.  If the table
has this number already, the batch is left out.  The driver writes the rows, so a batch must fit into its memory.
"""

import os
import sys

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

QUERY = "messages-to-delta"  # the name under which the table keeps the number


def start(spark: SparkSession, name_server: str, topic: str, folder: str, **trigger: bool) -> StreamingQuery:
    options = {"nameServer": name_server, "subscribe": topic, "group": "delta", "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": "1000000"}
    messages = spark.readStream.format("rocketsim").options(**options).load()
    path = f"{folder}/table"

    def write(batch: DataFrame, batch_id: int) -> None:
        last = DeltaTable(path).transaction_version(QUERY) if DeltaTable.is_deltatable(path) else None
        if last is None or batch_id > last:
            rows = batch.selectExpr("msgId", "storeTimestamp", "tags", "CAST(body AS STRING) AS body").toArrow()
            number = CommitProperties(app_transactions=[Transaction(QUERY, batch_id)])
            write_deltalake(path, rows, mode="append", commit_properties=number)

    writer = messages.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start(SparkSession.builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
