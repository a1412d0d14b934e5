"""An upgrade from 9157579, the oldest supported version: slave first, while clients send and read."""

import shutil
import signal

import pytest

from rocketsim_client import Admin
from rocketsim_client.model import SendStatus
from testbed.polling import wait_until
from testbed.processes import ROOT
from tests.cluster.old_stores import CODE, promote
from tests.cluster.send_storm import SendStorm, check
from tests.support.archives import unpack

pytestmark = pytest.mark.cluster

QUEUES = 4
KEYS = {"brokerRole": "SYNC_MASTER", "messageDelayLevel": "1s 4s", "slaveWaitTimeMs": 5_000}


@pytest.fixture
def old(tmp_path):
    """The code of 9157579: servers, contract and client."""
    return unpack(CODE, tmp_path / "9157579")


class Upgrade:
    """A pair of the old version at work, and what it has promised to senders, readers and an operator."""

    def __init__(self, processes, alone, old):
        self.alone = alone
        self.namesrv = processes.namesrv()
        self.namesrv.root = old
        self.namesrv.start()
        self.master = processes.broker("broker-a", 0, self.namesrv, **KEYS)
        self.slave = processes.broker("broker-a", 1, self.namesrv, **KEYS | {"brokerRole": "SLAVE"})
        for broker in (self.master, self.slave):
            broker.root = old
            broker.launch()
        for broker in (self.master, self.slave):
            broker.wait_until_ready()
        alone(self.master).update_topic("T", QUEUES)
        alone(self.master).wait_for_slaves()
        alone(self.slave).wait_for_topic("T")
        self.storm = SendStorm(self.namesrv.address, "T", 300.0, seed=13)
        self.committed = dict.fromkeys(range(QUEUES), 0)

    def gone_by(self, sends: int = 300) -> None:
        """Waits until `sends` more sends are acknowledged, and commits the ends of all queues for the group."""
        goal = len(self.storm.history.ok) + sends
        wait_until(lambda: len(self.storm.history.ok) >= goal, f"{goal} acknowledged; {self.storm.history}", 60.0)
        read = {queue: end for queue, (_, end) in self.alone(self.master).bounds("T").items()}
        self.alone(self.master).commit("g", "T", read)
        self.committed = {queue: max(end, self.committed[queue]) for queue, end in read.items()}

    def offsets_are_on(self, broker) -> None:
        # A master of 9157579 answers a commit before its slave has it.
        def there() -> bool:
            found = {queue: self.alone(broker).committed("g", "T", queue) for queue in self.committed}
            moved_back = self.alone(broker).committed("moved-back", "T")
            return moved_back == 0 and all(found[queue] >= offset for queue, offset in self.committed.items())

        wait_until(there, f"{broker.name} has every offset committed, {self.committed}, and a reset to 0")

    def slave_is_replaced(self) -> None:
        assert self.slave.stop() == 0
        self.slave.root = ROOT
        self.slave.start()
        self.alone(self.master).wait_for_slaves()
        self.offsets_are_on(self.slave)

    def everything_is_there(self) -> None:
        history = self.storm.stop()
        self.alone(self.master).wait_for_slaves()
        for broker in (self.master, self.slave):
            self.offsets_are_on(broker)
            check(history, {place: one.body for place, one in self.alone(broker).messages("T").items()})
            self.alone(broker).wait_for_topic("Late")
            wait_until(lambda broker=broker: self.alone(broker).bodies("Late"), "the delayed message is delivered")
            assert self.alone(broker).bodies("Late") == [b"later"], "and once"
            assert self.alone(broker).bounds("Gone") == {}, "a deleted topic stays deleted"

    def past(self) -> None:
        """What the store contains from before the upgrade: a deleted topic, a group that was reset, a
        delayed message.
        """
        with Admin(name_server=self.namesrv.address) as admin:
            self.alone(self.master).update_topic("Gone", 1)
            self.alone(self.master).put("Gone", b"gone")
            self.alone(self.master).update_topic("Late", 1)
            wait_until(lambda: {"Gone", "Late"} <= set(admin.topic_list()), "the name server knows the topics")
            admin.delete_topic("Gone")
            self.alone(self.master).commit("moved-back", "T", dict.fromkeys(range(QUEUES), 40))
            admin.reset_offset_by_time("moved-back", "T", 0, force=True)
        self.offsets_are_on(self.slave)


@pytest.mark.parametrize("way", ["restart", "promotion"])
def test_a_pair_is_upgraded_slave_first_and_nothing_acknowledged_is_lost(processes, alone, old, way):
    pair = Upgrade(processes, alone, old)
    with pair.storm:
        pair.gone_by()
        pair.past()
        pair.slave_is_replaced()
        pair.gone_by()
        alone(pair.master).put("Late", b"later", DELAY="2")
        pair.offsets_are_on(pair.slave)
        alone(pair.master).wait_for_slaves()

        if way == "restart":
            assert pair.master.stop() == 0
            pair.master.root = ROOT
            pair.master.start()
        else:
            pair.master.signal(signal.SIGKILL)
            pair.master.wait()
            promote(pair.namesrv, pair.slave)
            pair.master, pair.slave = pair.slave, pair.master
            pair.slave.root = ROOT
            pair.slave.start(brokerId=1, brokerRole="SLAVE")
        wait_until(lambda: alone(pair.master).ha_status().is_master, "a master of this version")
        pair.offsets_are_on(pair.master)
        pair.gone_by()

        assert pair.namesrv.stop() == 0
        pair.namesrv.root = ROOT
        pair.namesrv.start()
        pair.gone_by()
        pair.everything_is_there()


def test_a_store_that_was_stopped_opens_with_the_older_version(processes, namesrv, alone, old):
    broker = processes.start_broker("broker-a", 0, namesrv)
    alone(broker).update_topic("T")
    alone(broker).put("T", *(b"%d" % number for number in range(20)))
    alone(broker).commit("g", "T", {0: 14})
    assert broker.stop() == 0
    for root in (old, ROOT):
        broker.root = root
        broker.start()
        alone(broker).update_topic("T")  # waits until the broker takes writes
        alone(broker).put("T", b"more")
        assert alone(broker).committed("g", "T") == 14
        assert broker.stop() == 0
    broker.start()
    assert alone(broker).bodies("T") == [b"%d" % number for number in range(20)] + [b"more"] * 2


def test_the_way_back_is_an_empty_slave_of_the_older_version(processes, namesrv, alone, old):
    master, slave = processes.start_pair("broker-a", namesrv, **KEYS)
    alone(master).update_topic("T")
    alone(master).wait_for_slaves()
    assert alone(master).put("T", *(b"%d" % number for number in range(20))).status == SendStatus.SEND_OK
    alone(master).commit("g", "T", {0: 14})
    assert slave.stop() == 0
    shutil.rmtree(slave.store)
    slave.root = old
    slave.start()
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    wait_until(lambda: alone(slave).committed("g", "T") == 14, "its offsets are there")
    assert master.stop() == 0
    promote(namesrv, slave)
    wait_until(lambda: alone(slave).ha_status().is_master, "the older version is the master")
    assert alone(slave).bodies("T") == [b"%d" % number for number in range(20)]
    assert alone(slave).committed("g", "T") == 14
