"""A topic that is deleted while records for it arrive: no record is stored after its tombstone, where it would belong
to the next topic with that name.  The tests use every way into a topic: puts, commits of transactions, timers, delay
levels, moves to retry topics and dead letters.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto import transactions_pb2
from rocketsim_proto.broker_pb2 import SendResponse
from rocketsim_proto.records.record import Record
from rocketsim_proto.transactions_pb2_grpc import TransactionsStub

from broker_service.admin.operations import Operations
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import ServiceNotAvailable, SystemBusy
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import ChangeInvisible, HandleStatus, Pop
from broker_service.put_result import PutStatus
from broker_service.state.moves import dlq_topic, retry_topic
from broker_service.state.transaction_changes import Resolution, TransactionId
from broker_service.store.json_file import JsonFile
from broker_service.transactions.transactions import UnknownTransaction
from testbed.polling import until
from tests.support.brokers import bodies_in, goes_by, message, put, put_send, running, send_of, stub_of


class HeldTable:
    """The topics' table, whose next write waits on its thread until it may go on."""

    def __init__(self, node: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self._goes_on = threading.Event()
        save, of_topics = JsonFile.save, node.store.config.root / "config" / "topics.json"

        def held(file: JsonFile, value: dict[str, Any]) -> None:
            if file.path == of_topics:
                self.begun.set()
                assert self._goes_on.wait(60)
            save(file, value)

        monkeypatch.setattr(JsonFile, "save", held)

    def go_on(self) -> None:
        self._goes_on.set()


@asynccontextmanager
async def deleting(node: BrokerNode, monkeypatch: pytest.MonkeyPatch, name: str = "t") -> AsyncIterator[None]:
    """Inside the context the deletion of the topic waits in its thread; after it the topic is deleted."""
    before = node.store.queues.ends(name)
    table = HeldTable(node, monkeypatch)

    def removing() -> Any:
        return node.topics.deleting(name, 1, node.store.queues.ends(name))

    if name == "t":
        deletion = asyncio.ensure_future(Operations(node.broker, node.leadership).delete_topic("t"))
    else:
        deletion = asyncio.ensure_future(node.topics.apply(removing))
    await until(table.begun.is_set, "the deletion is on its thread")
    try:
        yield
        assert node.store.queues.ends(name) == before, "nothing is appended meanwhile"
    finally:
        table.go_on()
        await deletion
    assert dict(node.topics.tombstones[name].queue_offsets) == before


async def turns(count: int = 50) -> None:
    """Lets the event loop do everything that needs no write of the topics' table."""
    for _ in range(count):
        await asyncio.sleep(0)


def made_again(node: BrokerNode) -> list[bytes]:
    """Creates the topic again and returns the messages that it has."""
    node.topics.put(TopicConfig("t", 2, 2), 2)
    found = []
    for queue_id in range(2):
        first, end = node.store.queues.bounds("t", queue_id)
        if first < end:
            found += bodies_in(b"".join(node.store.queues.read_ranges([("t", queue_id, first, end)], 1 << 20).records))
    return found


@asynccontextmanager
async def with_topic(folder: Path, **keys: Any) -> AsyncIterator[BrokerNode]:
    async with running(folder, **keys) as node:
        node.topics.put(TopicConfig("t", 2, 2), 0)
        await put(node, "t", b"old")
        yield node


async def prepare(node: BrokerNode, *names: str) -> None:
    async with stub_of(node, TransactionsStub) as stub:
        for name in names:
            send = send_of("t", message("t", name.encode(), UNIQ_KEY=name))
            request = transactions_pb2.PrepareRequest(
                topic="t", record=bytes(send.records), crc32=send.crc32, producer_group="p"
            )
            assert (await stub.Prepare(request, timeout=60)).status == SendResponse.PUT_OK


async def test_puts_wait_for_a_deletion_and_make_the_next_topic_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_topic(tmp_path) as node:
        async with deleting(node, monkeypatch):
            puts = [asyncio.ensure_future(put(node, "t", b"%d" % number)) for number in range(3)]
            await turns()
            assert not any(one.done() for one in puts), "a put that meets a change waits and is not refused"
        assert await asyncio.gather(*puts) == [PutStatus.PUT_OK] * 3
        assert made_again(node) == [b"0", b"1", b"2"]


async def test_commits_of_transactions_wait_and_find_that_the_topic_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_topic(tmp_path, transaction_time_out=3_600_000) as node:
        names = [f"tx-{number}" for number in range(8)]
        await prepare(node, *names)
        transactions = node.consumption.transactions
        async with deleting(node, monkeypatch):
            commits = [
                asyncio.ensure_future(transactions.end(TransactionId("t", name), Resolution.COMMIT, 60.0))
                for name in names
            ]
            await turns()
            assert not any(commit.done() for commit in commits)
        ended = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(one) for one in ended] == [UnknownTransaction] * len(names)
        assert made_again(node) == []


async def test_a_commit_does_not_wait_longer_than_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_topic(tmp_path, transaction_time_out=3_600_000) as node:
        await prepare(node, "tx")
        async with deleting(node, monkeypatch):
            with pytest.raises(ServiceNotAvailable, match="topic t is still being changed"):
                await node.consumption.transactions.end(TransactionId("t", "tx"), Resolution.COMMIT, 0.01)


async def test_a_change_of_a_topic_lets_the_commit_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_topic(tmp_path, transaction_time_out=3_600_000) as node:
        await prepare(node, "tx")
        table = HeldTable(node, monkeypatch)
        change = asyncio.ensure_future(Operations(node.broker, node.leadership).update_topic(TopicConfig("t", 1, 1)))
        await until(table.begun.is_set, "the change is on its thread")
        commit = asyncio.ensure_future(
            node.consumption.transactions.end(TransactionId("t", "tx"), Resolution.COMMIT, 60.0)
        )
        await turns()
        table.go_on()
        await asyncio.gather(change, commit)
        assert node.store.queues.ends("t")[0] == 2


async def test_due_timers_wait_and_are_dropped_with_their_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_topic(tmp_path) as node:
        now = [node.broker.now_ms()]
        goes_by(node.broker, lambda: now[0])
        for name in ("t", "other"):
            node.topics.put(TopicConfig(name, 2, 2), 0)
            late = message(name, name.encode(), UNIQ_KEY=name, TIMER_DELIVER_MS=str(now[0] + 2000))
            await put_send(node, send_of(name, late))
        async with deleting(node, monkeypatch):
            now[0] += 5000
            node.consumption.timer_delivery.loop.wake()
            await turns()
        await until(lambda: not node.consumption.state.timers.due(now[0]), "all that is due is delivered or dropped")
        assert made_again(node) == []
        assert node.store.queues.ends("other") == {0: 1}


async def test_delay_levels_wait_and_drop_what_is_for_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_topic(tmp_path, message_delay_level="1s 3s") as node:
        now = [node.broker.now_ms()]
        goes_by(node.broker, lambda: now[0])
        await put_send(node, send_of("t", message("t", b"delayed", DELAY="1", UNIQ_KEY="delayed")))
        async with deleting(node, monkeypatch):
            now[0] += 5000
            node.schedule.loop.wake()
            await turns()
        await until(lambda: node.schedule.position().offsets.get(1) == 1, "it is dropped")
        assert made_again(node) == []


async def test_moves_wait_for_a_deletion_of_the_topic_that_they_go_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that moves to a retry topic or to the dead letters is copied once that topic exists again."""
    async with with_topic(tmp_path) as node:
        node.groups.put(SubscriptionGroup("g"), 0)
        consumption = node.consumption
        for body in (b"second", b"third", b"fourth"):
            await put(node, "t", body)
        popped = (await consumption.pop(Pop(group="g", topic="t", max_messages=4, invisible_ms=60_000))).deliveries
        first, second, third, fourth = (one.receipt_handle for one in popped)
        retry, dead = retry_topic("g", "t"), dlq_topic("g")

        async def nack(handle: str) -> None:
            await consumption.change_invisible(
                ChangeInvisible(group="g", topic="t", receipt_handle=handle, invisible_ms=0)
            )
            await turns()

        await nack(first)
        await until(lambda: node.store.queues.end(retry, 0) == 1, "the first retry")
        assert (await consumption.forward_to_dlq("g", "t", second)).status is HandleStatus.OK
        async with deleting(node, monkeypatch, retry):
            await nack(third)
        await until(lambda: node.store.queues.end(retry, 0) == 2, "the second retry")
        assert retry in node.topics.entries
        node.topics.put(TopicConfig(dead, 1, 1), 3)
        async with deleting(node, monkeypatch, dead):
            forward = asyncio.ensure_future(consumption.forward_to_dlq("g", "t", fourth))
            await turns()
            assert not forward.done()
        assert (await forward).status is HandleStatus.OK
        assert node.store.queues.end(dead, 0) == 2 and dead in node.topics.entries


async def test_the_one_door_refuses_what_did_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_topic(tmp_path) as node:
        async with deleting(node, monkeypatch):
            with pytest.raises(SystemBusy, match="topic t is being changed or deleted"):
                node.broker.append_one(Record("t", b"x"))
            node.broker.append_one(Record("rmq_sys_rocketsim_state", b""))


async def test_what_goes_with_a_topic_goes_in_the_step_in_which_the_table_becomes(tmp_path: Path) -> None:
    """Nobody sees the topic gone while its offsets or queue entries are still there."""
    async with with_topic(tmp_path) as node:
        node.offsets.commit("g", "t", {0: 1})
        found = []

        def look() -> None:
            first, end = node.store.queues.bounds("t", 0)
            found.append((node.offsets.get("g", "t", 0).offset, end - first))

        node.topics.changed.append(lambda name: asyncio.get_running_loop().call_soon(look))
        await Operations(node.broker, node.leadership).delete_topic("t")
        assert found == [(-1, 0)]
