"""A disk that cannot read a sector: readers get an error with file and position, not a signal from a memory map."""

import errno
from pathlib import Path

import pytest

from broker_service.errors import ReadFailed
from tests.support.memory_files import MemoryFiles
from tests.support.stores import LOG_FILE, NOW, check_sound, open_store, put

ROOT = Path("/store")
FIRST_FILE = f"{ROOT}/commitlog/{0:020d}"


class BadDisk(MemoryFiles):
    """Reads that touch the bad byte fail.  A memory map may only be used for bytes that were read before."""

    bad: tuple[str, int] | None = None

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self.check(handle, offset, offset + size)
        return super().pread(handle, size, offset)

    def check(self, handle: int, begin: int, end: int) -> None:
        if self.bad is not None and str(self._handles[handle][0]) == self.bad[0] and begin <= self.bad[1] < end:
            raise OSError(errno.EIO, "Input/output error")


def filled(disk: MemoryFiles, *, clean: bool) -> None:
    store = open_store(ROOT, disk)
    while store.end_offset < 2 * LOG_FILE:
        put(store, "topic", 0, [b"x" * 200] * 4)
    if clean:
        store.close()
    else:
        store.flush()


def killed(disk: MemoryFiles) -> BadDisk:
    """Returns the same disk for the next process, as one that can have a bad sector."""
    reborn = disk.kill()
    reborn.__class__ = BadDisk
    assert isinstance(reborn, BadDisk)
    return reborn


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_that_cannot_read_the_log_says_where_and_changes_nothing(clean: bool) -> None:
    filled(disk := MemoryFiles(), clean=clean)
    disk = killed(disk)
    for name in disk.names(ROOT / "consumequeue/topic/0"):
        disk.remove(ROOT / "consumequeue/topic/0" / name)  # without queues a start reads the whole log
    disk.bad = (FIRST_FILE, 2000)
    before = {name: disk.read(ROOT / "commitlog" / name) for name in disk.names(ROOT / "commitlog")}
    with pytest.raises(ReadFailed, match=rf"{FIRST_FILE} cannot be read at \d+: Input/output error"):
        open_store(ROOT, disk)
    assert {name: disk.read(ROOT / "commitlog" / name) for name in before} == before
    disk.bad = None
    store = open_store(ROOT, disk)
    assert store.end_offset > 2 * LOG_FILE


def test_a_start_looks_at_the_log_through_no_map(monkeypatch: pytest.MonkeyPatch) -> None:
    filled(disk := MemoryFiles(), clean=False)
    disk = disk.kill()

    def map_of(handle: int) -> memoryview:
        raise AssertionError("a file is mapped")

    monkeypatch.setattr(disk, "map", map_of)
    store = open_store(ROOT, disk)
    store.tick(NOW)
    store.retention.delete_expired(NOW)
    store.close()


def test_a_queue_that_cannot_be_read_is_trimmed_later_and_the_others_at_once() -> None:
    disk = BadDisk()
    store = open_store(ROOT, disk, file_reserved_time_h=1, delete_hours=frozenset(range(24)))
    put(store, "bad", 0, [b"x"])
    put(store, "good", 0, [b"x"])
    put(store, "good", [1] * 30, [b"x" * 300] * 30)
    store.flush()
    disk.bad = (f"{ROOT}/consumequeue/bad/0/{0:020d}", 0)
    with pytest.raises(ReadFailed, match=r"bad/0/0+ cannot be read at 0: Input/output error"):
        store.retention.delete_expired(NOW + 7_200_000)
    assert store.min_offset > 0
    assert store.queues.bounds("good", 0) == (1, 1)
    disk.bad = None
    store.retention.delete_expired(NOW + 7_200_000)
    check_sound(store)


def test_an_index_that_cannot_be_read_is_made_again_at_a_start_and_named_by_a_search() -> None:
    disk = BadDisk()
    store = open_store(ROOT, disk, max_index_num=1000)
    put(store, "topic", 0, [b"x"], properties=[("KEYS", "k")])
    store.close()
    (name,) = disk.names(ROOT / "index")
    disk.bad = (f"{ROOT}/index/{name}", 0)
    store = open_store(ROOT, disk, max_index_num=1000)
    assert f"{name} cannot be read at 0: Input/output error" in store.recovery.index
    disk.bad = None
    assert store.key_search("topic", "k", 10, 0, 2 * NOW).run().offsets == [0]
    (name,) = disk.names(ROOT / "index")
    disk.bad = (f"{ROOT}/index/{name}", 40 + 7 * 4 + 20)  # the first entry
    with pytest.raises(ReadFailed, match=f"{name} cannot be read at {disk.bad[1]}"):
        store.key_search("topic", "k", 10, 0, 2 * NOW).run()


def test_an_index_that_cannot_be_read_is_made_again_after_an_unclean_stop() -> None:
    disk = MemoryFiles()
    store = open_store(ROOT, disk, max_index_num=1000)
    put(store, "topic", 0, [b"x"], properties=[("KEYS", "k")])
    store.tick(NOW)
    store.flush()
    (name,) = disk.names(ROOT / "index")
    disk = killed(disk)
    disk.bad = (f"{ROOT}/index/{name}", 40 + 7 * 4 + 20)  # the first entry
    store = open_store(ROOT, disk, max_index_num=1000)
    assert f"{name} is damaged: {ROOT}/index/{name} cannot be read at" in store.recovery.index
    disk.bad = None
    store.tick(NOW)
    assert store.key_search("topic", "k", 10, 0, 2 * NOW).run().offsets == [0]
