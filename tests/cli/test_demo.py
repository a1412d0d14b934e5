"""A short run of the complete demo succeeds by its own report."""

import json
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
    command = [sys.executable, "-m", "rocketsim_cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None and demo.stderr is not None
            said = [next(line for line in demo.stderr if "console on " in line)]
            (url,) = re.findall(r"console on (http://127\.0\.0\.1:\d+/)\n", said[0])
            with urllib.request.urlopen(f"{url}api/overview", timeout=PROCESS_PATIENCE_S) as answer:
                assert "pairs" in json.load(answer)
            said += demo.stderr
            result = demo.stdout.read()
            assert demo.wait(PROCESS_PATIENCE_S) == 0, "".join(said[-50:]) + result
        finally:
            demo.kill()
    account = json.loads(result)
    assert account["ok"] and account["problems"] == []
    assert account["acknowledged"] > seconds * rate
    assert (account["lost"], account["duplicates"], account["lag"]) == (0, 0, 0)
    assert account["served"]["broker-a:1"] > 0 and account["committedToSlave"] > 0
    assert any("SIGKILL: broker-a" in line for line in said)
    text = report.read_text(encoding="utf-8")
    assert f"<b>{account['acknowledged']:,}</b><span>acknowledged</span>" in text and loads_nothing(text)
    events = ("readings a second", "SIGKILL: broker-a", "broker-a is back", "everything is read")
    places = [text.index(event) for event in events]
    # A query on a busy machine may read from the slave only when the master is back.
    assert places == sorted(places) and places[1] < text.index("move to its slave") < places[3]
    assert all(broker in text for broker in ("broker-a master", "broker-a slave")) and text.count("<svg") == 3
