"""Installs the Python peers (confluent-kafka and RocketMQ's official client) in a virtual environment of their own.

The environment is in the user's cache directory.  The peers need their own environment, because the official client
requires other versions of grpcio and protobuf.
"""

import subprocess
import sys
from pathlib import Path

from benchmarks.bench import Unavailable
from benchmarks.driver import ROOT, Driver
from testbed.jars import cache_folder

REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"
INSTALL_TIMEOUT_S = 900


def environment() -> Path:
    """Creates the environment if it is missing, and returns its interpreter."""
    folder = cache_folder("python-peers")
    python = folder / "bin" / "python"
    stamp = folder / "made-for"
    wanted = REQUIREMENTS.read_text() + sys.version
    if not stamp.exists() or stamp.read_text() != wanted:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(REQUIREMENTS)],
        ):
            try:
                ended = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"pip did not install the Python peers in {INSTALL_TIMEOUT_S} s") from None
            if ended.returncode:
                raise Unavailable(f"pip did not install the Python peers: {ended.stderr.strip().splitlines()[-1:]}")
        stamp.write_text(wanted)
    return python


def driver(name: str, script: str, log: Path, *arguments: str) -> Driver:
    """Starts benchmarks/peers/SCRIPT in the peers' environment."""
    command = [str(environment()), "-m", f"benchmarks.peers.{script}", *arguments]
    return Driver(name, command, log, {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})
