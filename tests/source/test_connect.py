"""The source through Spark Connect: the server finds the format, and the client needs no package."""

from pathlib import Path

import pytest

from testbed.polling import wait_until
from testbed.processes import Processes
from tests.source.bench import run_program

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

CLIENT = """
import json, sys, time
from pyspark.sql import SparkSession

name_server, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
options = {"nameServer": name_server, "topic": "over-connect"}
frame = spark.range(20).selectExpr("concat('row ', id) AS body")
frame.write.format("rocketsim").mode("append").options(**options).save()
batch = spark.read.format("rocketsim").options(**options).load()
assert batch.count() == 20, batch.count()
stream = spark.readStream.format("rocketsim").options(**options, group="connect", startingOffsets="earliest").load()
query = (
    stream.select("body").writeStream.format("memory").queryName("rows")
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
assert query.awaitTermination(600)
rows = spark.table("rows").collect()
assert sorted(bytes(r.body).decode() for r in rows) == sorted(f"row {n}" for n in range(20)), rows
latest = [p["sources"][0]["latestOffset"] for p in query.recentProgress][-1]
latest = json.loads(latest) if isinstance(latest, str) else latest
assert latest["topic"] == "over-connect" and latest["lag"]["total"] == 0, latest
print("connect is fine")
spark.stop()
"""


def test_batch_stream_sink_and_progress_over_connect(tmp_path: Path) -> None:
    from rocketsim_client import Cluster, RocketSimError

    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        processes.start_broker("broker-a", 0, name_server, autoCreateTopicEnable=True)
        done = run_program(CLIENT, name_server.address, str(tmp_path / "checkpoint"), cwd=tmp_path)
        assert "connect is fine" in done.stdout, done.stdout[-2000:] + done.stderr[-6000:]
        with Cluster(name_server.address) as cluster:

            def at_the_end() -> bool:
                try:
                    queues = cluster.bounds("over-connect")
                    return cluster.committed("connect", list(queues)) == {q: b.max_offset for q, b in queues.items()}
                except RocketSimError:
                    return False

            wait_until(at_the_end, "the group to be at the end")
