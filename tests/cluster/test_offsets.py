"""A committed offset never goes back, whichever broker fails (in RocketMQ it does: its issue 1094)."""

import pytest

from rocketsim_client import Admin, Cluster, CommitStatus, MessageQueue, PullConsumer
from rocketsim_source.options.source_options import source_options
from rocketsim_source.source_cluster import ClientCluster
from testbed.polling import wait_until
from tests.support.tcp_proxy import TcpProxy

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


def test_the_slave_that_has_a_commit_is_heard_when_the_master_is_lost_and_another_slave_is_behind(
    processes, namesrv, alone
):
    """COMMIT_OK of a SYNC_MASTER means that one of its slaves has the offset, but the slave that was cut off is asked
    first.
    """
    keys = {"brokerRole": "SYNC_MASTER", "haHousekeepingInterval": 2000, "haSendHeartbeatInterval": 500}
    master = processes.start_broker("broker-a", 0, namesrv, **keys)
    with TcpProxy(master.address) as wire:
        slave_keys = keys | {"brokerRole": "SLAVE"}
        behind = processes.start_broker("broker-a", 1, namesrv, **slave_keys, haMasterAddress=wire.address)
        ahead = processes.start_broker("broker-a", 2, namesrv, **slave_keys)
        alone(master).update_topic("T")
        alone(master).wait_for_slaves(2)
        for slave in (behind, ahead):
            alone(slave).wait_for_topic("T")
        alone(master).put("T", *(b"%d" % number for number in range(10)))
        assert alone(master).commit("g", "T", {0: 5}) is CommitStatus.COMMIT_OK
        for slave in (behind, ahead):
            wait_until(lambda slave=slave: alone(slave).committed("g", "T") == 5, "both slaves have it")
        wire.cut()
        wait_until(lambda: [slave.broker_id for slave in alone(master).ha_status().slaves] == [2], "slave 1 is lost")
        assert alone(master).commit("g", "T", {0: 7}) is CommitStatus.COMMIT_OK
        assert (alone(behind).committed("g", "T"), alone(ahead).committed("g", "T")) == (5, 7)
        queue = MessageQueue("T", "broker-a", 0)
        static = {"topic": "T", "brokers": f"broker-a=0@{master.address},1@{behind.address},2@{ahead.address}"}
        master.kill()

        with Cluster(namesrv.address) as cluster, PullConsumer(namesrv.address, "g") as consumer:
            assert cluster.committed("g", [queue]) == {queue: 7}
            assert consumer.committed(queue) == 7
        source = ClientCluster.open(source_options(static, streaming=True).connection)
        assert source.committed("g", [queue]).offsets == {queue: 7}
        source.close()
        with Admin(namesrv.address) as admin:
            places = {entry.queue: (entry.consumer_offset, entry.broker_id) for entry in admin.consumer_progress("g")}
            assert places[queue] == (7, 2)
        ahead.kill()
        with Cluster(namesrv.address) as cluster:
            # as documented: the best offset of the brokers that answer
            assert cluster.committed("g", [queue]) == {queue: 5}
