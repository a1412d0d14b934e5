"""Takes the ten lines of PySpark from the README, and runs them as a user does who pastes them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from testbed.processes import ROOT
from testbed.spark_processes import python_path

FOR_ROCKETMQ = "name_server = "  # the beginning of the README's block for Apache RocketMQ


def ten_lines(name_server: str) -> str:
    """Returns the ten lines with this address of a name server of RocketSim."""
    (code,) = (block for block in _blocks() if "pyspark" in block)
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    return _with_address(code, name_server)


def ten_lines_on_rocketmq(name_server: str) -> str:
    """Returns the ten lines, changed as the README says for Apache RocketMQ, with this address of its name server."""
    (block,) = (block for block in _blocks() if block.startswith(FOR_ROCKETMQ))
    lines = ten_lines(name_server).splitlines(keepends=True)
    return _with_address("".join(block if one.startswith(FOR_ROCKETMQ) else one for one in lines), name_server)


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def _with_address(code: str, name_server: str) -> str:
    changed, count = re.subn(r'^name_server = "[^"]*"', f'name_server = "{name_server}"', code, flags=re.MULTILINE)
    assert count == 1
    return changed


def output_of(pasted: str, folder: Path) -> str:
    """Runs code in a new Python process, and returns what the process has printed.  `folder` must not
    have a folder `bin`.

    The environment is that of a notebook or a cron job: this Python's virtual environment is not activated, and
    `python3` is another Python.  A person waits and looks at the output, but a test has to end once everything is read.
    Queries therefore end there.
    """
    without = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    bin_of_another = folder / "bin"
    bin_of_another.mkdir()
    (bin_of_another / "python3").write_text("#!/bin/sh\necho 'a Python without the package' >&2\nexit 1\n")
    (bin_of_another / "python3").chmod(0o755)
    environment["PYTHONPATH"] = python_path(ROOT, ROOT / "proto")
    environment["PATH"] = f"{bin_of_another}{os.pathsep}{os.environ['PATH']}"
    ending = re.sub(r"awaitTermination\(\d*\)", "processAllAvailable()", pasted)
    done = subprocess.run(
        [sys.executable, "-c", ending], capture_output=True, text=True, env=environment, cwd=folder, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
