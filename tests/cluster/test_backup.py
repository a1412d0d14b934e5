"""Backup and restore: the commands of docs/backup.md, between the stops and starts that it names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketsim_client.model import SendStatus
from testbed.polling import wait_until
from testbed.processes import ROOT

pytestmark = pytest.mark.cluster


def run_commands(title: str, stores: dict[str, Path]) -> None:
    """Runs the commands below a heading of the document, which end at the first one that fails."""
    section = (ROOT / "docs" / "backup.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"^ *```sh\n(.*?)^ *```", section, re.M | re.S)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path} | {name: str(store) for name, store in stores.items()}
    done = subprocess.run(["sh", "-e"], input=commands, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pair_that_is_lost_is_restored_from_the_copy_of_its_slaves_store(pair_with_topic, alone, tmp_path: Path):
    master, slave = pair_with_topic(brokerRole="SYNC_MASTER")
    stores = {"MASTER_STORE": master.store, "SLAVE_STORE": slave.store, "BACKUP": tmp_path / "backup"}
    alone(master).put("T", *(b"%d" % number for number in range(10)))
    alone(master).commit("g", "T", {0: 4})
    slave.stop()
    run_commands("Make a copy", stores)
    slave.start()
    alone(master).wait_for_slaves()
    alone(master).put("T", b"after the backup")
    for broker in (master, slave):
        broker.kill()

    (stores["BACKUP"] / "rocketsim" / "role.json").touch()  # as if the slave had been promoted before
    run_commands("Restore a pair", stores)
    assert not (master.store / "rocketsim" / "role.json").exists()
    master.start()
    slave.start()  # with an empty store
    alone(master).wait_for_topic("T")
    assert alone(master).bodies("T") == [b"%d" % number for number in range(10)]
    assert alone(master).committed("g", "T") == 4
    alone(master).update_topic("T")  # waits until the master takes writes
    alone(master).wait_for_slaves()
    sent = wait_until(lambda: (one := alone(master).put("T", b"new")).status is SendStatus.SEND_OK and one, "SEND_OK")
    assert sent.queue_offsets == [10]
    wait_until(lambda: alone(slave).bounds("T").get(0) == (0, 11), "the slave has all of it")
    assert alone(slave).committed("g", "T") == 4
