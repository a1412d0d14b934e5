"""The PySpark code of the README works as it is, except for the name server's address."""

import os
import re
import subprocess
import sys

import pytest

from rocketsim_cli.servers import snippet
from testbed.polling import wait_until
from testbed.processes import ROOT, Processes
from testbed.spark_processes import python_path

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def readme_snippet(name_server: str) -> str:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (code,) = (snippet for snippet in snippets if "pyspark" in snippet)
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    return re.sub(r'name_server = "[^"]*"', f'name_server = "{name_server}"', code)


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
        # The environment is that of a notebook or a cron job: this Python's virtual environment is not activated, and
        # `python3` is another Python.
        without = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "SPARK_HOME")
        environment = {name: value for name, value in os.environ.items() if name not in without}
        bin_of_another = tmp_path / "bin"
        bin_of_another.mkdir()
        (bin_of_another / "python3").write_text("#!/bin/sh\necho 'a Python without the package' >&2\nexit 1\n")
        (bin_of_another / "python3").chmod(0o755)
        environment["PYTHONPATH"] = python_path(ROOT, ROOT / "proto")
        environment["PATH"] = f"{bin_of_another}{os.pathsep}{os.environ['PATH']}"
        # Both snippets run in one process, and so in one Spark session.  A person waits and looks at the output, but a
        # test has to end once everything is read.
        pasted = readme_snippet(namesrv.address) + snippet(namesrv.address, "TopicTest")
        assert pasted.count('os.environ["PYSPARK_PYTHON"] = sys.executable') == 2
        pasted = re.sub(r"awaitTermination\(\d*\)", "processAllAvailable()", pasted)
        done = subprocess.run(
            [sys.executable, "-c", pasted], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=900
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert re.search(r"\|\s*broker-a\|\s*Greeting\|\s*1\|", done.stdout), done.stdout
        assert "hello from the shell" in done.stdout
