"""The demo as a whole, shortened: its own account is the assertion."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.long]


def test_the_demo_loses_nothing_counts_nothing_twice_and_ends_at_the_end():
    command = [sys.executable, "-m", "rocketsim_cli.main", "demo", "--json", "--seconds", "15", "--rate", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    account = json.loads(done.stdout)
    assert account["ok"] and account["problems"] == []
    assert account["acknowledged"] > 3_000
    assert (account["lost"], account["duplicates"], account["lag"]) == (0, 0, 0)
    assert account["served"]["broker-a:1"] > 0 and account["committedToSlave"] > 0
    assert "SIGKILL: broker-a" in done.stderr
