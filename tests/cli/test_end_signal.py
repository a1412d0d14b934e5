"""Commands that run servers obey a signal at any moment, and end their servers in order."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketsim_cli.end_signal import NUMBERS, EndSignal
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import pids_by_argument


@pytest.fixture
def end_signal() -> Iterator[EndSignal]:
    former = {number: signal.getsignal(number) for number in NUMBERS}
    made = EndSignal()
    made.listen()
    yield made
    for number, handler in former.items():
        signal.signal(number, handler)


class SignalledAtItsEnd:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_signal_in_a_destructor_is_not_dropped(end_signal: EndSignal) -> None:
    SignalledAtItsEnd()
    with pytest.raises(KeyboardInterrupt):
        end_signal.sleep(PROCESS_PATIENCE_S)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_ends_every_wait_from_then_on(end_signal: EndSignal, number: signal.Signals) -> None:
    end_signal.check()
    end_signal.sleep(0)
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            end_signal.sleep(PROCESS_PATIENCE_S)


@pytest.mark.cluster
@pytest.mark.parametrize("started", ["namesrv.properties", "broker-a.address", "cluster is up"])
def test_up_ends_in_order_whenever_the_signals_come(tmp_path: Path, started: str) -> None:
    """The first signal comes during the start or after it, and further ones during the end."""
    output = tmp_path / "output"
    folder = tmp_path / "cluster"
    words = [sys.executable, "-m", "rocketsim_cli.main", "up", "--dir", str(folder), "--port", "0"]
    with output.open("wb") as file:
        up = subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        wait_until(lambda: (folder / started).exists() or started in output.read_text(), started)
        up.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping" in output.read_text(), "the end of the cluster")
        for number in NUMBERS:
            up.send_signal(number)
        assert up.wait(PROCESS_PATIENCE_S) == 0, output.read_text()
    finally:
        up.kill()
        up.wait()
    assert "Traceback" not in output.read_text()
    assert not pids_by_argument(lambda argument: argument.startswith(str(folder)) and argument.endswith(".properties"))
    assert not list(folder.glob("store/*/abort"))  # a broker that has stopped in order removes this file


@pytest.mark.cluster
@pytest.mark.spark
def test_the_demo_ends_in_order_while_spark_and_the_servers_start(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    words = [sys.executable, "-m", "rocketsim_cli.main", "demo", "--dir", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        try:
            wait_until(lambda: (folder / "namesrv.properties").exists(), "the first server to start")
            demo.send_signal(signal.SIGTERM)
            said, _ = demo.communicate(timeout=PROCESS_PATIENCE_S)
        finally:
            demo.kill()
    assert demo.returncode == 130 and "Traceback" not in said and "readings a second" not in said
    assert not pids_by_argument(lambda argument: argument.startswith(str(folder)) and argument.endswith(".properties"))
