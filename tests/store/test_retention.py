"""Retention deletes log files by age and by the disk's ratio, and queues and index follow."""

import os
import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_service.store.files import DiskUsage, Files
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from broker_service.store.retention import expired_files
from tests.support.memory_files import MemoryFiles
from tests.support.stores import LOG_FILE, NOW, check_sound, config, flush_thoroughly, open_store, put

ROOT = Path("/store")
HOUR = 3_600_000
FOUR = int(datetime(2026, 11, 20, 4, 30).timestamp() * 1000)
NOON = int(datetime(2026, 11, 20, 12, 0).timestamp() * 1000)


@pytest.mark.parametrize(
    ("ages_h", "now", "used", "deleted"),
    [
        ([100, 80, 70, 1], FOUR, 10, 2),  # the hour of deletion: files older than 72 hours go
        ([100, 80, 70, 1], NOON, 10, 0),
        ([100, 80, 70, 1], NOON, 76, 2),  # fuller than 75 %: at any hour
        ([100, 80, 70, 1], NOON, 86, 4),  # fuller than 85 %: even files younger than that go
        ([1, 100], FOUR, 80, 0),  # a file is never deleted while an older one stays
        ([100] * 30, FOUR, 10, 10),  # some at a time
        ([None, 100], FOUR, 10, 0),
        ([], FOUR, 99, 0),
    ],
)
def test_which_files_go(ages_h, now, used, deleted):
    timestamps = [None if age is None else now - age * HOUR for age in ages_h]
    assert expired_files(timestamps, now, used, config(ROOT, file_reserved_time_h=72)) == deleted


@pytest.mark.parametrize(
    ("used", "gone_at_master", "deleted"),
    [
        (10, 0, 0),
        (10, 1, 1),
        (10, 4, 2),  # by the slave's own clock only two files have expired
        (76, 1, 1),
        (86, 0, 4),  # by force
    ],
)
def test_a_slave_keeps_what_its_master_has(used, gone_at_master, deleted):
    timestamps = [FOUR - age * HOUR for age in [100, 80, 70, 1]]
    assert expired_files(timestamps, FOUR, used, config(ROOT, file_reserved_time_h=72), gone_at_master) == deleted


def test_a_slave_deletes_a_log_file_once_its_master_has_none_of_it():
    store = filled(MemoryFiles())
    begins_at = store.retention.expires_before(FOUR)
    assert begins_at == 2 * LOG_FILE
    assert store.retention.expires_before(FOUR, begins_at - 1) == LOG_FILE
    assert store.retention.delete_expired(FOUR, masters_min_offset=LOG_FILE - 1) == []
    store.retention.delete_expired(FOUR, masters_min_offset=2 * LOG_FILE)
    assert store.min_offset == 2 * LOG_FILE


@pytest.mark.parametrize(
    ("now", "looks"),
    [pytest.param(NOON, 0, id="not the hour"), pytest.param(FOUR, 3, id="two expired and the first that is not")],
)
def test_no_more_files_are_looked_into_than_needed(now, looks):
    ages_h = iter([100, 90, 10, 5, 1])
    expired_files((now - age * HOUR for age in ages_h), now, 50, config(ROOT, file_reserved_time_h=72))
    assert 5 - len(list(ages_h)) == looks


def filled(disk):
    store = open_store(ROOT, disk, file_reserved_time_h=72)
    put(store, "old", 0, [b"x"], now_ms=FOUR - 100 * HOUR)
    for number in range(60):
        put(store, "topic", number % 2, [b"x" * 300], now_ms=FOUR - (100 - number) * HOUR, properties=[("KEYS", "k")])
    store.tick(FOUR)
    store.flush()
    return store


def test_expired_files_go_and_everything_follows():
    disk = MemoryFiles()
    store = filled(disk)
    disk.usage = DiskUsage(100, 50)
    end = store.end_offset
    lines = store.retention.delete_expired(FOUR)
    assert store.min_offset > LOG_FILE and store.min_offset % LOG_FILE == 0 and store.end_offset == end
    assert any("commitlog/00000000000000000000" in line for line in lines)
    assert any("consumequeue/topic/0/00000000000000000000" in line for line in lines)
    assert any("/index/" in line for line in lines)
    assert store.queues.bounds("old", 0) == (1, 1)
    low, high = store.queues.bounds("topic", 0)
    assert 0 < low < high
    check_sound(store)
    oldest = store.queues.store_timestamp_of("topic", 0, low)
    assert oldest > FOUR - 82 * HOUR, "a file with one young message stays"
    assert len(store.key_search("topic", "k", 100, 0, FOUR).run().offsets) == sum(
        high - low for low, high in map(lambda queue: store.queues.bounds("topic", queue), (0, 1))
    )
    # The store opens again as it was, closed cleanly or not, and the queue offsets continue.
    bounds = {queue: store.queues.bounds(*queue) for queue in store.queues.keys()}
    store = open_store(ROOT, disk.kill(), file_reserved_time_h=72)
    check_sound(store)
    assert {queue: store.queues.bounds(*queue) for queue in bounds} == bounds
    put(store, "old", 0, [b"y"], now_ms=FOUR)
    assert store.queues.bounds("old", 0) == (1, 2)


def test_what_is_not_flushed_and_the_newest_file_stay_even_by_force():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 900] * 20)
    disk.usage = DiskUsage(100, 14)
    assert store.retention.delete_expired(NOW) == [] and store.min_offset == 0
    store.flush()
    store.retention.delete_expired(NOW)
    assert 0 < store.min_offset <= store.end_offset
    assert disk.names(ROOT / "commitlog") == [f"{store.min_offset:020d}"]
    check_sound(store)


def test_the_disk_is_as_full_as_df_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 blocks, 20 used, 30 kept for root: 20 of the 70 that ordinary users share.
    values = {"f_blocks": 100, "f_bfree": 80, "f_bavail": 50, "f_frsize": 4096}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**values))
    assert Files().disk_usage(tmp_path) == DiskUsage(total=70 * 4096, free=50 * 4096)


def idle_queue(disk: MemoryFiles) -> tuple[MessageStore, int]:
    """Makes a store with 20 messages in one queue, whose files and records have expired since the last
    thorough flush.
    """
    store = open_store(ROOT, disk, file_reserved_time_h=1)
    put(store, "idle", 0, [b"x" * 100] * 20)
    for number in range(40):
        put(store, "busy", 0, [b"%d" % number + b"y" * 900], now_ms=NOW + number)
    flush_thoroughly(store)
    disk.usage = DiskUsage(100, 20)
    store.retention.delete_expired(NOW + 7_200_000)
    assert store.queues.bounds("idle", 0) == (20, 20)
    assert len(disk.names(ROOT / "consumequeue/idle/0")) == 1, "trimmed to its last file"
    return store, 20


def forget_the_summary(disk: MemoryFiles) -> None:
    JsonFile(ROOT / "rocketsim/queues.json", disk).remove()


def lose_the_queue(disk: MemoryFiles) -> None:
    disk.remove_tree(ROOT / "consumequeue/idle")


def damage_the_queue(disk: MemoryFiles) -> None:
    forget_the_summary(disk)
    *_, name = disk.names(ROOT / "consumequeue/idle/0")
    disk.overwrite(ROOT / "consumequeue/idle/0" / name, 0, b"\xff" * 160)


@pytest.mark.parametrize(
    ("damage", "goes_on_at"),
    [(lambda disk: None, 20), (forget_the_summary, 20), (lose_the_queue, 20), (damage_the_queue, 24)],
)
@pytest.mark.parametrize("end", ["kill", "power"])
def test_the_offsets_of_an_idle_queue_go_on_after_its_messages_have_expired_and_the_broker_was_killed(
    damage: Callable[[MemoryFiles], None], goes_on_at: int, end: str
) -> None:
    """The queue's end offset is in the summary, and follows from the name of the queue's last file.  If the file is
    damaged and the summary is gone, the queue continues after the highest offset that the file may have had.
    """
    for seed in range(3):
        disk = MemoryFiles()
        idle_queue(disk)
        disk = disk.kill() if end == "kill" else disk.power_loss(random.Random(seed))
        damage(disk)
        store = open_store(ROOT, disk)
        assert store.queues.end("idle", 0) == goes_on_at
        appended = put(store, "idle", 0, [b"new"])
        assert appended.queues[0].first_queue_offset == goes_on_at
        store = open_store(ROOT, disk.kill())
        assert store.queues.bounds("idle", 0) == (goes_on_at, goes_on_at + 1)
        check_sound(store)


def test_a_queue_whose_first_file_is_lost_is_still_made_again_from_the_log() -> None:
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 100] * 20)
    flush_thoroughly(store)
    disk = disk.kill()
    disk.remove(ROOT / "consumequeue/topic/0" / f"{0:020d}")
    store = open_store(ROOT, disk)
    assert store.queues.bounds("topic", 0) == (0, 20) and store.recovery.rebuilt_queues
    check_sound(store)
