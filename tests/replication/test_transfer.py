"""When a master's log bytes leave for its slave; the clock is an argument."""

from math import inf

import pytest

from broker_service.replication.follower import Follower
from broker_service.replication.transfer import Transfer, TransferSettings
from tests.support.memory_log import MemoryLog, record
from tests.support.pair import Node

SETTINGS = TransferSettings(gather_bytes=4096, gather_s=0.005, heartbeat_s=5.0)


def joined(tmp_path, *, sync_master: bool, now: float = 100.0) -> tuple[MemoryLog, Transfer]:
    """A transfer whose slave has just got everything."""
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    transfer = Transfer(
        master.log,
        master.epochs,
        master.identity,
        master.acks,
        SETTINGS,
        sync_master=sync_master,
        sync_flush=False,
        now=now,
    )
    follower = Follower(slave.log, slave.epochs, slave.identity, tmp_path / "diverged")
    transfer.greet(follower.handshake(), takes_writes=True)
    assert transfer.next_message(now).message.WhichOneof("kind") == "handshake"
    return master.log, transfer


def data_at(transfer: Transfer, now: float) -> bytes | None:
    frame = transfer.next_message(now)
    return None if frame is None else frame.data


def test_a_record_leaves_at_once_when_nothing_left_just_before(tmp_path):
    log, transfer = joined(tmp_path, sync_master=False)
    log.append(b"one")
    assert data_at(transfer, 100.005) == record(b"one")


def test_small_records_behind_one_another_are_gathered(tmp_path):
    log, transfer = joined(tmp_path, sync_master=False)
    log.append(b"one")
    assert data_at(transfer, 100.004) is None
    assert transfer.next_call() == pytest.approx(100.005)
    log.append(b"two")
    assert data_at(transfer, 100.0049) is None
    assert data_at(transfer, 100.0051) == record(b"one") + record(b"two")
    assert transfer.next_call() == pytest.approx(105.0051)  # a heartbeat's time
    assert data_at(transfer, 105.1) == b""


def test_many_bytes_leave_at_once(tmp_path):
    log, transfer = joined(tmp_path, sync_master=False)
    log.append(b"x" * 4092)
    assert transfer.next_call() == -inf
    assert data_at(transfer, 100.0) == record(b"x" * 4092)


def test_a_sync_master_gathers_nothing(tmp_path):
    log, transfer = joined(tmp_path, sync_master=True)
    log.append(b"one")
    assert transfer.next_call() == -inf
    assert data_at(transfer, 100.0) == record(b"one")


def test_before_a_slave_has_greeted_nothing_is_said_to_it_however_late_it_is(tmp_path):
    node = Node(MemoryLog(), tmp_path / "m", 0)
    transfer = Transfer(
        node.log, node.epochs, node.identity, node.acks, SETTINGS, sync_master=True, sync_flush=False, now=100.0
    )
    assert transfer.next_call() == inf
    assert transfer.next_message(1000.0) is None
