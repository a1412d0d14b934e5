"""Snapshots of the state of consumption on a disk that fails in the middle."""

import contextlib
import random
from pathlib import Path

import pytest
from rocketsim_proto.records.record import Record

from broker_service.consumption import state_log, transitions
from broker_service.consumption.state_log import StateLog
from broker_service.consumption.transitions import Place, Take
from broker_service.machine import Machine
from broker_service.node import BrokerNode
from broker_service.store.message_store import MessageStore
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
