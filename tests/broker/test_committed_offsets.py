"""A committed offset that a SYNC_MASTER answered with COMMIT_OK is also on the slave, and never goes back."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import admin_pb2, replication_pb2
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.message_pb2 import CommitStatus, QueueId
from rocketsim_proto.records.record import Record

from broker_service.broker.core.mastership import Standing
from broker_service.broker.reads.pull import Pull
from broker_service.modes import BrokerRole
from broker_service.node import tick
from broker_service.node.node import BrokerNode
from broker_service.replication.follower import Follower
from broker_service.store.json_file import JsonFile
from testbed.polling import until
from tests.broker.test_pair import QUICK, SLAVE, pair, slave_and_names
from tests.support.brokers import answers_early, put, running, stub_of

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}


async def commit(node: BrokerNode, offset: int) -> str:
    """Commits the offset; returns the name of the answer's status."""
    entry = pb.CommitOffsetsRequest.Entry(topic="t", queue_id=0, offset=offset)
    async with stub_of(node) as stub:
        answer = await stub.CommitOffsets(pb.CommitOffsetsRequest(consumer_group="g", entries=[entry]), timeout=30)
        return CommitStatus.Name(answer.status)


async def reset(node: BrokerNode) -> str:
    """Resets the group to the first message; returns the name of the answer's status."""
    asked = admin_pb2.ResetOffsetByTimeRequest(group="g", topic="t", timestamp=0, queue_ids=[0])
    async with stub_of(node, AdminStub) as admin:
        return CommitStatus.Name((await admin.ResetOffsetByTime(asked, timeout=60)).status)


async def committed(node: BrokerNode) -> int:
    async with stub_of(node) as stub:
        asked = pb.QueryOffsetsRequest(consumer_group="g", queues=[QueueId(topic="t", queue_id=0)])
        return int((await stub.QueryOffsets(asked, timeout=60)).entries[0].offset)


@asynccontextmanager
async def pair_without_ticks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any
) -> AsyncIterator[tuple[BrokerNode, BrokerNode]]:
    """Starts a pair whose slave gets nothing by ticks or polls: everything it has was sent because a commit waits."""
    monkeypatch.setattr(tick, "TICK_S", 3600.0)
    keys = {"slave_timeout": 60_000} | SYNC | keys
    async with pair(folder, sync_metadata_interval=1_000_000, **keys) as (_, master, slave):
        await put(master, "t", *[b"x"] * 100)
        await until(lambda: "t" in slave.topics.entries, "the topic")
        await until(lambda: master.acknowledgements.tracker.takes_metadata(), "the slave says what it has")
        yield master, slave


def acks_name_no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves acknowledge as those of an older version do, without the number of the last change."""

    def ack(self: Follower, flushed_offset: int) -> replication_pb2.Ack:
        said = honest(self, flushed_offset)
        said.metadata_sequence = 0
        return said

    honest = Follower.ack
    monkeypatch.setattr(Follower, "ack", ack)


# --- an OK ------------------------------------------------------------------------------------------------------------


async def test_a_commit_answered_ok_is_on_the_slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch) as (master, slave):
        for offset in range(1, 20):
            assert await commit(master, offset) == "COMMIT_OK"
            assert slave.offsets.get("g", "t", 0).offset == offset
        assert await commit(master, 5) == "COMMIT_OK", "what stands is on both, although nothing has changed"


async def test_a_reset_answered_ok_is_on_the_slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch) as (master, slave):
        assert await commit(master, 50) == "COMMIT_OK"
        assert await reset(master) == "COMMIT_OK"
        assert slave.offsets.get("g", "t", 0) == master.offsets.get("g", "t", 0) == (1, 0)


async def test_many_commits_in_one_turn_are_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch) as (master, slave):
        published = []
        publish = master.replication_master.streams.publish

        def count(change: Any) -> None:
            published.append(change)
            publish(change)

        monkeypatch.setattr(master.replication_master.streams, "publish", count)
        waits = []
        for number in range(50):
            master.offsets.commit(f"g{number}", "t", {0: 7})
            waits.append(asyncio.ensure_future(master.broker.shared_changes(10.0)))
        assert {status.name for status in await asyncio.gather(*waits)} == {"COMMIT_OK"}
        assert len(published) == 1
        assert {slave.offsets.get(f"g{number}", "t", 0).offset for number in range(50)} == {7}


async def test_an_asynchronous_master_answers_without_its_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch, broker_role=BrokerRole.ASYNC_MASTER) as (master, slave):
        assert await commit(master, 5) == "COMMIT_OK"
        assert await commit(slave, 7) == "COMMIT_MASTER_NOT_AVAILABLE"


# --- other answers ----------------------------------------------------------------------------------------------------


async def test_without_a_slave_the_answer_says_so_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, **SYNC) as master:
        await put(master, "t", b"x")
        assert await commit(master, 1) == "COMMIT_SLAVE_NOT_AVAILABLE"
        assert await committed(master) == 1


async def test_a_reset_without_a_slave_says_so_and_stands(tmp_path: Path) -> None:
    async with running(tmp_path, **SYNC) as master:
        await put(master, "t", b"x")
        await commit(master, 1)
        assert await reset(master) == "COMMIT_SLAVE_NOT_AVAILABLE"
        assert await committed(master) == 0


async def test_a_reset_that_the_slave_does_not_acknowledge_says_so_and_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch, slave_timeout=500) as (master, _slave):
        acks_name_no_changes(monkeypatch)
        await commit(master, 1)
        assert await reset(master) == "COMMIT_FLUSH_SLAVE_TIMEOUT"
        assert await committed(master) == 0


async def test_a_slave_that_names_no_changes_counts_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acks_name_no_changes(monkeypatch)
    async with pair(tmp_path, slave_wait_time_ms=0, **SYNC) as (_, master, _slave):
        await put(master, "t", b"x")
        assert await commit(master, 1) == "COMMIT_SLAVE_NOT_AVAILABLE"


async def test_a_slave_that_hangs_is_said_before_the_callers_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch, slave_timeout=60_000) as (master, _slave):
        acks_name_no_changes(monkeypatch)
        answers_early(monkeypatch)
        assert await commit(master, 1) == "COMMIT_FLUSH_SLAVE_TIMEOUT"
        assert await committed(master) == 1


async def test_a_slave_without_room_for_its_tables_acknowledges_no_commit_until_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master keeps the offset and reports that the slave lacks it; the slave's log goes on."""
    async with pair(tmp_path, slave_timeout=20_000, sync_metadata_interval=100, **SYNC) as (_, master, slave):
        await put(master, "t", b"x", b"y")
        await until(lambda: "t" in slave.topics.entries, "the topic")
        await until(lambda: master.acknowledgements.tracker.takes_metadata(), "the slave says what it has")
        assert await commit(master, 1) == "COMMIT_OK"
        master.broker.become(replace(master.broker.config, slave_timeout=500))

        save, of_slave = JsonFile.save, slave.store.config.root / "config" / "topics.json"

        def no_room(file: JsonFile, value: dict[str, Any]) -> None:
            if file.path == of_slave:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save(file, value)

        with monkeypatch.context() as full:
            full.setattr(JsonFile, "save", no_room)
            master.topics.auto_create("u", 4, 4, 1)
            assert await commit(master, 2) == "COMMIT_FLUSH_SLAVE_TIMEOUT"
            assert await commit(master, 2) == "COMMIT_FLUSH_SLAVE_TIMEOUT", "also where nothing has changed"
            assert await committed(master) == 2
            await put(master, "t", b"z")
            await until(lambda: slave.store.queues.end("t", 0) == 3, "the record")
            assert "u" not in slave.topics.entries
        await until(lambda: "u" in slave.topics.entries, "what it missed")
        await until(slave.replication.slave.is_following, "it follows")
        for _ in range(200):
            if (status := await commit(master, 3)) == "COMMIT_OK":
                break
        assert status == "COMMIT_OK"
        assert slave.offsets.get("g", "t", 0).offset == 3


async def test_a_commit_on_pull_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch, slave_timeout=60_000) as (master, _slave):
        acks_name_no_changes(monkeypatch)

        async def never(*_: Any) -> None:
            raise AssertionError("waited for a slave")

        monkeypatch.setattr(master.acknowledgements, "wait_for_commit", never)
        await master.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=3, commit_offset=3))
        assert master.offsets.get("g", "t", 0).offset == 3


# --- a reset in another history ---------------------------------------------------------------------------------------


async def test_what_a_replaced_master_reset_does_not_win_over_the_promoted_slaves(tmp_path: Path) -> None:
    keys = QUICK | {"slave_wait_time_ms": 0}
    async with slave_and_names(tmp_path, keys) as (slave, _):
        async with running(tmp_path / "m", **keys) as master:
            await until(slave.replication.slave.is_following, "the slave follows")
            await put(master, "t", *[b"x"] * 50)
            await commit(master, 40)
            await until(lambda: slave.offsets.get("g", "t", 0).offset == 40, "the offset")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            await until(lambda: master.mastership.standing is Standing.FENCED, "fenced")
            # Before it heard of the promotion, the old master had stored records and reset offsets after them.
            master.store.append_one(Record(topic="t", body=b"y", queue_id=0), 1, b"\x7f\0\0\1\0\0\0\0")
            master.offsets.reset("g", "t", {0: 3})
            master.offsets.reset("g", "t", {0: 2})
            master.offsets.reset("g", "u", {0: 2})
        await commit(slave, 45)
        async with running(tmp_path / "m", **(keys | SLAVE)) as former:
            await until(lambda: former.offsets.get("g", "t", 0).offset == 45, "the promoted one's")
            assert former.offsets.get("g", "u", 0).offset == -1
            assert slave.offsets.get("g", "t", 0) == former.offsets.get("g", "t", 0) == (0, 45)
            assert slave.offsets.get("g", "u", 0).offset == -1


async def test_an_acknowledged_reset_that_its_master_lost_comes_back_from_its_slave(tmp_path: Path) -> None:
    keys = QUICK | SYNC | {"slave_wait_time_ms": 600_000}
    async with slave_and_names(tmp_path, keys) as (slave, _):
        async with running(tmp_path / "m", **keys) as master:
            await put(master, "t", *[b"x"] * 50)
            await until(lambda: "t" in slave.topics.entries, "the topic")
            assert await commit(master, 40) == "COMMIT_OK"
            kept = {path: path.read_bytes() for path in offset_files(tmp_path / "m")}
            assert await reset(master) == "COMMIT_OK"
        for path in offset_files(tmp_path / "m"):
            path.unlink()
        for path, content in kept.items():
            path.write_bytes(content)
        async with running(tmp_path / "m", **keys) as master:
            assert await first_answer(master) == 0
            assert master.offsets.get("g", "t", 0) == (1, 0)


# --- a master that returns --------------------------------------------------------------------------------------------


def offset_files(store: Path) -> list[Path]:
    return [*store.glob("config/consumerOffset.json*"), *store.glob("rocketsim/offset*")]


async def first_answer(node: BrokerNode) -> int:
    """Returns the offset that the first query gets after the broker takes queries."""
    await until(lambda: node.broker.offsets_wait_for() is None, "it answers")
    return await committed(node)


@pytest.mark.parametrize("role", [BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER])
async def test_a_returning_master_answers_with_what_its_slave_took(tmp_path: Path, role: BrokerRole) -> None:
    keys = QUICK | {"broker_role": role, "slave_wait_time_ms": 600_000}
    async with slave_and_names(tmp_path, keys) as (slave, _):
        async with running(tmp_path / "m", **keys) as master:
            await put(master, "t", *[b"x"] * 100)
            await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
            await until(lambda: "t" in slave.topics.entries, "the topic")
            await commit(master, 10)
        assert await commit(slave, 60) == "COMMIT_MASTER_NOT_AVAILABLE"
        async with running(tmp_path / "m", **keys) as master:
            assert await first_answer(master) == 60
            assert await commit(master, 60) == "COMMIT_OK"


async def test_what_a_master_lost_of_what_it_had_acknowledged_comes_back_from_its_slave(tmp_path: Path) -> None:
    keys = QUICK | SYNC | {"slave_wait_time_ms": 600_000}
    async with slave_and_names(tmp_path, keys) as (slave, _):
        async with running(tmp_path / "m", **keys) as master:
            await put(master, "t", *[b"x"] * 100)
            await until(lambda: "t" in slave.topics.entries, "the topic")
            assert await commit(master, 80) == "COMMIT_OK"
            await until(lambda: not slave.offsets.unshared, "the slave has nothing of its own")
        for path in offset_files(tmp_path / "m"):
            path.unlink()  # a power loss can take this file
        async with running(tmp_path / "m", **keys) as master:
            assert await first_answer(master) == 80


async def test_while_it_waits_a_master_refuses_commits_and_queries_and_not_pulls(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", *[b"x"] * 10)
        node.mastership._answers_for_offsets = False
        node.mastership._heard_at = None
        for call in (lambda: commit(node, 1), lambda: committed(node)):
            with pytest.raises(grpc.aio.AioRpcError, match="does not answer for committed offsets yet"):
                await call()
        pulled = await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=3, commit_offset=3))
        assert pulled.count == 7
        assert node.offsets.get("g", "t", 0).offset == -1


async def test_a_fenced_master_says_nothing_of_offsets(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x")
        await commit(node, 1)
        node.mastership.newer_epoch(10_000, "a test")
        with pytest.raises(grpc.aio.AioRpcError, match="was replaced by epoch 10000"):
            await committed(node)
