"""A master decides when to send log bytes to its slave.  The tests pass the time as an argument."""

from math import inf

import pytest
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.metadata_pb2 import ConsumerOffset, DataVersion, Metadata, TopicConfig

from broker_service.replication.follower import Follower
from broker_service.replication.metadata_parts import OFFSETS_A_MESSAGE
from broker_service.replication.tracker import AckRefused
from broker_service.replication.transfer import Transfer, TransferSettings
from tests.support.memory_log import MemoryLog, record
from tests.support.pair import Node

SETTINGS = TransferSettings(gather_bytes=4096, gather_s=0.005, heartbeat_s=5.0)


def joined(tmp_path, *, sync_master: bool, now: float = 100.0) -> tuple[MemoryLog, Transfer]:
    """Returns a log and a transfer whose slave has just received everything."""
    master = Node(MemoryLog(), tmp_path / "m", 0)
    return master.log, joined_to(master, tmp_path, sync_master=sync_master, now=now)


def joined_to(master: Node, tmp_path, *, sync_master: bool, now: float = 100.0) -> Transfer:
    slave = Node(MemoryLog(), tmp_path / "s", 1)
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
    return transfer


def data_at(transfer: Transfer, now: float) -> bytes | memoryview | None:
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


def test_an_async_master_gathers_the_puts_of_ten_milliseconds_up_to_256_kib(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SETTINGS", TransferSettings())
    log, transfer = joined(tmp_path, sync_master=False)
    log.append(b"x" * (200 << 10))
    assert transfer.next_call() == pytest.approx(100.010)
    log.append(b"x" * (56 << 10))
    assert transfer.next_call() == -inf


def test_full_messages_leave_at_once_however_small_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SETTINGS", TransferSettings(frame_bytes=1000))
    log, transfer = joined(tmp_path, sync_master=False)
    log.append(b"x" * 2400)
    sizes = []
    while transfer.next_call() == -inf:
        sizes.append(len(data_at(transfer, 100.0)))
    assert sizes == [1000, 1000]
    assert len(data_at(transfer, 100.010)) == log.end_offset - 2000


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


# --- metadata ---------------------------------------------------------------------------------------------------------


def test_a_slave_gets_a_snapshot_first_and_may_name_no_change_that_it_was_not_sent(tmp_path):
    _, transfer = joined(tmp_path, sync_master=True)
    assert transfer.wants_snapshot
    transfer.offer_metadata(Metadata(sequence=4))  # in the snapshot
    transfer.give_snapshot(Metadata(complete=True, sequence=4))
    transfer.offer_metadata(Metadata(sequence=5))
    assert transfer.next_message(100.0).message.metadata.complete
    with pytest.raises(AckRefused, match="change 5 of the metadata, but only 4 was sent"):
        transfer.ack(pb.Ack(metadata_sequence=5))
    assert transfer.slave.metadata_sequence is None
    assert transfer.next_message(100.0).message.metadata.sequence == 5
    transfer.ack(pb.Ack(metadata_sequence=5))
    assert transfer.slave.metadata_sequence == 5


def test_an_ack_of_an_older_epoch_says_nothing_of_changes_either(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0)
    transfer = joined_to(master, tmp_path, sync_master=True)
    transfer.give_snapshot(Metadata(complete=True, sequence=4))
    transfer.next_message(100.0)
    master.epochs.save(master.epochs.epochs.begin(100, 0))
    transfer.ack(pb.Ack(metadata_sequence=4, epoch=0))
    assert transfer.slave.metadata_sequence is None


@pytest.mark.parametrize("count", [0, OFFSETS_A_MESSAGE, OFFSETS_A_MESSAGE + 1, 3 * OFFSETS_A_MESSAGE])
def test_a_large_snapshot_is_several_messages_of_which_the_last_has_the_sequence(tmp_path, count):
    offsets = [ConsumerOffset(group="g", topic="t", queue_id=queue) for queue in range(count)]
    whole = Metadata(
        topics_version=DataVersion(counter=7),
        topics=[TopicConfig(topic_name="t")],
        consumer_offsets=offsets,
        complete=True,
        sequence=4,
    )
    _, transfer = joined(tmp_path, sync_master=True)
    transfer.give_snapshot(whole)
    sent = []
    while (message := transfer.next_message(100.0)) is not None:
        sent.append(message.message.metadata)
    assert [entry for part in sent for entry in part.consumer_offsets] == offsets
    assert [len(part.consumer_offsets) for part in sent[:-1]] == [OFFSETS_A_MESSAGE] * (len(sent) - 1)
    assert [part.sequence for part in sent] == [0] * (len(sent) - 1) + [4]
    assert {part.topics_version.counter for part in sent} == {7}, "none is taken for overtaken"
    assert [part.complete for part in sent] == [True] + [False] * (len(sent) - 1)
    assert [len(part.topics) for part in sent] == [1] + [0] * (len(sent) - 1)


def test_one_record_may_always_be_under_way_however_large(tmp_path, monkeypatch):
    """No part of a record is acknowledged before its end has arrived, and nothing else is sent meanwhile."""
    monkeypatch.setattr(f"{__name__}.SETTINGS", TransferSettings(frame_bytes=400, in_flight_bytes=1000))
    log, transfer = joined(tmp_path, sync_master=True)
    for size in (100, 5000, 90, 3000, 10):
        log.append(bytes(size - 4))

    def sent() -> int:
        before = transfer.sent_offset
        while data_at(transfer, 100.0):
            pass
        return transfer.sent_offset - before

    assert sent() == 1200, "the window is full, and the first record is far behind"
    transfer.ack(pb.Ack(ack_offset=100))
    assert 100 + 5000 <= 1200 + sent() < 100 + 5000 + 400
    assert transfer.next_call() > 100.0, "nothing but a sign of life"
    transfer.ack(pb.Ack(ack_offset=5190))
    assert transfer.sent_offset + sent() == log.end_offset


def test_only_the_sender_reads_the_log_and_once_for_each_ack_of_a_full_window(tmp_path, monkeypatch):
    """`next_call` is called after every append, where a slow slave or a bad sector must not delay a put."""
    monkeypatch.setattr(f"{__name__}.SETTINGS", TransferSettings(frame_bytes=400, in_flight_bytes=1000))
    log, transfer = joined(tmp_path, sync_master=True)
    reads = []
    read_log = log.read_log
    monkeypatch.setattr(log, "read_log", lambda at, size: reads.append((at, size)) or read_log(at, size))
    monkeypatch.setattr(log, "view_log", lambda at, size: memoryview(read_log(at, size)))
    log.append(*[bytes(96)] * 30)
    while data_at(transfer, 100.0):
        pass
    assert (transfer.sent_offset, reads) == (1200, [(0, 4)])
    for _ in range(5):
        log.append(bytes(96))
        assert transfer.next_call() == 105.0, "nothing but a sign of life"
    transfer.ack(pb.Ack(ack_offset=100))
    assert (transfer.next_call(), reads) == (-inf, [(0, 4)]), "the sender is to look"
    assert (data_at(transfer, 100.0), reads) == (None, [(0, 4), (100, 4)])
    assert transfer.next_call() == 105.0
    assert data_at(transfer, 105.0) == b"", "a sign of life leaves all the same"
    transfer.ack(pb.Ack(ack_offset=300))
    assert len(data_at(transfer, 105.0)) == 400
    assert reads == [(0, 4), (100, 4)]
