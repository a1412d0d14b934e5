"""A second process for the same store or name, and disks without space, are refused with a reason and without harm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketsim_client.errors import RocketSimError
from testbed.polling import wait_until
from testbed.processes import Processes
from tests.support.mounted_disks import SmallDisk

pytestmark = pytest.mark.cluster


def test_a_second_process_on_one_directory_is_kept_out_and_says_why(processes, namesrv, alone):
    first = processes.start_broker("broker-a", 0, namesrv)
    alone(first).update_topic("T")
    second = processes.broker("broker-b", 0, namesrv, storePathRootDir=first.store).launch()
    assert second.wait() != 0
    assert str(first.store) in second.log()
    assert "Traceback" not in second.log()
    alone(first).put("T", b"still fine")
    assert alone(first).bodies("T") == [b"still fine"]


def test_the_directory_is_free_again_after_sigkill(processes, namesrv):
    first = processes.start_broker("broker-a", 0, namesrv)
    first.kill()
    processes.start_broker("broker-b", 0, namesrv, storePathRootDir=first.store)


def test_of_two_masters_with_one_name_only_the_first_is_in_the_route(tmp_path, processes, namesrv, alone):
    first = processes.start_broker("broker-a", 0, namesrv)
    alone(first).update_topic("T")
    alone(first).put("T", b"1")
    with Processes(tmp_path / "impostor") as others:
        second = others.broker("broker-a", 0, namesrv).launch()
        wait_until(lambda: second.address or not second.is_running(), "the second master's answer")
        if second.is_running():
            with pytest.raises(RocketSimError):
                alone(second).put("T", b"2")
        alone(first).put("T", b"3")
        assert alone(first).bodies("T") == [b"1", b"3"]
        assert "Traceback" not in second.log()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with SmallDisk(tmp_path / "small-disk", mib=24) as disk:
        yield disk.folder


def test_a_full_disk_refuses_puts_and_serves_reads(processes, namesrv, alone, small_disk):
    keys = {"storePathRootDir": small_disk / "store", "mappedFileSizeCommitLog": 1 << 20}
    broker = processes.start_broker("broker-a", 0, namesrv, **keys)
    alone(broker).update_topic("T")
    stored = 0
    with pytest.raises(RocketSimError) as refused:
        for _ in range(1_000):
            alone(broker).put("T", b"x" * 100_000)
            stored += 1
    assert 50 < stored < 300
    assert "disk" in str(refused.value).lower() or "space" in str(refused.value).lower()
    assert len(alone(broker).bodies("T")) == stored, "reads go on, and nothing refused is half there"
    assert broker.is_running()
    broker.kill()
    broker.start()
    assert len(alone(broker).bodies("T")) == stored
