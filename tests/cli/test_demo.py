"""The complete demo in a short form; its own report is asserted."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


@pytest.mark.parametrize(("seconds", "rate"), [(5, 100), pytest.param(15, 200, marks=pytest.mark.long)])
def test_the_demo_loses_nothing_counts_nothing_twice_and_ends_at_the_end(seconds, rate):
    words = ["demo", "--json", "--seconds", str(seconds), "--rate", str(rate)]
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
