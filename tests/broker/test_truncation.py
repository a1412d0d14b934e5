"""After the promotion of a slave that lacks records, the broker tells consumers of these records where the log was cut
(KIP-320).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.model import GetMessageStatus, LogEpoch

from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.broker.reads.pull import Pull, Pulled
from broker_service.broker.reads.suggestion import PullCode
from broker_service.errors import ServiceNotAvailable
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.store.message_store import MessageStore
from rocketsim_client.cluster import Cluster
from rocketsim_client.model import LogEpoch as ClientEpoch
from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.options.data_loss import DataLossError
from rocketsim_source.options.source_options import source_options
from rocketsim_source.reading.range_fetch import RangeFetch
from rocketsim_source.source_cluster import ClientCluster
from testbed.polling import until
from tests.broker.test_pair import QUICK, SLAVE
from tests.support.brokers import name_server, put, running, stub_of


async def bounds(node: BrokerNode, *read_in: LogEpoch) -> pb.QueueBoundsResponse:
    request = pb.QueueBoundsRequest(topic="t", queue_ids=[0, 1])
    for epoch in read_in:
        request.read_in.add(epoch=epoch.epoch, epoch_id=epoch.epoch_id)
    async with stub_of(node) as stub:
        return await stub.QueueBounds(request, timeout=60)


def ends(answer: pb.QueueBoundsResponse) -> dict[LogEpoch, list[int]]:
    return {LogEpoch(end.epoch.epoch, end.epoch.epoch_id): list(end.offsets) for end in answer.epoch_ends}


async def pull(node: BrokerNode, offset: int, read_in: LogEpoch) -> Pulled:
    return await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=offset, read_in=read_in))


@asynccontextmanager
async def promoted(folder: Path, **given: Any) -> AsyncIterator[tuple[BrokerNode, LogEpoch]]:
    """Yields a slave that was promoted with 10 of 30 messages of queue 0, and the epoch of the master that had all of
    them.
    """
    keys = QUICK | {"slave_wait_time_ms": 0} | given
    async with name_server() as names:
        keys |= {"namesrv_addr": names.address}
        async with running(folder / "m", **keys) as master:
            async with running(folder / "s", **(keys | SLAVE)) as slave:
                await put(master, "t", *[b"x"] * 10)
                await until(lambda: "t" in slave.topics.entries, "the topic")
                await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
            await put(master, "t", *[b"only there"] * 20)
            Commits(master.broker).commit("g", [CommitEntry("t", 0, 25)])
            epoch = master.broker.log_epoch
        async with running(folder / "s", **(keys | SLAVE)) as slave:
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            yield slave, epoch


async def test_the_promoted_master_says_where_the_epoch_before_ended(tmp_path: Path) -> None:
    async with promoted(tmp_path) as (master, before):
        await put(master, "t", *[b"other"] * 50)  # the queue is longer than it ever was
        answer = await bounds(master, before, master.broker.log_epoch)
        assert answer.entries[0].max_offset == 60
        assert ends(answer) == {before: [10, 0]}
        assert LogEpoch(answer.log_epoch.epoch, answer.log_epoch.epoch_id) == master.broker.log_epoch


async def test_a_consumer_beyond_the_cut_is_told_and_one_before_the_cut_goes_on(tmp_path: Path) -> None:
    async with promoted(tmp_path) as (master, before):
        await put(master, "t", *[b"other"] * 50)
        told = await pull(master, 30, before)
        assert (told.code, told.status) == (PullCode.PULL_OFFSET_MOVED, GetMessageStatus.OFFSET_TRUNCATED)
        assert (told.next_begin_offset, told.count, told.read_in) == (10, 0, master.broker.log_epoch)
        for offset in (9, 10):
            found = await pull(master, offset, before)
            assert (found.status, found.read_in) == (GetMessageStatus.FOUND, master.broker.log_epoch)
        assert (await pull(master, 30, LogEpoch())).status is GetMessageStatus.FOUND, "who does not say is not told"


async def range_of(node: BrokerNode, *ranges: pb.PullRangeRequest.Range) -> list[tuple[int, int, int, str]]:
    """Makes one call; returns range, number of records, next offset and status of each part of the answer."""
    given: list[tuple[int, int, int, str]] = []
    async with stub_of(node) as stub:
        async for frame in stub.PullRange(pb.PullRangeRequest(ranges=ranges, max_frame_bytes=1), timeout=60):
            for part in frame.segments:
                status = pb.PullResponse.GetMessageStatus.Name(part.status)
                given.append((part.range_index, part.count, part.next_offset, status))
    return given


def planned(begin: int, end: int, read_in: LogEpoch, queue_id: int = 0) -> pb.PullRangeRequest.Range:
    epoch = pb.LogEpoch(epoch=read_in.epoch, epoch_id=read_in.epoch_id)
    return pb.PullRangeRequest.Range(topic="t", queue_id=queue_id, from_offset=begin, until_offset=end, read_in=epoch)


@pytest.mark.parametrize("regrown", [50, 0])
async def test_a_range_ends_where_the_epoch_it_was_planned_in_did(tmp_path: Path, regrown: int) -> None:
    async with promoted(tmp_path) as (master, before):
        if regrown:
            await put(master, "t", *[b"other"] * regrown)
        for begin, there in ((8, 2), (10, 0), (20, 0)):
            given = await range_of(master, planned(begin, 30, before), planned(0, 4, before))
            of_first = [part for part in given if part[0] == 0]
            assert sum(count for _, count, *_ in of_first) == there
            assert of_first[-1] == (0, 0, begin + there, "OFFSET_TRUNCATED")
            assert sum(count for number, count, *_ in given if number == 1) == 4, "all of it is there"
        assert sum(count for _, count, *_ in await range_of(master, planned(0, 10, before))) == 10
        now = await range_of(master, planned(0, 30, LogEpoch()))
        assert sum(count for _, count, *_ in now) == min(30, 10 + regrown), "who does not say is not told"


async def test_a_batch_planned_before_a_promotion_gives_no_row_that_came_after_it(tmp_path: Path) -> None:
    """The Spark source reports the lost records as a loss, and no later record takes their place."""
    async with promoted(tmp_path) as (master, before):
        await put(master, "t", *[b"other"] * 50)
        queue_range = OffsetRange(MessageQueue("t", "broker-a", 0), 8, 30)
        read_in = {queue_range.queue: ClientEpoch(*before)}

        def fetched(**given: str) -> list[int]:
            brokers = f"broker-a=0@{master.address}"
            options = source_options({"subscribe": "t", "brokers": brokers, **given}, streaming=True)
            with Cluster(options.connection) as cluster:
                fetch = RangeFetch(ClientCluster(cluster), [queue_range], {}, options, read_in=read_in)
                return [int(offset) for frame in fetch.frames() for offset in frame.records.queue_offset]

        with pytest.raises(
            DataLossError, match="from 10 to 30, but a broker that did not have all of that was promoted"
        ):
            await asyncio.to_thread(fetched)
        assert await asyncio.to_thread(partial(fetched, failOnDataLoss="false")) == [8, 9]


async def test_a_plain_restart_alarms_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", *[b"x"] * 10)
        before = node.broker.log_epoch
    (tmp_path / "abort").write_bytes(b"")  # makes the last stop an unclean one
    async with running(tmp_path) as node:
        assert node.broker.log_epoch != before
        await put(node, "t", *[b"y"] * 5)
        assert {status for *_, status in await range_of(node, planned(0, 10, before))} <= {"FOUND"}
        assert ends(await bounds(node, before)) == {before: [10, 0]}
        found = await pull(node, 10, before)
        assert (found.count, found.read_in) == (5, node.broker.log_epoch)


async def test_a_broker_that_cannot_say_where_its_log_was_cut_says_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", *[b"x"] * 10)
        newer = LogEpoch(node.broker.log_epoch.epoch + 1, 7)
        here = node.broker.log_epoch
        assert ends(await bounds(node, newer, here, LogEpoch())) == {}
        assert (await pull(node, 12, newer)).read_in == newer, "this broker may be behind"
        assert (await pull(node, 5, newer)).read_in == here
        node.mastership.newer_epoch(10_000, "a test")
        assert ends(await bounds(node, LogEpoch(0, 1))) == {}


async def test_what_a_replaced_master_gives_was_read_in_its_own_epoch(tmp_path: Path) -> None:
    """If the replaced master named an older epoch, the new master would report records that both have as truncated, and
    deliver them again.
    """
    async with running(tmp_path) as node:
        await put(node, "t", *[b"x"] * 10)
        before = node.broker.log_epoch
    (tmp_path / "abort").write_bytes(b"")
    async with running(tmp_path) as node:
        await put(node, "t", *[b"y"] * 5)
        node.mastership.newer_epoch(10**15, "a test")
        found = await pull(node, 8, before)
        assert (found.count, found.read_in) == (7, node.broker.log_epoch)
        assert (await pull(node, 12, before)).read_in == before, "what was read there is not here"
        assert (await pull(node, 12, before)).status is GetMessageStatus.FOUND, "and it cannot say what is gone"


async def test_an_offset_of_what_is_cut_off_goes_before_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a crash came between the two, no broker would know of the cut, and the queue could grow past the offset."""
    async with promoted(tmp_path) as (master, _):
        await put(master, "t", *[b"other"] * 50)
        cuts = []

        def crash(store: MessageStore, offset: int, keep_in: Path | None) -> int:
            cuts.append(offset)
            raise ServiceNotAvailable("as if it had been killed here")

        monkeypatch.setattr(MessageStore, "truncate", crash)
        keys = QUICK | SLAVE | {"ha_master_address": master.address}
        async with running(tmp_path / "m", **keys) as former:
            assert former.offsets.get("g", "t", 0).offset in (10, 25)
            await until(lambda: cuts, "the cut")
            assert former.store.queues.end("t", 0) == 30
            assert former.offsets.get("g", "t", 0).offset == 10
        monkeypatch.undo()
        async with running(tmp_path / "m", **keys) as former:
            await until(lambda: former.store.end_offset == master.store.end_offset, "in step")
            await until(lambda: not former.offsets.unshared, "the master has seen its offsets")
            assert master.offsets.get("g", "t", 0).offset == former.offsets.get("g", "t", 0).offset == 10
