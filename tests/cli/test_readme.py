"""The PySpark code of the README works as it is, except for the name server's address."""

import re
import subprocess
import sys

import pytest

from rocketsim_cli.servers import snippet
from testbed.polling import wait_until
from testbed.processes import Processes
from tests.support.readme_program import output_of, ten_lines

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def test_the_pyspark_of_the_readme_and_of_up_works_when_pasted(tmp_path):
    with Processes(tmp_path) as processes:
        namesrv = processes.start_namesrv()
        processes.start_broker("broker-a", 0, namesrv)
        produce = [
            *(sys.executable, "-m", "rocketsim_cli.main", "produce"),
            *("-n", namesrv.address),
            "-t",
            "TopicTest",
        ]
        wait_until(
            lambda: subprocess.run([*produce, "hello from the shell", "--tag", "Greeting"]).returncode == 0, "a send"
        )
        # Both snippets run in one process, and so in one Spark session.
        pasted = ten_lines(namesrv.address) + snippet(namesrv.address, "TopicTest")
        assert pasted.count('os.environ["PYSPARK_PYTHON"] = sys.executable') == 2
        printed = output_of(pasted, tmp_path)
        assert re.search(r"\|\s*broker-a\|\s*Greeting\|\s*1\|", printed), printed
        assert "hello from the shell" in printed
