"""A master and its slaves, with logs in memory.  Each test runs once on gRPC, and once on plain sockets."""

import asyncio
import errno
import functools
import logging
import threading
import zlib
from dataclasses import replace

import grpc
import pytest
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.metadata_pb2 import ConsumerOffset, DataVersion, Metadata, TopicConfig
from rocketsim_proto.replication_pb2_grpc import ReplicationStub

from broker_service.put_result import PutStatus
from broker_service.replication.acknowledgement import AckLevels
from broker_service.replication.epochs import Epoch, EpochList
from broker_service.replication.metadata_parts import OFFSETS_A_MESSAGE
from broker_service.replication.slave import SlaveSettings
from broker_service.replication.transfer import TransferSettings
from testbed.polling import PATIENCE_S
from tests.support.memory_log import MemoryLog, record
from tests.support.pair import Node, hello, until

QUICK = SlaveSettings(retry_first_s=0.01, retry_last_s=0.05, metadata_interval_s=0.02)


@pytest.fixture(autouse=True, params=["gRPC", "a plain socket"])
def wire(request, monkeypatch):
    monkeypatch.setattr(Node, "plain_sockets", "unix" if request.param == "a plain socket" else "")
    return request.param


def in_step(master, *slaves):
    return lambda: all(slave.log.data == master.log.data for slave in slaves)


async def test_a_new_slave_gets_the_whole_log_and_a_put_waits_for_it(tmp_path):
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving():
        master.put(*[b"x" * 1000 for _ in range(5000)])
        async with slave.following(master):
            await until(lambda: master.acks.tracker.confirm_offset == master.log.end_offset)
            assert await master.put_and_wait() is PutStatus.PUT_OK
            assert slave.log.data == master.log.data
            assert slave.epochs.epochs == master.epochs.epochs
            assert master.broker.joined == [1]


async def test_the_stream_is_on_the_wire_that_the_master_offers(tmp_path, wire, caplog):
    caplog.set_level(logging.INFO)
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.following(master):
        await until(slave.slave.is_following)
    assert f"over {wire}" in caplog.text


async def test_a_new_slave_of_a_trimmed_master_starts_at_the_masters_minimum(tmp_path):
    master = Node(MemoryLog(record(b"kept") * 9, min_offset=4096), tmp_path / "m", 0)
    slave = Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.following(master):
        await until(in_step(master, slave))
        assert slave.log.min_offset == 4096


async def test_a_slave_between_two_tries_tries_at_once_when_it_hears_that_the_master_is_back(tmp_path, caplog):
    slow = SlaveSettings(retry_first_s=3600.0, retry_last_s=3600.0)
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1, slave=slow)
    async with slave.running():
        async with master.serving(), slave.following(master):
            await until(slave.slave.is_following)
            master.master.disconnect("as if it died")
            await until(lambda: "trying again" in caplog.text)
            slave.slave.notify()
            await until(slave.slave.is_following)


async def test_a_slave_that_hears_during_a_try_that_the_master_is_back_tries_again_at_once(tmp_path):
    """The current try may have begun before the master was back, and wait for packets that were lost."""
    tries = []

    def fails(address, options):
        tries.append(address)
        if len(tries) == 1:
            slave.notify()
        raise OSError("no answer")

    slow = SlaveSettings(retry_first_s=3600.0, retry_last_s=3600.0)
    slave = Node(MemoryLog(), tmp_path, 1, slave=slow, open_channel=fails).slave
    following = asyncio.create_task(slave.follow("master:1"))
    await until(lambda: len(tries) == 2)
    assert tries == ["master:1"] * 2 and not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_slave_gives_up_a_try_and_a_connection_on_which_nothing_comes(tmp_path):
    """Left to gRPC and TCP, a try would take 20 s, and a dead connection would stay for hours."""
    opened = []

    def open_channel(address, options):
        opened.append(dict(options))
        raise OSError("no network")

    slave = Node(MemoryLog(), tmp_path, 1, open_channel=open_channel).slave
    following = asyncio.create_task(slave.follow("master:1"))
    await until(lambda: opened)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert opened[0]["grpc.min_reconnect_backoff_ms"] == 2000
    assert opened[0]["grpc.use_local_subchannel_pool"] == 1
    assert opened[0]["grpc.keepalive_time_ms"] + opened[0]["grpc.keepalive_timeout_ms"] <= 10_000


async def test_a_slave_that_was_stopped_follows_nobody(tmp_path):
    """A candidate for promotion asks the slave whether its master still answers, and a stopped slave must say no."""
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving():
        async with slave.following(master):
            await until(slave.slave.is_following)
        assert not slave.slave.is_following() and str(slave.slave) == "no master"


async def test_a_slave_that_reconnects_resumes_at_its_end(tmp_path):
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.running():
        master.put(b"first")
        async with slave.following(master):
            await until(in_step(master, slave))
        await until(lambda: not master.acks.tracker.slaves)
        assert await master.put_and_wait(b"alone") is PutStatus.SLAVE_NOT_AVAILABLE
        received = []
        append = slave.log.append_replicated
        slave.log.append_replicated = lambda offset, data: received.append(offset) or append(offset, data)
        async with slave.following(master):
            await until(in_step(master, slave))
            await until(lambda: master.acks.tracker.is_slave_available(master.log.end_offset))
            assert await master.put_and_wait(b"again") is PutStatus.PUT_OK
        assert received[0] == len(record(b"first"))
        assert slave.broker.cuts == []


async def test_several_slaves_follow_and_one_of_them_is_enough(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0)
    slaves = [Node(MemoryLog(), tmp_path / f"s{i}", i) for i in (1, 2, 3)]
    async with master.serving(), slaves[0].following(master), slaves[1].following(master):
        async with slaves[2].following(master):
            master.put(b"one")
            await until(in_step(master, *slaves))
            await until(lambda: len(master.acks.tracker.slaves) == 3)
        assert await master.put_and_wait(b"two") is PutStatus.PUT_OK
        await until(in_step(master, *slaves[:2]))


async def test_frames_split_records_anywhere(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0, transfer=TransferSettings(frame_bytes=7))
    slave = Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.following(master):
        master.put(*[b"0123456789" * 3] * 20)
        await until(in_step(master, slave))
        await until(lambda: master.acks.tracker.is_slave_available(master.log.end_offset))
        assert await master.put_and_wait() is PutStatus.PUT_OK


async def turns(count=50):
    """Lets every task do what it can do without waiting for the network."""
    for _ in range(count):
        await asyncio.sleep(0)


NEVER_BY_ITSELF = TransferSettings(gather_s=3600.0, gather_bytes=4096, heartbeat_s=7200.0)
ASYNC_MASTER = AckLevels(sync_master=False, sync_flush=False)


async def test_an_append_notifies_the_sender_only_when_a_frame_is_full(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=ASYNC_MASTER, transfer=NEVER_BY_ITSELF)
    slave = Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.following(master):
        await until(lambda: master.acks.tracker.is_slave_available(0))
        (stream,) = master.master.streams
        looks, next_message = [], stream.transfer.next_message

        def counted(now):
            looks.append(now)
            return next_message(now)

        stream.transfer.next_message = counted
        master.put(b"one")  # from now on the sender waits to gather bytes, and not for the next heartbeat
        await until(lambda: looks)
        await turns()
        looks.clear()
        master.put(b"two")
        await turns()
        assert not looks
        master.put(b"x" * 4096)
        await until(in_step(master, slave))


async def test_what_was_gathered_leaves_though_nothing_more_comes(tmp_path):
    settings = TransferSettings(gather_s=0.02, gather_bytes=4096, heartbeat_s=7200.0)
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=ASYNC_MASTER, transfer=settings)
    slave = Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.following(master):
        await until(lambda: master.acks.tracker.is_slave_available(0))
        for number in range(20):
            master.put(b"%d" % number)
            await asyncio.sleep(0)
        await until(in_step(master, slave))


async def test_an_ack_that_makes_room_for_more_notifies_the_sender(tmp_path):
    settings = TransferSettings(frame_bytes=1000, in_flight_bytes=1000, heartbeat_s=7200.0)
    master, slave = Node(MemoryLog(), tmp_path / "m", 0, transfer=settings), Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.following(master):
        await until(lambda: master.acks.tracker.is_slave_available(0))
        master.put(*[b"x" * 500] * 20)
        await until(in_step(master, slave))


# --- acknowledgement ----------------------------------------------------------------------------------------------


async def test_without_a_slave_a_put_is_told_at_once(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0)
    async with master.serving():
        assert await master.put_and_wait(timeout_s=3600.0) is PutStatus.SLAVE_NOT_AVAILABLE


async def test_a_slave_that_does_not_ack_ends_a_put_within_its_bound_and_ok_comes_back_with_it(tmp_path):
    levels = AckLevels(sync_master=True, sync_flush=False, slave_timeout_s=0.1)
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=levels)
    async with master.serving(), slave_by_hand(master) as call:
        await call.write(hello(master))
        await call.read()
        await call.write(ack(0))
        await until(lambda: master.acks.tracker.is_slave_available(0))
        late_ones = [asyncio.create_task(master.put_and_wait()) for _ in range(50)]
        assert set(await asyncio.gather(*late_ones)) == {PutStatus.FLUSH_SLAVE_TIMEOUT}
        acknowledging = asyncio.create_task(acknowledge_all(call))
        await until(lambda: master.acks.confirm_offset == master.log.end_offset)
        master.acks.levels = replace(levels, slave_timeout_s=PATIENCE_S)
        assert await master.put_and_wait() is PutStatus.PUT_OK
        acknowledging.cancel()
        await asyncio.gather(acknowledging, return_exceptions=True)


async def test_with_sync_flush_a_slave_acks_only_what_it_has_synced(tmp_path):
    levels = AckLevels(sync_master=True, sync_flush=True, slave_timeout_s=PATIENCE_S, sync_flush_timeout_s=PATIENCE_S)
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=levels)
    slave = Node(MemoryLog(), tmp_path / "s", 1, flush_interval_s=60)
    async with master.serving(), slave.following(master):
        await until(lambda: master.acks.tracker.is_slave_available(0))
        assert await master.put_and_wait() is PutStatus.PUT_OK
        assert slave.log.flushed_offset == slave.log.end_offset
        slave.log.fail_flush = OSError(5, "no disk")
        master.acks.levels = replace(levels, slave_timeout_s=0.1)
        assert await master.put_and_wait() is PutStatus.FLUSH_SLAVE_TIMEOUT
        await until(lambda: slave.failures)
        assert slave.log.end_offset == master.log.end_offset > master.acks.confirm_offset
        assert [str(failure) for failure in slave.failures] == ["[Errno 5] no disk"]


async def test_what_a_slave_stored_just_before_it_lost_its_master_is_shown_once_it_is_synced(tmp_path):
    levels = AckLevels(sync_master=False, sync_flush=True)
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=levels)
    slave = Node(MemoryLog(), tmp_path / "s", 1)
    flush, may_flush = slave.log.flush, threading.Event()
    may_flush.set()
    slave.log.flush = lambda: may_flush.wait(60) and flush()
    async with slave.running():
        async with master.serving():
            follow = asyncio.create_task(slave.slave.follow(master.address))
            await until(lambda: master.acks.tracker.is_slave_available(0))
            may_flush.clear()
            assert await master.put_and_wait() is PutStatus.PUT_OK
            await until(in_step(master, slave))
        await until(lambda: not slave.slave.is_following())
        may_flush.set()
        try:
            await until(lambda: slave.broker.replicated_to == slave.log.end_offset)
        finally:
            follow.cancel()
            await asyncio.gather(follow, return_exceptions=True)


async def test_a_flush_that_fails_is_reported_once_and_never_tried_again(tmp_path):
    levels = AckLevels(sync_master=False, sync_flush=True, sync_flush_timeout_s=PATIENCE_S)
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=levels, flush_interval_s=0.01)
    async with master.serving():
        assert await master.put_and_wait() is PutStatus.PUT_OK
        master.acks.levels = replace(levels, sync_flush_timeout_s=0.1)
        master.log.fail_flush = OSError(5, "no disk")
        assert await master.put_and_wait() is PutStatus.FLUSH_DISK_TIMEOUT
        await until(lambda: master.failures and not master.flusher.is_running())
        master.log.fail_flush = None
        assert await master.put_and_wait() is PutStatus.FLUSH_DISK_TIMEOUT
        assert len(master.failures) == 1


async def test_one_flush_serves_many_puts(tmp_path):
    levels = AckLevels(sync_master=False, sync_flush=True)
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=levels, flush_interval_s=60)
    async with master.serving():
        before = master.log.flushes
        flush, may_flush = master.log.flush, threading.Event()
        master.log.flush = lambda: may_flush.wait(60) and flush()
        puts = [asyncio.create_task(master.put_and_wait()) for _ in range(200)]
        await asyncio.sleep(0)  # all have put, and wait
        may_flush.set()
        assert set(await asyncio.gather(*puts)) == {PutStatus.PUT_OK}
        assert master.log.flushes - before <= 2


async def test_consumers_see_up_to_the_confirm_offset_while_a_slave_is_in_sync(tmp_path):
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving():
        async with slave.following(master):
            await until(lambda: master.acks.tracker.is_slave_available(0))
            await master.put_and_wait()
            await until(lambda: master.broker.visible[-1:] == [master.log.end_offset])
        await until(lambda: master.broker.visible[-1] is None)


async def test_a_slave_whose_next_bytes_expire_while_it_is_slow_starts_over_at_the_masters_minimum(tmp_path, caplog):
    levels = AckLevels(sync_master=False, sync_flush=True)
    window = TransferSettings(frame_bytes=1000, in_flight_bytes=1000)
    master = Node(MemoryLog(), tmp_path / "m", 0, levels=levels, transfer=window)
    # The slave flushes only when asked: a handshake waits for a flush that runs, and here a flush can take ten seconds.
    slave = Node(MemoryLog(), tmp_path / "s", 1, flush_interval_s=3600)
    flush, may_flush = slave.log.flush, threading.Event()
    slave.log.flush = lambda: may_flush.wait(60) and flush()
    size = len(record(bytes(996)))
    async with master.serving():
        master.put(*[bytes(996) for _ in range(50)])
        async with slave.following(master):
            await until(lambda: slave.log.end_offset == size)  # and no ack for them
            del master.log.data[: 20 * size]
            master.log.min_offset = 20 * size
            may_flush.set()
            await until(in_step(master, slave))
            assert slave.log.min_offset == 20 * size
    assert "has expired here; the slave has to start over" in caplog.text


# --- what a restart finds -----------------------------------------------------------------------------------------


async def test_a_tail_that_a_newer_epoch_forked_off_is_cut_kept_and_reported(tmp_path, caplog):
    common, lost = record(b"common"), record(b"only the slave has this")
    master, slave = Node(MemoryLog(common), tmp_path / "m", 0), Node(MemoryLog(common + lost), tmp_path / "s", 1)
    master.epochs.save(EpochList.of((100, 0)))
    slave.epochs.save(EpochList.of((100, 0)))
    async with master.serving():
        master.put(b"new")
        async with slave.following(master):
            await until(in_step(master, slave))
            assert slave.log.cut == [lost]
            assert slave.epochs.epochs == master.epochs.epochs
            assert [(cut.from_offset, cut.until_offset) for cut in slave.broker.cuts] == [(10, 37)]
    assert [line for line in caplog.messages if "cut [10, 37), kept in" in line]


async def test_a_master_that_lost_its_tail_refills_from_its_slave_before_a_new_epoch_begins(tmp_path):
    whole = b"".join(record(bytes([i]) * 100) for i in range(200))
    kept = 104 * 50
    master = Node(MemoryLog(whole[:kept]), tmp_path / "m", 0)
    slave = Node(MemoryLog(whole), tmp_path / "s", 1, slave=SlaveSettings(retry_first_s=0.01, refill_frame_bytes=333))
    for node in (master, slave):
        node.epochs.save(EpochList.of((100, 0)))
    master.broker.writes = False
    async with master.serving(begin=False), slave.following(master):
        await until(lambda: master.broker.joined)
        assert await master.master.begin_epoch() == 101
        master.broker.writes = True
        assert numbers(master) == f"100@0 101@{len(whole)}"
        master.put(b"new")
        await until(in_step(master, slave))
        await until(lambda: slave.epochs.epochs == master.epochs.epochs)
        assert slave.log.cut == []
        await until(lambda: master.acks.confirm_offset == master.log.end_offset)


async def test_an_epoch_does_not_begin_while_lost_bytes_are_being_fetched(tmp_path):
    master = Node(MemoryLog(record(b"a")), tmp_path / "m", 0)
    master.epochs.save(EpochList.of((1, 0)))
    master.broker.writes = False
    async with master.serving(begin=False):
        async with slave_by_hand(master) as call:
            lost = record(b"lost")
            await call.write(hello(master, end_offset=5 + len(lost), epochs=[(1, 0)]))
            reply = (await call.read()).handshake
            assert reply.refill and (reply.refill_from, reply.resume_offset) == (5, 13)
            begins = asyncio.create_task(master.master.begin_epoch())
            await call.write(pb.SlaveMessage(refill=log_data(5, lost[:3])))
            await until(lambda: master.log._aside == lost[:3])
            assert not begins.done(), "it waits for the rest of the refill"
            await call.write(pb.SlaveMessage(refill=log_data(8, lost[3:])))
            await begins
            assert numbers(master) == "1@0 2@13"


async def test_a_slave_of_a_newer_epoch_fences_an_older_master(tmp_path):
    log = record(b"common")
    master, slave = Node(MemoryLog(log), tmp_path / "m", 0), Node(MemoryLog(log), tmp_path / "s", 1)
    slave.epochs.save(EpochList.of((100, 0), (901, 10)))
    async with master.serving(), slave.following(master):
        await until(lambda: master.broker.fences == [901])
        assert slave.log.data == log and not slave.slave.is_following()


async def test_equal_offsets_with_different_bytes_are_noticed(tmp_path, caplog):
    master, slave = (
        Node(MemoryLog(record(b"one")), tmp_path / "m", 0),
        Node(MemoryLog(record(b"two")), tmp_path / "s", 1),
    )
    for node in (master, slave):
        node.epochs.save(EpochList.of((100, 0)))
    async with master.serving(begin=False), slave.following(master):
        await until(lambda: [line for line in caplog.messages if "differ from this master's" in line])
        assert slave.log.data == record(b"two") and not master.acks.tracker.slaves


# --- a slave that misbehaves --------------------------------------------------------------------------------------


class slave_by_hand:
    """A stream to the master, in which the test plays the slave."""

    def __init__(self, master):
        self.channel = grpc.aio.insecure_channel(master.address)

    async def __aenter__(self):
        self.call = ReplicationStub(self.channel).Replicate()
        return self.call

    async def __aexit__(self, *_):
        self.call.cancel()
        await self.channel.close()


async def ended(call):
    """Reads everything that was sent on a stream, and returns the status with which the stream ended."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    return await call.code()


def numbers(node):
    """Returns the epochs without their ids, which are random."""
    return " ".join(str(Epoch(epoch.epoch, epoch.start_offset)) for epoch in node.epochs.epochs.epochs)


def log_data(offset, data, *, epoch=1, crc32=None):
    return pb.LogData(
        epoch=epoch, commit_log_offset=offset, data=data, crc32=zlib.crc32(data) if crc32 is None else crc32
    )


def ack(offset, epoch=1):
    return pb.SlaveMessage(ack=pb.Ack(ack_offset=offset, epoch=epoch))


async def acknowledge_all(call):
    """Acknowledges each message with log bytes, including messages that came earlier, until the task is cancelled."""
    while (message := await call.read()) is not grpc.aio.EOF:
        if message.HasField("log"):
            await call.write(ack(message.log.commit_log_offset + len(message.log.data)))


STATUS = grpc.StatusCode


@pytest.mark.parametrize(
    "messages, status, details",
    [
        pytest.param([ack(0)], STATUS.INVALID_ARGUMENT, "first message is ack", id="ack first"),
        pytest.param([pb.SlaveMessage()], STATUS.INVALID_ARGUMENT, "first message is None", id="empty message"),
        pytest.param([{"cluster_name": "Other"}], STATUS.FAILED_PRECONDITION, "brokerClusterName", id="cluster"),
        pytest.param([{"broker_name": "broker-b"}], STATUS.FAILED_PRECONDITION, "brokerName", id="broker name"),
        pytest.param([{"broker_id": 0}], STATUS.FAILED_PRECONDITION, "brokerId 0", id="the master's own id"),
        pytest.param([{"broker_id": -7}], STATUS.FAILED_PRECONDITION, "brokerId -7", id="negative id"),
        pytest.param(
            [{"mapped_file_size_commit_log": 5}],
            STATUS.FAILED_PRECONDITION,
            "mappedFileSizeCommitLog",
            id="log file size",
        ),
        pytest.param(
            [{"mapped_file_size_consume_queue": 20}],
            STATUS.FAILED_PRECONDITION,
            "mappedFileSizeConsumeQueue",
            id="queue file size",
        ),
        pytest.param([{"end_offset": -1}], STATUS.INVALID_ARGUMENT, "impossible handshake", id="negative end"),
        pytest.param(
            [{"min_offset": 9, "end_offset": 3}], STATUS.INVALID_ARGUMENT, "impossible handshake", id="end before start"
        ),
        pytest.param(
            [{"epochs": [(200, 0), (100, 0)]}],
            STATUS.INVALID_ARGUMENT,
            "impossible handshake",
            id="epochs out of order",
        ),
        pytest.param(
            [{"epochs": [(1, 7)], "end_offset": 10}], STATUS.FAILED_PRECONDITION, "no epoch in common", id="stranger"
        ),
        pytest.param([{}, ack(1 << 40)], STATUS.OUT_OF_RANGE, "the log ends at 0", id="ack beyond the end"),
        pytest.param([{}, ack(-1)], STATUS.OUT_OF_RANGE, "outside of this log", id="negative ack"),
        pytest.param([{}, ack(0, epoch=999)], STATUS.FAILED_PRECONDITION, "newer than", id="ack of a newer epoch"),
        pytest.param(
            [{}, pb.SlaveMessage(refill=log_data(0, b"junk"))], STATUS.INVALID_ARGUMENT, "refill", id="refill unasked"
        ),
        pytest.param([{}, {}], STATUS.INVALID_ARGUMENT, "in the middle of a stream", id="handshake twice"),
        pytest.param(
            [{}, pb.SlaveMessage(offsets=Metadata(consumer_offsets=[ConsumerOffset(offset=-1)]))],
            STATUS.INVALID_ARGUMENT,
            "impossible offsets",
            id="negative offset handed back",
        ),
    ],
)
async def test_garbage_closes_the_stream_with_a_clear_status_and_one_line(tmp_path, caplog, messages, status, details):
    caplog.set_level(logging.WARNING, "broker_service")
    master = Node(MemoryLog(), tmp_path / "m", 0)
    async with master.serving():
        async with slave_by_hand(master) as call:
            for message in messages:
                await call.write(hello(master, **message) if isinstance(message, dict) else message)
            assert await ended(call) is status
            assert details in await call.details()
        lines = [entry.getMessage() for entry in caplog.records if entry.name.startswith("broker_service")]
        assert len(lines) == 1 and details in lines[0]
        assert master.acks.confirm_offset == 0 and not master.acks.tracker.slaves
        if status is not STATUS.FAILED_PRECONDITION or "newer" not in details:
            slave = Node(MemoryLog(), tmp_path / "s", 1)
            master.put(b"alive")
            async with slave.following(master):
                await until(in_step(master, slave))


@pytest.mark.parametrize(
    "frame, details",
    [
        pytest.param(log_data(5, b"12345678", crc32=1), "wrong CRC", id="wrong CRC"),
        pytest.param(log_data(0, b"12345678"), "bytes from 5 on are expected", id="wrong offset"),
        pytest.param(log_data(5, b"12345678", epoch=7), "not asked for", id="wrong epoch"),
        pytest.param(log_data(5, b"123456789"), "not asked for", id="too much"),
        pytest.param(log_data(5, b"\0" * 8), "no valid record", id="no record"),
        pytest.param(log_data(5, b""), "refill has 0 bytes from 5 on", id="nothing"),
        pytest.param(log_data(5, record(b"12")[:5] + b"\0\0\0"), "inside of a record", id="ends inside of a record"),
    ],
)
async def test_a_bad_refill_is_refused_and_leaves_the_log_as_it_was(tmp_path, frame, details):
    master = Node(MemoryLog(record(b"a")), tmp_path / "m", 0)
    master.epochs.save(EpochList.of((1, 0)))
    master.broker.writes = False
    if details == "inside of a record":
        frame = log_data(5, (99).to_bytes(4, "big") + b"1234")
    async with master.serving(begin=False), slave_by_hand(master) as call:
        await call.write(hello(master, end_offset=13, epochs=[(1, 0)]))
        await call.write(pb.SlaveMessage(refill=frame))
        assert await ended(call) is STATUS.INVALID_ARGUMENT
        assert details in await call.details()
        assert master.log.data == record(b"a") and not master.broker.joined
        assert await master.master.begin_epoch() == 2  # the lost tail stays lost, but the master starts


async def test_an_ack_before_its_bytes_were_sent_never_counts(tmp_path):
    """The regression of RocketMQ #3015: a bogus ack must not make later puts OK without a copy."""
    master = Node(MemoryLog(), tmp_path / "m", 0, transfer=TransferSettings(frame_bytes=10, in_flight_bytes=10))
    async with master.serving(), slave_by_hand(master) as call:
        end = master.put(*[b"x" * 20] * 5)
        await call.write(hello(master))
        await call.write(ack(end))
        assert await ended(call) is STATUS.OUT_OF_RANGE
        assert master.acks.confirm_offset == 0
        assert await master.put_and_wait() is PutStatus.SLAVE_NOT_AVAILABLE


async def test_an_ack_of_an_older_epoch_does_not_count(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0)
    async with master.serving(), slave_by_hand(master) as call:
        await call.write(hello(master))
        assert (await call.read()).handshake.epochs[-1].epoch == 1
        assert (await call.read()).metadata.complete
        end = master.put(b"body")
        assert (await call.read()).log.data == record(b"body")
        await master.master.begin_epoch()
        await call.write(ack(end, epoch=1))
        assert (await call.read()).handshake.epochs[-1].epoch == 2
        # once this message is handled, the ack before it was read, too
        await call.write(pb.SlaveMessage(offsets=Metadata()))
        await until(lambda: master.broker.handed_back)
        assert master.acks.confirm_offset == 0
        await call.write(ack(end, epoch=2))
        await until(lambda: master.acks.confirm_offset == end)


async def test_a_slave_that_does_not_ack_gets_a_bounded_number_of_bytes(tmp_path):
    settings = TransferSettings(frame_bytes=1000, in_flight_bytes=4000, heartbeat_s=0.05)
    master = Node(MemoryLog(), tmp_path / "m", 0, transfer=settings)
    async with master.serving(), slave_by_hand(master) as call:
        master.put(*[b"x" * 996] * 100)
        await call.write(hello(master))
        await call.read()
        assert (await call.read()).metadata.complete
        sent = 0
        while data := (await call.read()).log.data:  # until a heartbeat shows that nothing more comes
            sent += len(data)
        assert sent == 4000
        await call.write(ack(3000))
        while sent < 7000:  # a heartbeat may have left before the ack came
            sent += len((await call.read()).log.data)
        while data := (await call.read()).log.data:
            sent += len(data)
        assert sent == 7000


async def test_a_master_whose_disk_fails_a_read_says_so_and_its_slave_tries_again(tmp_path, caplog):
    master = Node(MemoryLog(), tmp_path / "m", 0)
    slave = Node(MemoryLog(), tmp_path / "s", 1, slave=SlaveSettings(retry_first_s=0.01))
    view_log = master.log.view_log

    def told() -> bool:
        """Returns whether the master's reason was logged at some attempt: if a write of the slave fails first, gRPC
        replaces that reason.
        """
        return any("lost: UNAVAILABLE the disk refuses" in line and "commitlog/0" in line for line in caplog.messages)

    def view(offset, size):
        if told():
            return view_log(offset, size)
        raise OSError(errno.EIO, "Input/output error", "commitlog/0")

    master.log.view_log = view
    async with master.serving():
        master.put(b"x")
        async with slave.following(master):
            await until(in_step(master, slave))
    assert told()
    assert "Unexpected" not in caplog.text


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param({"broker_name": "broker-b"}, id="another pair's"),
        pytest.param({"mapped_file_size_commit_log": 5}, id="other files"),
        pytest.param({"epochs": [(1, 7)], "end_offset": 10}, id="another broker's log"),
    ],
)
async def test_a_slave_that_is_refused_does_not_end_the_stream_of_one_with_its_id(tmp_path, stranger):
    """A refused slave tries again and again, and must not disturb the other one."""
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    async with master.serving(), slave.following(master):
        await until(lambda: master.acks.tracker.is_slave_available(0))
        (stream,) = master.master.streams
        async with slave_by_hand(master) as call:
            await call.write(hello(master, **stranger))
            assert await ended(call) is STATUS.FAILED_PRECONDITION
        assert await master.put_and_wait(timeout_s=3600.0) is PutStatus.PUT_OK
        assert list(master.master.streams) == [stream]
        assert master.broker.joined == [1]


async def test_a_second_connection_of_a_slave_replaces_the_first(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0)
    async with master.serving(), slave_by_hand(master) as older, slave_by_hand(master) as newer:
        await older.write(hello(master))
        await older.read()
        await newer.write(hello(master))
        await newer.read()
        assert await ended(older) is STATUS.ABORTED
        assert "has connected again" in await older.details()
        assert list(master.acks.tracker.slaves) == [1]


async def test_a_slave_that_fell_silent_is_dropped_and_one_that_acks_heartbeats_is_not(tmp_path):
    settings = TransferSettings(heartbeat_s=0.05, housekeeping_s=2.0)
    master, slave = Node(MemoryLog(), tmp_path / "m", 0, transfer=settings), Node(MemoryLog(), tmp_path / "s", 2)
    async with master.serving(), slave.following(master), slave_by_hand(master) as silent:
        await silent.write(hello(master))
        assert await ended(silent) is STATUS.DEADLINE_EXCEEDED
        assert "nothing heard" in await silent.details()
        assert list(master.acks.tracker.slaves) == [2]


async def test_a_slave_leaves_a_master_that_fell_silent(tmp_path, caplog):
    master = Node(MemoryLog(), tmp_path / "m", 0, transfer=TransferSettings(heartbeat_s=60))
    slave = Node(MemoryLog(), tmp_path / "s", 1, slave=SlaveSettings(housekeeping_s=0.1, retry_first_s=0.01))
    async with master.serving(), slave.following(master):
        await until(lambda: len(master.broker.joined) >= 2)
    assert [line for line in caplog.messages if "lost: nothing heard" in line]


async def test_a_broker_that_is_no_master_refuses_slaves(tmp_path):
    node = Node(MemoryLog(), tmp_path / "m", 1)
    node.broker.master = False
    async with node.serving(begin=False), slave_by_hand(node) as call:
        await call.write(hello(node, broker_id=2))
        assert await ended(call) is STATUS.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError, match="not a master"):
            await ReplicationStub(grpc.aio.insecure_channel(node.address)).GetMetadata(
                pb.GetMetadataRequest(broker_name="broker-a", broker_id=2)
            )


# --- metadata -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["topics_version", "groups_version"])
async def test_an_answer_that_a_change_has_overtaken_takes_nothing_back(tmp_path, monkeypatch, table):
    def metadata(counter, **fields):
        return Metadata(**{table: DataVersion(counter=counter)}, **fields)

    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1, slave=QUICK)
    master.broker.snapshot = metadata(7, complete=True)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_late(request, context):
        answer = master.broker.metadata()
        asked.set()
        await may_answer.wait()
        return answer

    monkeypatch.setattr(master.master, "GetMetadata", answer_late)
    async with master.serving(), slave.following(master):
        await asked.wait()
        await until(lambda: slave.broker.applied == [master.broker.snapshot])  # the stream opens after this answer
        slave.broker.applied.clear()
        master.broker.snapshot = metadata(8, complete=True)
        master.master.streams.publish(metadata(8))
        await until(lambda: slave.broker.applied)
        may_answer.set()
        await until(lambda: any(applied.complete for applied in slave.broker.applied))
        counters = [getattr(applied, table).counter for applied in slave.broker.applied]
        assert set(counters) == {8}

        # The reverse case: a change is under way for longer than an answer.
        master.broker.snapshot = metadata(10, complete=True)
        await until(lambda: getattr(slave.broker.applied[-1], table).counter == 10)
        for counter in (9, 11):
            master.master.streams.publish(metadata(counter))
        master.broker.snapshot = metadata(11, complete=True)
        await until(lambda: getattr(slave.broker.applied[-1], table).counter == 11)
        counters = [getattr(applied, table).counter for applied in slave.broker.applied]
        assert counters == sorted(counters)


async def test_a_master_met_again_may_be_at_an_older_version(tmp_path):
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1, slave=QUICK)
    async with master.serving(), slave.running():
        # the lower version is that of a promoted master, or of one whose file was restored from a backup
        for counter in (7, 3):
            master.broker.snapshot = Metadata(topics_version=DataVersion(counter=counter), complete=True)
            async with slave.following(master):
                await until(lambda at=counter: slave.broker.applied[-1:] == [master.broker.snapshot])


async def test_metadata_comes_as_snapshots_and_changes_and_offsets_are_handed_back(tmp_path):
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1, slave=QUICK)
    slave.broker.to_hand_back = Metadata(consumer_offsets=[ConsumerOffset(group="g", topic="t", offset=7)])
    async with master.serving(), slave.following(master):
        await until(lambda: len([one for one in slave.broker.applied if one.complete]) >= 2)
        await until(lambda: master.broker.handed_back)
        change = Metadata(topics=[TopicConfig(topic_name="new")])
        master.master.streams.publish(change)
        await until(lambda: change in slave.broker.applied)
        master.broker.handed_back.clear()
        slave.slave.hand_back()
        await until(lambda: slave.broker.to_hand_back in master.broker.handed_back)


async def test_more_offsets_than_fit_into_a_message_are_handed_back_in_several(tmp_path):
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    entry = ConsumerOffset(group="g" * 50, topic="t", offset=7)
    slave.broker.to_hand_back = Metadata(consumer_offsets=[entry] * 100_000)  # above gRPC's 4 MiB
    async with master.serving(), slave.following(master):
        await until(lambda: sum(len(part.consumer_offsets) for part in master.broker.handed_back) >= 100_000)
        assert {len(part.consumer_offsets) for part in master.broker.handed_back} == {OFFSETS_A_MESSAGE}
        available = functools.partial(master.acks.tracker.is_slave_available, 0)
        await until(available)
        # the slave may be lost again while it handles so many changes
        while await master.put_and_wait() is not PutStatus.PUT_OK:
            await until(available)


async def test_a_slave_too_slow_for_changes_gets_one_snapshot(tmp_path):
    master = Node(MemoryLog(), tmp_path / "m", 0, transfer=TransferSettings(metadata_changes=3))
    async with master.serving(), slave_by_hand(master) as call:
        await call.write(hello(master))
        await call.read()
        assert (await call.read()).metadata.complete
        for counter in range(10):
            master.master.streams.publish(Metadata(epoch=counter))
        assert (await call.read()).metadata.complete
        master.master.streams.publish(Metadata(epoch=99))
        assert (await call.read()).metadata.epoch == 99
