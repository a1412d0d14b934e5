"""Flushing: what is on disk afterwards, and that a failed sync stops all writes."""

import errno
import random
import threading
from pathlib import Path

import pytest

from broker_service.errors import FlushFailed, ServiceNotAvailable
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import EpochList
from broker_service.store.checkpoint import Checkpoint
from broker_service.store.flushed_offset import FlushedOffset
from broker_service.store.json_file import JsonFile
from tests.support.memory_files import MemoryFiles
from tests.support.stores import (
    LOG_FILE,
    MINUTE,
    NOW,
    bodies,
    check_sound,
    delete_topic,
    flush_thoroughly,
    open_store,
    put,
    queue_bodies,
    records_of,
)

ROOT = Path("/store")


def test_what_was_flushed_survives_a_power_loss():
    for seed in range(20):
        disk = MemoryFiles()
        store = open_store(ROOT, disk)
        put(store, "topic", 0, [b"x" * 900] * 9)
        assert store.flush() == store.end_offset == store.flushed_offset
        put(store, "topic", 0, [b"y" * 900] * 9)
        assert store.flushed_offset < store.end_offset
        found = bodies(open_store(ROOT, disk.power_loss(random.Random(seed))))
        assert found[:9] == [b"x" * 900] * 9


def checkpoint(disk: MemoryFiles) -> Checkpoint:
    """Returns the checkpoint that the last thorough flush has written."""
    return Checkpoint.load(disk, ROOT / "checkpoint")


def noted(disk: MemoryFiles) -> int:
    """Returns the lowest flushed offset that any of several power losses leaves."""
    notes = []
    for seed in range(8):
        file = FlushedOffset(disk.as_powerless(random.Random(seed)), ROOT / "rocketsim/flushed")
        notes.append(file.load(log_is_empty=False).offset)
    return min(notes)


def test_the_note_of_the_flushed_offset_is_on_disk_a_second_later():
    """Damage below the flushed offset is not taken for a torn end of the log."""
    store = open_store(ROOT, disk := MemoryFiles())
    for second in range(1, 5):
        put(store, "topic", 0, [b"x" * 300])
        store.flush()
        before = noted(disk)
        assert before < store.end_offset
        store.tick(NOW + second * 1000 - 1)
        store.flush()
        assert noted(disk) == before
        store.tick(NOW + second * 1000)
        store.flush()
        assert noted(disk) == store.end_offset, "also where nothing was appended since the last flush"


def test_the_note_of_the_flushed_offset_is_synced_once_a_second_and_only_if_it_has_changed():
    store = open_store(ROOT, disk := MemoryFiles())
    syncs = f"fdatasync {ROOT / 'rocketsim/flushed'}"
    before = disk.log.count(syncs)
    for ms in range(10, 5000, 10):
        if ms < 3000:
            put(store, "topic", 0, [b"x"])
        store.tick(NOW + ms)
        store.flush()
    assert 2 <= disk.log.count(syncs) - before <= 3


def test_a_new_file_counts_as_flushed_only_when_its_name_is_on_disk():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 1500] * 5)
    store.flush()
    assert f"sync_directory {ROOT / 'commitlog'}" in disk.log[-5:]


SYNCED = [
    *(("fdatasync", matching) for matching in ("commitlog/", "consumequeue", "checkpoint", "index", "flushed")),
    *(("fdatasync", matching) for matching in ("queues.json", "offsets", "epochs", "topics.json", "role.json")),
    *(("sync_directory", matching) for matching in ("commitlog", "consumequeue", "rocketsim", "config")),
]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(("call", "matching"), SYNCED)
def test_a_failed_sync_of_anything_stops_the_store(call, matching, error, caplog):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"], properties=[("KEYS", "k")])
    store.tick(NOW + MINUTE)
    disk.fail(call, error, matching=matching)
    with pytest.raises(FlushFailed, match="in doubt"):
        store.flush()
        EpochFile(ROOT / "rocketsim/epochs.json", 0, store.disk).save(EpochList.of((100, 0)))
        for name in ("config/topics.json", "config/consumer_offsets.json", "rocketsim/role.json"):
            JsonFile(ROOT / name, store.disk).save({})
    assert "in doubt" in caplog.text and matching in caplog.text
    disk.heal()
    with pytest.raises(FlushFailed):
        store.flush()
    with pytest.raises(FlushFailed):
        put(store, "topic", 0, [b"b"])
    with pytest.raises(FlushFailed):
        JsonFile(ROOT / "config/topics.json", store.disk).save({})
    assert queue_bodies(store, "topic", 0) == [b"a"], "reads go on"
    store.close()
    assert "abort" in disk.names(ROOT), "not closed cleanly"


@pytest.mark.parametrize("cut", ["truncate", "start_over"])
def test_a_failed_sync_in_a_cut_stops_the_store(cut):
    """A cut makes several syncs, and a failure of any one stops the store as a failed flush does."""
    failed = 0
    for nth in range(1, 30):
        disk = MemoryFiles()
        store = open_store(ROOT, disk)
        begin = put(store, "topic", 0, [b"x" * 900] * 9, properties=[("KEYS", "k")]).extents[0][0]
        store.tick(NOW)
        put(store, "topic", 0, [b"y" * 900] * 9, properties=[("KEYS", "k")])
        store.tick(NOW)
        store.flush()
        fault = disk.fail("fdatasync", errno.EIO, nth=nth)
        try:
            if cut == "truncate":
                store.truncate(begin + 3 * LOG_FILE, ROOT / "diverged")
            else:
                store.start_over(10 * LOG_FILE)
        except FlushFailed:
            failed += 1
        else:
            assert fault.nth > 0
            break
        disk.heal()
        with pytest.raises(FlushFailed):
            store.flush()
        check_sound(store)
        store.close()
        assert "abort" in disk.names(ROOT), f"sync {nth}: not closed cleanly"
    assert 3 < failed < 29


@pytest.mark.parametrize("cut", ["truncate", "start_over"])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        *((call, errno.EIO) for call in ("pread", "pwrite", "remove")),
        ("open", errno.EMFILE),
    ],
)
def test_a_cut_that_an_error_interrupts_can_be_done_again_or_stops_the_store(cut, call, error):
    """If the store took records after a cut that was interrupted anywhere, the new records would lie among old ones
    that should be gone.
    """

    def act(store, offset):
        if cut == "truncate":
            store.truncate(offset, None)
        else:
            store.start_over(10 * LOG_FILE, [("topic", 0, 7)])

    failed = 0
    for nth in range(1, 60):
        disk = MemoryFiles()
        store = open_store(ROOT, disk)
        put(store, "topic", [n % 3 for n in range(40)], [b"x" * 300] * 40, properties=[("KEYS", "k")])
        flush_thoroughly(store)
        before, offset = bodies(store), records_of(store)[11].commit_log_offset
        fault = disk.fail(call, error, nth=nth)
        try:
            act(store, offset)
        except (OSError, ServiceNotAvailable):
            failed += 1
        else:
            if fault.nth > 0:
                break
        disk.heal()
        check_sound(store)  # readers see no entry of a record that is gone
        if store.disk.fatal is not None:
            with pytest.raises(FlushFailed, match="restart the broker"):
                put(store, "topic", 0, [b"z"])
            store.close()
            for left in (disk.as_killed(), disk.as_powerless(random.Random(nth))):
                again = open_store(ROOT, left)
                assert not again.recovery.clean
                check_sound(again)
                assert cut == "start_over" or bodies(again) == before[: len(bodies(again))]
            store = open_store(ROOT, disk := disk.kill())
        act(store, offset)
        put(store, "topic", [0, 1, 2] * 20, [b"y" * 300] * 60)
        check_sound(store)
        assert len(bodies(store)) == (11 if cut == "truncate" else 0) + 60
        store.close()
        again = open_store(ROOT, disk)
        check_sound(again)
        assert len(bodies(again)) == (11 if cut == "truncate" else 0) + 60
    assert 0 < failed < 59


@pytest.mark.parametrize("matching", ["consumequeue", "commitlog"])
def test_a_sync_that_found_no_handle_is_tried_again(matching, caplog):
    """The sync itself was not called, so no data is in doubt: the next flush tries again, and before it only synced
    data counts as flushed.
    """
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"])
    store.tick(NOW + MINUTE)
    flushed = store.flushed_offset
    fault = disk.fail("open" if matching == "consumequeue" else "sync_directory", errno.EMFILE, matching=matching)
    store.flush()
    assert fault.nth == 0 and "a flush failed and is tried again" in caplog.text and store.admission.writable
    assert checkpoint(disk) == Checkpoint()
    if matching == "commitlog":
        assert store.flushed_offset == flushed
    store.flush()
    assert checkpoint(disk).queues_log_offset == store.flushed_offset == store.end_offset
    found = open_store(ROOT, disk.power_loss(random.Random(1)))
    assert not found.recovery.rebuilt_queues and bodies(found) == [b"a"]


@pytest.mark.parametrize("matching", ["commitlog/", "consumequeue", "checkpoint", "index"])
def test_a_failed_sync_is_final(matching):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"], properties=[("KEYS", "k")])
    store.tick(NOW + MINUTE)
    flushed = store.flushed_offset
    disk.fail("fdatasync", errno.EIO, matching=matching)
    with pytest.raises(FlushFailed, match="in doubt"):
        store.flush()
    with pytest.raises(ServiceNotAvailable):
        store.flush()
    with pytest.raises(ServiceNotAvailable):
        put(store, "topic", 0, [b"b"])
    if matching == "commitlog/":
        assert store.flushed_offset == flushed
    assert "in doubt" in store.admission.why_not_writable() and queue_bodies(store, "topic", 0) == [b"a"]
    store.close()
    assert (ROOT / "abort") in [ROOT / name for name in disk.names(ROOT)], "not closed cleanly"


def test_after_a_failed_sync_nothing_is_reported_as_flushed_that_is_not():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 900] * 3)
    disk.fail("fdatasync", errno.EIO, matching="commitlog/")
    with pytest.raises(FlushFailed):
        store.flush()
    store.close()
    store = open_store(ROOT, disk.power_loss(random.Random(1)))
    assert store.recovery.truncated_to is not None or not bodies(store)


def test_the_thorough_flush_moves_the_checkpoint():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"], now_ms=NOW + 7)
    store.tick(NOW + 30_000)
    store.flush()
    assert checkpoint(disk) == Checkpoint()
    store.tick(NOW + 60_000)
    store.flush()
    noted = checkpoint(disk)
    assert (noted.log_timestamp, noted.queues_timestamp) == (NOW + 7, NOW + 7)
    assert noted.queues_log_offset == store.end_offset
    assert disk.size(ROOT / "checkpoint") == 4096


def test_puts_do_not_wait_for_the_files_of_thousands_of_queues(monkeypatch):
    disk, synced = MemoryFiles(), []
    sync = disk.fdatasync
    store = open_store(ROOT, disk)
    put(store, "topic", range(1000), [b"x"] * 1000)
    monkeypatch.setattr(disk, "fdatasync", lambda handle: synced.append(handle) or sync(handle))
    store.tick(NOW + MINUTE)
    while checkpoint(disk) == Checkpoint():
        put(store, "topic", 0, [b"y"])
        before = len(synced)
        assert store.flush() == store.end_offset
        assert len(synced) - before < 100
    assert len(synced) > 1000
    found = open_store(ROOT, disk.power_loss(random.Random(1)))
    assert not found.recovery.rebuilt_queues
    check_sound(found)


def test_queue_files_deleted_meanwhile_do_not_fail_the_flush():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "gone", 0, [b"a"])
    put(store, "topic", 0, [b"a"])
    store.tick(NOW + MINUTE)
    delete_topic(store, "gone")
    store.flush()
    assert store.admission.writable


def test_a_flush_thread_works_beside_appends_rolls_deletions_and_cuts(tmp_path):
    store = open_store(tmp_path, file_reserved_time_h=0, disk_max_used_space_ratio=0)
    stop = threading.Event()
    failed: list[BaseException] = []

    def flush_all_the_time() -> None:
        try:
            while not stop.is_set():
                store.flush()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=flush_all_the_time)
    thread.start()
    try:
        for number in range(150):
            appended = put(store, "topic", number % 3, [b"x" * 700] * 3, now_ms=NOW + number)
            if number % 10 == 3:
                store.tick(NOW + number * 60_000)
                store.retention.delete_expired(NOW + number + 1)
            if number % 40 == 39:
                store.truncate(appended.extents[-1][0], None)
                assert store.flushed_offset <= store.end_offset
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    assert store.min_offset > 0, "files were deleted meanwhile"
    check_sound(store)
    store.close()
    store = open_store(tmp_path)
    assert store.recovery.scanned_from is None
    check_sound(store)
    store.close()


@pytest.mark.parametrize(
    ("error", "matching"), [(errno.EIO, "queue_offsets"), (errno.ENOSPC, "queue_offsets"), (errno.EIO, "index")]
)
def test_a_sync_that_fails_in_a_tick_stops_the_store_and_not_the_process(error, matching):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"], properties=[("KEYS", "k")])
    put(store, "deleted", 0, [b"a"])
    disk.fill()
    delete_topic(store, "deleted")  # a later tick writes where the deleted topic's queues go on
    disk.make_room()
    fault = disk.fail("fdatasync", error, matching=matching)
    for minute in range(3):
        store.tick(NOW + minute * 60_000)
    assert not fault.nth
    assert "in doubt" in store.admission.why_not_writable()
    assert queue_bodies(store, "topic", 0) == [b"a"], "reads go on"
    with pytest.raises(FlushFailed):
        store.flush()
