"""Concurrent calls are stored with one put, and no call gets a worse answer because of the other ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketmq_v2 import definition_pb2 as d
from rocketsim_proto.records.record import Record

from broker_service.broker import frame as frame_checks
from broker_service.broker.put import Placed, RecordsSend
from broker_service.errors import MessageIllegal, ServiceNotAvailable
from broker_service.put_result import Appended, QueueAppend
from broker_service.runtime.group_commit import QUIET_TURNS
from broker_service.wire.v2.accumulator import MAX_BYTES, MAX_CALLS, Accumulator, SendCall, SentCall
from broker_service.wire.v2.recent_sends import RecentSends, SendId
from tests.support.v2 import message, v2_broker
from tests.v2.test_sends import stored


class Puts:
    """A put path that stores nothing and places every message in queue 0."""

    def __init__(self) -> None:
        self.sends: list[RecordsSend] = []
        self.refuses: Exception | None = None
        self.bad = b""  # a message whose body contains these bytes is refused
        self.stored = 0

    @property
    def bodies(self) -> list[bytes]:
        """Returns, for each send, the joined bodies of its messages."""
        return [b"".join(one.body for one in send.records) for send in self.sends]

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(send.topic, len(send.records)) for send in self.sends]

    async def append(self, send: RecordsSend) -> Placed:
        self.sends.append(send)
        if self.refuses is not None:
            raise self.refuses
        if self.bad and self.bad in self.bodies[-1]:
            raise MessageIllegal("a rule is broken")
        first, self.stored = self.stored, self.stored + len(send.records)
        return Placed(Appended([QueueAppend(0, first, len(send.records))], [], self.stored, 0), self.stored)


def call(body: bytes = b"r", *, topic: str = "T", **properties: str) -> SendCall:
    return SendCall(topic, [Record(topic, body, properties=properties)], [SendId(body.decode(), 0)])


def where(sent: SentCall) -> tuple[list[int], int]:
    return list(sent.offsets), sent.placed.appended.end_offset


async def accumulator(*, quiet: bool = False) -> tuple[Accumulator, Puts]:
    puts = Puts()
    joins = Accumulator(puts, RecentSends(), lambda: 0.0)  # type: ignore[arg-type]
    if not quiet:
        await joins.append(call(topic="first"))
        puts.sends.clear()
        puts.stored = 0
    return joins, puts


async def turns_until_done(task: "asyncio.Future[Any]") -> int:
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def test_calls_of_one_turn_are_one_put_in_their_order() -> None:
    joins, puts = await accumulator()
    sent = await asyncio.gather(*(joins.append(call(b"%d" % n)) for n in range(5)))
    assert puts.bodies == [b"01234"]
    assert list(map(where, sent)) == [([n], 5) for n in range(5)], "each hears its own offset, and the end of all"


async def test_a_call_while_it_is_quiet_does_not_wait_and_others_fill_a_batch() -> None:
    joins, puts = await accumulator(quiet=True)
    assert await turns_until_done(asyncio.ensure_future(joins.append(call(b"a")))) == 1
    second = asyncio.ensure_future(joins.append(call(b"b")))
    for _ in range(QUIET_TURNS - 1):
        await asyncio.sleep(0)
    third = asyncio.ensure_future(joins.append(call(b"c")))
    waits = await turns_until_done(asyncio.gather(second, third))
    assert QUIET_TURNS <= waits < QUIET_TURNS + 6
    assert puts.bodies == [b"a", b"bc"]
    for _ in range(QUIET_TURNS + 1):
        await asyncio.sleep(0)
    assert await turns_until_done(asyncio.ensure_future(joins.append(call()))) == 1, "it is quiet again"


async def test_batches_are_bounded_in_calls_and_bytes_whatever_else_comes() -> None:
    joins, puts = await accumulator()
    await asyncio.gather(*(joins.append(call()) for _ in range(2 * MAX_CALLS + 1)))
    assert puts.counts == [("T", MAX_CALLS), ("T", MAX_CALLS), ("T", 1)]
    joins, puts = await accumulator()
    await asyncio.gather(*(joins.append(call(bytes(MAX_BYTES // 2))) for _ in range(3)))
    assert puts.counts == [("T", 2), ("T", 1)]
    joins, puts = await accumulator()
    await asyncio.gather(joins.append(call(b"u", topic="U")), *(joins.append(call()) for _ in range(MAX_CALLS)))
    assert puts.counts == [("U", 1), ("T", MAX_CALLS - 1), ("T", 1)]


async def test_a_refused_message_is_refused_alone() -> None:
    joins, puts = await accumulator()
    puts.bad = b"x"
    calls = [joins.append(call(body)) for body in (b"a", b"x", b"b")]
    first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, MessageIllegal)
    assert isinstance(first, SentCall) and isinstance(last, SentCall)
    assert (where(first), where(last)) == (([0], 1), ([1], 2))


async def test_a_broker_that_takes_nothing_is_asked_once() -> None:
    joins, puts = await accumulator()
    puts.refuses = ServiceNotAvailable("the disk is full")
    answers = await asyncio.gather(*(joins.append(call()) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, ServiceNotAvailable) for answer in answers)
    assert len(puts.sends) == 1


async def test_a_call_that_ends_early_leaves_the_others_alone() -> None:
    joins, puts = await accumulator()
    calls = [asyncio.ensure_future(joins.append(call(b"%d" % n))) for n in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert [where(sent) for sent in await asyncio.gather(*calls[1:])] == [([0], 2), ([1], 2)]
    assert puts.bodies == [b"12"], "it sends again, and would be stored twice"


async def test_a_call_that_ends_while_its_batch_is_appended_is_remembered() -> None:
    """The client of the ended call repeats the send under the same id, and the broker must not store it twice."""
    recent, begun, goes_on = RecentSends(), asyncio.Event(), asyncio.Event()

    class Slow(Puts):
        async def append(self, send: RecordsSend) -> Placed:
            begun.set()
            await goes_on.wait()
            return await super().append(send)

    joins = Accumulator(Slow(), recent, lambda: 0.0)  # type: ignore[arg-type]
    first, second = (asyncio.ensure_future(joins.append(call(body))) for body in (b"a", b"b"))
    for _ in range(2 * QUIET_TURNS):
        await asyncio.sleep(0)
    second.cancel()
    goes_on.set()
    await first
    await asyncio.gather(second, return_exceptions=True)
    for _ in range(QUIET_TURNS):
        await asyncio.sleep(0)
    assert second.cancelled() and recent.get("T", SendId("b", 0), 0.0) is not None


async def test_calls_with_other_topics_or_delivery_times_are_not_joined() -> None:
    joins, puts = await accumulator()
    await asyncio.gather(
        joins.append(call(b"a")),
        joins.append(call(b"b")),
        joins.append(call(b"d", topic="U")),
        joins.append(call(b"e", TIMER_DELIVER_MS="1")),
    )
    assert sorted(puts.bodies) == [b"ab", b"d", b"e"]


@asynccontextmanager
async def counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, Any, list[int]]]:
    """Yields a broker, a client of this broker, and the growing list of the number of messages in each put."""
    async with v2_broker(root) as (node, client):
        counts: list[int] = []
        append = node.puts.append

        async def counting(send: RecordsSend) -> Placed:
            counts.append(len(send.records))
            return await append(send)

        monkeypatch.setattr(node.puts, "append", counting)
        yield node, client, counts


async def test_sends_of_a_client_share_puts_and_each_gets_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(tmp_path, monkeypatch) as (node, client, counts):
        messages = [message(body=b"%d" % number) for number in range(120)]
        answers = await asyncio.gather(*(client.send(one) for one in messages))
        found = {one.properties["UNIQ_KEY"]: one for one in await stored(node, "T")}
    assert sum(counts) == len(found) == 120
    assert len(counts) < 100, "calls that come together are put together"
    for sent, answer in zip(messages, answers, strict=True):
        (entry,) = answer.entries
        one = found[entry.message_id]
        assert (answer.status.code, one.body, one.queue_offset) == (d.OK, sent.body, entry.offset)


async def test_a_message_that_the_put_path_refuses_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(frame_checks.UNSUPPORTED, b"odd", "only the put path knows that")
    monkeypatch.setattr(frame_checks, "SPECIAL", (*frame_checks.SPECIAL, b"odd"))
    async with counted(tmp_path, monkeypatch) as (node, client, counts):
        bad = message(user={"odd": "1"})
        answers = await asyncio.gather(*(client.send(one) for one in [*(message() for _ in range(30)), bad]))
        again = await asyncio.gather(*(client.send(one) for one in [bad, *(message() for _ in range(30))]))
        found = await stored(node, "T")
    assert [answer.status.code for answer in answers] == [d.OK] * 30 + [d.BAD_REQUEST]
    assert [answer.status.code for answer in again] == [d.BAD_REQUEST] + [d.OK] * 30
    assert len(found) == len({one.properties["UNIQ_KEY"] for one in found}) == 60
    assert max(counts) > 1
