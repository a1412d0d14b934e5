"""Reads of a queue: pulls as in RocketMQ 4.9.8 (tables D2b and D3), and our own reads of ranges."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocketsim_proto.model import GetMessageStatus as Status
from rocketsim_proto.records import kernels
from rocketsim_proto.records.record import Record, tags_code

from broker_service.errors import NotFound, StoreCorrupt
from broker_service.store.ranges import outside
from tests.support.memory_files import MemoryFiles
from tests.support.record_codec import needs_compiled_codec
from tests.support.stores import LOG_FILE, NOW, open_store, put, queue_bodies, read_range, records_of, replay_frame

ROOT = Path("/store")
MIB = 1 << 20


@pytest.fixture
def store():
    """Queue 0 has offsets 0 to 9; all of the log counts as being in memory."""
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_consume_queue=6000)
    put(store, "topic", 0, [b"%d" % number for number in range(10)])
    return store


def get(store, offset, queue_id=0, *, count=32, size=MIB, codes=None, correct=True, topic="topic"):
    return store.queues.get_message(topic, queue_id, offset, count, size, codes, correct)


@pytest.fixture
def trimmed():
    """The first log file is deleted, so queue 0 starts at `min`, and queue 1 has lost all of its messages."""
    store = two_queues()
    store.flush()
    assert store.retention.delete_expired(NOW + 10 * 3_600_000, needed_from=LOG_FILE)
    assert store.min_offset == LOG_FILE
    return store


def two_queues():
    changes = {"file_reserved_time_h": 1, "delete_hours": frozenset(range(24))}
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_consume_queue=6000, **changes)
    put(store, "topic", 1, [b"old"])
    put(store, "topic", 0, [b"x" * 300] * 30)
    return store


# Table D3: status, and the next offset with and without correction
def test_offsets_inside_the_queue_are_found(store):
    result = get(store, 3)
    assert (result.status, result.next_begin_offset, result.count) == (Status.FOUND, 10, 7)
    assert (result.min_offset, result.max_offset) == (0, 10)
    assert [one.body for one in replay_frame(result.records)] == [b"%d" % number for number in range(3, 10)]
    assert sum(memoryview(result.sizes).cast("I")) == len(result.records)


@pytest.mark.parametrize(
    ("offset", "queue_id", "status", "corrected"),
    [
        (10, 0, Status.OFFSET_OVERFLOW_ONE, 10),
        (11, 0, Status.OFFSET_OVERFLOW_BADLY, 10),
        (2**62, 0, Status.OFFSET_OVERFLOW_BADLY, 10),
        (-1, 0, Status.OFFSET_TOO_SMALL, 0),
        (0, 7, Status.NO_MATCHED_LOGIC_QUEUE, 0),
        (5, 7, Status.NO_MATCHED_LOGIC_QUEUE, 0),
    ],
)
def test_offsets_outside_are_corrected_only_if_the_role_allows(store, offset, queue_id, status, corrected):
    assert (get(store, offset, queue_id).status, get(store, offset, queue_id).next_begin_offset) == (status, corrected)
    on_slave = get(store, offset, queue_id, correct=False)
    assert (on_slave.status, on_slave.next_begin_offset) == (status, offset)
    assert not on_slave.suggest_pull_from_slave
    ranged, _ = read_range(store, "topic", queue_id, offset, offset + 5, MIB)
    assert (ranged.status, ranged.next_offset, ranged.count) == (status, corrected, 0)


def test_an_offset_below_the_minimum_is_too_small(trimmed):
    low, high = trimmed.queues.bounds("topic", 0)
    assert 0 < low < high
    result = get(trimmed, low - 1)
    assert (result.status, result.next_begin_offset, result.min_offset) == (Status.OFFSET_TOO_SMALL, low, low)
    assert get(trimmed, low).status is Status.FOUND


def test_a_queue_whose_messages_are_all_gone_is_at_its_end(trimmed):
    assert trimmed.queues.bounds("topic", 1) == (1, 1)
    assert get(trimmed, 1, 1).status is Status.OFFSET_OVERFLOW_ONE
    assert get(trimmed, 0, 1).status is Status.OFFSET_TOO_SMALL


def test_an_empty_queue_has_no_message():
    assert outside(True, 3, 0, 0) == (Status.NO_MESSAGE_IN_QUEUE, 0)


def test_entries_of_a_deleted_log_file_are_being_removed():
    store = two_queues()
    behind_three = store.queues.log_offsets("topic", 0, 3)[0]
    store.log.delete_before(LOG_FILE)  # the queues still have entries of the deleted file
    result = get(store, 0, count=32)
    assert result.status is Status.FOUND, "the scan goes on behind the file that is gone"
    low = result.next_begin_offset - result.count
    store.queues.confirm_offset = behind_three  # readers see three messages
    few = get(store, 0)
    assert (few.records, few.next_begin_offset, few.status) == (b"", 3, Status.MESSAGE_WAS_REMOVING)
    ranged, _ = read_range(store, "topic", 0, 0, 3, MIB)
    assert (ranged.status, ranged.next_offset) == (Status.MESSAGE_WAS_REMOVING, 3)
    assert low > 3


def test_filtered_messages_are_passed_over_and_counted():
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_consume_queue=6000)
    for number in range(20):
        put(store, "topic", 0, [b"%d" % number], properties=[("TAGS", "AB"[number % 2])])
    b = frozenset([tags_code("B")])
    result = get(store, 0, count=3, codes=b)
    assert (result.status, result.count, result.next_begin_offset) == (Status.FOUND, 3, 6)
    nothing = get(store, 4, codes=frozenset([tags_code("C")]))
    assert (nothing.status, nothing.next_begin_offset, nothing.records) == (Status.NO_MATCHED_MESSAGE, 20, b"")
    ranged, _ = read_range(store, "topic", 0, 0, 19, MIB, b)
    assert (ranged.count, ranged.next_offset) == (9, 19)
    none, _ = read_range(store, "topic", 0, 0, 9, MIB, frozenset([1]))
    assert (none.status, none.next_offset, none.count) == (Status.NO_MATCHED_MESSAGE, 9, 0)


def test_a_scan_looks_at_800_entries_and_never_beyond_the_queue_file():
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000)
    for _ in range(3):
        put(store, "topic", 0, [b"x"] * 500)
    other = frozenset([1])
    assert get(store, 0, codes=other).next_begin_offset == 800
    assert get(store, 900, codes=other).next_begin_offset == 1000, "the file ends there"
    assert get(store, 0, count=900, codes=other).next_begin_offset == 900


# Table D2b: what a batch may hold
@pytest.mark.parametrize(
    ("body", "count", "size", "in_memory", "expected"),
    [
        (10, 100, MIB, True, 32),
        (10, 7, MIB, True, 7),
        (10, 100, MIB, False, 8),
        (30_000, 100, MIB, True, 8),  # 256 KiB
        (30_000, 100, MIB, False, 2),  # 64 KiB
        (300_000, 100, MIB, True, 1),  # the first message is always returned
        (10, 100, 400, True, 3),
    ],
)
def test_batch_limits_in_memory_and_on_disk(body, count, size, in_memory, expected):
    memory = (1 << 30) if in_memory else 0
    store = open_store(
        ROOT,
        MemoryFiles(),
        physical_memory=memory,
        mapped_file_size_commit_log=1 << 24,
        mapped_file_size_consume_queue=6000,
    )
    put(store, "topic", 0, [b"x" * body] * 40)
    assert get(store, 0, count=count, size=size).count == expected


def test_the_slave_is_suggested_when_the_last_entry_examined_is_further_back_than_memory_reaches():
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_consume_queue=6000)
    put(store, "topic", 0, [b"x" * 300] * 50)
    offsets = [one.commit_log_offset for one in records_of(store)]
    behind = store.end_offset - offsets[3]  # a batch of 3 ends when the fourth message is examined
    for memory, expected in ((behind, False), (behind - 1, True)):
        store.reconfigure(replace(store.config, physical_memory=memory, access_message_in_memory_max_ratio=100))
        assert get(store, 0, count=3).suggest_pull_from_slave is expected
    assert not get(store, 50).suggest_pull_from_slave and not get(store, 99).suggest_pull_from_slave


def test_the_threshold_is_a_share_of_physical_memory():
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_consume_queue=6000, physical_memory=25_000)
    # the log has more than 20,300 bytes, and readers further back than 10,000 bytes (40 % of the memory) go to the
    # slave
    put(store, "topic", 0, [b"x" * 300] * 50)
    assert get(store, 0).suggest_pull_from_slave and not get(store, 40).suggest_pull_from_slave


# The ranged read
def test_a_range_is_cut_at_the_frame_size_but_gives_at_least_one_record(store):
    _, whole = read_range(store, "topic", 0, 0, 10, MIB)
    size = len(whole) // 10
    part, _ = read_range(store, "topic", 0, 2, 10, size * 3)
    assert (part.count, part.next_offset, part.status) == (3, 5, Status.FOUND)
    assert read_range(store, "topic", 0, 2, 10, 1)[0].count == 1


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    queue_ids=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    sizes=st.lists(st.integers(0, 600), min_size=60, max_size=60),
    frame=st.integers(1, 5000),
)
def test_ranges_of_interleaved_queues_are_what_one_by_one_reading_gives(queue_ids, sizes, frame):
    store = open_store(ROOT, MemoryFiles())
    put(store, "topic", queue_ids, [b"x" * size for size, _ in zip(sizes, queue_ids, strict=False)])
    for queue_id in set(queue_ids):
        plain = [one.body for one in records_of(store) if one.queue_id == queue_id]
        at, found = 0, []
        while at < len(plain):
            part, data = read_range(store, "topic", queue_id, at, len(plain), frame)
            assert part.count == part.next_offset - at > 0
            assert len(data) <= frame or part.count == 1
            found += [one.body for one in replay_frame(data)]
            at = part.next_offset
        assert found == plain


def test_readers_see_up_to_the_confirm_offset(store):
    ends = [one.commit_log_offset for one in records_of(store)]
    store.queues.confirm_offset = ends[4]
    assert store.queues.bounds("topic", 0) == (0, 4)
    assert get(store, 0).count == 4 and get(store, 4).status is Status.OFFSET_OVERFLOW_ONE
    assert read_range(store, "topic", 0, 0, 10, MIB)[0].count == 4
    store.queues.confirm_offset = ends[4] + 1
    assert store.queues.bounds("topic", 0) == (0, 4), "half a record is not visible"
    store.queues.confirm_offset = 0
    assert store.queues.bounds("topic", 0) == (0, 0)
    store.queues.confirm_offset = store.end_offset
    assert store.queues.bounds("topic", 0) == (0, 10)


@pytest.mark.parametrize("codec", [pytest.param(kernels.compiled, marks=needs_compiled_codec), None])
def test_records_are_read_in_the_order_of_their_queue(store, monkeypatch, codec):
    monkeypatch.setattr(kernels, "compiled", codec)
    for topic in ("topic", "t" * 200):  # a long topic has records of version 2
        bodies = [b"%d" % number * 100 for number in range(40)]
        for number, body in enumerate(bodies):  # in several log files, between records of another queue
            store.append_one(Record(topic, body, queue_id=2 + number % 2), NOW, bytes(8))
        for offset in (0, 3, 12):
            found = get(store, offset, 3, topic=topic)
            assert [one.body for one in replay_frame(found.records)] == bodies[1::2][offset:]


def test_an_entry_that_points_to_a_record_of_another_queue_is_damaged(store):
    put(store, "topic", 1, [b"%d" % number for number in range(3)])
    other = store.disk.read(ROOT / "consumequeue/topic/1/00000000000000000000")
    path = ROOT / "consumequeue/topic/0/00000000000000000000"
    store.disk.pwrite(store.disk.open(path), other[20:40], 20)
    with pytest.raises(StoreCorrupt, match="damaged at or behind offset 1: "):
        get(store, 0)


def test_a_damaged_queue_never_gives_other_records(store):
    path = ROOT / "consumequeue/topic/0/00000000000000000000"
    data = store.disk.read(path)
    store.disk.pwrite(store.disk.open(path), data[40:60], 20)  # entry 1 points to record 2
    with pytest.raises(StoreCorrupt, match="rebuilds it from the log"):
        get(store, 0)
    store.disk.pwrite(store.disk.open(path), (5).to_bytes(8, "big") + data[28:40], 20)
    with pytest.raises(StoreCorrupt):
        read_range(store, "topic", 0, 0, 10, MIB)


@pytest.mark.parametrize(
    "entry", [pytest.param(bytes(20), id="a lost write"), pytest.param((5).to_bytes(8, "big"), id="another offset")]
)
def test_a_damaged_entry_is_not_taken_for_one_that_has_expired(trimmed, entry):
    """If it were taken for one, readers would pass over the entry's message, and over all other messages of its log
    file.
    """
    low, high = trimmed.queues.bounds("topic", 0)
    place = (low + 3) * 20
    trimmed.disk.pwrite(trimmed.disk.open(ROOT / "consumequeue/topic/0/00000000000000000000"), entry, place)
    for offset in (low, low + 3):
        with pytest.raises(StoreCorrupt, match=f"damaged at or behind offset {low + 3}: "):
            get(trimmed, offset)
        with pytest.raises(StoreCorrupt, match=f"damaged at or behind offset {low + 3}: "):
            read_range(trimmed, "topic", 0, offset, high, MIB)


def test_records_and_raw_bytes_by_log_offset(store):
    second = records_of(store)[1]
    data = store.log.record_at(second.commit_log_offset)
    assert replay_frame(data) == [second]
    assert store.read_log(second.commit_log_offset, len(data)) == data
    for offset in (-1, store.end_offset, store.end_offset + 1):
        with pytest.raises(NotFound):
            store.log.record_at(offset)
    assert store.log.find_record(second.commit_log_offset) == data
    for offset in (second.commit_log_offset + 1, -1, store.end_offset, store.end_offset + 1, store.end_offset - 1):
        assert store.log.find_record(offset) is None
    assert store.read_log(store.end_offset, 10) == b""


def test_offsets_by_time():
    store = open_store(ROOT, MemoryFiles())
    for number in range(10):
        put(store, "topic", 0, [b"x" * 700], now_ms=NOW + number // 2 * 10)
    found = [store.queues.search_offset_by_time("topic", 0, NOW + ms) for ms in (-5, 0, 1, 10, 40, 41)]
    assert found == [0, 0, 2, 2, 8, 10]
    assert store.queues.search_offset_by_time("topic", 9, NOW) == 0
    assert [store.queues.store_timestamp_of("topic", 0, offset) for offset in (-1, 0, 9, 10)] == [0, NOW, NOW + 40, 0]
    assert queue_bodies(store, "topic", 0)
