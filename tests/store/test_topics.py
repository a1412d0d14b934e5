"""Deleted topics: their queues go, their offsets go on."""

import shutil
from pathlib import Path

from tests.support.memory_files import MemoryFiles
from tests.support.stores import bodies, open_store, put, queue_bodies

ROOT = Path("/store")


def test_a_topic_made_again_continues_its_queue_offsets():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", [0, 0, 1], [b"a", b"b", b"c"])
    put(store, "stays", 0, [b"s"])
    assert store.delete_topic("topic") == {0: 2, 1: 1}
    assert store.queues() == [("stays", 0)] and store.queue_bounds("topic", 0) == (0, 0)
    put(store, "topic", [0, 1], [b"d", b"e"])
    assert store.queue_bounds("topic", 0) == (2, 3) and queue_bodies(store, "topic", 0) == [b"d"]
    for _ in range(2):
        store.delete_topic("topic")
        store = open_store(ROOT, disk := disk.kill())
    put(store, "topic", 0, [b"f"])
    assert store.queue_bounds("topic", 0) == (3, 4)
    store.close()
    store = open_store(ROOT, disk)
    assert store.recovery.scanned_from is None
    assert queue_bodies(store, "topic", 0) == [b"f"]


def test_the_old_records_stay_out_of_the_queues_when_these_are_made_again(tmp_path):
    store = open_store(tmp_path)
    put(store, "topic", 0, [b"a", b"b"])
    store.delete_topic("topic")
    put(store, "topic", 0, [b"c"])
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert queue_bodies(store, "topic", 0) == [b"c"] and bodies(store) == [b"a", b"b", b"c"]
    store.close()


def test_a_slave_takes_the_masters_offsets():
    store = open_store(ROOT, MemoryFiles())
    put(store, "topic", 0, [b"a"])
    assert store.delete_topic("topic", {0: 7, 3: 2}) == {0: 7, 3: 2}
    put(store, "topic", [0, 3], [b"b", b"c"])
    assert store.queue_bounds("topic", 0) == (7, 8) and store.queue_bounds("topic", 3) == (2, 3)
