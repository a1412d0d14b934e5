"""The disk in memory fails as Linux does; what is tested on it is worth as much as that."""

import errno
import random
from pathlib import Path

import pytest

from tests.support.memory_files import PAGE, MemoryFiles

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
