"""Another program fills the disk of a real broker; that disk is a small file system of its own where the tests may
mount one.

The broker's periods are tenths of seconds in place of minutes, so that every periodic task runs dozens of times on the
full disk.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rocketsim_proto import admin_pb2

from rocketsim_client.errors import RocketSimError, ServiceNotAvailable
from rocketsim_client.model import CommitStatus
from testbed.polling import wait_until
from tests.support.mounted_disks import SmallDisk

pytestmark = pytest.mark.cluster

OFTEN = {
    "flushConsumerOffsetInterval": 100,
    "flushConsumeQueueThoroughInterval": 100,
    "flushDelayOffsetInterval": 100,
    "syncMetadataInterval": 200,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "small-disk", mib=40) as disk:
        yield disk


def put_until_refused(broker, topic: str) -> int:
    """Puts messages of 2 KB until the disk refuses one; returns how many were taken."""
    for number in range(20_000):
        try:
            broker.put(topic, b"%06d" % number + bytes(2000), queue_id=number % 4)
        except ServiceNotAvailable as refused:
            assert "no room" in str(refused), refused
            return number
    raise AssertionError("the disk does not get full")


def is_refused(call) -> bool:
    try:
        call()
    except RocketSimError:
        return True
    return False


def test_a_broker_outlives_a_full_disk_and_goes_on_by_itself(processes, namesrv, alone, small_disk):
    keys = OFTEN | {"brokerRole": "ASYNC_MASTER", "slaveWaitTimeMs": 0}
    broker = processes.start_broker("broker-a", 0, namesrv, storePathRootDir=small_disk.folder / "store", **keys)
    slave = processes.start_broker("broker-a", 1, namesrv, **(OFTEN | {"brokerRole": "SLAVE"}))
    master = alone(broker)
    master.update_topic("T")
    for number in range(200):
        master.put("T", b"%06d" % number + bytes(2000), queue_id=number % 4)
    small_disk.fill()
    taken = 200 + put_until_refused(master, "T")
    committed = 0
    # Each of these log lines is one compaction that found no room; with the default periods, 40 of them take some
    # minutes.
    while broker.log().count("consumer offsets stay in the journal") < 40:
        committed += 1
        assert master.commit("g", "T", {0: min(committed, taken // 4)}) is CommitStatus.COMMIT_OK
        assert len(master.bodies("T")) == taken
        assert is_refused(lambda: master.put("T", b"x" * 2000))
        assert "no room" in str(master.admin("BrokerStatus", admin_pb2.BrokerStatusRequest()).values)
        assert broker.is_running(), broker.log()[-3000:]
    # A slave that connects now gets answers, and follows.
    slave.kill()
    slave.start()
    wait_until(lambda: len(alone(slave).bodies("T")) == taken, "the slave follows a master with a full disk")
    # The broker also starts on the full disk.
    broker.kill()
    broker.start()
    wait_until(lambda: len(master.bodies("T")) == taken, "it opens and serves readers")
    assert master.committed("g", "T") == min(committed, taken // 4)
    assert is_refused(lambda: master.put("T", b"x" * 2000))
    small_disk.make_room()
    wait_until(lambda: not is_refused(lambda: master.put("T", b"again")), "writes go on by themselves")
    wait_until(lambda: b"again" in alone(slave).bodies("T"), "to the slave, too")
    assert broker.stop() == 0
    assert not (broker.store / "abort").exists()
    assert "Traceback" not in broker.log()


def test_a_slave_outlives_its_full_disk_and_a_new_epoch(processes, namesrv, alone, small_disk):
    broker = processes.start_broker("broker-a", 0, namesrv, **(OFTEN | {"slaveWaitTimeMs": 0}))
    slave = processes.start_broker("broker-a", 1, namesrv, storePathRootDir=small_disk.folder / "store", **OFTEN)
    master = alone(broker)
    master.update_topic("T")
    master.put("T", b"first")
    wait_until(lambda: alone(slave).bodies("T") == [b"first"], "the slave follows")
    small_disk.fill()
    for number in range(3000):
        master.put("T", b"%06d" % number + bytes(2000), queue_id=number % 4)
    wait_until(lambda: "no room" in slave.log(), "the slave's disk is full")
    master.update_topic("U")
    broker.kill()
    broker.start()  # and begins an epoch
    wait_until(lambda: not is_refused(lambda: master.put("T", b"last")), "the master takes writes")
    wait_until(lambda: "epochs" in slave.log() or slave.log().count("no room") > 3, "the slave hears of it")
    assert slave.is_running() and b"first" in alone(slave).bodies("T")
    slave.kill()
    slave.start()
    assert b"first" in alone(slave).bodies("T")
    small_disk.make_room()
    wait_until(lambda: len(alone(slave).bodies("T")) == 3002, "the slave catches up", 60.0)
    wait_until(lambda: alone(slave).bounds("U"), "what it missed of the topics, too")
    assert slave.stop() == 0
    assert "Traceback" not in slave.log()
