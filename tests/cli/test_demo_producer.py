"""The demo's producer process ends with the demo, however the demo ends."""

import os
import signal
import subprocess
import sys

from testbed.polling import wait_until
from testbed.processes import pids_by_argument
from tests.support.fake_broker import FakeCluster

# A child of the demo keeps the pipe open into which the producer reports, so the demo's end does not break the pipe.
DEMO = """
import subprocess, sys
from pathlib import Path
from rocketsim_cli.demo.producer import ProducerProcess
with ProducerProcess(sys.argv[1], "T", 100, Path(sys.argv[2])) as producer:
    child = subprocess.Popen(["sleep", "600"], pass_fds=[producer._process.stdout.fileno()])
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def test_the_producer_does_not_outlive_the_demo_when_it_is_killed(tmp_path):
    def producers() -> list[int]:
        return list(pids_by_argument(lambda argument: argument == str(tmp_path / "acknowledged-ids")).values())

    with FakeCluster("T") as cluster:
        broker = cluster.start("broker-a")
        words = [sys.executable, "-c", DEMO, cluster.address, str(tmp_path)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            child = int(demo.stdout.readline())
            wait_until(lambda: broker.store.queues, "the producer to send")
            assert len(producers()) == 1
            demo.kill()
        try:
            wait_until(lambda: not producers(), "the producer to end")
        finally:
            for pid in (child, *producers()):
                os.kill(pid, signal.SIGKILL)
