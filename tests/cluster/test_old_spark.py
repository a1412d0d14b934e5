"""A Spark job of 9157579, the oldest supported version, works with a pair of this version, so that brokers may be
upgraded first.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketsim_client.model import SendStatus
from testbed.polling import wait_until
from testbed.spark_processes import python_path
from tests.cluster.old_stores import CODE, UPGRADE, promote
from tests.support.archives import unpack

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.long]

SOURCE = UPGRADE / "9157579-spark.tar.xz"
QUEUES, MESSAGES, TIMEOUT_S = 4, 40, 120.0
JOB = """
import json, sys
from pyspark.sql import SparkSession

name_server, checkpoint, rows = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    .getOrCreate()
)

def modules(_):
    import rocketsim_client, rocketsim_proto, rocketsim_source
    return [module.__file__ for module in (rocketsim_client, rocketsim_proto, rocketsim_source)]

def keep(frame, batch_id):
    with open(rows, "a") as file:
        for row in frame.collect():
            file.write(json.dumps([row.queueId, row.queueOffset, bytes(row.body).decode()]) + "\\n")

print(json.dumps(spark.sparkContext.parallelize([0], 1).map(modules).collect()[0] + modules(None)), flush=True)
at = {"nameServer": name_server, "topic": "T"}
spark.range(40).selectExpr("CAST(id AS STRING) AS body").write.format("rocketsim").mode("append").options(**at).save()
stream = spark.readStream.format("rocketsim").options(group="old", startingOffsets="earliest", **at).load()
query = (
    stream.writeStream.option("checkpointLocation", checkpoint).foreachBatch(keep)
    .trigger(processingTime="300 milliseconds").start()
)
sys.stdin.read()
if query.exception() is not None:
    raise query.exception()
query.stop()
"""


class Job:
    def __init__(self, process: "subprocess.Popen[bytes]", out: Path, rows: Path) -> None:
        self._process = process
        self._out = out
        self._rows = rows

    def rows(self) -> list[tuple[int, int, str]]:
        """Returns (queue id, queue offset, body) of each complete line."""
        assert self._process.poll() is None, self._out.read_text()[-4000:]
        lines = self._rows.read_text().split("\n")[:-1] if self._rows.exists() else []
        return sorted((queue, offset, body) for queue, offset, body in map(json.loads, lines))

    def modules(self) -> list[str]:
        """Returns the module files that the job uses, in Spark's worker and in the driver."""
        line = next(line for line in self._out.read_text().splitlines() if line.startswith('["'))
        found: list[str] = json.loads(line)
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(TIMEOUT_S) == 0, self._out.read_text()[-4000:]


@contextmanager
def job(code: Path, name_server: str, folder: Path) -> Iterator[Job]:
    environment = os.environ | {
        "PYTHONPATH": python_path(code, code / "proto"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    rows, out = folder / "rows", folder / "job.out"
    command = [sys.executable, "-c", JOB, name_server, str(folder / "checkpoint"), str(rows)]
    with out.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=code, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield Job(process, out, rows)
    finally:
        process.kill()
        process.wait()


def test_an_old_job_writes_reads_and_commits_at_a_new_pair_before_and_after_a_promotion(
    processes: Any, namesrv: Any, alone: Any, tmp_path: Path
) -> None:
    code = unpack(SOURCE, unpack(CODE, tmp_path / "9157579"))
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER")
    alone(master).update_topic("T", QUEUES)
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")

    def has_read(count: int, *, at: Any) -> None:
        """Waits until the job has read `count` messages, each once, and the broker `at` has the group's offsets at the
        ends of the queues.
        """
        wait_until(lambda: len(running.rows()) >= count, f"{count} rows", TIMEOUT_S)
        there = {(place, one.body.decode()) for place, one in alone(at).messages("T").items()}
        rows = running.rows()
        assert len(rows) == count and {((queue, offset), body) for queue, offset, body in rows} == there
        ends = {queue: end for queue, (_, end) in alone(at).bounds("T").items()}
        wait_until(
            lambda: {queue: alone(at).committed("old", "T", queue) for queue in ends} == ends,
            f"the group to stand at {ends} on {at.name}",
        )

    with job(code, namesrv.address, tmp_path) as running:
        has_read(MESSAGES, at=master)
        assert len(running.modules()) == 6 and all(Path(file).is_relative_to(code) for file in running.modules())
        for queue in range(QUEUES):
            assert alone(master).put("T", b"new", queue_id=queue).status == SendStatus.SEND_OK
        has_read(MESSAGES + QUEUES, at=master)
        alone(master).wait_for_slaves()
        master.kill()
        promote(namesrv, slave)
        for queue in range(QUEUES):
            assert alone(slave).put("T", b"newer", queue_id=queue).status == SendStatus.SLAVE_NOT_AVAILABLE
        has_read(MESSAGES + 2 * QUEUES, at=slave)
        running.end()
