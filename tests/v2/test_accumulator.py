"""Calls that come together are stored with one put, and none of them is worse off for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketmq_v2 import definition_pb2 as d

from broker_service.broker import frame as frame_checks
from broker_service.broker.put import Send
from broker_service.errors import MessageIllegal, ServiceNotAvailable
from broker_service.model import Appended, PutStatus, QueueAppend
from broker_service.runtime.quiet_turns import QUIET_TURNS
from broker_service.wire.v2.accumulator import MAX_BYTES, MAX_PARTS, Accumulator, Part
from tests.support.v2 import message, v2_broker
from tests.v2.test_sends import stored


class Puts:
    """A put path that stores nothing; every frame goes to queue 0."""

    def __init__(self) -> None:
        self.frames: list[Send] = []
        self.refuses: Exception | None = None
        self.bad = b""  # a frame that has it breaks a rule
        self.stored = 0

    async def put(self, send: Send) -> tuple[Appended, PutStatus]:
        self.frames.append(send)
        if self.refuses is not None:
            raise self.refuses
        if self.bad and self.bad in bytes(send.records):
            raise MessageIllegal("a rule is broken")
        first, self.stored = self.stored, self.stored + send.count
        appended = Appended([QueueAppend(0, first, send.count)], [], self.stored, 0)
        send.stored(appended)
        return appended, PutStatus.PUT_OK


def part(
    records: bytes = b"r",
    *,
    timeout_s: float = 3.0,
    topic: str = "T",
    alone: bool = False,
    told: list[Any] | None = None,
) -> Part:
    send = Send(topic=topic, records=records, count=1, crc32=0, timeout_s=timeout_s)

    def heard(offsets: Any, end_offset: int) -> None:
        if told is not None:
            told.append((records, list(offsets), end_offset))

    return Part(send=send, queue_ids=[0], stored=heard, alone=alone)


async def accumulator(*, quiet: bool = False) -> tuple[Accumulator, Puts]:
    puts = Puts()
    joins = Accumulator(puts)  # type: ignore[arg-type]
    if not quiet:
        await joins.put(part(topic="first"))
        puts.frames.clear()
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
    told: list[Any] = []
    statuses = await asyncio.gather(*(joins.put(part(b"%d" % n, told=told)) for n in range(5)))
    assert statuses == [PutStatus.PUT_OK] * 5
    (frame,) = puts.frames
    assert (bytes(frame.records), frame.count) == (b"01234", 5)
    assert told == [(b"%d" % n, [n], 5) for n in range(5)], "each hears its own offset, and the end of all"


async def test_a_call_while_it_is_quiet_does_not_wait_and_others_fill_a_batch() -> None:
    joins, puts = await accumulator(quiet=True)
    assert await turns_until_done(asyncio.ensure_future(joins.put(part(b"a")))) == 1
    second = asyncio.ensure_future(joins.put(part(b"b")))
    for _ in range(QUIET_TURNS - 1):
        await asyncio.sleep(0)
    third = asyncio.ensure_future(joins.put(part(b"c")))
    waits = await turns_until_done(asyncio.gather(second, third))
    assert QUIET_TURNS <= waits < QUIET_TURNS + 6
    assert [bytes(frame.records) for frame in puts.frames] == [b"a", b"bc"]
    for _ in range(QUIET_TURNS + 1):
        await asyncio.sleep(0)
    assert await turns_until_done(asyncio.ensure_future(joins.put(part()))) == 1, "it is quiet again"


async def test_batches_are_bounded_in_calls_and_bytes_whatever_else_comes() -> None:
    joins, puts = await accumulator()
    await asyncio.gather(*(joins.put(part()) for _ in range(2 * MAX_PARTS + 1)))
    assert [frame.count for frame in puts.frames] == [MAX_PARTS, MAX_PARTS, 1]
    joins, puts = await accumulator()
    await asyncio.gather(*(joins.put(part(bytes(MAX_BYTES // 2))) for _ in range(3)))
    assert [frame.count for frame in puts.frames] == [2, 1]
    joins, puts = await accumulator()
    await asyncio.gather(joins.put(part(b"u", topic="U")), *(joins.put(part()) for _ in range(MAX_PARTS)))
    assert [(frame.topic, frame.count) for frame in puts.frames] == [("U", 1), ("T", MAX_PARTS - 1), ("T", 1)]


async def test_a_refused_message_is_refused_alone() -> None:
    joins, puts = await accumulator()
    puts.bad = b"x"
    told: list[Any] = []
    calls = [joins.put(part(records, told=told)) for records in (b"a", b"x", b"b")]
    first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == (PutStatus.PUT_OK, PutStatus.PUT_OK)
    assert isinstance(refused, MessageIllegal)
    assert [(records, offsets) for records, offsets, _ in told] == [(b"a", [0]), (b"b", [1])]


async def test_a_broker_that_takes_nothing_is_asked_once() -> None:
    joins, puts = await accumulator()
    puts.refuses = ServiceNotAvailable("the disk is full")
    answers = await asyncio.gather(*(joins.put(part()) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, ServiceNotAvailable) for answer in answers)
    assert len(puts.frames) == 1


async def test_a_call_that_ends_early_leaves_the_others_alone() -> None:
    joins, puts = await accumulator()
    calls = [asyncio.ensure_future(joins.put(part(b"%d" % n))) for n in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert await asyncio.gather(*calls[1:]) == [PutStatus.PUT_OK] * 2
    assert bytes(puts.frames[0].records) == b"12", "it sends again, and would be stored twice"


async def test_calls_with_other_deadlines_topics_or_kinds_are_not_joined() -> None:
    joins, puts = await accumulator()
    await asyncio.gather(
        joins.put(part(b"a", timeout_s=3.9)),
        joins.put(part(b"b", timeout_s=3.1)),
        joins.put(part(b"c", timeout_s=30)),
        joins.put(part(b"d", topic="U")),
        joins.put(part(b"e", alone=True)),
    )
    assert sorted(bytes(frame.records) for frame in puts.frames) == [b"ab", b"c", b"d", b"e"]
    assert {bytes(frame.records): frame.timeout_s for frame in puts.frames}[b"ab"] == 3.1


@asynccontextmanager
async def counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, Any, list[int]]]:
    """A broker, a client of it, and how many messages each of its frames had."""
    async with v2_broker(root) as (node, client):
        counts: list[int] = []
        put = node.puts.put

        async def counting(send: Send) -> tuple[Appended, PutStatus]:
            counts.append(send.count)
            return await put(send)

        monkeypatch.setattr(node.puts, "put", counting)
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
    monkeypatch.setitem(frame_checks._UNSUPPORTED, b"odd", "only the put path knows that")
    monkeypatch.setattr(frame_checks, "_SPECIAL", frame_checks._SPECIAL | {b"odd"})
    async with counted(tmp_path, monkeypatch) as (node, client, counts):
        bad = message(user={"odd": "1"})
        answers = await asyncio.gather(*(client.send(one) for one in [*(message() for _ in range(30)), bad]))
        again = await asyncio.gather(*(client.send(one) for one in [bad, *(message() for _ in range(30))]))
        found = await stored(node, "T")
    assert [answer.status.code for answer in answers] == [d.OK] * 30 + [d.BAD_REQUEST]
    assert [answer.status.code for answer in again] == [d.BAD_REQUEST] + [d.OK] * 30
    assert len(found) == len({one.properties["UNIQ_KEY"] for one in found}) == 60
    assert max(counts) > 1
