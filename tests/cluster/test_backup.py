"""Backup and restore, in the steps of docs/operations.md."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rocketsim_cli.main import app
from rocketsim_client.model import SendStatus
from testbed.polling import wait_until

pytestmark = pytest.mark.cluster
runner = CliRunner()


def test_a_pair_that_is_lost_is_restored_from_the_copy_of_its_slaves_store(pair_with_topic, alone, tmp_path: Path):
    master, slave = pair_with_topic(brokerRole="SYNC_MASTER")
    alone(master).put("T", *(b"%d" % number for number in range(10)))
    alone(master).commit("g", "T", {0: 4})
    slave.stop()
    backup = tmp_path / "backup"
    shutil.copytree(slave.store, backup)
    slave.start()
    assert runner.invoke(app, ["store", "verify", str(backup)]).exit_code == 0
    alone(master).wait_for_slaves()
    alone(master).put("T", b"after the backup")
    for broker in (master, slave):
        broker.kill()
        shutil.rmtree(broker.store)

    shutil.copytree(backup, master.store)
    master.start()
    slave.start()  # with an empty store
    alone(master).wait_for_topic("T")
    assert alone(master).bodies("T") == [b"%d" % number for number in range(10)]
    assert alone(master).committed("g", "T") == 4
    alone(master).update_topic("T")  # as soon as it takes writes
    alone(master).wait_for_slaves()
    sent = wait_until(lambda: (one := alone(master).put("T", b"new")).status is SendStatus.SEND_OK and one, "SEND_OK")
    assert sent.queue_offsets == [10]
    wait_until(lambda: alone(slave).bounds("T").get(0) == (0, 11), "the slave has all of it")
    assert alone(slave).committed("g", "T") == 4
