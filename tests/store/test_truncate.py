"""Cuts of a log, which a slave makes if the end of its log belongs to another epoch."""

import random
from pathlib import Path

import pytest

from tests.support.memory_files import MemoryFiles, PowerCut
from tests.support.stores import (
    LOG_FILE,
    NOW,
    bodies,
    check_sound,
    log_bytes,
    open_store,
    put,
    records_of,
)

ROOT = Path("/store")
KEEP = ROOT / "rocketsim" / "diverged"


def filled(disk):
    store = open_store(ROOT, disk)
    for number in range(20):
        put(store, "topic", number % 3, [b"%d " % number + b"x" * 500], properties=[("KEYS", "k"), ("TAGS", "t")])
    store.tick(NOW)
    store.flush()
    return store


@pytest.mark.parametrize("keep", range(0, 20, 3))
@pytest.mark.parametrize("flushed", [True, False])
def test_the_cut_part_is_kept_aside_and_everything_else_is_as_if_it_had_never_been(keep, flushed):
    disk = MemoryFiles()
    store = filled(disk)
    before = log_bytes(store)
    offset = records_of(store)[keep].commit_log_offset
    assert store.truncate(offset, KEEP) == len(before) - offset
    assert store.end_offset == offset and store.flushed_offset <= offset
    assert log_bytes(store) == before[:offset]
    assert disk.read(KEEP / f"{offset:020d}") == before[offset:]
    check_sound(store)
    assert len(store.key_search("topic", "k", 100, 0, 2 * NOW).run().offsets) == keep
    put(store, "topic", 1, [b"behind the cut"], properties=[("KEYS", "fresh")])
    assert store.key_search("topic", "fresh", 100, 0, 2 * NOW).run().offsets == [offset]
    store.truncate(offset, None)
    if flushed:
        store.flush()
    disk = disk.kill()
    store = open_store(ROOT, disk)
    assert log_bytes(store) == before[:offset]
    put(store, "topic", 0, [b"new"])
    store = open_store(ROOT, disk.power_loss(random.Random(keep)))
    assert bodies(store)[:keep] == [b"%d " % number + b"x" * 500 for number in range(keep)]
    assert bodies(store)[keep:] in ([], [b"new"]), "nothing of what was cut is alive again"


def test_a_cut_of_everything_leaves_an_empty_log_that_may_begin_elsewhere_then():
    disk = MemoryFiles()
    store = filled(disk)
    frame = store.read_log(LOG_FILE, LOG_FILE)
    assert store.truncate(0, None) > 0
    assert (store.min_offset, store.end_offset) == (0, 0) and bodies(store) == []
    assert [store.queues.bounds("topic", queue) for queue in range(3)] == [(0, 0)] * 3
    store.start_over(LOG_FILE)
    store.append_replicated(LOG_FILE, frame)
    assert (store.min_offset, store.end_offset) == (LOG_FILE, 2 * LOG_FILE)
    check_sound(store)
    store.close()
    store = open_store(ROOT, disk)
    assert store.recovery.scanned_from is None
    check_sound(store)


def test_a_cut_at_the_end_or_behind_it_changes_nothing():
    store = filled(MemoryFiles())
    assert store.truncate(store.end_offset, KEEP) == 0 and store.truncate(store.end_offset + 9, KEEP) == 0


@pytest.mark.parametrize("call", range(1, 40))
def test_a_crash_during_the_cut_leaves_a_beginning_of_the_old_log(call):
    disk = MemoryFiles()
    store = filled(disk)
    old = log_bytes(store)
    offset = records_of(store)[4].commit_log_offset
    disk.stop_at = disk.calls + call
    try:
        store.truncate(offset, KEEP)
    except PowerCut:
        pass
    for after in (disk.power_loss(random.Random(call)), disk.kill()):
        store = open_store(ROOT, after)
        assert old.startswith(log_bytes(store)) and store.end_offset >= offset
        check_sound(store)


def test_tail_checksums_tell_logs_apart():
    one, other = open_store(ROOT, MemoryFiles()), open_store(ROOT, MemoryFiles())
    for store in (one, other):
        put(store, "topic", 0, [b"same"])
    end = one.end_offset
    assert one.tail_crc(1 << 16) == other.tail_crc(1 << 16) == one.tail_crc_at(end, 1 << 16)
    put(one, "topic", 0, [b"a"])
    put(other, "topic", 0, [b"b"])
    assert one.tail_crc(64) != other.tail_crc(64)
    assert one.tail_crc_at(end, 64) == other.tail_crc_at(end, 64)
    assert one.tail_crc(10)[0] == 10 and open_store(Path("/e"), MemoryFiles()).tail_crc(10) == (0, 0)
