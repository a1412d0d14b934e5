"""The slave's side of a stream: what it accepts from its master, and the order in which it makes things durable."""

import zlib
from types import SimpleNamespace

import pytest
from rocketsim_proto import replication_pb2 as pb

from broker_service.errors import StaleEpoch
from broker_service.replication.catch_up import Cut
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import EpochList
from broker_service.replication.follower import Follower
from broker_service.replication.handshake import Identity, epoch_messages
from broker_service.replication.refusals import Diverged, Mismatch, ProtocolViolation
from tests.support.memory_log import MemoryLog, record

IDENTITY = Identity(
    cluster_name="c",
    broker_name="b",
    broker_id=1,
    address="host:1",
    mapped_file_size_commit_log=1,  # a log in memory may begin anywhere
    mapped_file_size_consume_queue=6_000_000,
)
TEN = record(b"123456")  # 10 bytes


def follower(tmp_path, log, *epochs, cuts=None):
    """Returns a follower and its epoch file; `cuts` collects the cuts of the log."""
    file = EpochFile(tmp_path / "epochs.json", 0)
    file.save(EpochList.of(*epochs))
    hears = cuts if cuts is None else SimpleNamespace(log_will_be_cut=lambda end_offset: None, log_cut=cuts.append)
    return Follower(log, file, IDENTITY, tmp_path / "diverged", hears), file


def reply(*epochs, end, resume, first=0, tail=b"", **fields):
    return pb.HandshakeReply(
        epochs=epoch_messages(EpochList.of(*epochs)),
        min_offset=first,
        end_offset=end,
        resume_offset=resume,
        tail_size=len(tail),
        tail_crc32=zlib.crc32(tail),
        **fields,
    )


def frame(offset, data, *, epoch=100, crc32=None):
    crc32 = zlib.crc32(data) if crc32 is None else crc32
    return pb.LogData(epoch=epoch, commit_log_offset=offset, crc32=crc32, master_end_offset=1000), data


def test_a_slave_does_not_follow_a_master_of_an_older_epoch(tmp_path):
    slave, file = follower(tmp_path, MemoryLog(TEN * 3), (100, 0), (201, 20))
    with pytest.raises(StaleEpoch, match="that master was replaced"):
        slave.welcome(reply((100, 0), end=50, resume=20))
    assert str(file.epochs) == "100@0 201@20"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply((100, 0), end=20, resume=20), id="by a master of the same epoch"),
        pytest.param(reply((100, 0), (200, 20), end=50, resume=10), id="below the common prefix"),
        pytest.param(reply((100, 0), (200, 10), end=50, resume=20), id="above the common prefix"),
        pytest.param(reply((100, 0), (200, 10), end=50, resume=30), id="not although the histories part"),
        pytest.param(reply((300, 0), end=50, resume=0), id="without an epoch in common"),
        pytest.param(reply((100, 0), end=90, resume=60, first=50), id="to start over elsewhere than at the minimum"),
    ],
)
def test_a_slave_cuts_nothing_that_its_own_history_does_not_say_is_forked_off(tmp_path, answer):
    log = MemoryLog(TEN * 3)
    slave, file = follower(tmp_path, log, (100, 0))
    with pytest.raises(Mismatch):
        slave.welcome(answer)
    assert log.data == TEN * 3 and log.cut == [] and str(file.epochs) == "100@0"


def test_a_slave_hears_where_the_log_of_its_master_begins(tmp_path):
    slave, _ = follower(tmp_path, MemoryLog(TEN * 3), (100, 0))
    slave.welcome(reply((100, 0), end=50, resume=30, first=10))
    assert slave.master_min_offset == 10
    heartbeat, data = frame(30, b"")
    slave.receive(heartbeat, data)
    assert slave.master_min_offset is None, "a master of an earlier version does not say it"
    heartbeat.master_min_offset = 20
    slave.receive(heartbeat, data)
    assert slave.master_min_offset == 20


def test_bytes_are_cut_before_the_newer_epoch_is_adopted(tmp_path):
    log = MemoryLog(TEN * 3)
    slave, file = follower(tmp_path, log, (100, 0))

    def dies(*_):
        raise KeyboardInterrupt

    log.truncate = dies
    with pytest.raises(KeyboardInterrupt):
        slave.welcome(reply((100, 0), (200, 10), end=50, resume=10, tail=TEN))
    assert str(file.epochs) == "100@0"  # otherwise, after a restart, the forked bytes would pass for the new master's


@pytest.mark.parametrize("fails", ["the epochs", "the rest of the cut"])
def test_who_depends_on_the_log_hears_of_a_cut_that_is_not_finished(tmp_path, fails):
    log, cuts = MemoryLog(TEN * 3), []
    slave, file = follower(tmp_path, log, (100, 0), cuts=cuts)
    truncate = log.truncate

    def full(*args):
        if args:
            truncate(*args)
        raise OSError(28, "No space left on device")

    if fails == "the epochs":
        file.save = lambda epochs: full()
    else:
        log.truncate = full
    with pytest.raises(OSError, match="No space left"):
        slave.welcome(reply((100, 0), (200, 10), end=50, resume=10, tail=TEN))
    assert cuts == [Cut(10, 30, 10, str(tmp_path / "diverged"))]


def test_a_cut_that_has_not_begun_is_no_cut(tmp_path):
    log, cuts = MemoryLog(TEN * 3), []
    slave, _ = follower(tmp_path, log, (100, 0), cuts=cuts)

    def full(*_):
        raise OSError(28, "No space left on device")

    log.truncate = full
    with pytest.raises(OSError, match="No space left"):
        slave.welcome(reply((100, 0), (200, 10), end=50, resume=10, tail=TEN))
    assert cuts == []


def test_a_slave_that_forked_off_before_its_masters_minimum_keeps_its_tail_and_starts_over(tmp_path):
    """The simulation has found this case, in which the slave's log forks before the first offset of the master's."""
    log, cuts = MemoryLog(TEN * 9), []
    slave, _ = follower(tmp_path, log, (100, 0), cuts=cuts)
    slave.welcome(reply((100, 0), (200, 20), first=40, end=70, resume=40))
    (cut,) = cuts
    assert (cut.from_offset, cut.until_offset, cut.end_offset) == (0, 90, 40)
    assert log.cut == [TEN * 7] and (log.min_offset, log.end_offset) == (40, 40)


def test_different_bytes_before_the_joint_are_noticed_and_nothing_is_changed(tmp_path):
    log = MemoryLog(TEN * 3)
    slave, _ = follower(tmp_path, log, (100, 0))
    with pytest.raises(Diverged, match="differ from the master's"):
        slave.welcome(reply((100, 0), (200, 10), end=50, resume=10, tail=record(b"654321")))
    assert log.data == TEN * 3


@pytest.mark.parametrize(
    "bad, error, message",
    [
        pytest.param(frame(0, TEN), ProtocolViolation, "instead of 10", id="offset"),
        pytest.param(frame(10, TEN, crc32=1), ProtocolViolation, "wrong CRC", id="crc"),
        pytest.param(frame(10, TEN, epoch=99), StaleEpoch, "epoch 99", id="older epoch"),
        pytest.param(frame(10, TEN, epoch=200), ProtocolViolation, "not announced", id="newer epoch"),
        pytest.param(frame(10, bytes(10)), ProtocolViolation, "no valid record", id="no record"),
    ],
)
def test_bad_log_bytes_are_not_stored(tmp_path, bad, error, message):
    log = MemoryLog(TEN)
    slave, _ = follower(tmp_path, log, (100, 0))
    slave.welcome(reply((100, 0), end=10, resume=10))
    with pytest.raises(error, match=message):
        slave.receive(*bad)
    assert log.data == TEN


def test_an_ack_covers_whole_records_and_what_is_synced_if_the_master_asks_for_it(tmp_path):
    slave, _ = follower(tmp_path, MemoryLog(TEN), (100, 0))
    slave.welcome(reply((100, 0), end=10, resume=10, sync_flush=True))
    slave.receive(*frame(10, TEN + TEN[:4]))
    assert slave.ack(flushed_offset=10).ack_offset == 10
    assert slave.ack(flushed_offset=24).ack_offset == 20
    slave.receive(*frame(24, TEN[4:]))
    assert slave.ack(flushed_offset=30).ack_offset == 30

    slave, _ = follower(tmp_path, MemoryLog(TEN), (100, 0))
    slave.welcome(reply((100, 0), end=10, resume=10, sync_flush=False))
    slave.receive(*frame(10, TEN))
    assert slave.ack(flushed_offset=10).ack_offset == 20


def test_an_epoch_that_begins_while_the_stream_is_open_is_on_disk_before_its_first_byte(tmp_path):
    slave, file = follower(tmp_path, MemoryLog(TEN), (100, 0))
    slave.welcome(reply((100, 0), end=10, resume=10))
    slave.welcome(reply((100, 0), (200, 10), end=10, resume=10))
    assert str(EpochFile(tmp_path / "epochs.json", 0).epochs) == "100@0 200@10"
    slave.receive(*frame(10, TEN, epoch=200))
    assert slave.ack(0).epoch == file.epochs.last == 200
    with pytest.raises(StaleEpoch):
        slave.welcome(reply((100, 0), end=10, resume=10))


def test_what_the_master_lost_is_sent_in_pieces(tmp_path):
    slave, _ = follower(tmp_path, MemoryLog(TEN * 5), (100, 0))
    slave.welcome(reply((100, 0), end=20, resume=50, refill=True, refill_from=20, tail=TEN * 2))
    pieces = []
    while (piece := slave.next_refill(12)) is not None:
        pieces.append((piece.commit_log_offset, piece.data))
    assert pieces == [(20, (TEN * 3)[:12]), (32, (TEN * 3)[12:24]), (44, (TEN * 3)[24:])]


def test_one_line_says_where_it_stands(tmp_path):
    slave, _ = follower(tmp_path, MemoryLog(TEN), (100, 0))
    slave.welcome(reply((100, 0), end=40, resume=10))
    assert str(slave) == "follower end=10 behind=30B epoch=100"
