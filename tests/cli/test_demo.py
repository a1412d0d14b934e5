"""The complete demo in a short form; its own report is asserted."""

import json
import os
import re
import subprocess
import sys
import urllib.request

import pytest

from testbed.polling import PROCESS_PATIENCE_S
from tests.cli.test_demo_page import loads_nothing

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


@pytest.mark.parametrize(("seconds", "rate"), [(5, 100), pytest.param(15, 200, marks=pytest.mark.long)])
def test_the_demo_loses_nothing_counts_nothing_twice_and_ends_at_the_end(tmp_path, seconds, rate):
    report = tmp_path / "report.html"
    words = ["demo", "--json", "--seconds", str(seconds), "--rate", str(rate), "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "rocketsim_cli.main", *words], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    account = json.loads(done.stdout)
    assert account["ok"] and account["problems"] == []
    assert account["acknowledged"] > seconds * rate
    assert (account["lost"], account["duplicates"], account["lag"]) == (0, 0, 0)
    assert account["served"]["broker-a:1"] > 0 and account["committedToSlave"] > 0
    assert "SIGKILL: broker-a" in done.stderr
    text = report.read_text(encoding="utf-8")
    assert f"<b>{account['acknowledged']:,}</b><span>acknowledged</span>" in text and loads_nothing(text)
    events = ("readings a second", "SIGKILL: broker-a", "move to its slave", "broker-a is back", "everything is read")
    places = [text.index(event) for event in events]
    assert places == sorted(places)
    assert all(broker in text for broker in ("broker-a master", "broker-a slave")) and text.count("<svg") == 3


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_demo_has_a_console_if_its_packages_are_installed(tmp_path, is_installed):
    """The demo is ended as soon as it has named the console."""
    (tmp_path / "uvicorn.py").write_text("" if is_installed else "raise ModuleNotFoundError(name='uvicorn')")
    path = {} if is_installed else {"PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "rocketsim_cli.main", "demo"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **path}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            said = next(line for line in demo.stdout if "console" in line)
            if is_installed:
                (url,) = re.findall(r"console on (http://127\.0\.0\.1:\d+/)\n", said)
                with urllib.request.urlopen(f"{url}api/overview", timeout=PROCESS_PATIENCE_S) as answer:
                    assert "pairs" in json.load(answer)
            else:
                assert "no console: its packages are not installed (pip install 'rocketsim[console]')" in said
            assert "Spark is up" in next(demo.stdout)  # and it goes on
        finally:
            demo.terminate()
            demo.communicate()
