"""The queues of deleted topics are deleted, and their offsets continue."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.memory_files import MemoryFiles
from tests.support.stores import NOW, bodies, delete_topic, open_store, put, queue_bodies

ROOT = Path("/store")


def test_a_topic_made_again_continues_its_queue_offsets():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", [0, 0, 1], [b"a", b"b", b"c"])
    put(store, "stays", 0, [b"s"])
    assert delete_topic(store, "topic") == {0: 2, 1: 1}
    assert store.queues.keys() == [("stays", 0)] and store.queues.bounds("topic", 0) == (2, 2)
    assert store.queues.end("topic", 0) == store.queues.end_at("topic", 0, 0) == 2
    assert store.queues.search_offset_by_time("topic", 0, NOW) == 2 and store.queues.log_offsets("topic", 0, 0) == []
    assert store.queues.entry("topic", 0, 1) is None and store.queues.first_offset_ever("topic", 0) == 2
    put(store, "topic", [0, 1], [b"d", b"e"])
    assert store.queues.bounds("topic", 0) == (2, 3) and queue_bodies(store, "topic", 0) == [b"d"]
    for _ in range(2):
        delete_topic(store, "topic")
        store = open_store(ROOT, disk := disk.kill())
    put(store, "topic", 0, [b"f"])
    assert store.queues.bounds("topic", 0) == (3, 4)
    store.close()
    store = open_store(ROOT, disk)
    assert store.recovery.scanned_from is None
    assert queue_bodies(store, "topic", 0) == [b"f"]


def test_the_old_records_stay_out_of_the_queues_when_these_are_made_again(tmp_path):
    store = open_store(tmp_path)
    put(store, "topic", 0, [b"a", b"b"])
    delete_topic(store, "topic")
    put(store, "topic", 0, [b"c"])
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert queue_bodies(store, "topic", 0) == [b"c"] and bodies(store) == [b"a", b"b", b"c"]
    store.close()


def test_a_slave_takes_the_masters_offsets():
    store = open_store(ROOT, MemoryFiles())
    put(store, "topic", 0, [b"a"])
    assert store.forget_before({"topic": {0: 7, 3: 2}}) == [("topic", 0)]
    put(store, "topic", [0, 3], [b"b", b"c"])
    assert store.queues.bounds("topic", 0) == (7, 8) and store.queues.bounds("topic", 3) == (2, 3)


@pytest.mark.parametrize("floor", [1, 2, 3, 7])
def test_a_slave_that_was_away_forgets_what_the_queues_of_a_topic_made_again_had_before(floor):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", [0, 0, 0, 1], [b"a", b"b", b"c", b"d"])
    assert store.forget_before({"topic": {0: floor, 1: 0}}) == [("topic", 0)]
    kept = [b"a", b"b", b"c"][floor:]
    assert queue_bodies(store, "topic", 0) == kept and queue_bodies(store, "topic", 1) == [b"d"]
    assert store.forget_before({"topic": {0: floor, 1: 0}}) == []
    for _ in range(2):  # from the store's files, and then from the log after a kill
        store = open_store(ROOT, disk := disk.kill())
        assert queue_bodies(store, "topic", 0) == kept and queue_bodies(store, "topic", 1) == [b"d"]
    put(store, "topic", 0, [b"e"])
    assert queue_bodies(store, "topic", 0) == [*kept, b"e"]
    assert store.queues.bounds("topic", 0) == (floor, max(floor, 3) + 1)
    store.close()
    store = open_store(ROOT, disk)
    assert store.recovery.scanned_from is None and queue_bodies(store, "topic", 0) == [*kept, b"e"]


def test_a_kill_before_the_old_entries_went_leaves_them_to_the_next_time(monkeypatch):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a", b"b"])
    with monkeypatch.context() as killed:
        killed.setattr("broker_service.store.queue_table.QueueTable.drop", lambda self, key: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.forget_before({"topic": {0: 1}})
    store = open_store(ROOT, disk.kill())
    store.forget_before({"topic": {0: 1}})
    assert queue_bodies(store, "topic", 0) == [b"b"]


def test_where_a_topic_went_on_is_forgotten_when_nothing_from_before_is_left():
    disk = MemoryFiles()
    store = open_store(ROOT, disk, file_reserved_time_h=1, delete_hours=frozenset(range(24)))
    put(store, "again", 0, [b"a", b"b"])
    put(store, "gone", 0, [b"c"])
    delete_topic(store, "again")
    delete_topic(store, "gone")
    put(store, "again", 0, [b"d"])
    later = NOW + 10 * 3_600_000
    for _ in range(2):
        put(store, "again", 0, [b"x" * 500] * 20, now_ms=later)
        later += 10 * 3_600_000
    store.flush()
    assert store.retention.delete_expired(later) and store.min_offset > 0
    floors = json.loads(store.disk.read(ROOT / "rocketsim/queue_offsets.json"))["deletedTopics"]
    assert floors == {"gone": {"0": 1}}, "a topic that may still be made again goes on there"
    store.close()
    store = open_store(ROOT, disk)
    put(store, "gone", 0, [b"e"])
    assert store.queues.bounds("gone", 0) == (1, 2)
    low, high = store.queues.bounds("again", 0)
    assert 2 < low < high == 43
