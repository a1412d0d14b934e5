"""The advice in the store's errors works: each test follows the advice of one error, and the store then opens with all
its data.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_service.errors import FlushFailed, ReadFailed, RocketSimError, ServiceNotAvailable, StoreCorrupt
from broker_service.store.files import Files
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from broker_service.store.offline.verification import Severity, verify
from tests.support.stores import LOG_FILE, NOW, bodies, check_sound, open_store, put, queue_bodies, records_of

COUNT = 40
KEYED = [("KEYS", "k"), ("UNIQ_KEY", "u")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns a store that was closed cleanly, with a copy beside it that stands for the other broker's store."""
    store = open_store(tmp_path / "store")
    put(store, "topic", [n % 3 for n in range(COUNT)], [b"x" * 300] * COUNT, properties=KEYED)
    store.tick(NOW)
    store.close()
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    return tmp_path / "store"


def log_file(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * LOG_FILE:020d}"


def take_from_the_other(root: Path, name: str = "commitlog") -> None:
    shutil.rmtree(root / name)
    shutil.copytree(root.parent / "other" / name, root / name)


def look_at_all_of_the_log(root: Path) -> None:
    """With the next start."""
    (root / "abort").write_bytes(b"1")
    (root / "rocketsim/queues.json").unlink()
    (root / "rocketsim/queues.json.bak").unlink(missing_ok=True)


def damage_a_record(root: Path) -> None:
    look_at_all_of_the_log(root)
    path = log_file(root, 1)
    path.write_bytes(path.read_bytes()[:4] + b"oops" + path.read_bytes()[8:])


# what is damaged, what the error says, what is done about it
ADVICE: list[tuple[str, Callable[[Path], object], str, Callable[[Path], object]]] = [
    (
        "a log file is missing: bring it back",
        lambda root: log_file(root, 1).unlink(),
        "bring it back, or copy the log from the other broker",
        lambda root: shutil.copy(log_file(root.parent / "other", 1), log_file(root, 1)),
    ),
    (
        "a log file is missing: copy the log from the other broker",
        lambda root: log_file(root, 1).unlink(),
        "bring it back, or copy the log from the other broker",
        take_from_the_other,
    ),
    (
        "a log file of another size: restore it",
        lambda root: log_file(root, 1).write_bytes(bytes(100)),
        "correct the configuration, or restore the file",
        lambda root: shutil.copy(log_file(root.parent / "other", 1), log_file(root, 1)),
    ),
    ("damage in the log: restore the file", damage_a_record, "restore the file or take the log", take_from_the_other),
    (
        "the format's file: its .bak",
        lambda root: (
            JsonFile(root / "rocketsim/format.json").save({"version": 2}),
            (root / "rocketsim/format.json").write_text("{}"),
        ),
        "put back its backup format.json.bak",
        lambda root: shutil.copy(root / "rocketsim/format.json.bak", root / "rocketsim/format.json"),
    ),
    (
        "a table of the store: repair it",
        lambda root: (root / "rocketsim/queue_offsets.json").write_text("{"),
        "repair it, or move it away to start without it",
        lambda root: (root / "rocketsim/queue_offsets.json").write_text("{}"),
    ),
    (
        "a table of the store: move it away",
        lambda root: (root / "rocketsim/queue_offsets.json").write_text("{"),
        "repair it, or move it away to start without it",
        lambda root: (root / "rocketsim/queue_offsets.json").unlink(),
    ),
]


@pytest.mark.parametrize(("damage", "says", "cure"), [pytest.param(*rest, id=name) for name, *rest in ADVICE])
def test_what_a_start_that_is_refused_advises_makes_it_start(
    root: Path, damage: Callable[[Path], object], says: str, cure: Callable[[Path], object]
) -> None:
    damage(root)
    with pytest.raises(RocketSimError, match=says):
        open_store(root)
    cure(root)
    store = open_store(root)
    assert len(bodies(store)) == COUNT
    check_sound(store)
    store.close()


def test_a_file_size_that_differs_from_the_configuration_is_cured_by_correcting_the_configuration(root: Path) -> None:
    with pytest.raises(StoreCorrupt, match="mappedFileSizeCommitLog"):
        open_store(root, mapped_file_size_commit_log=2 * LOG_FILE)
    assert len(bodies(open_store(root))) == COUNT


class BadSector(Files):
    """Makes the file that is now at this path unreadable; a new file of that name is readable, because it lies
    elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self._inode = path.stat().st_ino

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        if os.fstat(handle).st_ino == self._inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(handle, size, offset)


def test_a_log_file_on_a_bad_sector_is_taken_from_the_other_broker(root: Path) -> None:
    look_at_all_of_the_log(root)
    path = log_file(root, 1)
    disk = BadSector(path)
    with pytest.raises(ReadFailed, match=rf"{path} cannot be read.*restore the file or take it from the other broker"):
        open_store(root, disk)
    path.rename(root.parent / "bad")
    shutil.copy(log_file(root.parent / "other", 1), path)
    store = open_store(root, disk)
    assert len(bodies(store)) == COUNT
    check_sound(store)
    store.close()


class BadDisk(Files):
    """A disk that can be read, but while `is_bad` one kind of write to the log in this folder fails."""

    def __init__(self, root: Path, call: str) -> None:
        self.is_bad = False
        self._root = root
        self._call = call

    def _check(self, call: str, handle: int) -> None:
        if self.is_bad and call == self._call and Path(os.readlink(f"/proc/self/fd/{handle}")).parent == self._root:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._check("pwrite", handle)
        super().pwrite(handle, data, offset)

    def fdatasync(self, handle: int) -> None:
        self._check("fdatasync", handle)
        super().fdatasync(handle)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_store_whose_disk_fails_again_at_the_start_goes_on_on_another_disk(root: Path, call: str) -> None:
    """Records written before the first failure are only in the page cache, and are read from there."""
    disk = BadDisk(root / "commitlog", "fdatasync")
    store = open_store(root, disk)
    put(store, "topic", 0, [b"in doubt"])
    disk.is_bad = True
    with pytest.raises(FlushFailed, match="restart the broker"):
        store.flush()
    store.abandon()
    disk = BadDisk(root / "commitlog", call)
    disk.is_bad = True
    with pytest.raises(
        ServiceNotAvailable, match="before a reboot copy the store to another disk, and start on the copy"
    ):
        open_store(root, disk)
    shutil.copytree(root, root.parent / "another disk")
    store = open_store(root.parent / "another disk", disk)
    assert bodies(store)[COUNT:] == [b"in doubt"]
    check_sound(store)
    store.close()


@pytest.mark.parametrize("cure", ["stop that broker", "set another storePathRootDir"])
def test_a_store_that_another_broker_uses_is_free_when_that_one_stops(root: Path, cure: str) -> None:
    other = open_store(root)
    with pytest.raises(RocketSimError, match=cure):
        open_store(root)
    if cure == "stop that broker":
        other.close()
        other = open_store(root)
        assert len(bodies(other)) == COUNT
    else:
        open_store(root.parent / "another").close()
    other.close()


DAMAGED = (
    r"consumequeue/topic/1 is damaged.*store verify`. If it finds no damage in the log, delete that folder.*"
    "Otherwise take the log from"
)


def log_damage(root: Path) -> list[str]:
    """Returns the files of the log in which `rocketsim store verify` finds damage."""
    return [found.file for found in verify(root) if found.severity is Severity.DAMAGE and "commitlog" in found.file]


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_a_damaged_queue_is_made_anew_when_its_folder_is_deleted(root: Path, *, killed: bool, trimmed: bool) -> None:
    changes = {"file_reserved_time_h": 0, "delete_hours": frozenset(range(24))} if trimmed else {}
    store = open_store(root, **changes)
    put(store, "topic", 1, [b"y" * 300] * 20, properties=KEYED)
    store.flush()
    if trimmed:
        assert store.retention.delete_expired(NOW + 10_000)
    first, end = store.queues.bounds("topic", 1)
    before = queue_bodies(store, "topic", 1)
    folder = root / "consumequeue/topic/1"
    last = sorted(folder.iterdir())[-1]
    data = last.read_bytes()
    last.write_bytes((int.from_bytes(data[:8], "big") + 4).to_bytes(8, "big") + data[8:])
    with pytest.raises(StoreCorrupt, match=DAMAGED):
        read_all(store, first, end)
    store.abandon() if killed else store.close()
    assert not log_damage(root)
    shutil.rmtree(folder)
    store = open_store(root)
    assert store.queues.bounds("topic", 1) == (first, end)
    assert queue_bodies(store, "topic", 1) == before
    check_sound(store)
    assert put(store, "topic", 1, [b"next"]).queues[0].first_queue_offset == end
    store.close()


def test_a_queue_that_is_whole_over_a_damaged_log_is_not_to_be_deleted(root: Path) -> None:
    """If the queue were deleted, a start would read the whole log, and would fail because of the damage in it."""
    store = open_store(root)
    offset = next(one.commit_log_offset for one in records_of(store) if (one.queue_id, one.queue_offset) == (1, 3))
    path, at = log_file(root, offset // LOG_FILE), offset % LOG_FILE
    data = path.read_bytes()
    path.write_bytes(data[: at + 4] + b"oops" + data[at + 8 :])
    with pytest.raises(StoreCorrupt, match=DAMAGED):
        read_all(store, 0, store.queues.end("topic", 1))
    store.close()
    assert log_damage(root)
    take_from_the_other(root)
    store = open_store(root)
    assert len(bodies(store)) == COUNT
    check_sound(store)
    store.close()


def read_all(store: MessageStore, first: int, end: int) -> None:
    while first < end:
        first = store.queues.get_message("topic", 1, first, 32, 1 << 20, None).next_begin_offset


def test_a_damaged_index_is_made_again_when_its_folder_is_removed(root: Path) -> None:
    path = sorted((root / "index").iterdir())[0]
    path.write_bytes(b"\xff" * 40 + path.read_bytes()[40:])
    assert [found for found in verify(root) if "remove the folder index" in found.what]
    shutil.rmtree(root / "index")
    store = open_store(root)
    assert len(store.key_search("topic", "k", 1000, 0, 2 * NOW).run().offsets) == COUNT
    store.close()
    assert list(verify(root)) == []
