"""A committed offset never goes back, whichever broker fails (in RocketMQ it does: its issue 1094)."""

import pytest

from rocketsim_client import CommitStatus
from tests.support.polling import wait_until

pytestmark = pytest.mark.cluster


def test_offsets_committed_on_the_slave_while_the_master_is_away_are_handed_back(processes, namesrv, alone):
    master, slave = processes.start_pair("broker-a", namesrv)
    alone(master).update_topic("T")
    alone(master).put("T", *(b"%d" % number for number in range(100)))
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    alone(master).commit("g", "T", {0: 10})
    wait_until(lambda: alone(slave).committed("g", "T") == 10, "the commit follows to the slave")

    master.kill()
    alone(slave).commit("g", "T", {0: 60})
    assert alone(slave).committed("g", "T") == 60
    master.start()
    wait_until(lambda: alone(master).committed("g", "T") == 60, "the slave hands its offsets back")
    assert alone(slave).committed("g", "T") == 60, "and keeps them"


def test_with_a_synchronous_master_a_commit_answered_ok_is_on_the_slave_too(processes, namesrv, alone):
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER")
    alone(master).update_topic("T")
    alone(master).put("T", *(b"%d" % number for number in range(100)))
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    for offset in range(1, 50):
        status = alone(master).commit("g", "T", {0: offset})
        assert status is CommitStatus.COMMIT_OK
        assert alone(slave).committed("g", "T") == offset
    slave.kill()
    wait_until(lambda: not alone(master).ha_status().slaves, "the slave has left")
    assert alone(master).commit("g", "T", {0: 60}) is CommitStatus.SLAVE_NOT_AVAILABLE
    slave.start()
    wait_until(lambda: alone(master).commit("g", "T", {0: 60}) is CommitStatus.COMMIT_OK, "the slave is back")
    master.kill()
    assert alone(slave).committed("g", "T") == 60
    assert alone(slave).commit("g", "T", {0: 70}) is CommitStatus.MASTER_NOT_AVAILABLE


def test_a_commit_outlives_sigkill_at_once(processes, namesrv, alone):
    master = processes.start_broker("broker-a", 0, namesrv)
    alone(master).update_topic("T")
    alone(master).put("T", *(b"%d" % number for number in range(10)))
    for offset in (3, 7):
        alone(master).commit("g", "T", {0: offset})
        master.kill()
        master.start()
        assert alone(master).committed("g", "T") == offset


def test_a_lower_commit_changes_nothing(processes, namesrv, alone):
    master = processes.start_broker("broker-a", 0, namesrv)
    alone(master).update_topic("T")
    alone(master).put("T", *(b"%d" % number for number in range(10)))
    alone(master).commit("g", "T", {0: 7})
    alone(master).commit("g", "T", {0: 5})
    assert alone(master).committed("g", "T") == 7


def test_offsets_of_both_sides_merge_forward(processes, namesrv, alone):
    master, slave = processes.start_pair("broker-a", namesrv)
    alone(master).update_topic("T")
    alone(master).put("T", *(b"%d" % number for number in range(50)))
    alone(master).put("T", *(b"%d" % number for number in range(50)), queue_id=1)
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    slave.kill()
    alone(master).commit("g", "T", {0: 40, 1: 5})
    master.kill()
    slave.start()
    alone(slave).commit("g", "T", {0: 20, 1: 30})
    master.start()
    for broker in (alone(master), alone(slave)):
        wait_until(
            lambda broker=broker: [broker.committed("g", "T", queue) for queue in (0, 1)] == [40, 30],
            f"{broker.process.name} has the higher of each",
        )
