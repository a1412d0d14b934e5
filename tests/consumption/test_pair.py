"""The state of consumption on a master and its slave: what the slave has of it, how it continues after a promotion, and
what a cut of the log removes from it.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import STATE_TOPIC

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.errors import DiskFull, ServiceNotAvailable, StoreTooNew
from broker_service.modes import BrokerRole
from broker_service.node import saving
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import ChangeInvisible, Delivery, HandleStatus, Pop, Popped
from broker_service.put_result import PutStatus
from broker_service.replication.catch_up import Cut
from broker_service.state import snapshot, state_log
from broker_service.state.state import State
from broker_service.store.offset_journal import OffsetJournal
from testbed.polling import PATIENCE_S, until
from tests.support.brokers import (
    name_server,
    put,
    running,
    slave_link,
)

OK, INVALID = HandleStatus.OK, HandleStatus.INVALID_RECEIPT_HANDLE
SLAVE = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
QUICK = {
    "sync_metadata_interval": 100,
    "ha_send_heartbeat_interval": 200,
    "broker_role": BrokerRole.SYNC_MASTER,
    "slave_timeout": 60_000,
}


@asynccontextmanager
async def pair(folder: Path, **keys: Any) -> AsyncIterator[tuple[BrokerNode, BrokerNode, AsyncExitStack]]:
    """Yields a master, a slave that follows it, and the exit stack that ends the master."""
    async with AsyncExitStack() as parts:
        names = await parts.enter_async_context(name_server())
        keys = {"namesrv_addr": names.address} | QUICK | keys
        slave = await parts.enter_async_context(running(folder / "s", **(keys | SLAVE)))
        masters = await parts.enter_async_context(AsyncExitStack())
        master = await masters.enter_async_context(running(folder / "m", **keys))
        await until(lambda: master.status.slaves() and master.status.slaves()[0].in_sync, "the slave is in sync")
        await master.topics.settled()  # a master that takes over RocketMQ's deliveries makes retry topics in a thread
        master.topics.put(TopicConfig("t", 1, 1), 0)
        yield master, slave, masters


async def pop(node: BrokerNode, **fields: Any) -> Popped:
    return await node.consumption.pop(Pop(group="g", topic="t", **fields))


async def ack(node: BrokerNode, *deliveries: Delivery) -> list[tuple[HandleStatus, PutStatus]]:
    handles = [one.receipt_handle for one in deliveries]
    return [(one.status, one.stored) for one in await node.consumption.ack("g", "t", handles, PATIENCE_S)]


def state(node: BrokerNode) -> dict[Any, Any]:
    return queues_of(node.consumption.state)


def queues_of(state: State) -> dict[Any, Any]:
    return {
        place: (queue.next, queue.committed, {**queue.under_way}, queue.locks.groups() if queue.locks else ())
        for place, queue in state.queues.items()
    }


async def popped_on_both(master: BrokerNode, slave: BrokerNode) -> Delivery:
    """Pops the first of two messages, and returns its delivery once the slave also has this delivery under way."""
    await put(master, "t", b"a", b"b")
    (first,) = (await pop(master, max_messages=1)).deliveries
    await until(lambda: state(slave) == state(master), "the slave knows it")
    return first


async def end_master(masters: AsyncExitStack, slave: BrokerNode) -> None:
    await masters.aclose()
    await until(lambda: not slave.replication.slave.is_following(), "the slave is alone")


async def test_a_promoted_slave_goes_on_with_the_same_state(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave, masters):
        await put(master, "t", b"a", b"b", b"c", b"d")
        a, b, c, d = (await pop(master)).deliveries
        assert await ack(master, b) == [(OK, PutStatus.PUT_OK)]
        await master.consumption.change_invisible(
            ChangeInvisible(group="g", topic="t", receipt_handle=c.receipt_handle, invisible_ms=0)
        )
        await until(lambda: master.store.queues.end("%RETRY%g+t", 0) == 1, "the retry is there")
        await until(lambda: slave.store.end_offset == master.store.end_offset, "the slave has it")
        await until(lambda: state(slave) == state(master), "the slave knows it")
        assert slave.broker.offsets.progress("g", "t", 0).offset == 0
        with pytest.raises(ServiceNotAvailable):
            await pop(slave)
        await end_master(masters, slave)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        (again,) = (await pop(slave)).deliveries
        assert (again.attempt, again.queue_offset) == (2, 0)
        assert [status for status, _ in await ack(slave, a, b, c, d)] == [OK, OK, INVALID, OK]
        assert slave.broker.offsets.progress("g", "t", 0).offset == 4


async def test_a_promoted_slave_goes_on_with_the_same_locks(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave, masters):
        master.groups.put(SubscriptionGroup("g", consume_message_orderly=True), 0)
        await put(master, "t", b"a1", b"a2", b"a3", __SHARDINGKEY="a")
        await put(master, "t", b"b1", b"b2", __SHARDINGKEY="b")
        a1, a2 = (await pop(master, max_messages=2, attempt_id="x")).deliveries
        (b1,) = (await pop(master, max_messages=1)).deliveries
        assert await ack(master, a2, b1) == [(OK, PutStatus.PUT_OK)] * 2
        await until(lambda: slave.store.end_offset == master.store.end_offset, "the slave has it")
        await until(lambda: state(slave) == state(master), "the slave knows it")
        await until(lambda: slave.groups.get("g") == master.groups.get("g"), "the slave knows the group")
        await end_master(masters, slave)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        (again,) = (await pop(slave, attempt_id="x")).deliveries
        assert (again.receipt_handle, again.attempt) == (a1.receipt_handle, 1)
        (b2,) = (await pop(slave)).deliveries
        assert (b2.queue_offset, b2.attempt) == (4, 1)
        assert [status for status, _ in await ack(slave, a1, b2)] == [OK, OK]
        (a3,) = (await pop(slave)).deliveries
        assert a3.queue_offset == 2


async def test_pops_acks_changes_and_dead_letters_say_when_no_slave_has_them(tmp_path: Path) -> None:
    async with running(tmp_path, broker_role=BrokerRole.SYNC_MASTER) as node:
        await put(node, "t", b"a", b"b")
        popped = await pop(node, max_messages=1)
        assert popped.stored is PutStatus.SLAVE_NOT_AVAILABLE
        assert await ack(node, *popped.deliveries) == [(OK, PutStatus.SLAVE_NOT_AVAILABLE)]
        assert await ack(node, *popped.deliveries) == [(OK, PutStatus.SLAVE_NOT_AVAILABLE)]  # again
        (b,) = (await pop(node)).deliveries
        change = ChangeInvisible(group="g", topic="t", receipt_handle=b.receipt_handle, invisible_ms=60_000)
        assert (await node.consumption.change_invisible(change)).stored is PutStatus.SLAVE_NOT_AVAILABLE
        for _ in range(2):
            settled = await node.consumption.forward_to_dlq("g", "t", b.receipt_handle)
            assert (settled.status, settled.stored) == (OK, PutStatus.SLAVE_NOT_AVAILABLE)


@pytest.mark.parametrize(
    ("every_s", "log_bytes", "at_work"),
    [(0.05, 1 << 40, True), (3600.0, 1, True), (3600.0, 1 << 40, False)],
    ids=["time", "bytes", "stop"],
)
async def test_a_slave_writes_snapshots_too_from_time_to_time_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, log_bytes: int, at_work: bool
) -> None:
    monkeypatch.setattr(saving, "SNAPSHOT_EVERY_S", every_s)
    monkeypatch.setattr(saving, "SNAPSHOT_LOOK_S", 0.05)
    monkeypatch.setattr(state_log, "SNAPSHOT_LOG_BYTES", log_bytes)
    path = tmp_path / "s" / "rocketsim" / "consumption.snapshot"
    encode, threads = snapshot.encode, set[threading.Thread]()

    def noted(*parts: Any) -> bytes:
        threads.add(threading.current_thread())
        return encode(*parts)

    monkeypatch.setattr(snapshot, "encode", noted)
    async with pair(tmp_path) as (master, slave, _):
        await popped_on_both(master, slave)
        if at_work:
            await until(path.exists, "a snapshot while it runs")
        assert path.exists() == bool(threads) == at_work
        assert threading.current_thread() not in threads  # the event loop goes on meanwhile
        expected = state(slave)
    read = State()
    for transition in snapshot.decode(path.read_bytes()).transitions:
        read.apply(transition)
    assert queues_of(read) == expected


async def test_what_is_cut_off_the_log_has_not_happened(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave, masters):
        a = await popped_on_both(master, slave)
        before, popped_until = state(slave), slave.store.end_offset
        await ack(master, a)
        await until(lambda: state(slave) != before, "the slave knows of the ack")
        await end_master(masters, slave)
        slave.store.truncate(popped_until, None)
        slave_link(slave).log_cut(Cut(popped_until, slave.store.end_offset, popped_until, None))
        assert state(slave) == before


async def test_what_is_cut_off_the_log_has_not_happened_also_if_the_disk_refuses_the_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise DiskFull("planted")

    async with pair(tmp_path) as (master, slave, masters):
        a = await popped_on_both(master, slave)
        before, popped_until = state(slave), slave.store.end_offset
        await ack(master, a)
        await put(master, "t", b"c")
        await until(
            lambda: state(slave) != before and slave.store.queues.end("t", 0) == 3, "the slave knows of the ack"
        )
        await end_master(masters, slave)
        Commits(slave.broker).commit("h", [CommitEntry("t", 0, 3)])
        slave.store.truncate(popped_until, None)
        monkeypatch.setattr(OffsetJournal, "append", full)
        with pytest.raises(DiskFull):
            slave_link(slave).log_cut(Cut(popped_until, slave.store.end_offset, popped_until, "diverged"))
        monkeypatch.undo()
        assert state(slave) == before


async def test_a_record_that_cannot_be_applied_refuses_pops_and_stops_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(saving, "SNAPSHOT_EVERY_S", 0.05)
    async with pair(tmp_path) as (master, slave, masters):
        await put(master, "t", b"a")
        of_newer_version = Record(STATE_TOPIC, b"\x7f")
        end = master.store.append_one(of_newer_version, master.broker.now_ms(), master.broker.store_host).end_offset
        master.broker.appended([(STATE_TOPIC, 0)], end)
        await put(master, "t", b"b")
        end = master.store.end_offset
        await until(lambda: slave.store.queues.confirm_offset == end, "the slave shows what is behind the record")
        with pytest.raises(StoreTooNew):
            await pop(master)
        await until(lambda: caplog.text.count("snapshot of consumption could not") > 2, "both try again and again")
        await end_master(masters, slave)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        with pytest.raises(StoreTooNew):
            await pop(slave)
