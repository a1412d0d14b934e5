"""Ranges of many queues in one frame have the same records as ranges that are read one after the other."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocketsim_proto.model import GetMessageStatus as Status
from rocketsim_proto.records.record import Record, tags_code

from broker_service.errors import StoreCorrupt
from broker_service.store import ranges
from broker_service.store.message_store import MessageStore
from tests.support.memory_files import MemoryFiles
from tests.support.stores import open_store, put, records_of, replay_frame

ROOT = Path("/store")
MIB = 1 << 20
TAGS = ("A", "B")

Range = tuple[str, int, int, int]
# (span, status, next offset, count)
PlainAnswer = tuple[int, Status, int, int]


def plainly(
    store: MessageStore, wanted: Iterable[Range], max_bytes: int, codes: frozenset[int] | None
) -> tuple[list[PlainAnswer], list[Record]]:
    """Builds a frame record by record."""
    answers: list[PlainAnswer] = []
    found: list[Record] = []
    size = 0
    for index, (topic, queue_id, first, until) in enumerate(wanted):
        low, high = store.queues.bounds(topic, queue_id)
        exists = (topic, queue_id) in store.queues.keys()
        nothing = ranges.outside(exists, first, low, high)
        if nothing is not None:
            answers.append((index, *nothing, 0))
            continue
        queue = {one.queue_offset: one for one in records_of(store) if (one.topic, one.queue_id) == (topic, queue_id)}
        at, count, full = first, 0, False
        while at < min(until, high) and not full:
            one = queue[at]
            if codes is None or tags_code(one.properties["TAGS"]) in codes:
                bytes_of_one = len(store.log.record_at(one.commit_log_offset))
                if found and size + bytes_of_one > max_bytes:
                    full = True
                    break
                size += bytes_of_one
                found.append(one)
                count += 1
            at += 1
        if not full or at > first:
            answers.append((index, Status.FOUND if count else Status.NO_MATCHED_MESSAGE, at, count))
        if full:
            break
        if high < until:
            answers.append((index, Status.OFFSET_OVERFLOW_ONE, high, 0))
    return answers, found


def columns(
    store: MessageStore, wanted: Iterable[Range], max_bytes: int, codes: frozenset[int] | None
) -> tuple[list[PlainAnswer], list[Record]]:
    result = store.queues.read_ranges(wanted, max_bytes, codes)
    records = b"".join(result.records)
    assert sum(memoryview(result.sizes).cast("I")) == len(records)
    answers = [(one.span_index, one.status, one.next_offset, one.count) for one in result.answers]
    return answers, replay_frame(records)


@pytest.fixture(params=[1, ranges.FIRST_ENTRIES], ids=["an entry at first", "all entries at once"])
def first_entries(request, monkeypatch):
    """Tests frames that first read only one entry, and so are filled in several parts, and frames that read all entries
    at once.
    """
    monkeypatch.setattr(ranges, "FIRST_ENTRIES", request.param)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    messages=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 600), st.sampled_from(TAGS)), max_size=60),
    wanted=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(0, 20)), max_size=6),
    max_bytes=st.integers(1, 6000),
    codes=st.sampled_from([None, frozenset([tags_code("A")]), frozenset([7])]),
)
def test_a_frame_is_what_one_record_after_the_other_gives(first_entries, messages, wanted, max_bytes, codes):
    store = open_store(ROOT, MemoryFiles())
    for queue_id, size, tag in messages:
        put(store, "topic", queue_id, [b"x" * size], properties=[("TAGS", tag)])
    spans = [("topic", queue_id, first, first + more) for queue_id, first, more in wanted]
    assert columns(store, spans, max_bytes, codes) == plainly(store, spans, max_bytes, codes)


@pytest.mark.parametrize("queues", [1, 3, 100])
def test_records_of_neighbours_and_of_many_places_are_the_same_bytes(queues):
    """A few slices of the log are returned as they are; many are copied together."""
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=6000)
    for number in range(300):
        put(store, "topic", number % queues, [b"%d" % number * (number % 50)])
    spans = [("topic", queue_id, 0, 1000) for queue_id in range(queues)]
    answers, found = columns(store, spans, MIB, None)
    assert (answers, found) == plainly(store, spans, MIB, None)
    assert len(found) == 300


def test_a_frame_looks_at_a_bounded_number_of_spans_and_entries(monkeypatch):
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=6000)
    put(store, "topic", [number % 5 for number in range(50)], [b"x"] * 50)
    spans = [("topic", queue_id, 0, 10) for queue_id in range(5)]
    nothing = frozenset([1])
    monkeypatch.setattr(ranges, "MAX_SPANS", 3)
    assert [piece[0] for piece in columns(store, spans, MIB, None)[0]] == [0, 1, 2]
    monkeypatch.setattr(ranges, "MAX_ENTRIES_SCANNED", 20)
    monkeypatch.setattr(ranges, "FIRST_ENTRIES", 20)
    # The third range is missing, because the limit was reached before its first entry.
    assert columns(store, spans, MIB, nothing)[0] == [
        (0, Status.NO_MATCHED_MESSAGE, 10, 0),
        (1, Status.NO_MATCHED_MESSAGE, 10, 0),
    ]
    monkeypatch.setattr(ranges, "MAX_ENTRIES_SCANNED", 15)
    monkeypatch.setattr(ranges, "FIRST_ENTRIES", 15)
    assert columns(store, spans, MIB, nothing)[0] == [
        (0, Status.NO_MATCHED_MESSAGE, 10, 0),
        (1, Status.NO_MATCHED_MESSAGE, 5, 0),
    ]


def test_a_damaged_queue_is_named_among_others():
    disk = MemoryFiles()
    store = open_store(ROOT, disk, mapped_file_size_consume_queue=6000)
    put(store, "topic", [0, 0, 1, 1, 2, 2], [b"x"] * 6)
    path = ROOT / "consumequeue/topic/1/00000000000000000000"
    data = disk.read(path)
    disk.overwrite(path, 20, data[:20])  # the queue's second entry points to its first record
    spans = [("topic", queue_id, 0, 2) for queue_id in range(3)]
    with pytest.raises(StoreCorrupt, match="topic/1 is damaged at or behind offset 1"):
        store.queues.read_ranges(spans, MIB)
    for wrong in (b"\0" * 8, (1 << 40).to_bytes(8, "big"), (1).to_bytes(8, "big")):
        disk.overwrite(path, 20, wrong)
        with pytest.raises(StoreCorrupt, match="topic/1"):
            store.queues.read_ranges(spans, MIB)
    assert columns(store, spans[:1], MIB, None)[0] == [(0, Status.FOUND, 2, 2)]


def test_sizes_and_times_of_single_messages():
    store = open_store(ROOT, MemoryFiles(), mapped_file_size_consume_queue=6000)
    put(store, "topic", 0, [b"x" * 10, b"x" * 200], now_ms=5)
    sizes = [len(store.log.record_at(one.commit_log_offset)) for one in records_of(store)]
    found = [store.queues.size_and_time_of("topic", 0, offset) for offset in (-1, 0, 1, 2)]
    assert found == [(0, 0), (sizes[0], 5), (sizes[1], 5), (0, 0)]
    assert store.queues.size_and_time_of("topic", 7, 0) == (0, 0)
