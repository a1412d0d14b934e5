"""Master, slave and name server in one process on real gRPC: metadata, returned offsets, promotion, and the replaced
master.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.metadata_pb2 import ConsumerOffset, Metadata

from broker_service.admin.operations import Operations
from broker_service.broker.core.mastership import Standing
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.broker.reads.pull import Pull
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.errors import InvalidParameter, ServiceNotAvailable, StaleEpoch
from broker_service.modes import BrokerRole
from broker_service.node import tick
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from broker_service.replication.catch_up import Cut
from broker_service.store.json_file import JsonFile
from broker_service.store.offset_journal import OffsetJournal
from testbed.polling import until
from tests.support.brokers import (
    NameServer,
    bodies_in,
    message,
    name_server,
    put,
    put_send,
    registers_rarely,
    running,
    send_of,
    slave_link,
)

SLAVE = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
QUICK = {"sync_metadata_interval": 100, "ha_send_heartbeat_interval": 200}


@asynccontextmanager
async def pair(folder: Path, **keys: Any) -> AsyncIterator[tuple[NameServer, BrokerNode, BrokerNode]]:
    """Yields a name server, a master and a slave that follows the master."""
    async with AsyncExitStack() as parts:
        names = await parts.enter_async_context(name_server())
        keys = {"namesrv_addr": names.address} | QUICK | keys
        master = await parts.enter_async_context(running(folder / "m", **keys))
        slave = await parts.enter_async_context(running(folder / "s", **(keys | SLAVE)))
        await until(slave.replication.slave.is_following, "the slave follows")
        await until(lambda: master.status.slaves() and master.status.slaves()[0].in_sync, "the slave is in sync")
        yield names, master, slave


@asynccontextmanager
async def slave_and_names(folder: Path, keys: dict[str, Any]) -> AsyncIterator[tuple[BrokerNode, NameServer]]:
    """Yields a slave and a name server, and enters the name server's address in `keys`, with which the test starts
    masters.
    """
    async with name_server() as names:
        keys["namesrv_addr"] = names.address
        async with running(folder / "s", **(QUICK | keys | SLAVE)) as slave:
            yield slave, names


async def bodies(node: BrokerNode, topic: str = "t") -> list[bytes]:
    return bodies_in((await node.wire.pulls.pull(Pull(group="g", topic=topic, queue_id=0, queue_offset=0))).records)


# --- the life of a pair -----------------------------------------------------------------------------------------------


async def test_a_put_to_a_synchronous_master_is_on_the_slave_when_it_returns(tmp_path: Path) -> None:
    async with pair(tmp_path, broker_role=BrokerRole.SYNC_MASTER) as (_, master, slave):
        _, status = await put_send(master, send_of("t", message("t", b"x")))
        assert status is PutStatus.PUT_OK
        assert slave.store.end_offset == master.store.end_offset
        await until(lambda: slave.store.queues.bounds("t", 0) == (0, 1), "shown")
        assert await bodies(slave) == await bodies(master) == [b"x"]


@pytest.mark.parametrize(
    ("masters", "slaves", "over"),
    [
        ({}, {}, "a plain socket"),
        ({"pull_range_stream_enable": False}, {}, "gRPC"),
        ({}, {"pull_range_stream_enable": False}, "gRPC"),
    ],
    ids=["by default", "switched off at the master", "switched off at the slave"],
)
async def test_a_slave_follows_over_a_plain_socket_unless_one_broker_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, masters: dict[str, Any], slaves: dict[str, Any], over: str
) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path / "m", broker_role=BrokerRole.SYNC_MASTER, **masters) as master:
        async with running(tmp_path / "s", **SLAVE, **slaves, ha_master_address=master.address) as slave:
            await until(slave.replication.slave.is_following, "the slave follows")
            await put(master, "t", b"x")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "it has the record")
    assert f"following {master.address} over {over}: " in caplog.text


async def test_a_slave_has_heard_of_a_topic_before_it_has_its_first_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "TICK_S", 3600.0)  # no tick publishes the topic after the put
    async with pair(tmp_path, broker_role=BrokerRole.SYNC_MASTER, sync_metadata_interval=1_000_000) as (
        _,
        master,
        slave,
    ):
        for topic in ("t", "u"):
            assert (await put_send(master, send_of(topic, message(topic, b"x"))))[1] is PutStatus.PUT_OK
            assert slave.topics.entries[topic] == master.topics.entries[topic]


async def test_a_topic_made_again_at_once_is_a_new_one_on_the_slave_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "TICK_S", 3600.0)
    async with pair(tmp_path, broker_role=BrokerRole.SYNC_MASTER, sync_metadata_interval=1_000_000) as (
        _,
        master,
        slave,
    ):
        await put(master, "t", b"old")
        await Operations(master.broker, master.leadership).delete_topic("t")
        await put(master, "t", b"new")
        assert master.store.queues.bounds("t", 0) == (1, 2)
        await until(lambda: slave.store.queues.bounds("t", 0) == (1, 2), "the slave has it, and not the old one")


@pytest.mark.parametrize("restarted", [False, True], ids=["master stays", "master restarts too"])
async def test_a_topic_made_again_while_its_slave_was_away_is_a_new_one_there_too(
    tmp_path: Path, restarted: bool
) -> None:
    async with name_server() as names, AsyncExitStack() as parts:
        keys = QUICK | {"namesrv_addr": names.address, "slave_wait_time_ms": 0}
        master = await parts.enter_async_context(running(tmp_path / "m", **keys))
        async with running(tmp_path / "s", **(keys | SLAVE)) as slave:
            await put(master, "t", b"old", b"older")
            await put(master, "t", b"of a queue not used again", queue_id=1)
            await until(lambda: "t" in slave.topics.entries, "the topic")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
        await Operations(master.broker, master.leadership).delete_topic("t")
        await put(master, "t", b"new")
        if restarted:
            await parts.aclose()
            master = await parts.enter_async_context(running(tmp_path / "m", **keys))
        async with running(tmp_path / "s", **(keys | SLAVE)) as slave:
            await until(lambda: slave.store.queues.bounds("t", 0) == (2, 3), "the old entries are gone")
            found = await slave.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=2))
            assert bodies_in(found.records) == [b"new"]
            assert slave.store.queues.bounds("t", 1) == (1, 1)
            assert slave.topics.tombstones["t"].queue_offsets == master.topics.tombstones["t"].queue_offsets


async def test_a_topic_made_again_goes_on_at_the_same_offset_on_its_slave_which_is_promoted_then(
    tmp_path: Path,
) -> None:
    """The topic's first message comes after the promotion: until then both brokers name the offset that it will get."""
    async with name_server() as names, AsyncExitStack() as parts:
        keys = {"namesrv_addr": names.address} | QUICK
        async with running(tmp_path / "m", **keys) as master:
            async with running(tmp_path / "s", **(keys | SLAVE)) as slave:
                await put(master, "t", b"old", b"older")
                await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
            operations = Operations(master.broker, master.leadership)
            await operations.delete_topic("t")
            await operations.update_topic(TopicConfig("t"))
            slave = await parts.enter_async_context(running(tmp_path / "s", **(keys | SLAVE)))
            await until(lambda: slave.store.queues.bounds("t", 0) == (2, 2), "the slave hears of it")
            for node in (master, slave):
                queues = QueueLookup(node.broker)
                (bounds,) = await queues.bounds("t", [0])
                assert (bounds.min_offset, bounds.max_offset) == (2, 2)
                assert await queues.search("t", [(0, 0)]) == [2]
                found = await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=0))
                assert (found.min_offset, found.max_offset) == (2, 2)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await put(slave, "t", b"new")
        assert slave.store.queues.bounds("t", 0) == (2, 3)


async def test_a_topic_whose_file_the_master_lost_has_the_same_records_on_both(tmp_path: Path) -> None:
    """A tombstone tells a starting broker and a slave up to which offset queues were deleted."""
    async with name_server() as names:
        keys = QUICK | {"namesrv_addr": names.address, "slave_wait_time_ms": 0}
        async with running(tmp_path / "m", **keys) as master, running(tmp_path / "s", **(keys | SLAVE)) as slave:
            await put(master, "t", b"old")
            await Operations(master.broker, master.leadership).delete_topic("t")
            before = (tmp_path / "m/config/topics.json").read_bytes()
            await put(master, "t", b"new", b"newer")
            await until(lambda: slave.store.queues.bounds("t", 0) == (1, 3), "copied")
            await until(lambda: "t" in slave.topics.entries, "the topic")
        (tmp_path / "m/config/topics.json").write_bytes(before)
        async with running(tmp_path / "m", **keys) as master, running(tmp_path / "s", **(keys | SLAVE)) as slave:
            await until(lambda: "t" not in slave.topics.entries, "the tombstone")
            assert slave.store.queues.bounds("t", 0) == master.store.queues.bounds("t", 0) == (1, 3)
            await put(master, "t", b"newest")
            await until(lambda: "t" in slave.topics.entries, "made again")
            await until(lambda: slave.store.queues.bounds("t", 0)[1] == 4, "copied")
            found = await slave.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=1))
            assert bodies_in(found.records) == [b"new", b"newer", b"newest"]


async def test_a_pull_held_on_a_slave_is_answered_when_the_slave_receives_a_message(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, master, slave):
        await put(master, "t", b"first")
        await until(lambda: "t" in slave.topics.entries and slave.store.queues.bounds("t", 0) == (0, 1), "shown")
        wanted = Pull(group="g", topic="t", queue_id=0, queue_offset=1, suspend_s=60.0)
        waiting = asyncio.create_task(slave.wire.pulls.pull(wanted))
        await until(lambda: slave.broker.long_polling.held, "held")
        await put(master, "t", b"second")
        assert bodies_in((await waiting).records) == [b"second"]


async def test_changes_reach_the_slave_without_waiting_for_the_next_snapshot(tmp_path: Path) -> None:
    async with pair(tmp_path, sync_metadata_interval=1_000_000) as (_, master, slave):
        await until(lambda: slave.topics.entries == master.topics.entries, "the first snapshot")
        operations = Operations(master.broker, master.leadership)
        await put(master, "t", b"x")
        await operations.update_group(SubscriptionGroup("g", broker_id=1))
        Commits(master.broker).commit("g", [CommitEntry("t", 0, 1)])
        await until(lambda: slave.offsets.get("g", "t", 0).offset == 1, "the offset")
        assert slave.groups.entries["g"].broker_id == 1
        assert slave.topics.version == master.topics.version
        await until(lambda: slave.store.end_offset == master.store.end_offset, "the record, which changes may overtake")
        await operations.delete_topic("t")
        await until(lambda: "t" not in slave.topics.entries, "the tombstone")
        assert slave.store.queues.bounds("t", 0) == (1, 1)
        await until(lambda: slave.offsets.get("g", "t", 0) == (1, -1), "the offsets, which follow the topic")
        await put(master, "t", b"again")
        await until(lambda: slave.store.queues.end("t", 0) == 2, "the topic goes on where it was")


async def test_metadata_of_many_queues_still_reaches_the_slave(tmp_path: Path) -> None:
    topic, count = "t" * 120, 150_000  # the snapshot is larger than any frame may be
    async with pair(tmp_path, sync_metadata_interval=5_000) as (_, master, slave):
        master.offsets.commit("g", topic, dict.fromkeys(range(count), 1))
        assert master.replication.metadata.snapshot().ByteSize() > 16 << 20
        await until(lambda: slave.offsets.get("g", topic, count - 1).offset == 1, "the offsets")
        assert slave.replication.slave.is_following()


async def test_offsets_that_a_slave_took_reach_the_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, master, slave):
        await put(master, "t", b"a", b"b", b"c")
        await until(lambda: "t" in slave.topics.entries, "the topic")
        Commits(master.broker).commit("g", [CommitEntry("t", 0, 1)])
        Commits(slave.broker).commit("g", [CommitEntry("t", 0, 3)])
        await until(lambda: master.offsets.get("g", "t", 0).offset == 3, "handed back")
        await until(lambda: not slave.offsets.unshared, "seen at the master")


async def test_what_a_slave_hands_back_ends_where_the_masters_queue_does(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a")
        beyond = Metadata(consumer_offsets=[ConsumerOffset(group="g", topic="t", queue_id=0, offset=3)])
        node.replication.metadata.accept_offsets(1, beyond)
        assert node.offsets.get("g", "t", 0).offset == 1
        await put(node, "t", b"b", b"c")
        node.replication.metadata.accept_offsets(1, beyond)
        assert node.offsets.get("g", "t", 0).offset == 1  # no consumer has read b and c


@pytest.mark.parametrize("is_clean", [True, False], ids=["a clean stop", "an unclean stop"])
async def test_a_master_that_waits_keeps_offsets_of_records_that_another_slave_may_bring(
    tmp_path: Path, is_clean: bool
) -> None:
    """After a clean stop no slave has more records; after an unclean one that is certain only when the master takes
    writes.
    """
    beyond = Metadata(consumer_offsets=[ConsumerOffset(group="g", topic="t", queue_id=0, offset=3)])
    async with running(tmp_path) as node:
        await put(node, "t", b"a")
    if not is_clean:
        (tmp_path / "abort").touch()
    async with running(tmp_path, writable=False, namesrv_addr="127.0.0.1:1") as waiting:
        waiting.replication.metadata.accept_offsets(1, beyond)
        assert waiting.offsets.get("g", "t", 0) == ((1, 1) if is_clean else (0, 3))
    async with running(tmp_path) as node:
        assert node.offsets.get("g", "t", 0) == (1, 1)
        node.replication.metadata.accept_offsets(1, beyond)
        assert node.offsets.get("g", "t", 0) == (1, 1)


async def test_what_a_slave_hands_back_again_of_a_topic_that_was_unknown_hides_no_message_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        lost = Metadata(consumer_offsets=[ConsumerOffset(group="g", topic="t", queue_id=0, offset=2)])
        node.replication.metadata.accept_offsets(1, lost)
        await put(node, "t", b"a", b"b", b"c")
        node.replication.metadata.accept_offsets(1, lost)
        assert node.offsets.get("g", "t", 0).offset == 0  # no consumer has read a and b


async def test_what_a_slave_hands_back_hides_no_message_if_the_disk_fails_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Metadata(consumer_offsets=[ConsumerOffset(group="g", topic="t", queue_id=0, offset=3)])
    async with running(tmp_path) as node:
        await put(node, "t", b"a")
        append, appended = OffsetJournal.append, itertools.count()

        def fail_second(journal: OffsetJournal, *args: Any, **kwargs: Any) -> None:
            if next(appended):
                raise ServiceNotAvailable("planted")
            append(journal, *args, **kwargs)

        monkeypatch.setattr(OffsetJournal, "append", fail_second)
        with suppress(ServiceNotAvailable):
            node.replication.metadata.accept_offsets(1, lost)
        monkeypatch.undo()
        await put(node, "t", b"b", b"c")
        node.replication.metadata.accept_offsets(1, lost)
        assert node.offsets.get("g", "t", 0).offset == 1  # no consumer has read b and c


async def test_a_commit_of_lost_messages_at_a_slave_in_step_comes_back_to_the_end_of_the_queue(tmp_path: Path) -> None:
    """The consumer read these messages in a part of the log that was cut since, and commits before it hears
    of the cut.
    """
    async with pair(tmp_path, sync_metadata_interval=50) as (_, master, slave):
        await put(master, "t", b"a")
        await until(lambda: "t" in slave.topics.entries, "the topic")
        Commits(slave.broker).commit("g", [CommitEntry("t", 0, 3)])
        await until(lambda: slave.offsets.get("g", "t", 0) == master.offsets.get("g", "t", 0), "both agree")
        assert master.offsets.get("g", "t", 0) == (1, 1)
        await until(lambda: not slave.offsets.unshared, "nothing is left to hand back")
        await put(master, "t", b"b", b"c")
        assert master.offsets.get("g", "t", 0).offset == 1


async def test_what_a_slave_hands_back_of_a_topic_that_never_came_here_stands_and_of_a_deleted_one_does_not(
    tmp_path: Path,
) -> None:
    """A promoted slave may lack a topic that its former master had created, while a consumer has offsets of
    the topic.
    """
    async with running(tmp_path) as node:
        await put(node, "deleted", b"a")
        await Operations(node.broker, node.leadership).delete_topic("deleted")
        offsets = [
            ConsumerOffset(group="g", topic="deleted", queue_id=0, offset=0),
            ConsumerOffset(group="g", topic="unknown", queue_id=0, offset=0),
            ConsumerOffset(group="g", topic="unknown", queue_id=1, offset=7),
        ]
        node.replication.metadata.accept_offsets(1, Metadata(consumer_offsets=offsets))
        assert list(node.offsets.everything()) == [("g", "unknown", {0: (0, 0), 1: (1, 0)})]


@pytest.mark.parametrize(("kept_in", "stands_at"), [(None, 2), ("diverged", 0)], ids=["only behind", "forked off"])
async def test_a_slave_that_starts_over_keeps_the_commits_it_took_unless_its_records_were_forked_off(
    tmp_path: Path, kept_in: str | None, stands_at: int
) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a", b"b", b"c")
    async with running(tmp_path, **SLAVE) as slave:
        Commits(slave.broker).commit("g", [CommitEntry("t", 0, 2)])
        end = slave.store.end_offset
        slave.store.start_over(1 << 20)
        slave_link(slave).log_cut(Cut(0, end, 1 << 20, kept_in))
        handed_back = slave.replication.metadata.offsets_to_hand_back()
        assert handed_back is not None
        assert [entry.offset for entry in handed_back.consumer_offsets] == [stands_at]


@pytest.mark.parametrize(
    "offset",
    [
        ConsumerOffset(group="", topic="t", offset=1),
        ConsumerOffset(group="g", topic="../t", offset=1),
        ConsumerOffset(group="g", topic="t", queue_id=-1, offset=1),
        ConsumerOffset(group="g", topic="t", generation=-1, offset=1),
        ConsumerOffset(group="g", topic="t", offset=-2),
    ],
    ids=str,
)
async def test_offsets_that_make_no_sense_are_refused(tmp_path: Path, offset: ConsumerOffset) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a")
        with pytest.raises(ValueError, match=r"."):
            node.replication.metadata.accept_offsets(1, Metadata(consumer_offsets=[offset]))
        assert list(node.offsets.everything()) == []


async def test_topics_and_groups_are_not_changed_on_a_slave(tmp_path: Path) -> None:
    async with running(tmp_path, **SLAVE) as slave:
        operations = Operations(slave.broker, slave.leadership)
        for change in (
            lambda: operations.update_topic(TopicConfig("t")),
            lambda: operations.delete_topic("t"),
            lambda: operations.update_group(SubscriptionGroup("g")),
            lambda: operations.delete_group("g", remove_offset=True),
        ):
            with pytest.raises(ServiceNotAvailable, match="slave"):
                await change()
        with pytest.raises(ServiceNotAvailable, match="slave"):
            await operations.reset_offset_by_time("g", "t", -1, [], force=True)


# --- name servers -----------------------------------------------------------------------------------------------------


async def test_a_master_waits_for_a_name_server_and_then_says_what_it_is(tmp_path: Path) -> None:
    async with name_server() as names:
        port = int(names.address.rpartition(":")[2])
    async with running(tmp_path, writable=False, namesrv_addr=f"127.0.0.1:{port}") as master:
        with pytest.raises(ServiceNotAvailable, match="no name server and no slave has answered"):
            await put(master, "t", b"x")
        async with name_server(port) as again:
            await until(lambda: master.mastership.standing is Standing.WRITABLE, "writable")
            await put(master, "t", b"x")
            await until(lambda: again.table.route("t"), "the topic's route")
            assert again.table.route("t")["broker-a"].perm == 6
        await put(master, "t", b"y")  # a lost name server changes nothing


async def test_a_clean_stop_unregisters(tmp_path: Path) -> None:
    async with name_server() as names:
        async with running(tmp_path, namesrv_addr=names.address) as broker:
            await until(lambda: broker.registration.links[0].connected, "the broker has heard that it is registered")
            assert names.table.members("broker-a")
        assert names.table.members("broker-a") == []


async def test_a_name_server_that_comes_back_empty_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registers_rarely(monkeypatch)
    async with name_server() as names, running(tmp_path, namesrv_addr=names.address) as master:
        await until(lambda: names.table.members("broker-a"), "registered")
        names.table.connection_lost(next(iter(names.table.live()["broker-a"].members.values())).connection)
        master.broker.description_changed.notify()
        await until(lambda: names.table.members("broker-a"), "it has registered again")


async def test_two_masters_with_one_name_do_not_both_take_writes(tmp_path: Path) -> None:
    async with name_server() as names, running(tmp_path / "a", namesrv_addr=names.address):
        async with running(tmp_path / "b", writable=False, namesrv_addr=names.address) as second:
            await until(lambda: second.registration.links[0].answers, "an answer")
            with pytest.raises(StaleEpoch, match="replaced by epoch"):
                await put(second, "t", b"x")


async def test_a_disk_that_is_too_full_is_told_to_the_name_server(tmp_path: Path) -> None:
    async with name_server() as names, running(tmp_path, namesrv_addr=names.address) as master:
        await put(master, "t", b"x")
        await until(lambda: names.table.route("t"), "the route")
        master.broker.failure = "as if a flush had failed"
        await until(lambda: names.table.route("t")["broker-a"].perm == 4, "no write permission")


# --- promotion and the fence ------------------------------------------------------------------------------------------


async def test_an_old_master_that_returns_behind_a_promoted_slave_cannot_write(tmp_path: Path) -> None:
    keys = QUICK | {"slave_wait_time_ms": 0}
    async with slave_and_names(tmp_path, keys) as (slave, names):
        async with running(tmp_path / "m", **keys) as master:
            await until(slave.replication.slave.is_following, "the slave follows")
            await put(master, "t", b"before")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
            old_epoch = master.mastership.epoch
        await until(lambda: not slave.broker.peers.master(), "the master is gone")
        promoted = await slave.leadership.promote("broker-a", old_epoch, BrokerRole.ASYNC_MASTER, force=False)
        epoch, start = promoted.epoch, promoted.start_offset
        assert epoch > old_epoch
        assert start == slave.store.end_offset
        await put(slave, "t", b"after")
        assert await bodies(slave) == [b"before", b"after"]

        async with running(tmp_path / "m", writable=False, **keys) as returned:
            await until(lambda: returned.mastership.standing is Standing.FENCED, "fenced")
            with pytest.raises(StaleEpoch, match=str(epoch)):
                await put(returned, "t", b"from the past")
            with pytest.raises(StaleEpoch):
                Commits(returned.broker).commit("g", [CommitEntry("t", 0, 1)])
            assert names.table.live()["broker-a"].members[0].registration.address == slave.address

        # Restarted as a slave, with the id that became free by the promotion, the old master follows.
        async with running(tmp_path / "m", **(keys | SLAVE)) as follower:
            await until(lambda: "t" in follower.topics.entries, "the topic")
            await until(lambda: follower.store.queues.bounds("t", 0) == (0, 2), "in step and shown")
            assert await bodies(follower) == [b"before", b"after"]


async def test_a_promotion_outlives_a_restart_although_the_file_says_slave(tmp_path: Path) -> None:
    async with running(tmp_path, **SLAVE) as slave:
        epoch = (await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=False)).epoch
        assert (slave.broker.broker_id, slave.broker.epoch) == (0, epoch)
        await put(slave, "t", b"x")
    assert JsonFile(tmp_path / "rocketsim/role.json").load() == {
        "brokerRole": "ASYNC_MASTER",
        "brokerId": 0,
        "flushDiskType": "ASYNC_FLUSH",
        "epoch": epoch,
    }
    async with running(tmp_path, **SLAVE) as master:
        await until(lambda: master.mastership.standing is Standing.WRITABLE, "writable")
        assert (master.broker.broker_id, master.broker.epoch) == (0, epoch)
        await put(master, "t", b"y")
        assert await bodies(master) == [b"x", b"y"]


async def test_a_promotion_is_refused_while_the_master_answers_unless_it_is_forced(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, master, slave):
        with pytest.raises(InvalidParameter, match="still answers"):
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=False)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await until(lambda: master.mastership.standing is Standing.FENCED, "the old master is fenced")
        with pytest.raises(StaleEpoch):
            await put(master, "t", b"x")
        await put(slave, "t", b"x")


@pytest.mark.parametrize(
    ("name", "epoch", "role", "error"),
    [
        ("broker-b", 0, BrokerRole.ASYNC_MASTER, InvalidParameter),
        ("broker-a", 4711, BrokerRole.ASYNC_MASTER, StaleEpoch),
        ("broker-a", 0, BrokerRole.SLAVE, InvalidParameter),
    ],
)
async def test_a_wrong_promotion_changes_nothing(
    tmp_path: Path, name: str, epoch: int, role: BrokerRole, error: type[Exception]
) -> None:
    async with running(tmp_path, **SLAVE) as slave:
        with pytest.raises(error):
            await slave.leadership.promote(name, epoch, role, force=True)
        assert slave.broker.is_slave
        assert JsonFile(tmp_path / "rocketsim/role.json").load() is None


async def test_a_master_is_not_promoted(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        with pytest.raises(InvalidParameter, match="master already"):
            await master.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)


async def test_delayed_messages_go_on_where_they_were_after_a_promotion(tmp_path: Path) -> None:
    keys = {"message_delay_level": "1s"}
    async with pair(tmp_path, **keys) as (_, master, slave):
        for body in (b"a", b"b"):
            await put_send(master, send_of("t", message("t", body, DELAY="1")))
        await until(lambda: master.store.queues.end("t", 0) == 2, "delivered")
        await put_send(master, send_of("t", message("t", b"c", DELAY="1")))
        await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await until(lambda: slave.store.queues.bounds("t", 0)[1] >= 3, "delivered by the new master")
        assert await bodies(slave) == [b"a", b"b", b"c"]
