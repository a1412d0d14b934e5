"""A table of damage: what was damaged while the store was closed, and the result of opening it.

The store has flushed its first 30 records and not the last 6; its log has several files, and so have its queues and
its index.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_service.errors import StoreCorrupt, StoreLocked
from broker_service.store.files import Files
from broker_service.store.flushed_offset import Flushed, FlushedOffset
from broker_service.store.message_store import MessageStore
from broker_service.store.offline.verification import verify
from tests.support.stores import (
    LOG_FILE,
    MINUTE,
    NOW,
    bodies,
    check_sound,
    flush_thoroughly,
    log_bytes,
    open_store,
    put,
    records_of,
    tree,
)

pytestmark = pytest.mark.usefixtures("record_kernels")

FLUSHED, ALL = 30, 36
KEYED = [("UNIQ_KEY", "id"), ("KEYS", "a b"), ("TAGS", "TagA")]


def fill(root: Path) -> None:
    """Makes a store as a killed process leaves it."""
    store = open_store(root)
    for number in range(0, FLUSHED, 3):
        put_three(store, number)
    flush_thoroughly(store)
    for number in range(FLUSHED, ALL, 3):
        put_three(store, number)
    store.tick(NOW)
    store.abandon()


def put_three(store: MessageStore, number: int) -> None:
    some = [b"%03d " % (number + i) + b"x" * 300 for i in range(3)]
    put(store, "topic", [0, 1, 0], some, properties=KEYED)


def close(root: Path) -> None:
    open_store(root).close()


def position(root: Path, number: int) -> tuple[Path, int]:
    """Returns the log file of the record with this number, and the position in the file."""
    shutil.copytree(root, root.parent / "copy")
    store = open_store(root.parent / "copy")
    offset = records_of(store)[number].commit_log_offset
    store.close()
    shutil.rmtree(root.parent / "copy")
    return root / "commitlog" / f"{offset - offset % LOG_FILE:020d}", offset % LOG_FILE


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(root: Path, number: int, at: int) -> None:
    path, start = position(root, number)
    byte = path.read_bytes()[start + at]
    overwrite(path, start + at, bytes([byte ^ 1]))


def zero(root: Path, number: int, begin: int, size: int) -> None:
    path, start = position(root, number)
    overwrite(path, start + begin, bytes(size))


def queue_files(root: Path, queue_id: int = 0) -> list[Path]:
    return sorted((root / "consumequeue" / "topic" / str(queue_id)).iterdir())


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def remove_blank(root: Path) -> None:
    """Overwrites the blank record at the end of the last full log file."""
    path = sorted((root / "commitlog").iterdir())[-2]
    data = path.read_bytes()
    at = data.rindex(bytes.fromhex("cbd43194")) - 4
    overwrite(path, at, bytes(8))


def stale_records_behind_the_end(root: Path) -> None:
    """Writes garbage and then old records behind the end of the log.  A failed append and a smaller one after it would
    leave such bytes if nothing were zeroed.
    """
    path, start = position(root, ALL - 1)
    data = path.read_bytes()
    size = int.from_bytes(data[start : start + 4], "big")
    overwrite(path, start + size + 100, data[start : start + size][: LOG_FILE - start - size - 100])


def queue_ahead(root: Path) -> None:
    last = queue_files(root)[-1]
    data = last.read_bytes().rstrip(b"\0")
    data += bytes(-len(data) % 20)
    entry = (1 << 20).to_bytes(8, "big") + (400).to_bytes(4, "big") + bytes(8)
    overwrite(last, len(data), entry)


# id, damage, records that are left
DISASTERS: list[tuple[str, Callable[[Path], object], int]] = [
    ("nothing but the abort file", lambda root: None, ALL),
    ("torn tail: the last record's second half is zeros", lambda root: zero(root, ALL - 1, 200, 300), ALL - 1),
    ("last record's first half is zeros", lambda root: zero(root, ALL - 1, 0, 200), ALL - 1),
    ("body cut", lambda root: zero(root, ALL - 1, 250, 20), ALL - 1),
    ("properties zeroed", lambda root: zero(root, ALL - 1, 88 + 304 + 6 + 2, 31), ALL - 1),
    ("flipped bit in a body above the flushed offset", lambda root: flip(root, FLUSHED + 1, 200), FLUSHED + 1),
    ("flipped bit in a size above the flushed offset", lambda root: flip(root, FLUSHED + 1, 3), FLUSHED + 1),
    ("bad magic in the middle of what was not flushed", lambda root: flip(root, FLUSHED + 2, 4), FLUSHED + 2),
    ("wrong log offset in a record above", lambda root: flip(root, FLUSHED + 2, 35), FLUSHED + 2),
    ("stale records behind the end", stale_records_behind_the_end, ALL),
    ("queue missing", lambda root: shutil.rmtree(root / "consumequeue/topic/1"), ALL),
    ("all queues missing", lambda root: shutil.rmtree(root / "consumequeue"), ALL),
    ("first file of a queue missing", lambda root: queue_files(root)[0].unlink(), ALL),
    ("file in the middle of a queue missing", lambda root: queue_files(root)[1].unlink(), ALL),
    ("last file of a queue missing", lambda root: queue_files(root)[-1].unlink(), ALL),
    ("queue file short", lambda root: queue_files(root)[0].write_bytes(bytes(50)), ALL),
    ("queue file too long", lambda root: queue_files(root)[0].write_bytes(bytes(5000)), ALL),
    ("queue file garbage", lambda root: queue_files(root)[-1].write_bytes(b"\xff" * 160), ALL),
    ("queue file zeros", lambda root: queue_files(root)[0].write_bytes(bytes(160)), ALL),
    ("queue ahead of the log", queue_ahead, ALL),
    ("index missing", lambda root: shutil.rmtree(root / "index"), ALL),
    ("one index file missing", lambda root: index_files(root)[0].unlink(), ALL),
    ("index file garbage", lambda root: index_files(root)[-1].write_bytes(b"\xff" * 468), ALL),
    ("index file short", lambda root: index_files(root)[-1].write_bytes(b""), ALL),
    ("checkpoint missing", lambda root: (root / "checkpoint").unlink(), ALL),
    ("checkpoint garbage", lambda root: (root / "checkpoint").write_bytes(b"\xff" * 4096), ALL),
    ("checkpoint short", lambda root: (root / "checkpoint").write_bytes(b"\0"), ALL),
    ("flushed offset missing", lambda root: (root / "rocketsim/flushed").unlink(), ALL),
    ("queue summary missing", lambda root: (root / "rocketsim/queues.json").unlink(), ALL),
    ("queue summary garbage", lambda root: (root / "rocketsim/queues.json").write_bytes(b"{"), ALL),
    ("queue summary says too little", lambda root: summary_of_another_time(root), ALL),
    ("all our own notes missing", lambda root: shutil.rmtree(root / "rocketsim"), ALL),
    ("a log file allocated ahead", lambda root: allocate_ahead(root, LOG_FILE), ALL),
    ("a log file whose allocation was interrupted", lambda root: allocate_ahead(root, 0), ALL),
]


def summary_of_another_time(root: Path) -> None:
    """The summary is an older one, which names only the queue's first file, the only file that is left."""
    for path in queue_files(root)[1:]:
        path.unlink()
    summary = root / "rocketsim/queues.json"
    value = json.loads(summary.read_text())
    value["queues"]["topic"]["0"] = [0, 8]
    summary.write_text(json.dumps(value))


def allocate_ahead(root: Path, size: int) -> None:
    last = sorted((root / "commitlog").iterdir())[-1]
    (root / "commitlog" / f"{int(last.name) + LOG_FILE:020d}").write_bytes(bytes(size))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    root = tmp_path_factory.mktemp("filled") / "store"
    fill(root)
    return root


@pytest.fixture
def root(filled, tmp_path):
    shutil.copytree(filled, tmp_path / "store")
    return tmp_path / "store"


def derived(store: MessageStore) -> dict[str, bytes]:
    """Returns queues and index as they are on disk; index files by number, because their names are dates."""
    flush_thoroughly(store, NOW + MINUTE)
    files = Files()
    index = tree(files, store.config.root / "index")
    numbered = {f"index/{number}": index[name] for number, name in enumerate(sorted(index))}
    return tree(files, store.config.root / "consumequeue") | numbered


def rebuilt(store: MessageStore, directory: Path) -> dict[str, bytes]:
    """Returns queues and index of a new store that is given only this store's log."""
    other = open_store(directory)
    for part in range(store.min_offset, store.end_offset, 1000):
        other.append_replicated(part, log_bytes(store, part, min(part + 1000, store.end_offset)))
    try:
        return derived(other)
    finally:
        other.close()


CASES = [
    pytest.param(damage, left, clean, id=f"{name}, {'closed cleanly' if clean else 'killed'}")
    for name, damage, left in DISASTERS
    # After a clean stop, all records are below the flushed offset, and damage that loses one of them is an error, which
    # is in the other table.  A start also believes our own note of a clean stop.
    for clean in ((False, True) if left == ALL and "too little" not in name else (False,))
]


@pytest.mark.parametrize(("damage", "left", "clean"), CASES)
def test_a_damaged_store_opens_with_all_that_was_flushed(root, tmp_path, damage, left, clean):
    if clean:
        close(root)
    damage(root)
    store = open_store(root)
    assert [int(body[:3]) for body in bodies(store)] == list(range(left))
    assert store.recovery.clean == clean
    check_sound(store)
    assert derived(store) == rebuilt(store, tmp_path / "rebuilt")
    assert len(store.key_search("topic", "b", 1000, 0, 2 * NOW).run().offsets) == left
    if left < ALL:
        assert store.recovery.truncated_to == store.end_offset
        assert f"log cut at {store.end_offset}" in str(store.recovery)
    # The store goes on, and the records that were cut do not come back.
    put_three(store, 900)
    store.abandon()
    store = open_store(root)
    assert [int(body[:3]) for body in bodies(store)] == [*range(left), 900, 901, 902]
    check_sound(store)
    store.close()


# id, damage, and the words beside the file's name that the message must have
CORRUPTIONS: list[tuple[str, Callable[[Path], object], str]] = [
    ("flipped bit in a body below the flushed offset", lambda root: flip(root, 20, 200), "body CRC"),
    ("flipped bit in a size below", lambda root: flip(root, 20, 3), "damaged at log offset"),
    ("bad magic below", lambda root: flip(root, 20, 4), "damaged at log offset"),
    ("a record zeroed below", lambda root: zero(root, 20, 0, 400), "damaged at log offset"),
    ("blank record missing below", remove_blank, "damaged at log offset"),
    ("log file deleted in the middle", lambda root: sorted((root / "commitlog").iterdir())[1].unlink(), "is missing"),
    ("newest log files deleted", lambda root: sorted((root / "commitlog").iterdir())[-1].unlink(), "damaged at"),
    (
        "log file of another size",
        lambda root: sorted((root / "commitlog").iterdir())[1].write_bytes(b"x"),
        "has 1 bytes",
    ),
    ("all log files deleted", lambda root: shutil.rmtree(root / "commitlog"), "damaged at log offset 0"),
]


@pytest.mark.parametrize(
    ("damage", "says"), [pytest.param(damage, says, id=name) for name, damage, says in CORRUPTIONS]
)
def test_damage_below_the_flushed_offset_stops_the_start_and_changes_nothing(root, damage, says):
    store = open_store(root)  # everything flushed
    store.flush()
    store.abandon()
    (root / "checkpoint").unlink()  # without a checkpoint a start checks the whole log
    damage(root)
    before = tree(Files(), root / "commitlog")
    with pytest.raises(StoreCorrupt) as caught:
        open_store(root)
    assert says in str(caught.value) and "commitlog" in str(caught.value)
    assert tree(Files(), root / "commitlog") == before


def test_a_store_is_not_opened_twice_and_the_message_names_the_holder(tmp_path):
    import os

    store = open_store(tmp_path)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}") as caught:
        open_store(tmp_path)
    assert "storePathRootDir" in str(caught.value)
    assert (tmp_path / "lock").read_bytes() == b"lock"
    store.close()
    open_store(tmp_path).close()


def test_the_abort_file_holds_the_pid_and_is_gone_after_a_clean_stop(tmp_path):
    import os

    store = open_store(tmp_path)
    assert (tmp_path / "abort").read_bytes() == str(os.getpid()).encode()
    store.close()
    assert not (tmp_path / "abort").exists()


def test_a_clean_restart_does_not_scan_the_log(root):
    close(root)
    store = open_store(root)
    assert store.recovery.scanned_from is None
    assert str(store.recovery) == "closed cleanly; nothing to scan"
    store.close()


def test_an_unclean_restart_starts_at_the_last_thorough_flush(root):
    store = open_store(root)
    assert store.recovery.scanned_from is not None and 0 < store.recovery.scanned_from < store.end_offset
    store.close()


DAMAGED_FLUSHED = {"garbage": b"\xff" * 1024, "zeros": bytes(1024), "nothing": b"", "cut short": b"\0" * 20}


@pytest.mark.parametrize("checkpoint", ["written", "missing"])
def test_the_newest_store_time_is_known_after_a_crash_and_a_clean_stop(root, checkpoint):
    """A start after a clean stop does not scan the log for the newest store time.  No flush wrote the newest store time
    after the crash, because there was nothing to flush.
    """
    store = open_store(root)
    put(store, "topic", [0], [b"late"], now_ms=NOW + MINUTE)
    store.flush()
    store.abandon()
    close(root)
    if checkpoint == "missing":
        (root / "checkpoint").unlink()
    store = open_store(root)
    assert store.recovery.clean and store.newest_stored_ms == NOW + MINUTE
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", DAMAGED_FLUSHED.values(), ids=DAMAGED_FLUSHED)
def test_a_flushed_offset_that_cannot_be_read_is_damage_and_its_removal_the_way_out(root, content, clean):
    if clean:
        close(root)
    whole = (root / "rocketsim/flushed").read_bytes()
    (root / "rocketsim/flushed").write_bytes(content)
    before = tree(Files(), root)
    with pytest.raises(StoreCorrupt, match=r"rocketsim/flushed is damaged.*Put a copy back, or remove it"):
        open_store(root)
    assert tree(Files(), root) == before
    assert [str(found) for found in verify(root) if "rocketsim/flushed is damaged" in found.what]
    (root / "rocketsim/flushed").write_bytes(whole)
    open_store(root).abandon()
    (root / "rocketsim/flushed").unlink()
    store = open_store(root)
    assert [int(body[:3]) for body in bodies(store)] == list(range(ALL))
    check_sound(store)
    store.close()


def test_zeros_in_place_of_the_flushed_offset_of_an_empty_store_mean_that_it_was_never_written(tmp_path):
    """Version 9157579 and older ones made the file of the flushed offset in two steps, so a crash between the steps
    left zeros in it.
    """
    open_store(tmp_path).abandon()
    (tmp_path / "rocketsim/flushed").write_bytes(bytes(1024))
    store = open_store(tmp_path)
    put_three(store, 0)
    store.abandon()
    store = open_store(tmp_path)
    assert len(bodies(store)) == 3
    store.close()


@pytest.mark.parametrize("sizes", [(0, 0), (1500, 0), (0, 700), (1500, 700), (LOG_FILE - 1, 1)], ids=str)
@pytest.mark.parametrize("zeros", [False, True])
def test_log_files_that_a_power_loss_left_short_above_the_flushed_offset_are_cut_not_refused(tmp_path, sizes, zeros):
    """After a power loss, the names of new log files can be on disk without the files' sizes and bytes."""
    store = open_store(tmp_path)
    while store.end_offset < LOG_FILE:
        put_three(store, len(bodies(store)))
    store.truncate(LOG_FILE, None)
    store.flush()
    flushed = len(bodies(store))
    while store.end_offset < 3 * LOG_FILE:
        put_three(store, len(bodies(store)))
    store.truncate(3 * LOG_FILE, None) if store.end_offset > 3 * LOG_FILE else None
    all_bodies = bodies(store)
    store.abandon()
    shutil.copy(tmp_path / "rocketsim/flushed", tmp_path / "kept")
    for number, size in zip((1, 2), sizes, strict=True):
        path = tmp_path / "commitlog" / f"{number * LOG_FILE:020d}"
        path.write_bytes(bytes(size) if zeros else path.read_bytes()[:size])
    flushed_file = FlushedOffset(Files(), tmp_path / "rocketsim/flushed")
    flushed_file.load(log_is_empty=False)
    flushed_file.save(Flushed(LOG_FILE))
    flushed_file.save(Flushed(LOG_FILE))
    flushed_file.close()
    store = open_store(tmp_path)
    found = bodies(store)
    assert found == all_bodies[: len(found)] and len(found) >= flushed
    check_sound(store)
    put_three(store, 900)
    store.abandon()
    store = open_store(tmp_path)
    assert len(bodies(store)) == len(found) + 3
    store.close()
