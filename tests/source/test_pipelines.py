"""Runs the declarative pipeline of examples/spark_pipeline with Spark's own command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocketsim_client import Admin, Message, Producer
from testbed.polling import wait_until
from testbed.processes import ROOT, Processes
from testbed.spark_processes import python_path

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.long]


def test_the_pipeline_of_the_examples_reads_a_topic_and_writes_another(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        processes.start_broker("broker-a", 0, name_server)
        with Admin(name_server.address) as admin, Producer(name_server.address) as producer:
            wait_until(admin.cluster_list, "the broker's registration")
            for topic in ("telemetry", "alarms"):
                admin.update_topic(topic, read_queue_nums=2, write_queue_nums=2)
            wait_until(lambda: {"telemetry", "alarms"} <= set(admin.topic_list()), "the topics")
            for number in range(20):
                producer.send(Message("telemetry", b"reading %d" % number, "alarm" if number % 4 == 0 else "red"))
            folder = tmp_path / "pipeline"
            shutil.copytree(ROOT / "examples" / "spark_pipeline", folder)
            specification = folder / "spark-pipeline.yml"
            specification.write_text(specification.read_text().replace("/tmp/checkpoints", str(tmp_path)))
            environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"} | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYSPARK_PYTHON": sys.executable,
                "ROCKETSIM_NAMESRV": name_server.address,
                "PYTHONPATH": python_path(ROOT, ROOT / "proto"),
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            done = subprocess.run(
                ["spark-pipelines", "run"], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
            assert sum(queue.max_offset for queue in admin.topic_status("alarms")) == 5
