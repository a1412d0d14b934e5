"""A full disk refuses only writes, and writes continue without a restart once the disk has room."""

import contextlib
import errno
import random

import pytest
from rocketsim_proto.reserved import STATE_TOPIC

from broker_service.errors import DiskFull
from broker_service.store.message_store import MessageStore
from tests.support.memory_files import PAGE, MemoryFiles, MemoryPath, PowerCut
from tests.support.stores import (
    LOG_FILE,
    NOW,
    bodies,
    check_sound,
    flush_thoroughly,
    open_store,
    put,
    queue_bodies,
    records_of,
)

ROOT = MemoryPath("/store")
KEYED = [("KEYS", "k"), ("UNIQ_KEY", "u")]


def filled(disk: MemoryFiles, count: int = 30) -> MessageStore:
    store = open_store(ROOT, disk)
    put(store, "topic", [n % 3 for n in range(count)], [b"x" * 300] * count, properties=KEYED)
    flush_thoroughly(store)
    return store


def keys(store: MessageStore) -> int:
    return len(store.key_search("topic", "k", 1000, 0, 2 * NOW).run().offsets)


@pytest.mark.parametrize("room", range(0, 12))
def test_a_store_reads_ticks_and_flushes_on_a_full_disk(room: int) -> None:
    """The store reads, ticks and flushes however little room is left."""
    disk = MemoryFiles()
    store = filled(disk)
    disk.make_room(room * PAGE)
    written, refused = 30, 0
    for number in range(60):
        try:
            put(store, "topic" if number % 2 else f"new{number}", number % 3, [b"y" * 300], properties=KEYED)
            written += 1
        except DiskFull:
            refused += 1
        store.tick(NOW + number * 61_000)
        store.flush()
        assert queue_bodies(store, "topic", 0)[:10] == [b"x" * 300] * 10
    assert refused and len(bodies(store)) == written
    check_sound(store)
    assert not store.admission.writable and "no room" in str(store.admission.why_not_writable())
    disk.make_room()
    store.tick(NOW + 10**7)
    assert store.admission.writable
    put(store, "topic", 0, [b"again"], properties=KEYED)
    store.tick(NOW + 2 * 10**7)
    assert keys(store) == sum(one.topic == "topic" for one in records_of(store))
    store.close()
    store = open_store(ROOT, disk)
    assert store.recovery.clean and store.recovery.scanned_from is None
    check_sound(store)


def test_the_rest_of_the_last_log_file_is_kept_where_the_disk_has_no_room_for_another_one() -> None:
    disk = MemoryFiles()
    store = open_store(ROOT, disk, mapped_file_size_commit_log=64 << 10, mapped_file_size_consume_queue=20 * 1000)
    put(store, STATE_TOPIC, 0, [b"a"])
    disk.make_room(8 * PAGE)
    taken = 0
    while store.admission.why_no_sends(400) is None:
        put(store, "topic", 0, [b"x" * 300])
        taken += 1
    assert taken > 100 and "kept for acknowledgements" in store.admission.why_no_sends(400)
    assert store.admission.why_no_sends(64 << 10) is not None and store.admission.writable
    disk.fill()
    kept = 0
    with pytest.raises(DiskFull):
        while True:
            put(store, STATE_TOPIC, 0, [b"a"])
            kept += 1
    assert kept > 25
    check_sound(store)
    disk.make_room()
    store.tick(NOW + 10_000)
    assert store.admission.why_no_sends(400) is None
    put(store, "topic", 0, [b"x"])


@pytest.mark.parametrize("made_by", ["this version", "an earlier one"])
def test_the_entries_of_acknowledgements_have_their_blocks_before_the_disk_is_full(
    made_by: str,
) -> None:
    disk = MemoryFiles()
    keys = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20 * 1000}
    if made_by == "an earlier one":
        disk.fail("preallocate", errno.EOPNOTSUPP, matching="consumequeue")
    put(open_store(ROOT, disk, **keys), STATE_TOPIC, 0, [b"a"])
    store = open_store(ROOT, disk := disk.kill(), **keys)
    disk.fill()
    for _ in range(900):
        put(store, STATE_TOPIC, 0, [b"a"])
    check_sound(store)


@pytest.mark.parametrize("end", ["close", "kill", "power"])
@pytest.mark.parametrize("seed", range(4))
def test_a_store_opens_on_a_full_disk(end: str, seed: int) -> None:
    disk = MemoryFiles()
    store = filled(disk)
    put(store, "topic", 0, [b"z" * 300] * 3, properties=KEYED)
    disk.fill()
    if end == "close":
        store.close()
        disk = disk.kill()
    else:
        store.flush()
        disk = disk.kill() if end == "kill" else disk.power_loss(random.Random(seed))
    disk.fill()
    store = open_store(ROOT, disk)
    assert store.recovery.clean == (end == "close")
    assert len(bodies(store)) == 33
    assert len(queue_bodies(store, "topic", 0)) == 13
    check_sound(store)
    # The store is killed here, and the next start must know that, even if the disk has no room to write it down.
    disk = disk.kill()
    store = open_store(ROOT, disk)
    assert not store.recovery.clean
    store.close()
    assert open_store(ROOT, disk).recovery.clean, "a clean stop needs no room"
    disk.make_room()
    put(open_store(ROOT, disk.kill()), "topic", 0, [b"again"])


def test_a_start_that_has_no_room_for_queues_a_power_loss_took_says_what_to_do_and_loses_nothing() -> None:
    disk = MemoryFiles()
    store = filled(disk)
    disk = disk.power_loss(random.Random(1))
    disk.remove_tree(ROOT / "consumequeue/topic/0")
    disk.fill()
    for _ in range(2):
        with pytest.raises(DiskFull, match="nothing is lost: make room, then start again"):
            open_store(ROOT, disk)
        disk = disk.kill()
    disk.make_room()
    store = open_store(ROOT, disk)
    assert len(bodies(store)) == 30 and len(queue_bodies(store, "topic", 0)) == 10
    check_sound(store)


def test_a_start_that_has_no_room_for_the_queue_of_the_last_record_before_a_kill_says_so_and_loses_nothing() -> None:
    disk = MemoryFiles()
    store = filled(disk)
    disk.fill()
    disk.stop_at = disk.calls + 2  # dies after the record is written and before its queue exists
    with pytest.raises(PowerCut):
        put(store, "new", 0, [b"y"])
    disk = disk.kill()
    for _ in range(2):
        with pytest.raises(DiskFull, match="a killed process left incomplete; nothing is lost"):
            open_store(ROOT, disk)
        disk = disk.kill()
    disk.make_room()
    store = open_store(ROOT, disk)
    assert len(bodies(store)) == 31 and queue_bodies(store, "new", 0) == [b"y"]
    check_sound(store)


@pytest.mark.parametrize("cut", ["truncate", "start_over"])
@pytest.mark.parametrize("room", range(0, 8))
def test_a_cut_on_a_full_disk_happens_or_leaves_what_can_be_cut_again(cut: str, room: int) -> None:
    disk = MemoryFiles()
    store = filled(disk)
    offset = records_of(store)[11].commit_log_offset
    disk.make_room(room * PAGE)
    floors = [("topic", 0, 7)]

    def act() -> None:
        if cut == "truncate":
            store.truncate(offset, ROOT / "rocketsim/diverged")
        else:
            store.start_over(10 * LOG_FILE, floors)

    try:
        act()
    except OSError:
        assert cut == "start_over" or len(bodies(store)) == 30
        assert cut == "truncate" or store.min_offset == store.end_offset == 0
        disk.make_room()
        act()
    disk.make_room()
    store.tick(NOW + 10**6)
    store.flush()
    if cut == "truncate":
        assert len(bodies(store)) == 11
        kept = disk.read(ROOT / "rocketsim/diverged" / f"{offset:020d}")
        assert len(kept) > 19 * 300
    else:
        assert store.min_offset == store.end_offset == 10 * LOG_FILE
        assert store.queue_floors() == floors
    put(store, "topic", 0, [b"again"], properties=KEYED)
    check_sound(store)
    store = open_store(ROOT, disk.kill())
    check_sound(store)
    assert keys(store) == (12 if cut == "truncate" else 1)


@pytest.mark.parametrize("powerless", [False, True])
def test_a_queue_goes_on_behind_what_a_full_disk_has_deleted(powerless: bool) -> None:
    """The disk has no room to note how far the queues are flushed, while retention deletes their records
    from the log.
    """
    disk = MemoryFiles()
    store = open_store(ROOT, disk, file_reserved_time_h=1, disk_max_used_space_ratio=1)
    put(store, "old", 0, [b"x"])
    flush_thoroughly(store)  # the last flush that the disk has room to note
    put(store, "old", [0] * 3, [b"x"] * 3)
    put(store, "topic", [0] * 30, [b"x" * 300] * 30)
    store.flush()
    disk.make_room(0)
    assert store.retention.delete_expired(NOW + 7_200_000)
    assert store.min_offset > 0
    disk = disk.power_loss(random.Random(1)) if powerless else disk.kill()
    disk.make_room()
    store = open_store(ROOT, disk)
    assert store.queues.bounds("old", 0) == (4, 4)
    check_sound(store)


@pytest.mark.parametrize("room", range(0, 6))
def test_files_expire_on_a_full_disk(room: int) -> None:
    disk = MemoryFiles()
    store = open_store(ROOT, disk, file_reserved_time_h=1, disk_max_used_space_ratio=1)
    put(store, "topic", [n % 3 for n in range(60)], [b"x" * 300] * 60, properties=KEYED)
    flush_thoroughly(store)
    disk.make_room(room * PAGE)
    assert store.retention.delete_expired(NOW + 7_200_000)
    assert store.min_offset > 0
    check_sound(store)
    disk = disk.kill()
    with contextlib.suppress(DiskFull):
        put(open_store(ROOT, disk), "topic", 0, [b"y"])
    check_sound(open_store(ROOT, disk.kill()))


def test_what_is_written_after_a_refused_start_over_is_found_by_key() -> None:
    disk = MemoryFiles()
    store = filled(disk)
    disk.fail("preallocate", errno.ENOSPC, matching="commitlog")
    with pytest.raises(OSError, match="no room"):
        store.start_over(10 * LOG_FILE)
    assert store.min_offset == store.end_offset == 0
    assert store.index.behind == 0
    put(store, "topic", 0, [b"new"], properties=KEYED)
    store.tick(NOW)
    check_sound(store)
    assert keys(store) == 1
