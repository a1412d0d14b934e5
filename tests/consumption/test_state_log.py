"""Snapshots of the state of consumption on a disk that fails while they are written."""

import contextlib
import gc
import random
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record, encode
from rocketsim_proto.reserved import HALF_TOPIC, OP_TOPIC, STATE_TOPIC, TIMER_TOPIC

from broker_service.errors import ReadFailed, StoreCorrupt
from broker_service.node.node import BrokerNode
from broker_service.runtime.machine import Machine, now_ms
from broker_service.state import half_messages, snapshot, state_log, transitions
from broker_service.state.state import State
from broker_service.state.state_log import StateLog
from broker_service.state.timer_record import recall_record, waiting_record
from broker_service.state.transaction_changes import Resolution
from broker_service.state.transitions import Copied, Drop, Place, Take, Timer
from broker_service.store.batch import Batch
from broker_service.store.message_store import MessageStore
from broker_service.store.ranges import RangesResult
from tests.store.test_bad_sectors import BadDisk
from tests.support.brokers import small_config
from tests.support.memory_files import SECTOR, MemoryFiles, PowerCut
from tests.support.stores import flush_thoroughly

ROOT = Path("/store")
SNAPSHOT = ROOT / "rocketsim" / "consumption.snapshot"


def store_on(disk: MemoryFiles) -> MessageStore:
    return BrokerNode.open(small_config(ROOT), Machine(files=disk)).store


def append(store: MessageStore, number: int = 0) -> None:
    """Appends the record of a pop of one message from queue `number`."""
    take = Take(place=Place("g", "t", number), pop=number, start=0, next=1, offsets=(0,), attempts=(1,))
    store.append_one(Record(STATE_TOPIC, transitions.encode([take])), 1, bytes(8))


def save(log: StateLog) -> None:
    saving = log.saving()
    assert saving is not None
    saving()


@pytest.mark.parametrize("call", range(1, 12))
def test_a_crash_while_a_snapshot_is_written_leaves_one_that_is_valid(call: int) -> None:
    disk = MemoryFiles()
    store = store_on(disk)
    log = StateLog(store, SNAPSHOT)
    for number in range(2):
        append(store, number)
        save(log)
    flush_thoroughly(store, now_ms())
    append(store, 2)
    disk.stop_at = disk.calls + call
    with contextlib.suppress(PowerCut):
        save(log)
    for seed in range(3):
        left = disk.as_powerless(random.Random(seed)) if seed else disk.as_killed()
        found = StateLog(store_on(left), SNAPSHOT).read_snapshot()
        assert found is not None and len(found.transitions) >= 4  # two queues, with two changes each


def test_a_full_disk_leaves_both_snapshots() -> None:
    disk = MemoryFiles()
    store = store_on(disk)
    log = StateLog(store, SNAPSHOT)
    for number in range(2):
        append(store, number)
        save(log)
    before = {path: disk.read(path) for path in (SNAPSHOT, SNAPSHOT.with_name("consumption.snapshot.old"))}
    append(store, 2)
    disk.make_room(0)
    with pytest.raises(OSError, match="no room"):
        save(log)
    assert {path: disk.read(path) for path in before} == before
    disk.make_room()
    save(log)
    assert disk.read(SNAPSHOT.with_name("consumption.snapshot.old")) == before[SNAPSHOT]


def test_a_snapshot_is_due_after_so_much_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "SNAPSHOT_LOG_BYTES", 1000)
    store = store_on(MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    log.reload()
    assert not log.is_snapshot_due
    while not log.is_snapshot_due:
        append(store)
    assert 1000 <= store.end_offset < 1300
    save(log)
    assert not log.is_snapshot_due
    log.reload()
    assert not log.is_snapshot_due


def test_garbage_is_collected_after_a_reload_and_not_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that a reload makes stay alive, and searching them for garbage again and again would take two fifths of a
    start.
    """
    store = store_on(MemoryFiles())
    append(store)
    log, seen = StateLog(store, SNAPSHOT), list[bool]()

    def apply(*_: object) -> None:
        seen.append(gc.isenabled())
        raise StoreCorrupt("of this test")

    assert gc.isenabled()
    monkeypatch.setattr(State, "apply", apply)
    with pytest.raises(StoreCorrupt):
        log.reload()
    assert seen == [False] and gc.isenabled()


def with_a_bad_sector(before_end: int) -> tuple[BadDisk, MessageStore, StateLog]:
    """Makes a store whose log has a bad sector `before_end` bytes before its end.  No snapshot contains the records in
    this sector yet.
    """
    disk = BadDisk()
    store = store_on(disk)
    log = StateLog(store, SNAPSHOT)
    while store.end_offset < 20_000:
        append(store)
    log.catch_up()
    disk.bad = (str(ROOT / "commitlog" / f"{0:020d}"), store.end_offset - before_end)
    return disk, store, log


def test_a_bad_sector_near_the_end_of_the_log_does_not_hold_up_a_snapshot() -> None:
    disk, store, log = with_a_bad_sector(5_000)
    save(log)
    found = StateLog(store, SNAPSHOT).read_snapshot()
    assert found is not None and found.log_offset == store.end_offset
    assert found.tail[0] == snapshot.SHORT_TAIL_BYTES
    disk.bad = None
    assert StateLog(store, SNAPSHOT).read_snapshot() is not None, "also when the sector is mended"
    handle = disk.open(ROOT / "commitlog" / f"{0:020d}")
    disk.pwrite(handle, b"other", store.end_offset - 4_000)
    assert StateLog(store, SNAPSHOT).read_snapshot() is None, "and for no other log"


def test_a_snapshot_that_a_bad_sector_holds_up_is_written_when_it_is_mended() -> None:
    disk, _, log = with_a_bad_sector(1_000)
    for _ in range(2):
        with pytest.raises(ReadFailed, match="cannot be read at"):
            log.saving()
    disk.bad = None
    save(log)
    assert log.saving() is None


def timer(number: int) -> Record:
    """Every seventh record recalls the timer before it, and every eleventh has a time that is no number."""
    message = Record("t", b"body", properties={"UNIQ_KEY": f"{number:032X}"})
    made = waiting_record(message, 5000 + 100 * number, 1)
    if number % 7 == 6:
        made = recall_record("t", f"{number - 1:032X}", 5000 + 100 * (number - 1), 1)
    if number % 11 == 10:
        made.properties["TIMER_OUT_MS"] = "soon"
    return made


def append_timers(store: MessageStore, count: int) -> list[int]:
    """Their log offsets."""
    begin = store.queues.end(TIMER_TOPIC, 0)
    frame = bytearray(b"".join(encode(timer(number)) for number in range(count)))
    store.append(Batch.of_frame(frame, count), TIMER_TOPIC, 1, bytes(8))
    return store.queues.log_offsets(TIMER_TOPIC, 0, begin)


@pytest.mark.parametrize("as_columns", [True, False])
def test_timers_are_told_alike_one_by_one_and_as_columns(as_columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "MANY", 1 if as_columns else 10_000)
    disk = MemoryFiles()
    store = store_on(disk)
    log = StateLog(store, SNAPSHOT)
    offsets = append_timers(store, 40)
    append(store)
    settled = Copied(5, (offsets[1], offsets[2]))
    store.append_one(Record(STATE_TOPIC, transitions.encode([settled])), 1, bytes(8))
    store.append_one(Record("other", b"body"), 1, bytes(8))
    offsets += append_timers(store, 40)
    log.catch_up()
    timers = log.state.timers
    left = [offset for number, offset in enumerate(offsets) if number % 40 % 11 != 10 and number not in (1, 2)]
    assert sorted(one for _, some in timers.before(store.end_offset) for one in some) == left
    assert timers.is_recalled(5, f"t+{5:032X}") and not timers.is_recalled(5, f"t+{4:032X}")
    started = StateLog(store, SNAPSHOT)
    started.reload()
    assert started.state.timers.rebuilding() == timers.rebuilding()
    assert started.state.queues == log.state.queues


def test_a_start_and_a_slave_decode_no_record_for_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_on(MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    decode, decoded = record.decode, []

    def counted(data: bytes) -> Record:
        decoded.append(1)
        return decode(data)

    monkeypatch.setattr(record, "decode", counted)
    frame = bytearray(b"".join(encode(timer(number)) for number in range(10)) * 100)
    store.append(Batch.of_frame(frame, 1000), TIMER_TOPIC, 1, bytes(8))
    log.catch_up()
    started = StateLog(store, SNAPSHOT)
    started.reload()
    assert log.state.timers.count == started.state.timers.count == 1000
    assert not decoded


def test_timers_that_columns_cannot_tell_are_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_on(MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    offsets = append_timers(store, 5)
    read = store.log.read

    def damaged(offset: int, size: int) -> bytes:
        data = read(offset, size)
        return data.replace(b"body", b"dody", 1) if data.count(b"body") > 1 else data

    monkeypatch.setattr(store.log, "read", damaged)
    monkeypatch.setattr(state_log, "MANY", 1)
    log.catch_up()
    assert [one for _, some in log.state.timers.before(store.end_offset) for one in some] == offsets


def bad_sector_under(store: MessageStore, disk: MemoryFiles, log_offset: int) -> Path:
    """Makes a sector under this record unreadable, and returns the file; other records stay readable if they share no
    sector with it.
    """
    path = store.log.path(store.log.start_of(log_offset))
    disk.lose_sector(path, (log_offset - store.log.start_of(log_offset)) // SECTOR + 1)
    return path


def test_a_read_that_fails_leaves_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_on(MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    for number in range(20):
        append(store, number)
    offsets = store.queues.log_offsets(STATE_TOPIC, 0, 0)
    read_record = store.log.record_at

    def read(offset: int) -> bytes:
        if offset == offsets[7]:
            raise ReadFailed.of("commitlog/0", offsets[7], OSError(5, "an error"))
        return read_record(offset)

    with monkeypatch.context() as broken:
        broken.setattr(store.log, "record_at", read)
        with pytest.raises(ReadFailed):
            log.catch_up()
        assert log.unapplied_from == offsets[7]
        assert len(log.state.queues) == 7
    log.catch_up()
    assert log.unapplied_from is None and len(log.state.queues) == 20


def large(of: Record) -> Record:
    """Makes the record larger than two sectors, so that one whole sector lies within it."""
    of.properties["large"] = "x" * 3 * SECTOR
    return of


def of_each_kind(store: MessageStore, topic: str) -> None:
    """Appends a record to this topic, between records of all other kinds: pops, a copy, a timer and a half message."""
    half = Record("t", b"body", properties={"UNIQ_KEY": "1"})
    half = half_messages.half_message(half, client_id="c", first_check_ms=1, immunity_s=0)
    retry = "%RETRY%g+t"
    kinds = {
        TIMER_TOPIC: waiting_record(Record("t", b"body", properties={"UNIQ_KEY": "1"}), 5000, 1),
        HALF_TOPIC: half,
        OP_TOPIC: half_messages.op_records([0], Resolution.ROLLBACK, 1)[0],
        retry: Record(retry, b"copy"),
        STATE_TOPIC: Record(STATE_TOPIC, transitions.encode([Drop("h", "")])),
    }
    store.append_one(large(kinds[topic]), 1, bytes(8))
    append(store, 0)
    for record_of in kinds.values():
        store.append_one(record_of, 1, bytes(8))


@pytest.mark.parametrize("again", [False, True], ids=["as it comes", "at a start"])
@pytest.mark.parametrize("topic", [TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, "%RETRY%g+t", STATE_TOPIC])
def test_a_bad_sector_under_a_record_holds_up_what_needs_it(topic: str, again: bool, caplog: Any) -> None:
    store = store_on(disk := MemoryFiles())
    if not again:
        log = StateLog(store, SNAPSHOT)
    of_each_kind(store, topic)
    (bad,) = store.queues.log_offsets(topic, 0, 0)[:1]
    if again:
        store.close()
        disk = disk.kill()
        store = store_on(disk)
        log = StateLog(store, SNAPSHOT)
    path = bad_sector_under(store, disk, bad)
    apply = log.reload if again else log.catch_up
    if topic == STATE_TOPIC:
        with pytest.raises(ReadFailed, match=str(path)):
            apply()
        assert log.unapplied_from is not None and log.unapplied_from <= bad
    else:
        apply()
        assert f"the record of topic {topic} at log offset {bad} cannot be read" in caplog.text
        assert str(path) in caplog.text
        assert log.state.queues.keys() == {Place("g", "t", 0)}
        timers = log.state.timers
        assert (timers.count, len(timers.unread)) == (1, topic == TIMER_TOPIC)
    is_of_transactions = topic in (HALF_TOPIC, OP_TOPIC)
    if is_of_transactions:
        assert log.unapplied_from == 0 and log.saving() is None, "no snapshot has less"
        for refused in (log.check_transactions, log.read_again):
            with pytest.raises(ReadFailed, match=str(path)):
                refused()
    disk.repair_sectors()
    assert log.read_again() == is_of_transactions
    log.catch_up()
    log.check_transactions()
    assert log.unapplied_from is None and log.saving() is not None


def test_what_is_read_again_has_what_readers_do_not_see_yet() -> None:
    """The store is a SYNC_MASTER's, whose slave does not have the newest records yet."""
    store = store_on(disk := MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    of_each_kind(store, HALF_TOPIC)
    bad_sector_under(store, disk, store.queues.log_offsets(HALF_TOPIC, 0, 0)[0])
    store.queues.confirm_offset = store.end_offset
    append(store, 1)
    append_timers(store, 1)
    log.catch_up()
    disk.repair_sectors()
    assert log.read_again()
    assert log.state.queues.keys() == {Place("g", "t", 0), Place("g", "t", 1)}
    assert log.state.timers.count == 2


@pytest.mark.parametrize("part", ["entry", "head"])
def test_a_start_does_not_take_a_damaged_queue_for_a_damaged_log(part: str) -> None:
    """After a damaged record, the queue's next entry says where the next record begins.  After a damaged entry, nothing
    says where its record is, so the start fails.
    """
    store = store_on(disk := MemoryFiles())
    offsets = append_timers(store, 3)
    store.close()
    store = store_on(disk := disk.kill())
    path = ROOT / "consumequeue" / TIMER_TOPIC / "0" / f"{0:020d}" if part == "entry" else store.log.path(0)
    disk.overwrite(path, 20 + 6 if part == "entry" else offsets[1] + 4, b"\x7f")
    log = StateLog(store, SNAPSHOT)
    if part == "entry":
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match=r"delete that folder"):
                log.reload()
    else:
        log.reload()
        assert (log.state.timers.count, log.state.timers.unread) == (2, {offsets[1]})


def test_a_timer_that_cannot_be_read_is_in_snapshots_and_settled_by_what_the_log_says_behind_it() -> None:
    store = store_on(disk := MemoryFiles())
    for _ in range(2):
        store.append_one(large(waiting_record(Record("t", b"body"), 5000, 1)), 1, bytes(8))
    first, second = store.queues.log_offsets(TIMER_TOPIC, 0, 0)
    store.append_one(Record(STATE_TOPIC, transitions.encode([Copied(4, (first,))])), 1, bytes(8))
    store.append_one(Record("other", bytes(snapshot.TAIL_BYTES)), 1, bytes(8))
    store.close()
    store = store_on(disk := disk.kill())
    for one in (first, second):
        bad_sector_under(store, disk, one)
    log = StateLog(store, SNAPSHOT)
    log.reload()
    assert (log.state.timers.count, log.state.timers.unread) == (0, {second})
    assert log.state.timers.oldest() == second and log.state.timers.oldest({second}) is None
    save(log)
    again = StateLog(store, SNAPSHOT)
    again.reload()
    assert again.state.timers.unread == {second}
    again.state.timers.find(Timer(4, second))
    assert again.state.timers.first(4, 9) == [second]


def test_what_a_start_has_read_is_in_the_next_snapshot() -> None:
    """The next snapshot contains what a start has read, so that the following start does not read it again."""
    store = store_on(MemoryFiles())
    for number in range(3):
        append(store, number)
    log = StateLog(store, SNAPSHOT)
    log.reload()
    save(log)
    again = StateLog(store, SNAPSHOT)
    again.reload()
    assert len(again.state.queues) == 3
    assert again.saving() is None  # the snapshot had all


def test_a_start_over_that_fails_leaves_no_snapshot_of_a_part_and_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slave starts over after a cut of its log, and goes on even if a read fails meanwhile."""
    store = store_on(MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    for number in range(4):
        append(store, number)
    monkeypatch.setattr(state_log, "READ_BYTES", 1)
    read_ranges, failure = store.queues.read_ranges, ReadFailed.of("commitlog/0", 0, OSError(5, "an error"))

    def read(ranges: list[tuple[str, int, int, int]], size: int) -> RangesResult:
        if ranges[0][2] == 2:
            raise failure
        return read_ranges(ranges, size)

    def read_record(log_offset: int) -> bytes:
        raise failure

    with monkeypatch.context() as broken:
        broken.setattr(store.queues, "read_ranges", read)
        broken.setattr(store.log, "record_at", read_record)
        for work in (log.reload, log.catch_up, log.saving):
            with pytest.raises(ReadFailed):
                work()
        assert log.unapplied_from == 0
        append(store, 4)
    store.queues.confirm_offset = store.end_offset
    append(store, 5)  # readers do not see this record yet
    log.catch_up()
    assert log.unapplied_from is None
    store.queues.confirm_offset = None
    started = StateLog(store, SNAPSHOT)
    started.reload()
    assert log.state.queues == started.state.queues and len(log.state.queues) == 6
