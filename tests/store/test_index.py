"""The index: RocketMQ's bytes, made in batches, agreeing with one entry at a time."""

import errno
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rocketsim_proto.record import tags_code

from broker_service.store.files import Files
from broker_service.store.index_file import HEADER, IndexFile
from broker_service.store.open_files import OpenFiles
from tests.support.memory_files import MemoryFiles
from tests.support.stores import NOW, open_store, put, records_of

ROOT = Path("/store")
SLOTS, ENTRIES = 7, 50


def one_by_one(entries: list[tuple[int, int, int]]) -> bytes:
    """An index file as RocketMQ's putKey makes it: (hash, log offset, store time)."""
    data = bytearray(40 + SLOTS * 4 + ENTRIES * 20)
    count, used, first = 1, 0, None
    for code, offset, timestamp in entries:
        first = first if first is not None else (timestamp, offset)
        slot = 40 + code % SLOTS * 4
        previous = int.from_bytes(data[slot : slot + 4], "big")
        seconds = max(0, (timestamp - first[0]) // 1000)
        at = 40 + SLOTS * 4 + count * 20
        data[at : at + 20] = b"".join(
            value.to_bytes(size, "big") for value, size in ((code, 4), (offset, 8), (seconds, 4), (previous, 4))
        )
        data[slot : slot + 4] = count.to_bytes(4, "big")
        used += previous == 0
        count += 1
        data[:40] = HEADER.pack(first[0], timestamp, first[1], offset, used, count)
    return bytes(data)


entry = st.tuples(st.integers(0, 30), st.integers(0, 5000))


@settings(max_examples=60)
@given(st.lists(st.lists(entry, min_size=1, max_size=12), min_size=1, max_size=4))
def test_batches_make_the_bytes_that_one_by_one_makes(batches):
    files = MemoryFiles()
    files.make_directory(ROOT)
    file = IndexFile(files, OpenFiles(files), ROOT / "20261120", SLOTS, ENTRIES)
    file.create()
    plain, offset = [], 0
    for batch in batches:
        rows = [(code, offset + 100 * number, NOW + offset + ms) for number, (code, ms) in enumerate(batch)]
        offset += 100 * len(batch)
        file.put(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
        plain += rows
    file.write_slots()
    assert files.read(file.path) == one_by_one(plain)
    for code in range(31):
        assert [hit for hit, _ in file.find(code)] == [row[1] for row in reversed(plain) if row[0] == code]
    # Made again from its entries, as after a crash.
    files.poke(file.path, 40, b"\xff" * SLOTS * 4)
    again = IndexFile(files, OpenFiles(files), file.path, SLOTS, ENTRIES)
    assert again.load() is None and again.repair() is None
    assert files.read(file.path) == one_by_one(plain)
    # Cut back, as if the rest had never been.
    keep = [row for row in plain if row[1] < offset // 2]
    if keep:
        again.truncate(offset // 2, keep[-1][2])
        assert files.read(file.path) == one_by_one(keep)


def store_with_keys(files: Files | None = None):
    store = open_store(ROOT, files or MemoryFiles())
    put(store, "topic", 0, [b"0"], properties=[("UNIQ_KEY", "U0"), ("KEYS", "k0 all"), ("TAGS", "T")])
    put(store, "topic", 0, [b"1"], properties=[("KEYS", "k1  all "), ("UNIQ_KEY", "U1")], now_ms=NOW + 5000)
    put(store, "other", 0, [b"2"], properties=[("KEYS", "all")], now_ms=NOW + 9000)
    put(store, "topic", 0, [b"3"], properties=[("KEYS", "gone")], sys_flags=12)
    return store


def test_records_are_found_by_their_id_and_by_each_key_newest_first():
    store = store_with_keys()
    offsets = [one.commit_log_offset for one in records_of(store)]

    def query(topic, key, count=10, begin=0, end=2 * NOW):
        return store.query_index(topic, key, count, begin, end)

    assert query("topic", "U0") == [offsets[0]]
    assert query("topic", "k1") == [offsets[1]]
    assert query("topic", "all") == [offsets[1], offsets[0]]
    assert query("topic", "all", count=1) == [offsets[1]]
    assert query("topic", "all", end=NOW + 4999) == [offsets[0]]
    assert query("topic", "all", begin=NOW + 1) == [offsets[1]]
    assert query("other", "all") == [offsets[2]]
    assert query("topic", "gone") == [], "rolled back"
    assert query("topic", "T") == [], "tags are no keys"


def test_a_key_with_the_same_hash_is_not_taken_for_another():
    store = open_store(ROOT, MemoryFiles())
    assert tags_code("topic#Aa") == tags_code("topic#BB")
    put(store, "topic", 0, [b"Aa"], properties=[("KEYS", "Aa")])
    put(store, "topic", 0, [b"BB"], properties=[("KEYS", "BB")])
    assert store.query_index("topic", "Aa", 10, 0, 2 * NOW) == [0]


def test_it_is_built_behind_the_appends_and_goes_on_after_any_stop():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    for number in range(30):
        put(store, "topic", 0, [b"x" * 200], properties=[("KEYS", f"k{number} a b c")])
        if number % 7 == 0:
            store.tick(NOW + number)
        if number % 10 == 5:
            store = open_store(ROOT, disk := disk.kill())
    assert store.index_behind > 0
    offsets = [one.commit_log_offset for one in records_of(store)]
    assert store.query_index("topic", "a", 100, 0, 2 * NOW) == offsets[::-1]
    assert store.index_behind == 0
    for number, offset in enumerate(offsets):
        assert store.query_index("topic", f"k{number}", 100, 0, 2 * NOW) == [offset]
    names = disk.names(ROOT / "index")
    assert len(names) > 3 and all(len(name) == 17 for name in names)


def test_batches_that_are_indexed_together_make_what_each_by_itself_makes():
    indexes = []
    for tick_each in (True, False):
        store = open_store(ROOT, disk := MemoryFiles(), mapped_file_size_commit_log=100_000)
        for number in range(40):  # over the ends of log files; a batch of 80 is not just a few
            keys = [("UNIQ_KEY", f"U{number}"), ("KEYS", f"k{number} all"), ("TAGS", "T")]
            put(store, "topic", 0, [b"x" * 200] * (1, 80, 2, 3, 90)[number % 5], properties=keys[number % 2 :])
            if tick_each:
                store.tick(NOW)
        store.tick(NOW)
        assert store.index_behind == 0
        store.close()
        indexes.append([disk.read(ROOT / "index" / name) for name in disk.names(ROOT / "index")])
    assert len(indexes[0]) > 2 and indexes[0] == indexes[1]


def test_a_disk_that_fails_the_index_does_not_hold_up_appends():
    disk = MemoryFiles()
    store = store_with_keys(disk)
    disk.fail("pwrite", errno.ENOSPC, for_good=True, matching="index/")
    store.tick(NOW)
    put(store, "topic", 0, [b"4"], properties=[("KEYS", "late")])
    store.tick(NOW)
    assert store.query_index("topic", "late", 10, 0, 2 * NOW) == []
    disk.heal()
    assert len(store.query_index("topic", "late", 10, 0, 2 * NOW)) == 1
    assert len(store.query_index("topic", "all", 10, 0, 2 * NOW)) == 2


def test_it_can_be_switched_off():
    disk = MemoryFiles()
    store = open_store(ROOT, disk, message_index_enable=False)
    put(store, "topic", 0, [b"x"], properties=[("KEYS", "k")])
    store.tick(NOW)
    assert store.query_index("topic", "k", 10, 0, 2 * NOW) == [] and not disk.names(ROOT / "index")
    store.close()
