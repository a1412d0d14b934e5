"""The index is written in batches, and has the bytes that RocketMQ would write one entry at a time."""

import errno
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rocketsim_proto.records.record import tags_code

from broker_service.store import index_file, key_search
from broker_service.store.files import Files
from broker_service.store.index_file import CLOCK_MARGIN_MS, ENTRY_SIZE, HEADER, IndexFile, Search
from broker_service.store.open_files import OpenFiles
from tests.support.memory_files import MemoryFiles
from tests.support.stores import LOG_FILE, MINUTE, NOW, flush_thoroughly, open_store, put, records_of

ROOT = Path("/store")
SLOTS, ENTRIES = 7, 50


def one_by_one(entries: list[tuple[int, int, int]]) -> bytes:
    """Makes the bytes of an index file as RocketMQ's putKey does, from (hash, log offset, store time)."""
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


def everything() -> Search:
    return Search(2**63 - 1, 2 * NOW, 10**9)


entry = st.tuples(st.integers(0, 30), st.integers(0, 5000))


@settings(max_examples=60)
@given(st.lists(st.lists(entry, min_size=1, max_size=12), min_size=1, max_size=4))
def test_batches_make_the_bytes_that_one_by_one_makes(batches):
    files = MemoryFiles()
    files.make_directory(ROOT)
    file = IndexFile(files, OpenFiles(files), ROOT / "20261120", SLOTS, ENTRIES)
    file.create()
    plain, offset = [], 100  # with offset 0 a hash of 0 means that a power loss has taken the entry
    for batch in batches:
        rows = [(code, offset + 100 * number, NOW + offset + ms) for number, (code, ms) in enumerate(batch)]
        offset += 100 * len(batch)
        file.put(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
        plain += rows
    file.write_slots()
    assert files.read(file.path) == one_by_one(plain)
    for code in range(31):
        assert [hit for hit, *_ in file.find(code, everything())] == [
            row[1] for row in reversed(plain) if row[0] == code
        ]
    # The file is rebuilt from its entries, as after a crash.
    files.overwrite(file.path, 40, b"\xff" * SLOTS * 4)
    again = IndexFile(files, OpenFiles(files), file.path, SLOTS, ENTRIES)
    assert again.load() is None and again.repair(0) is None
    assert files.read(file.path) == one_by_one(plain)
    # The file is cut back, as if the later entries had never been there.
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
        return store.key_search(topic, key, count, begin, end).run().offsets

    assert query("topic", "U0") == [offsets[0]]
    assert query("topic", "k1") == [offsets[1]]
    assert query("topic", "all") == [offsets[1], offsets[0]]
    assert query("topic", "all", count=1) == [offsets[1]]
    assert query("topic", "all", end=NOW + 4999) == [offsets[0]]
    assert query("topic", "all", begin=NOW + 1) == [offsets[1]]
    assert query("other", "all") == [offsets[2]]
    assert query("topic", "gone") == [], "rolled back"
    assert query("topic", "T") == [], "tags are no keys"


def test_a_search_before_an_offset_does_not_wait_for_what_lies_behind_it():
    store = open_store(ROOT, MemoryFiles())
    put(store, "topic", 0, [b"0"], properties=[("KEYS", "k")])
    end = store.end_offset
    assert store.key_search("topic", "k", 1, 0, 2 * NOW, end).run().offsets == [0]
    assert store.index.behind == 0
    put(store, "topic", 0, [b"1"], properties=[("KEYS", "k")])
    assert store.key_search("topic", "k", 1, 0, 2 * NOW, end).run().offsets == [0]
    assert store.index.behind == store.end_offset - end
    assert store.key_search("topic", "k", 1, 0, 2 * NOW).run().offsets == [end]


def test_a_key_with_the_same_hash_is_not_taken_for_another():
    store = open_store(ROOT, MemoryFiles())
    assert tags_code("topic#Aa") == tags_code("topic#BB")
    put(store, "topic", 0, [b"Aa"], properties=[("KEYS", "Aa")])
    put(store, "topic", 0, [b"BB"], properties=[("KEYS", "BB")])
    assert store.key_search("topic", "Aa", 10, 0, 2 * NOW).run().offsets == [0]


def test_the_index_is_built_behind_the_appends_and_goes_on_after_any_stop():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    for number in range(30):
        put(store, "topic", 0, [b"x" * 200], properties=[("KEYS", f"k{number} a b c")])
        if number % 7 == 0:
            store.tick(NOW + number)
        if number % 10 == 5:
            store = open_store(ROOT, disk := disk.kill())
    assert store.index.behind > 0
    offsets = [one.commit_log_offset for one in records_of(store)]
    assert store.key_search("topic", "a", 100, 0, 2 * NOW).run().offsets == offsets[::-1]
    assert store.index.behind == 0
    for number, offset in enumerate(offsets):
        assert store.key_search("topic", f"k{number}", 100, 0, 2 * NOW).run().offsets == [offset]
    names = disk.names(ROOT / "index")
    assert len(names) > 3 and all(len(name) == 17 for name in names)


def test_batches_that_are_indexed_together_make_what_each_by_itself_makes():
    indexes = []
    for tick_each in (True, False):
        store = open_store(ROOT, disk := MemoryFiles(), mapped_file_size_commit_log=100_000)
        for number in range(40):  # the batches cross the ends of log files; some have few records, and some have many
            keys = [("UNIQ_KEY", f"U{number}"), ("KEYS", f"k{number} all"), ("TAGS", "T")]
            put(store, "topic", 0, [b"x" * 200] * (1, 80, 2, 3, 90)[number % 5], properties=keys[number % 2 :])
            if tick_each:
                store.tick(NOW)
        store.tick(NOW)
        assert store.index.behind == 0
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
    assert store.key_search("topic", "late", 10, 0, 2 * NOW).run().offsets == []
    disk.heal()
    assert len(store.key_search("topic", "late", 10, 0, 2 * NOW).run().offsets) == 1
    assert len(store.key_search("topic", "all", 10, 0, 2 * NOW).run().offsets) == 2


class CountingFiles(MemoryFiles):
    reads = bytes_read = 0

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self.reads += 1
        self.bytes_read += size
        return super().pread(handle, size, offset)


def file_of_one_key(count: int, *, other_code: int = 5) -> tuple[CountingFiles, IndexFile]:
    """Makes an index file of `count` entries with hash 4, each a second and 100 bytes of log after the previous one;
    every 10,000th entry has another hash.
    """
    files = CountingFiles()
    files.make_directory(ROOT)
    file = IndexFile(files, OpenFiles(files), ROOT / "20261120", SLOTS, 2 * count)
    file.create()
    hashes = np.full(count, 4)
    hashes[::10_000] = other_code
    file.put(hashes, np.arange(count) * 100, NOW + np.arange(count) * 1000)
    files.reads = files.bytes_read = 0
    return files, file


def test_the_newest_of_a_million_messages_with_one_key_are_a_few_steps_away():
    files, file = file_of_one_key(10**6)
    search = Search(2**63 - 1, 2**62, 4096)
    found = [offset for offset, *_ in file.find(4, search)]
    assert found == [number * 100 for number in range(10**6 - 1, 0, -1) if number % 10_000][: len(found)]
    assert len(found) == files.reads == 4096
    assert search.budget == 0 and search.before == found[-1]


def test_a_time_long_ago_is_found_without_walking_to_it():
    files, file = file_of_one_key(10**6)
    long_ago = NOW + 2_000_000
    search = Search(2**63 - 1, long_ago, 4096)
    found = [(offset, earliest) for offset, earliest, _ in file.find(4, search) if earliest <= long_ago]
    assert found[:2000] == [(100 * number, NOW + 1000 * number) for number in range(2000, 0, -1)]
    assert files.reads < 6000


def test_a_search_goes_on_where_it_stopped_whatever_lies_between():
    """One key has many newer messages in its chain, and one hash is rare: each search reads a bounded number of
    entries, and repeated searches find all.
    """
    files, file = file_of_one_key(10**6)
    found, before, questions = [], 2**63 - 1, 0
    while True:
        search = Search(before, NOW + 10**9, 4096)
        files.reads = files.bytes_read = 0
        found += [offset for offset, *_ in file.find(5, search)]
        assert files.reads < 6000 and files.bytes_read < 64 << 20
        questions += 1
        if search.budget > 0:
            break
        assert search.before < before
        before = search.before
    assert found == [number * 100 for number in range(10**6 - 10_000, -1, -10_000)]


@settings(max_examples=60)
@given(
    st.lists(entry, min_size=1, max_size=45),
    st.integers(0, 30),
    st.integers(1, 30),
    st.sampled_from([2 * NOW, NOW + 1000]),
)
def test_in_small_steps_everything_is_found_once(entries, code, budget, until):
    files = MemoryFiles()
    files.make_directory(ROOT)
    file = IndexFile(files, OpenFiles(files), ROOT / "20261120", SLOTS, ENTRIES)
    file.create()
    rows = [(code, 100 * (number // 3), NOW + ms) for number, (code, ms) in enumerate(entries)]
    file.put(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
    found, before = [], 2**63 - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "STEPS_BEFORE_SCAN", 2)
        patch.setattr(index_file, "SCAN", 5)
        patch.setattr(index_file, "SCAN_COST", 1)
        patch.setattr(index_file, "CLOCK_MARGIN_MS", 5000)
        while True:
            search = Search(before, until, budget + 12)
            found += [offset for offset, *_ in file.find(code, search)]
            if search.budget > 0:
                break
            assert search.before < before
            before = search.before
    expected = [row[1] for row in reversed(rows) if row[0] == code and row[2] <= until]
    assert list(dict.fromkeys(found)) == sorted(set(found), reverse=True)
    assert set(expected) <= set(found)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8000), st.integers(0, CLOCK_MARGIN_MS)), max_size=60),
    st.tuples(st.floats(-0.1, 1.1), st.floats(-0.1, 1.1)).map(sorted),
)
@example(
    [("a", 0, 0)] * 19 + [("a", 1, 0), ("a", 0, 1)], [0.0, 0.0]
)  # the last message is older than the first one in its index file
def test_a_search_finds_all_of_a_time_although_store_times_fall_within_the_margin(messages, between):
    """In logs of earlier versions, and of RocketMQ, a message can be older than the one before it, by no more than the
    margin.
    """
    store, stored, at_ms = open_store(ROOT, MemoryFiles()), [], NOW
    for key, passed_ms, behind_ms in messages:
        at_ms += passed_ms
        put(store, "topic", 0, [b"x"], properties=[("KEYS", key)], now_ms=at_ms - behind_ms)
        stored.append((key, at_ms - behind_ms))
    begin, end = (NOW + int(part * (at_ms - NOW)) for part in between)
    offsets = [one.commit_log_offset for one in records_of(store)]
    for key in "ab":
        expected = [
            offset
            for offset, (keys, time_ms) in zip(offsets, stored, strict=True)
            if keys == key and begin <= time_ms <= end
        ]
        assert store.key_search("topic", key, 64, begin, end).run() == (expected[::-1], None)


def test_a_question_says_where_to_go_on(monkeypatch):
    store = open_store(ROOT, MemoryFiles())
    for number in range(300):
        put(store, "topic", 0, [b"x"], properties=[("KEYS", "k"), ("UNIQ_KEY", f"U{number}")], now_ms=NOW + number)
    offsets = [one.commit_log_offset for one in records_of(store)][::-1]
    assert store.key_search("topic", "k", 64, 0, 2 * NOW).run() == (offsets[:64], offsets[63])
    # All of these entries are in the first second of their index files, so each entry is read to know its time.
    monkeypatch.setattr(key_search, "BUDGET", 8 * 2048)
    assert store.key_search("topic", "k", 150, 0, NOW + 149).run() == (offsets[150:], None)
    monkeypatch.setattr(key_search, "BUDGET", 500)
    monkeypatch.setattr(index_file, "STEPS_BEFORE_SCAN", 100)
    found, before, questions = [], None, 0
    while before is not None or not questions:
        here, before = store.key_search("topic", "k", 64, 0, 2 * NOW, before).run()
        assert len(here) < 64, "the budget ends first"
        found += here
        questions += 1
    assert found == offsets and questions > 4


def test_files_of_another_time_are_passed_over():
    disk = CountingFiles()
    store = open_store(ROOT, disk, mapped_file_size_commit_log=100_000)
    for day in range(5):
        put(store, "topic", 0, [b"x"] * 70, properties=[("KEYS", "k")], now_ms=NOW + 2 * day * CLOCK_MARGIN_MS)
        store.tick(NOW)
    assert len(disk.names(ROOT / "index")) > 5
    first_day = [one.commit_log_offset for one in records_of(store)][:70]
    disk.reads = 0
    assert store.key_search("topic", "k", 100, 0, NOW + 1).run().offsets == first_day[::-1]
    reads_of_records = 2 * 70
    assert disk.reads < reads_of_records + 200


def test_the_index_can_be_switched_off():
    disk = MemoryFiles()
    store = open_store(ROOT, disk, message_index_enable=False)
    put(store, "topic", 0, [b"x"], properties=[("KEYS", "k")])
    store.tick(NOW)
    assert store.key_search("topic", "k", 10, 0, 2 * NOW).run().offsets == [] and not disk.names(ROOT / "index")
    store.close()


def test_an_index_file_that_was_made_again_does_not_count_as_synced():
    """A crash soon after a file was made again leaves an unsynced file, and the next start checks that file."""
    for seed in range(20):
        disk = MemoryFiles()
        store = open_store(ROOT, disk)
        for number in range(5):
            put(store, "topic", 0, [b"body"], properties=[("KEYS", f"k{number}")])
        flush_thoroughly(store)
        disk = disk.kill()
        for name in disk.names(ROOT / "index"):
            disk.remove(ROOT / "index" / name)
        store = open_store(ROOT, disk)
        store.tick(NOW)
        disk.sync_directory(ROOT / "index")
        store = open_store(ROOT, disk.power_loss(random.Random(seed)))
        store.tick(NOW)
        for number, one in enumerate(records_of(store)):
            found = store.key_search("topic", f"k{number}", 10, 0, 2 * NOW).run().offsets
            assert found == [one.commit_log_offset], f"seed {seed}"


def test_a_new_index_file_is_there_after_a_thorough_flush():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"body"], properties=[("KEYS", "key")])
    flush_thoroughly(store)
    (name,) = disk.names(ROOT / "index")
    for seed in range(20):
        assert disk.power_loss(random.Random(seed)).names(ROOT / "index") == [name], f"seed {seed}"


def all_are_found(store) -> bool:
    store.tick(NOW)
    found = {key: [] for key in "abc"}
    for one in records_of(store):
        for key in one.properties["KEYS"].split(" "):
            found[key].insert(0, one.commit_log_offset)
    return all(store.key_search("topic", key, 10_000, 0, 2 * NOW).run().offsets == found[key] for key in found)


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_every_key_is_found_after_any_power_losses(first):
    """A power loss can leave any part of the unsynced data: a file without the end of the one before it, slots without
    their entries, or a deleted file.
    """
    for seed in range(first, first + 20):
        chance, disk, now_ms = random.Random(seed), MemoryFiles(), NOW
        store = open_store(ROOT, disk)
        for _ in range(6):
            for _ in range(chance.randrange(4)):
                for _ in range(chance.randrange(10)):
                    put(store, "topic", 0, [b"body"], properties=[("KEYS", chance.choice(["a", "b c", "a c"]))])
                now_ms += chance.choice([0, 0, MINUTE])
                store.tick(now_ms)
                store.flush()
            store.flush()
            store = open_store(ROOT, disk := disk.power_loss(chance), now_ms)
            if chance.random() < 0.5:
                assert all_are_found(store), f"seed {seed}"
        assert all_are_found(store), f"seed {seed}"


def test_every_index_file_is_looked_at_after_a_power_loss_before_the_first_thorough_flush():
    """Of the three index files written before the power loss, the oldest has its header on disk, but not
    its entries.
    """
    disk, directory = MemoryFiles(), ROOT / "index"
    store = open_store(ROOT, disk)
    while len(names := disk.names(directory)) < 3:
        put(store, "topic", 0, [b"body"], properties=[("KEYS", "a c")])
        store.tick(NOW)
    store.flush()
    disk = disk.kill()
    oldest = directory / names[0]
    entries = (store.config.max_index_num - 1) * ENTRY_SIZE
    disk.overwrite(oldest, len(disk.read(oldest)) - entries, bytes(entries))
    assert all_are_found(open_store(ROOT, disk))


def test_a_first_entry_that_a_power_loss_has_taken_is_made_again():
    """The first entry belongs to the record at log offset 0, so zeros look like a valid entry of that record."""
    disk, directory = MemoryFiles(), ROOT / "index"
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"body"], properties=[("KEYS", "a")])
    store.tick(NOW)
    store.flush()
    disk = disk.kill()
    (name,) = disk.names(directory)
    entries = (store.config.max_index_num - 1) * ENTRY_SIZE
    disk.overwrite(directory / name, len(disk.read(directory / name)) - entries, bytes(entries))
    assert all_are_found(open_store(ROOT, disk))


def test_a_deleted_index_file_that_a_power_loss_brings_back_counts_for_nothing():
    disk, directory = MemoryFiles(), ROOT / "index"
    store = open_store(ROOT, disk)
    for _ in range(30):
        put(store, "topic", 0, [b"body"], properties=[("KEYS", "a b c")])
    store.tick(NOW)
    deleted = {name: disk.read(directory / name) for name in disk.names(directory)[-1:]}
    disk = disk.kill()
    for name in disk.names(directory):
        disk.remove(directory / name)
    open_store(ROOT, disk).tick(NOW + 1000)  # makes others instead
    disk = disk.kill()
    for name in disk.names(directory):
        disk.remove(directory / name)
    for name, data in deleted.items():
        disk.write_atomically(directory / name, data)
    assert all_are_found(open_store(ROOT, disk))


def test_what_a_log_that_starts_over_gets_is_found_before_its_former_beginning_too():
    source = open_store(ROOT, MemoryFiles())
    put(source, "topic", 0, [b"body"] * 3, properties=[("KEYS", "a c")])
    store = open_store(ROOT, MemoryFiles())
    put(store, "topic", 0, [b"body"], properties=[("KEYS", "b")])
    store.start_over(LOG_FILE)
    store.tick(NOW)
    store.start_over(0)
    store.append_replicated(0, source.read_log(0, source.end_offset))
    assert len(records_of(store)) == 3 and all_are_found(store)
