"""A standalone Spark cluster with two executor processes, of the Spark that pip installed."""

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from testbed.polling import wait_until
from testbed.processes import ROOT, Processes
from testbed.spark_processes import python_path
from tests.source.bench import run_program

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


@contextmanager
def standalone(home: Path, workers: int) -> Iterator[tuple[str, str]]:
    """Yields the addresses of a Spark master with so many workers, and of a name server with a broker."""
    deploy, local = "org.apache.spark.deploy", ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(home))
        name_server = processes.start_namesrv()
        processes.start_broker("broker-a", 0, name_server, autoCreateTopicEnable=True)
        master = (f"{deploy}.master.Master", "--port", "0", *local)
        log = stack.enter_context(spark_process(home / "master.log", *master))
        found = wait_until(
            lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()), "the master", 60
        )
        assert found is not None
        worker = (f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", *local, found[1])
        for number in range(workers):
            stack.enter_context(spark_process(home / f"worker{number}.log", *worker))
        wait_until(lambda: log.read_text().count("Registering worker") == workers, "the workers", 60)
        yield found[1], name_server.address


def test_two_executors_read_and_write(tmp_path: Path) -> None:
    with standalone(tmp_path, 2) as (url, name_server):
        done = run_program(PROGRAM, url, name_server, str(tmp_path / "checkpoint"), cwd=tmp_path)
        assert "standalone is fine" in done.stdout, done.stdout[-2000:] + done.stderr[-6000:]


JOB = """
import sys
from pyspark.sql import SparkSession

name_server, driver, checkpoint = {arguments!r}
assert sys.executable == driver, sys.executable
spark = SparkSession.builder.config("spark.executor.memory", "512m").config("spark.ui.enabled", "false").getOrCreate()
options = {{"nameServer": name_server, "topic": "archived"}}
frame = spark.range(10).selectExpr("concat('row ', id) AS body")
frame.write.format("rocketsim").mode("append").options(**options).save()
stream = spark.readStream.format("rocketsim").options(**options, startingOffsets="earliest").load()
writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
query = writer.start()
assert query.awaitTermination(600)
read = sum(progress["numInputRows"] for progress in query.recentProgress)
found = spark.sparkContext.parallelize([0]).map(lambda _: __import__("os").environ["PYTHON_OF_ARCHIVE"]).collect()
print(f"{{read}} rows with {{found}}")
spark.stop()
"""


def test_the_commands_of_the_document_ship_an_environment_to_the_executors(tmp_path: Path) -> None:
    """A `bin/python` in the archive stands for a packed environment, which the machine that submits the job does not
    have.
    """
    (commands,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "spark-clusters.md").read_text(), re.M | re.S)
    python = f'#!/bin/sh\nPYTHON_OF_ARCHIVE="$0" exec {sys.executable} "$@"\n'.encode()
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(python), 0o755
        archive.addfile(entry, io.BytesIO(python))
    with standalone(tmp_path, 1) as (url, name_server):
        arguments = (name_server, sys.executable, str(tmp_path / "checkpoint"))
        (tmp_path / "job.py").write_text(JOB.format(arguments=arguments))
        to_run = commands.replace("venv-pack", "# venv-pack", 1).replace("spark://HOST:7077", url)
        without = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
        environment = {name: value for name, value in os.environ.items() if name not in without}
        environment |= {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": python_path(ROOT, ROOT / "proto"),
        }
        done = subprocess.run(
            ["sh", "-e", "-c", to_run], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
        )
        assert "10 rows with ['./environment/bin/python']" in done.stdout, done.stdout[-2000:] + done.stderr[-6000:]
