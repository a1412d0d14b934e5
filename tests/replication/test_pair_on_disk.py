"""A pair with real stores: the files of the slave equal those of the master."""

import asyncio
from contextlib import contextmanager

import pytest
from rocketsim_proto.records.record import Record, encode_host

from broker_service.errors import NotFound
from broker_service.put_result import PutStatus
from broker_service.replication.acknowledgement import AckLevels
from broker_service.store.config import StoreConfig
from broker_service.store.message_store import MessageStore
from testbed.polling import PATIENCE_S
from tests.support.pair import Node, until

FILE_SIZE = 64 << 10
NOW = 1_700_000_000_000
HOST = encode_host("127.0.0.1", 10911)


@contextmanager
def store(directory):
    config = StoreConfig(
        root=directory,
        mapped_file_size_commit_log=FILE_SIZE,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=1000,
        file_reserved_time_h=1,
        delete_hours=frozenset(range(24)),
        disk_max_used_space_ratio=99,
    )
    opened = MessageStore.open(config, NOW)
    try:
        yield opened
    finally:
        opened.close()


def put(node, count=1, topic="T", size=1000):
    for number in range(count):
        message = Record(topic, bytes([number % 256]) * size, queue_id=number % 3, properties={"TAGS": "a"})
        end = node.log.append_one(message, NOW, HOST).end_offset
    node.master.streams.notify()
    return end


def trim(store, offset):
    store.flush()
    assert store.retention.delete_expired(NOW + 10 * 3_600_000, needed_from=offset)
    assert store.min_offset == offset


def files(directory, *folders):
    """Returns the content of every file of the folders, without the zeros at their ends."""
    paths = [path for folder in folders for path in sorted((directory / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes().rstrip(b"\0") for path in paths}


def confirmed(master):
    return lambda: master.acks.confirm_offset == master.log.end_offset


async def test_log_and_queues_of_a_new_slave_are_the_masters_byte_for_byte(tmp_path):
    levels = AckLevels(sync_master=True, sync_flush=True, slave_timeout_s=PATIENCE_S, sync_flush_timeout_s=PATIENCE_S)
    with store(tmp_path / "m") as ours, store(tmp_path / "s") as theirs:
        master, slave = Node(ours, tmp_path / "m", 0, levels=levels), Node(theirs, tmp_path / "s", 1)
        async with master.serving():
            put(master, 200)
            async with slave.following(master):
                assert len(ours.log.starts) > 3
                await until(confirmed(master))
                assert await master.acks.wait(put(master), PATIENCE_S) is PutStatus.PUT_OK
                assert theirs.flushed_offset == ours.end_offset
    folders = ("commitlog", "consumequeue")
    assert files(tmp_path / "m", *folders) == files(tmp_path / "s", *folders)


async def test_a_new_slave_of_a_trimmed_master_has_what_the_master_has(tmp_path):
    with store(tmp_path / "m") as ours, store(tmp_path / "s") as theirs:
        master, slave = Node(ours, tmp_path / "m", 0), Node(theirs, tmp_path / "s", 1)
        async with master.serving():
            put(master, 300)
            trim(ours, 2 * FILE_SIZE)
            async with slave.following(master):
                await until(confirmed(master))
                assert theirs.min_offset == ours.min_offset == 2 * FILE_SIZE
                assert theirs.queues.bounds("T", 1)[1] == ours.queues.bounds("T", 1)[1]
                assert theirs.read_log(2 * FILE_SIZE, FILE_SIZE) == ours.read_log(2 * FILE_SIZE, FILE_SIZE)
    assert files(tmp_path / "m", "commitlog") == files(tmp_path / "s", "commitlog")
    with store(tmp_path / "s") as again:
        assert again.min_offset == 2 * FILE_SIZE and again.recovery.clean


async def test_a_slave_older_than_its_masters_first_record_starts_over(tmp_path):
    with store(tmp_path / "m") as ours, store(tmp_path / "s") as theirs:
        master, slave = Node(ours, tmp_path / "m", 0), Node(theirs, tmp_path / "s", 1)
        async with master.serving(), slave.running():
            put(master, 10)
            async with slave.following(master):
                await until(confirmed(master))
            put(master, 300)
            trim(ours, 2 * FILE_SIZE)
            async with slave.following(master):
                await until(confirmed(master))
                assert theirs.min_offset == 2 * FILE_SIZE
                assert [cut.kept_in for cut in slave.broker.cuts] == [None]
                assert theirs.queues.bounds("T", 0)[1] == ours.queues.bounds("T", 0)[1]
    assert files(tmp_path / "m", "commitlog") == files(tmp_path / "s", "commitlog")


async def test_a_forked_tail_is_cut_to_the_common_prefix_and_kept(tmp_path):
    with store(tmp_path / "m") as ours, store(tmp_path / "s") as theirs:
        master, slave = Node(ours, tmp_path / "m", 0), Node(theirs, tmp_path / "s", 1)
        async with master.serving(), slave.running():
            put(master, 150)
            async with slave.following(master):
                await until(confirmed(master))
            common = theirs.end_offset
            forked_end = put(slave, 100, size=777)
            forked = b"".join(theirs.read_log(at, FILE_SIZE) for at in offsets(common, forked_end))
            await master.master.begin_epoch()
            put(master, 60)
            async with slave.following(master):
                await until(confirmed(master))
                assert [(cut.from_offset, cut.until_offset) for cut in slave.broker.cuts] == [(common, forked_end)]
                with pytest.raises(NotFound):
                    theirs.log.record_at(forked_end)
    assert files(tmp_path / "m", "commitlog", "consumequeue") == files(tmp_path / "s", "commitlog", "consumequeue")
    kept = list((tmp_path / "s" / "diverged").iterdir())
    assert [path.read_bytes() for path in kept] == [forked]


def offsets(start, end):
    at = start
    while at < end:
        yield at
        at = (at // FILE_SIZE + 1) * FILE_SIZE


async def test_a_master_that_lost_its_tail_gets_it_back_from_its_slave(tmp_path):
    with store(tmp_path / "m") as ours, store(tmp_path / "s") as theirs:
        master, slave = Node(ours, tmp_path / "m", 0), Node(theirs, tmp_path / "s", 1)
        async with master.serving(), slave.running():
            kept = put(master, 40)
            end = put(master, 150)
            async with slave.following(master):
                await until(confirmed(master))
            whole = files(tmp_path / "m", "commitlog", "consumequeue")
            ours.truncate(kept, None)
            master.broker.writes = False
            async with slave.following(master):
                await until(lambda: ours.end_offset == end)
                await master.master.begin_epoch()
                assert files(tmp_path / "m", "commitlog", "consumequeue") == whole
                assert master.epochs.epochs.epochs[-1].start_offset == end
                await until(lambda: master.acks.tracker.is_slave_available(end))
                assert await master.acks.wait(put(master), PATIENCE_S) is PutStatus.PUT_OK
                assert slave.broker.cuts == []


async def test_two_slaves_and_a_storm_of_puts_end_alike(tmp_path):
    levels = AckLevels(sync_master=True, sync_flush=True, slave_timeout_s=PATIENCE_S, sync_flush_timeout_s=PATIENCE_S)
    with store(tmp_path / "m") as ours, store(tmp_path / "s1") as one, store(tmp_path / "s2") as two:
        master = Node(ours, tmp_path / "m", 0, levels=levels)
        slaves = [Node(one, tmp_path / "s1", 1), Node(two, tmp_path / "s2", 2)]
        async with master.serving(), slaves[0].following(master), slaves[1].following(master):
            await until(lambda: master.acks.tracker.is_slave_available(0))
            for _ in range(4):
                puts = [master.acks.wait(put(master, 3), PATIENCE_S) for _ in range(20)]
                assert set(await asyncio.gather(*puts)) == {PutStatus.PUT_OK}
            await until(lambda: one.end_offset == two.end_offset == ours.end_offset)
    assert files(tmp_path / "m", "commitlog", "consumequeue") == files(tmp_path / "s1", "commitlog", "consumequeue")
    assert files(tmp_path / "m", "commitlog", "consumequeue") == files(tmp_path / "s2", "commitlog", "consumequeue")


async def test_a_slave_of_a_trimmed_master_knows_where_a_queue_goes_on_whose_records_have_all_expired(tmp_path):
    """The simulation has found that a slave of a trimmed master, once promoted, gave the same queue offsets out a
    second time.
    """
    with store(tmp_path / "m") as ours:
        master = Node(ours, tmp_path / "m", 0)
        async with master.serving():
            put(master, 20, topic="old")
            put(master, 300, topic="T")
            trim(ours, 2 * FILE_SIZE)
            with store(tmp_path / "s") as theirs:
                slave = Node(theirs, tmp_path / "s", 1)
                async with slave.following(master):
                    await until(confirmed(master))
            with store(tmp_path / "s") as theirs:
                for queue in range(3):
                    assert theirs.queues.bounds("old", queue) == ours.queues.bounds("old", queue) != (0, 0)
                promoted = Node(theirs, tmp_path / "s", 1)
                put(promoted, 1, topic="old")
                assert theirs.queues.bounds("old", 0)[1] == ours.queues.bounds("old", 0)[1] + 1
