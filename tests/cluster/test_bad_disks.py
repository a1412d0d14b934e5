"""Disks of real processes that fail with EIO, ENOSPC or a power loss, injected below the system calls."""

import pytest

from rocketsim_client.errors import RocketSimError, ServiceNotAvailable
from rocketsim_client.model import SendStatus
from testbed.polling import wait_until
from tests.support.disk_faults import FaultyDisk
from tests.support.mounted_disks import PowerlessDisk

pytestmark = pytest.mark.cluster

KEYS = {"slaveTimeout": 1_000, "mappedFileSizeCommitLog": 1 << 20}


def put_is(broker, status) -> bool:
    try:
        return broker.put("T", b"again").status == status
    except ServiceNotAvailable:
        return False


@pytest.fixture
def alone_master(processes, namesrv, alone):
    """A master that syncs before it answers, with twenty messages."""
    process = processes.broker("broker-a", 0, namesrv, flushDiskType="SYNC_FLUSH", **KEYS)
    disk = FaultyDisk(process)
    process.start()
    broker = alone(process)
    broker.update_topic("T", 1)
    for number in range(20):
        assert broker.put("T", b"%d" % number).status == SendStatus.SEND_OK
    return process, disk, broker


def test_after_a_sync_that_failed_nothing_is_acknowledged_until_a_restart(alone_master):
    """The next sync would succeed without writing what the failed one has lost."""
    process, disk, broker = alone_master
    disk.fails("sync EIO commitlog")
    assert broker.put("T", b"in doubt").status == SendStatus.FLUSH_DISK_TIMEOUT
    disk.is_well()
    for _ in range(3):
        with pytest.raises(ServiceNotAvailable):
            broker.put("T", b"refused")
    assert broker.bodies("T")[:20] == [b"%d" % number for number in range(20)], "reads go on"
    assert process.stop() == 0
    assert (process.store / "abort").exists(), "and the store does not pass for sound"
    process.start()
    wait_until(lambda: put_is(broker, SendStatus.SEND_OK), "it takes writes after a restart")
    assert broker.bodies("T")[:20] == [b"%d" % number for number in range(20)]


def test_a_full_disk_refuses_writes_and_nothing_else_and_with_room_they_go_on(alone_master):
    process, disk, broker = alone_master
    before = broker.bodies("T")
    disk.fails("write ENOSPC")
    with pytest.raises(ServiceNotAvailable, match=r"disk"):
        for _ in range(20_000):  # the current file has all its blocks already, but the next file gets none
            broker.put("T", *[b"x" * 60_000] * 16)
    assert broker.bodies("T")[:20] == before, "reads go on"
    assert broker.ha_status().is_master, "so do an operator's questions"
    disk.is_well()
    wait_until(lambda: put_is(broker, SendStatus.SEND_OK), "writes go on without a restart")
    assert process.is_running()
    bodies = broker.bodies("T")
    assert bodies[:20] == before and bodies[-1] == b"again"
    assert process.stop() == 0
    process.start()
    assert broker.bodies("T") == bodies


def test_a_bad_sector_fails_the_pulls_over_it_with_file_and_offset_and_nothing_else(alone_master):
    process, disk, broker = alone_master
    for _ in range(2):  # the next messages are in other files
        broker.put("T", *[b"x" * 60_000] * 16)
    broker.update_topic("U", 1)
    broker.put("U", b"elsewhere")
    assert process.stop() == 0
    process.start()  # data that is not read after this start is not known to be in memory
    broker.update_topic("T", 1)
    first = process.store / "commitlog" / f"{0:020d}"
    disk.fails(f"read EIO commitlog/{first.name}")
    for read in (broker.bodies, broker.pull):
        with pytest.raises(RocketSimError, match=rf"{first} cannot be read at 0:"):
            read("T")
    assert broker.bodies("U") == [b"elsewhere"], "other reads go on"
    assert broker.put("T", b"more").status == SendStatus.SEND_OK, "and so do puts"
    disk.is_well()
    bodies = broker.bodies("T")
    assert bodies[:20] == [b"%d" % number for number in range(20)] and bodies[-1] == b"more"


@pytest.mark.parametrize("fault", ["write ENOSPC", "write EIO", "sync EIO"])
def test_a_slave_whose_disk_fails_acknowledges_nothing_and_has_everything_in_the_end(processes, namesrv, alone, fault):
    keys = KEYS | {"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH"}
    master = processes.broker("broker-a", 0, namesrv, **keys)
    slave = processes.broker("broker-a", 1, namesrv, **keys | {"brokerRole": "SLAVE"})
    disk = FaultyDisk(slave)
    for process in (master, slave):
        process.launch()
    for process in (master, slave):
        process.wait_until_ready()
    alone(master).update_topic("T", 1)
    alone(master).wait_for_slaves()
    wait_until(lambda: put_is(alone(master), SendStatus.SEND_OK), "OK before the fault")
    disk.fails(fault)
    for _ in range(3):
        assert alone(master).put("T", *[b"x" * 60_000] * 16).status != SendStatus.SEND_OK
    disk.is_well()
    if fault == "sync EIO":  # after a failed sync the slave does not trust its disk any more
        slave.stop()
        slave.start()
    wait_until(lambda: put_is(alone(master), SendStatus.SEND_OK), "OK is back", 60.0)
    bodies = alone(master).bodies("T")
    wait_until(lambda: alone(slave).bodies("T") == bodies, "the slave has everything")


@pytest.mark.parametrize("syncs", ["real", "dropped"])
def test_what_was_synced_before_it_was_acknowledged_survives_the_loss_of_power(processes, namesrv, alone, syncs):
    """When the syncs do nothing, everything is lost, which shows that this test can fail."""
    processes.folder.joinpath("disk").mkdir()
    with PowerlessDisk(processes.folder / "disk") as power:
        process = processes.broker(
            "broker-a", 0, namesrv, flushDiskType="SYNC_FLUSH", storePathRootDir=power.mount / "store", **KEYS
        )
        disk = FaultyDisk(process)
        process.start()
        broker = alone(process)
        broker.update_topic("T", 1)
        assert broker.put("T", b"0").status == SendStatus.SEND_OK
        if syncs == "dropped":
            disk.fails("sync drop")
        for number in range(1, 50):
            assert broker.put("T", b"%d" % number).status == SendStatus.SEND_OK
        power.lose_power()
        process.kill()
        power.power_is_back()
        disk.is_well()
        process.start()
        broker.update_topic("T", 1)
        found = broker.bodies("T")
        assert process.stop() == 0
    everything = [b"%d" % number for number in range(50)]
    assert found == everything if syncs == "real" else found != everything
