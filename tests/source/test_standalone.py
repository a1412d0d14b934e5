"""A standalone Spark cluster with two executor processes, of the Spark that pip installed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.source.bench import run_program
from tests.support.polling import wait_until
from tests.support.processes import Processes

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.long]

PROGRAM = """
import sys
from pyspark.sql import SparkSession

master, name_server, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m").config("spark.cores.max", "2").config("spark.executor.cores", "1")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s").getOrCreate()
)
options = {"nameServer": name_server, "topic": "on-executors"}
frame = spark.range(0, 4000, 1, 4).selectExpr("concat('row ', id) AS body")
frame.write.format("rocketsim").mode("append").options(**options, sinkMode="idempotent", idColumns="body").save()
stream = (
    spark.readStream.format("rocketsim").options(**options, group="standalone", startingOffsets="earliest")
    .option("minPartitions", 4).load().selectExpr("CAST(body AS STRING) AS body", "spark_partition_id() AS part")
)
query = (
    stream.writeStream.format("memory").queryName("rows").option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start()
)
assert query.awaitTermination(600)
rows = spark.table("rows").collect()
assert sorted(r.body for r in rows) == sorted(f"row {n}" for n in range(4000)), len(rows)
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
assert len(executors) == 3, len(executors)  # the driver and two
print("standalone is fine")
spark.stop()
"""


@contextmanager
def spark_process(log: Path, *command: str) -> Iterator[Path]:
    import pyspark

    home = str(Path(pyspark.__file__).parent)
    environment = os.environ | {
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(log.with_suffix(".work")),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with log.open("wb") as out:
        process = subprocess.Popen([f"{home}/bin/spark-class", *command], stdout=out, stderr=out, env=environment)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def test_two_executors_read_and_write(tmp_path: Path) -> None:
    deploy = "org.apache.spark.deploy"
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        processes.start_broker("broker-a", 0, name_server, autoCreateTopicEnable=True)
        with spark_process(
            tmp_path / "master.log",
            f"{deploy}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
        ) as log:
            found = wait_until(
                lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()), "the master", 60
            )
            assert found is not None
            url = found[1]
            worker = (
                f"{deploy}.worker.Worker",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--host",
                "127.0.0.1",
                url,
            )
            with spark_process(tmp_path / "worker1.log", *worker), spark_process(tmp_path / "worker2.log", *worker):
                wait_until(lambda: log.read_text().count("Registering worker") == 2, "two workers", 60)
                done = run_program(PROGRAM, url, name_server.address, str(tmp_path / "checkpoint"), cwd=tmp_path)
                assert "standalone is fine" in done.stdout, done.stdout[-2000:] + done.stderr[-6000:]
