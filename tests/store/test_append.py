"""Appends: offsets, new files after blank records, and a failed append that leaves nothing behind."""

import errno
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import kernels, record

from broker_service.errors import DiskFull, FlushFailed, MessageIllegal, ServiceNotAvailable
from broker_service.put_result import QueueAppend
from broker_service.store.append_plan import plan_append
from broker_service.store.files import DiskUsage
from tests.support.memory_files import MemoryFiles
from tests.support.record_codec import needs_compiled_codec
from tests.support.stores import (
    HOST,
    LOG_FILE,
    NOW,
    actual_queues,
    bodies,
    check_sound,
    log_bytes,
    open_store,
    put,
    queue_bodies,
    records_of,
)

ROOT = Path("/store")


@pytest.fixture(params=[pytest.param("compiled", marks=needs_compiled_codec), "few"], autouse=True, scope="module")
def kind_of_batch(request):
    """Runs every test with the compiled record codec, and with records that are looked at one by one."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "compiled":
            patch.setattr(kernels, "compiled", None)
        yield


def place_one_by_one(end: int, file_size: int, sizes: list[int]) -> tuple[list[int], list[tuple[int, int]], int]:
    """RocketMQ's rule: a record that leaves no room for a blank record behind it goes into the next file."""
    offsets, blanks = [], []
    for size in sizes:
        left = file_size - end % file_size
        if size + 8 > left:
            blanks.append((end, left))
            end += left
        offsets.append(end)
        end += size
    return offsets, blanks, end


@given(st.integers(0, 20).map(lambda n: n * 50), st.lists(st.integers(91, 992), max_size=30))
def test_records_are_placed_as_one_by_one(end, sizes):
    plans = plan_append(end, 1000, np.array(sizes, np.int64)), plan_append(end, 1000, sizes)
    offsets, blanks, end = place_one_by_one(end, 1000, sizes)
    for plan in plans:
        assert (plan.blanks, plan.end_offset) == (blanks, end)
        covered = [number for run in plan.extents for number in range(run.first, run.last)]
        assert covered == list(range(len(sizes)))
        placed = [
            run.commit_log_offset + sum(sizes[run.first : number])
            for run in plan.extents
            for number in range(run.first, run.last)
        ]
        assert placed == offsets


def test_a_record_larger_than_a_file_is_refused():
    with pytest.raises(MessageIllegal):
        plan_append(0, 1000, np.array([993]))


def test_an_append_stamps_what_only_the_broker_knows():
    store = open_store(ROOT, MemoryFiles())
    put(store, "topic", [0, 1], [b"a", b"b"])
    appended = put(store, "topic", [1, 0, 1], [b"c", b"d", b"e"], now_ms=NOW + 5)
    assert appended.queues == [QueueAppend(0, 1, 1), QueueAppend(1, 1, 2)]
    assert appended.end_offset == store.end_offset
    last = records_of(store)[2:]
    assert [(one.queue_id, one.queue_offset, one.body) for one in last] == [(1, 1, b"c"), (0, 1, b"d"), (1, 2, b"e")]
    assert {(one.store_timestamp, one.store_host) for one in last} == {(NOW + 5, HOST)}
    assert appended.extents == [(last[0].commit_log_offset, 3)]


def test_a_batch_over_several_files_closes_each_with_a_blank_record():
    store = open_store(ROOT, MemoryFiles())
    appended = put(store, "topic", [number % 3 for number in range(40)], [b"x" * 300] * 40)
    assert len(appended.extents) > 3 and sum(count for _, count in appended.extents) == 40
    assert [one.commit_log_offset for one in records_of(store)] == [
        offset for start, count in appended.extents for offset in _positions(store, start, count)
    ]
    check_sound(store)


def _positions(store, start, count):
    for _ in range(count):
        yield start
        start += int.from_bytes(store.read_log(start, 4), "big")


def test_prepared_and_rolled_back_records_take_no_place_in_their_queue():
    store = open_store(ROOT, MemoryFiles())
    put(store, "topic", 0, [b"a", b"prepared", b"b", b"rolled back", b"committed"], sys_flags=[0, 4, 0, 12, 8])
    assert queue_bodies(store, "topic", 0) == [b"a", b"b", b"committed"]
    assert [one.queue_offset for one in records_of(store)] == [0, 0, 1, 0, 2]


def test_a_delayed_record_has_its_delivery_time_as_tags_code():
    store = open_store(ROOT, MemoryFiles(), delay_levels_ms=(1000, 5000))
    for level in ("1", "2", "9"):
        delayed = record.Record("SCHEDULE_TOPIC_XXXX", b"x", properties={"DELAY": level, "TAGS": "TagA"})
        store.append_one(delayed, NOW, HOST)
    store.append_one(record.Record("SCHEDULE_TOPIC_XXXX", b"x", properties={"TAGS": "TagA"}), NOW, HOST)
    codes = [code for _, _, code in actual_queues(store)["SCHEDULE_TOPIC_XXXX", 0]]
    assert codes == [NOW + 1000, NOW + 5000, NOW + 5000, record.tags_code("TagA")]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("file", ["commitlog", "consumequeue/topic/0", "consumequeue/topic/1"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failed_append_leaves_nothing_and_the_next_one_works(part, file, number):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", [0, 1], [b"a", b"b"])
    before, queues = log_bytes(store), store.queues.bounds("topic", 0)
    disk.fail("pwrite", number, part=part, matching=file)
    with pytest.raises(DiskFull if number == errno.ENOSPC else ServiceNotAvailable):
        put(store, "topic", [0, 1, 2], [b"c" * 500, b"d", b"e"])
    assert log_bytes(store) == before and store.queues.bounds("topic", 0) == queues
    assert store.queues.bounds("topic", 2) == (0, 0)
    assert not store.admission.writable and queue_bodies(store, "topic", 0) == [b"a"]
    put(store, "topic", [0, 2], [b"f", b"g"])
    assert store.admission.writable
    check_sound(store)
    after = bodies(store)
    store = open_store(ROOT, disk.kill())
    assert bodies(store) == after == [b"a", b"b", b"f", b"g"]
    check_sound(store)


def after_power_losses(disk):
    """Returns the bodies in each of the stores that 20 power losses leave of this disk."""
    disk.switched_off()
    return [bodies(open_store(ROOT, disk.as_powerless(random.Random(seed)))) for seed in range(20)]


def no_room_for_its_queue(store, disk):
    disk.fill()
    with pytest.raises(DiskFull):
        put(store, "new", 0, [b"refused"] * 2)


def no_room_for_the_next_log_file(store, disk):
    disk.fill()
    with pytest.raises(DiskFull):
        put(store, "topic", 0, [b"refused" * 100] * 10)


def its_queue_cannot_be_written(store, disk):
    disk.fail("pwrite", errno.EIO, matching="consumequeue")
    with pytest.raises(ServiceNotAvailable):
        put(store, "topic", 0, [b"refused"] * 2)


def no_room_at_a_slave(store, disk):
    master = open_store(Path("/master"), MemoryFiles())
    put(master, "topic", 0, [b"a"])
    assert master.end_offset == store.end_offset
    put(master, "new", 0, [b"refused"] * 2)
    disk.fill()
    with pytest.raises(DiskFull):
        store.append_replicated(store.end_offset, log_bytes(master, store.end_offset))


@pytest.mark.parametrize(
    "refuse",
    [no_room_for_its_queue, no_room_for_the_next_log_file, its_queue_cannot_be_written, no_room_at_a_slave],
)
def test_what_was_refused_stays_so_after_a_power_loss(refuse):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"])
    store.flush()
    refuse(store, disk)
    assert not store.admission.writable
    assert after_power_losses(disk) == [[b"a"]] * 20


def test_zeroes_that_were_refused_are_on_disk_before_the_store_takes_writes_again():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"])
    store.flush()
    disk.fail("pwrite", errno.EIO, for_good=True, matching="consumequeue")
    disk.fail("pwrite", errno.EIO, nth=2, matching="commitlog")
    with pytest.raises(ServiceNotAvailable):
        put(store, "topic", 0, [b"refused"] * 2)
    disk.heal()
    store.tick(NOW + 10_000)
    assert store.admission.writable
    assert after_power_losses(disk) == [[b"a"]] * 20


def test_a_sync_of_what_was_taken_back_that_fails_stops_the_store():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"])
    store.flush()
    disk.fail("pwrite", errno.ENOSPC, matching="consumequeue")
    disk.fail("fdatasync", errno.EIO, matching="commitlog")
    with pytest.raises(FlushFailed, match="in doubt"):
        put(store, "topic", 0, [b"refused"])
    assert "in doubt" in store.admission.why_not_writable() and queue_bodies(store, "topic", 0) == [b"a"]
    with pytest.raises(FlushFailed):
        store.flush()


def test_all_of_a_large_refused_batch_is_taken_back_when_a_smaller_one_is_refused_behind_it():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    disk.fail("pwrite", errno.EIO, matching="consumequeue")
    for _ in range(2):  # the zeroing fails after the first batch, and again before the second one
        disk.fail("pwrite", errno.EIO, nth=2, matching="commitlog")
    for count in (5, 1):
        with pytest.raises(ServiceNotAvailable):
            put(store, "topic", 0, [b"refused"] * count)
    put(store, "topic", 0, [b"written"])
    assert bodies(open_store(ROOT, disk.kill())) == [b"written"]


def test_when_a_batch_needs_files_for_which_there_is_no_room_none_of_it_is_stored():
    disk = MemoryFiles(capacity=40 * 4096)
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"])
    before = log_bytes(store)
    with pytest.raises(DiskFull, match="make room"):
        put(store, "topic", 0, [b"x" * 900] * 200)
    assert log_bytes(store) == before and queue_bodies(store, "topic", 0) == [b"a"]
    store.tick(NOW + 1000)
    disk.capacity = 1 << 30
    assert not store.admission.writable
    store.tick(NOW + 2000)
    assert store.admission.writable
    put(store, "topic", 0, [b"x" * 900] * 200)
    check_sound(store)


def test_a_disk_that_refuses_also_the_zeroes_stays_unwritable_until_it_takes_them():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    disk.fail("pwrite", errno.EIO, for_good=True, part=1.0, matching="commitlog")
    for _ in range(3):
        with pytest.raises(ServiceNotAvailable):
            put(store, "topic", 0, [b"refused"] * 3)
        store.tick(NOW + 10_000)
        assert not store.admission.writable
    disk.heal()
    store.tick(NOW + 20_000)
    assert store.admission.writable
    put(store, "topic", 0, [b"a"])
    assert bodies(open_store(ROOT, disk.kill())) == [b"a"]


def test_above_the_warning_ratio_clients_may_send_nothing_and_the_broker_itself_appends_and_reads():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"a"])
    disk.usage = DiskUsage(100, 9)
    store.retention.delete_expired(NOW)
    assert "91 % full" in store.admission.why_no_sends() and str(ROOT) not in store.admission.why_no_sends()
    assert store.admission.writable and queue_bodies(store, "topic", 0) == [b"a"]
    put(store, "topic", 0, [b"b"])
    assert queue_bodies(store, "topic", 0) == [b"a", b"b"]
    disk.usage = DiskUsage(100, 11)
    store.retention.delete_expired(NOW)
    assert store.admission.why_no_sends() is None


def test_thousands_of_queues_do_not_use_up_the_handles(monkeypatch):
    monkeypatch.setattr("broker_service.store.message_store.open_file_limit", lambda: 1024)
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", range(2000), [b"x"] * 2000)
    assert disk.open_handles < 1024 // 2
    assert queue_bodies(store, "topic", 1999) == [b"x"]
    store.close()
    assert disk.open_handles == 0


def test_log_files_have_exactly_the_configured_size_and_are_named_by_their_offset():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 1500] * 5)
    names = disk.names(ROOT / "commitlog")
    assert names == [f"{number * LOG_FILE:020d}" for number in range(len(names))] and len(names) == 3
    assert {disk.size(ROOT / "commitlog" / name) for name in names} == {LOG_FILE}
