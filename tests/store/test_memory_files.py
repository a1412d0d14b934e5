"""The disk in memory fails as Linux's file systems do."""

import errno
import random
from pathlib import Path

import pytest

from tests.support.memory_files import PAGE, SECTOR, MemoryFiles

ROOT = Path("/d")
FILE = ROOT / "file"


@pytest.fixture
def disk() -> MemoryFiles:
    disk = MemoryFiles()
    disk.make_directory(ROOT)
    return disk


def written(disk: MemoryFiles, data: bytes) -> int:
    handle = disk.open(FILE, create=True)
    disk.preallocate(handle, PAGE)
    disk.fdatasync(handle)
    disk.sync_directory(ROOT)
    disk.pwrite(handle, data, 0)
    return handle


def test_after_a_failed_sync_the_pages_are_readable_and_clean_and_not_on_disk(disk: MemoryFiles) -> None:
    handle = written(disk, b"new")
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        disk.fdatasync(handle)
    disk.fdatasync(handle)  # the page is clean: nothing to write
    after = disk.kill()
    assert after.read(FILE)[:3] == b"new"
    handle = after.open(FILE)
    after.fdatasync(handle)
    assert after.power_loss(random.Random(1)).read(FILE)[:3] == bytes(3)


def test_memory_gives_up_what_a_failed_sync_left_off_the_disk(disk: MemoryFiles) -> None:
    handle = written(disk, b"new")
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        disk.fdatasync(handle)
    disk.pwrite(handle, b"+", 9)
    disk.evict()
    assert disk.read(FILE)[:10] == bytes(9) + b"+", "a dirty page stays"


def test_the_same_bytes_written_again_reach_the_disk_with_the_next_sync(disk: MemoryFiles) -> None:
    handle = written(disk, b"new")
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        disk.fdatasync(handle)
    disk.pwrite(handle, disk.pread(handle, 3, 0), 0)
    disk.fdatasync(handle)
    assert disk.power_loss(random.Random(1)).read(FILE)[:3] == b"new"


def test_a_full_disk_takes_what_has_its_blocks_and_nothing_else(disk: MemoryFiles) -> None:
    handle = written(disk, b"old")
    sparse = disk.open(ROOT / "sparse", create=True)
    disk.resize(sparse, 10 * PAGE)
    disk.fill()
    disk.pwrite(handle, b"new", 0)
    disk.fdatasync(handle)
    for refused in (
        lambda: disk.pwrite(sparse, b"x", 0),
        lambda: disk.preallocate(sparse, 10 * PAGE),
        lambda: disk.open(ROOT / "other", create=True),
        lambda: disk.make_directory(ROOT / "below"),
        lambda: disk.write_atomically(FILE, b"newer"),
    ):
        with pytest.raises(OSError, match="no room"):
            refused()
    disk.make_room(3 * PAGE)
    disk.write_atomically(FILE, b"newer")
    assert disk.read(FILE) == b"newer"


@pytest.mark.parametrize("call", ["open", "read", "pread", "names", "size"])
def test_a_call_that_only_looks_can_fail_too(disk: MemoryFiles, call: str) -> None:
    handle = written(disk, b"new")
    disk.fail(call, errno.EIO, matching="d")
    looks = {
        "open": lambda: disk.open(FILE),
        "read": lambda: disk.read(FILE),
        "pread": lambda: disk.pread(handle, 1, 0),
        "names": lambda: disk.names(ROOT),
        "size": lambda: disk.size(FILE),
    }
    with pytest.raises(OSError, match="EIO"):
        looks[call]()
    looks[call]()


def after_power_losses(disk: MemoryFiles, count: int = 60) -> list[MemoryFiles]:
    return [disk.as_powerless(random.Random(seed)) for seed in range(count)]


def test_a_power_loss_takes_names_in_any_order_and_a_rename_as_a_whole(disk: MemoryFiles) -> None:
    disk.sync_directory(ROOT)
    for name in ("one", "two"):
        disk.open(ROOT / name, create=True)
    found = {tuple(left.names(ROOT)) for left in after_power_losses(disk)}
    assert found == {(), ("one",), ("two",), ("one", "two")}
    disk.sync_directory(ROOT)
    disk.rename(ROOT / "one", ROOT / "two")
    assert {tuple(left.names(ROOT)) for left in after_power_losses(disk)} == {("one", "two"), ("two",)}
    disk.sync_directory(ROOT)
    assert {tuple(left.names(ROOT)) for left in after_power_losses(disk)} == {("two",)}


def test_a_power_loss_takes_a_directory_with_all_in_it(disk: MemoryFiles) -> None:
    disk.make_directory(ROOT / "below")
    handle = disk.open(ROOT / "below" / "file", create=True)
    disk.fdatasync(handle)
    disk.sync_directory(ROOT / "below")
    found = {tuple(left.names(ROOT / "below")) for left in after_power_losses(disk)}
    assert found == {(), ("file",)}
    disk.sync_directory(ROOT)
    assert {tuple(left.names(ROOT / "below")) for left in after_power_losses(disk)} == {("file",)}


def test_a_power_loss_takes_sizes_that_were_not_synced(disk: MemoryFiles) -> None:
    handle = written(disk, b"new")
    disk.resize(handle, 3 * PAGE)
    disk.pwrite(handle, b"far", 2 * PAGE)
    assert {left.size(FILE) for left in after_power_losses(disk)} == {PAGE, 3 * PAGE}
    assert {left.read(FILE)[2 * PAGE :][:3] for left in after_power_losses(disk)} == {b"", bytes(3), b"far"}
    disk.fdatasync(handle)
    assert {left.size(FILE) for left in after_power_losses(disk)} == {3 * PAGE}


def test_of_a_call_that_the_disk_has_no_room_for_a_part_is_done(disk: MemoryFiles) -> None:
    handle = disk.open(FILE, create=True)
    disk.make_room(2 * PAGE)
    with pytest.raises(OSError, match="no room"):
        disk.pwrite(handle, b"x" * 3 * PAGE, 0)
    assert disk.read(FILE) == b"x" * 2 * PAGE
    disk.make_room()
    disk.pwrite(handle, b"y" * 3 * PAGE, 0)
    other = disk.open(ROOT / "other", create=True)
    disk.make_room(PAGE)
    with pytest.raises(OSError, match="no room"):
        disk.preallocate(other, 3 * PAGE)
    assert disk.size(ROOT / "other") == PAGE and disk.disk_usage(ROOT).free == 0


def test_a_bad_sector_cannot_be_read_until_it_is_written_again(disk: MemoryFiles) -> None:
    handle = written(disk, b"new")
    disk.lose_sector(FILE, 1)
    assert disk.pread(handle, SECTOR, 0)[:3] == b"new" and disk.is_cached(handle, SECTOR, 0)
    for left in (disk, disk.as_killed(), *after_power_losses(disk, 3)):
        assert not left.is_cached(left.open(FILE), 1, SECTOR)
        with pytest.raises(OSError, match="EIO"):
            left.pread(left.open(FILE), 2, SECTOR - 1)
        with pytest.raises(OSError, match="EIO"):
            left.read(FILE)
    disk.pwrite(handle, bytes(SECTOR - 1), SECTOR + 1)
    with pytest.raises(OSError, match="EIO"):
        disk.read(FILE)
    disk.pwrite(handle, bytes(SECTOR), SECTOR)
    assert disk.read(FILE)[:3] == b"new"
