"""Snapshots of the state of consumption on a disk that fails in the middle."""

import contextlib
import random
from pathlib import Path

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record, encode
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.broker.delayed.timer import recall_record, waiting_record
from broker_service.consumption import state_log, transitions
from broker_service.consumption.state_log import StateLog
from broker_service.consumption.transitions import Copied, Place, Take
from broker_service.errors import ReadFailed
from broker_service.machine import Machine
from broker_service.node import BrokerNode
from broker_service.store.batch import Batch
from broker_service.store.message_store import MessageStore
from broker_service.store.ranges import RangesResult
from tests.support.brokers import small_config
from tests.support.memory_files import MemoryFiles, PowerCut

ROOT = Path("/store")
SNAPSHOT = ROOT / "rocketsim" / "consumption.snapshot"


def store_on(disk: MemoryFiles) -> MessageStore:
    return BrokerNode.open(small_config(ROOT), Machine(files=disk)).store


def append(store: MessageStore, number: int = 0) -> None:
    """A pop of one message of the queue with this number."""
    take = Take(place=Place("g", "t", number), pop=number, start=0, next=1, offsets=(0,), attempts=(1,))
    store.append_one(Record(transitions.STATE_TOPIC, transitions.encode([take])), 1, bytes(8))


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
    store._flush_thoroughly()
    append(store, 2)
    disk.stop_at = disk.calls + call
    with contextlib.suppress(PowerCut):
        save(log)
    for seed in range(3):
        left = disk.as_powerless(random.Random(seed)) if seed else disk.as_killed()
        found = StateLog(store_on(left), SNAPSHOT)._snapshot()
        assert found is not None and len(found.transitions) >= 4  # of two queues, two for each


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


def timer(number: int) -> Record:
    """Every seventh is the recall of the one before, and every eleventh says no time."""
    message = Record("t", b"body", properties={"UNIQ_KEY": f"{number:032X}"})
    made = waiting_record(message, 5000 + 100 * number, 1)
    if number % 7 == 6:
        made = recall_record("t", f"{number - 1:032X}", 5000 + 100 * (number - 1), 1)
    if number % 11 == 10:
        made.properties["TIMER_OUT_MS"] = "soon"
    return made


def append_timers(store: MessageStore, count: int) -> list[int]:
    """Their log offsets."""
    begin = store.queue_end(TIMER_TOPIC, 0)
    frame = bytearray(b"".join(encode(timer(number)) for number in range(count)))
    store.append(Batch.of_frame(frame, count), TIMER_TOPIC, 1, bytes(8))
    return store.log_offsets(TIMER_TOPIC, 0, begin)


@pytest.mark.parametrize("as_columns", [True, False])
def test_timers_are_told_alike_one_by_one_and_as_columns(as_columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "_MANY", 1 if as_columns else 10_000)
    disk = MemoryFiles()
    store = store_on(disk)
    log = StateLog(store, SNAPSHOT)
    offsets = append_timers(store, 40)
    append(store)
    settled = Copied(5, (offsets[1], offsets[2]))
    store.append_one(Record(transitions.STATE_TOPIC, transitions.encode([settled])), 1, bytes(8))
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
    read_log = store.read_log

    def damaged(offset: int, size: int) -> bytes:
        data = read_log(offset, size)
        return data.replace(b"body", b"dody", 1)

    monkeypatch.setattr(store, "read_log", damaged)
    monkeypatch.setattr(state_log, "_MANY", 1)
    log.catch_up()
    assert [one for _, some in log.state.timers.before(store.end_offset) for one in some] == offsets


def test_a_read_that_fails_leaves_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_on(MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    offsets = append_timers(store, 20)
    failure = ReadFailed.of("commitlog/0", offsets[7], OSError(5, "an error"))
    read_record = store.read_record

    def read(offset: int) -> bytes:
        if offset == offsets[7]:
            raise failure
        return read_record(offset)

    def read_log(offset: int, size: int) -> bytes:
        raise failure

    with monkeypatch.context() as broken:
        broken.setattr(store, "read_record", read)
        broken.setattr(store, "read_log", read_log)
        with pytest.raises(ReadFailed):
            log.catch_up()
        assert log.unapplied_from == offsets[7]
        assert log.state.timers.oldest() == offsets[0] and log.state.timers.count == 7
    log.catch_up()
    assert log.unapplied_from is None and log.state.timers.count == 19


def test_what_a_start_has_read_is_in_the_next_snapshot() -> None:
    """So that the start after it does not read it again."""
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
    """After a cut of a slave's log: the slave goes on when a read has failed."""
    store = store_on(MemoryFiles())
    log = StateLog(store, SNAPSHOT)
    for number in range(4):
        append(store, number)
    monkeypatch.setattr(state_log, "_READ_BYTES", 1)
    read_ranges, failure = store.read_ranges, ReadFailed.of("commitlog/0", 0, OSError(5, "an error"))

    def read(ranges: list[tuple[str, int, int, int]], size: int) -> RangesResult:
        if ranges[0][2] == 2:
            raise failure
        return read_ranges(ranges, size)

    with monkeypatch.context() as broken:
        broken.setattr(store, "read_ranges", read)
        for work in (log.reload, log.catch_up, log.saving):
            with pytest.raises(ReadFailed):
                work()
        assert log.unapplied_from == 0
        append(store, 4)
    store.confirm_offset = store.end_offset
    append(store, 5)  # which readers do not see yet
    log.catch_up()
    assert log.unapplied_from is None
    store.confirm_offset = None
    started = StateLog(store, SNAPSHOT)
    started.reload()
    assert log.state.queues == started.state.queues and len(log.state.queues) == 6
