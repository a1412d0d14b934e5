"""Pop, ack, change, retries and dead letters on a real broker, whose clock the tests move."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from rocketsim_proto.limits import MAX_BODY_BYTES, MAX_RPC_BYTES
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.admin.operations import Operations
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads import selection
from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.broker.reads.subscription import FilterNotSupported
from broker_service.errors import (
    DiskFull,
    InvalidParameter,
    NoPermission,
    ReadFailed,
    ServiceNotAvailable,
    SubscriptionGroupNotExist,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
)
from broker_service.node.node import BrokerNode
from broker_service.pop import finder as finder_module
from broker_service.pop import popping, receipt_handle
from broker_service.pop.consumption import Consumption
from broker_service.pop.deliveries import ChangeInvisible, Delivery, HandleStatus, Pop, Popped, PopStatus
from broker_service.pop.outcome import RENEWED_FOR_MS
from broker_service.pop.polls import Polls
from broker_service.put_result import PutStatus
from broker_service.state import state_log
from broker_service.state.moves import retry_topic
from broker_service.state.transitions import Place
from broker_service.store.files import DiskUsage
from broker_service.store.json_file import JsonFile
from testbed.polling import until
from tests.support.brokers import (
    goes_by,
    message,
    metrics_of,
    put,
    put_send,
    running,
    send_of,
)

LONG = "t" * 128  # one character more than a topic's name may have
OK, INVALID = HandleStatus.OK, HandleStatus.INVALID_RECEIPT_HANDLE
INVISIBLE_MS = 30_000


def snapshot_in(folder: Path) -> Path:
    return folder / "rocketsim" / "consumption.snapshot"


class Consumer:
    """A group's consumer of topic t, on a broker whose clock stands still unless it is moved."""

    def __init__(self, node: BrokerNode, group: str = "g", topic: str = "t") -> None:
        self.node, self.group, self.topic = node, group, topic
        self.consumption: Consumption = node.consumption

    async def pop(self, **fields: Any) -> Popped:
        fields = {"group": self.group, "topic": self.topic, "invisible_ms": INVISIBLE_MS, "client_id": "c"} | fields
        return await self.consumption.pop(Pop(**fields))

    async def bodies(self, **fields: Any) -> list[bytes]:
        return sorted(body_of(one) for one in (await self.pop(**fields)).deliveries)

    async def ack(self, *deliveries: Delivery) -> list[HandleStatus]:
        handles = [one.receipt_handle for one in deliveries]
        return [one.status for one in await self.consumption.ack(self.group, self.topic, handles)]

    async def nack(self, delivery: Delivery, invisible_ms: int | None = 0, *, counted: bool = True) -> HandleStatus:
        change = ChangeInvisible(
            group=self.group,
            topic=self.topic,
            receipt_handle=delivery.receipt_handle,
            invisible_ms=invisible_ms,
            counted=counted,
        )
        changed = await self.consumption.change_invisible(change)
        assert changed.receipt_handle == delivery.receipt_handle
        return changed.status

    async def later(self, ms: int) -> None:
        """Moves the clock by `ms`, and handles everything that is due then."""
        now_ms = self.node.broker.now_ms() + ms
        goes_by(self.node.broker, lambda: now_ms)
        await self.consumption.expiry.expire()

    def committed(self, queue_id: int = 0, topic: str = "t") -> int:
        return self.node.broker.offsets.progress(self.group, topic, queue_id).offset


def body_of(delivery: Delivery) -> bytes:
    return record.decode(delivery.record).body


@asynccontextmanager
async def consumer(folder: Path, **keys: Any) -> AsyncIterator[Consumer]:
    async with running(folder, **keys) as node:
        now_ms = node.broker.now_ms()
        goes_by(node.broker, lambda: now_ms)
        node.topics.put(TopicConfig("t", 1, 1), 0)
        yield Consumer(node)


# --- delivering -------------------------------------------------------------------------------------------------------


async def test_what_is_popped_is_not_popped_again_until_its_deadline(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", TAGS="x")
        popped = await one.pop()
        assert (popped.status, popped.stored) == (PopStatus.FOUND, PutStatus.PUT_OK)
        assert [(body_of(it), it.queue_offset, it.attempt, it.topic) for it in popped.deliveries] == [
            (b"a", 0, 1, "t"),
            (b"b", 1, 1, "t"),
        ]
        assert {it.deadline_ms - popped.popped_ms for it in popped.deliveries} == {INVISIBLE_MS}
        assert (await one.pop()).status is PopStatus.NO_MESSAGE
        await one.later(INVISIBLE_MS - 1)
        assert await one.bodies() == []
        await one.later(1)
        again = await one.pop()
        assert sorted((body_of(it), it.attempt, it.topic) for it in again.deliveries) == [
            (b"a", 2, "t"),
            (b"b", 2, "t"),
        ]
        assert record.decode(again.deliveries[0].record).topic == "%RETRY%g+t"


@pytest.mark.usefixtures("no_ticks")
async def test_pops_of_one_turn_of_the_loop_share_the_messages_and_one_record(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g"), 0)
        await put(one.node, "t", *(b"%d" % number for number in range(10)))
        popped = await asyncio.gather(*(one.bodies(max_messages=4) for _ in range(4)))
        assert sorted(body for bodies in popped for body in bodies) == [b"%d" % number for number in range(10)]
        assert one.node.store.queues.end("rmq_sys_rocketsim_state", 0) == 1


async def test_groups_get_all_messages_each(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        other = Consumer(one.node, group="h")
        assert await one.bodies() == await other.bodies() == [b"a"]


async def test_one_pop_takes_messages_of_several_queues(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.topics.put(TopicConfig("t", 3, 3), 0)
        for queue_id in range(3):
            await put(one.node, "t", b"%d" % queue_id, queue_id=queue_id)
        popped = await one.pop()
        assert sorted((it.queue_id, body_of(it)) for it in popped.deliveries) == [(0, b"0"), (1, b"1"), (2, b"2")]
        assert await one.ack(*popped.deliveries) == [OK] * 3
        assert [one.committed(queue_id) for queue_id in range(3)] == [1, 1, 1]


async def test_a_batch_has_at_most_32_messages_and_none_if_none_is_asked_for(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", *[b"x"] * 40)
        assert (await one.pop(max_messages=0)).status is PopStatus.NO_MESSAGE
        assert len(await one.bodies(max_messages=100_000)) == 32
        assert len(await one.bodies()) == 8


async def test_a_group_that_committed_as_a_client_goes_on_there(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c")
        Commits(one.node.broker).commit("g", [CommitEntry("t", 0, 2)])
        assert await one.bodies() == [b"c"]
        with pytest.raises(InvalidParameter, match="resetOffsetByTime"):
            Commits(one.node.broker).commit("g", [CommitEntry("t", 0, 3)])


# --- filters ----------------------------------------------------------------------------------------------------------


async def test_tags_are_compared_as_text_and_what_is_excluded_is_passed_over(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        for number, tag in enumerate(["AaTa", "BBTa", "c", "AaTa"]):  # the first two tags have the same hash code
            await put(one.node, "t", b"%d" % number, TAGS=tag)
        popped = await one.pop(sub_expression="AaTa || d")
        assert [body_of(it) for it in popped.deliveries] == [b"0", b"3"]
        assert await one.ack(*popped.deliveries) == [OK, OK]
        assert one.committed() == 4
        assert (await one.pop(sub_expression="AaTa")).status is PopStatus.NO_MESSAGE


async def test_nothing_but_excluded_messages_is_no_match_and_counts_as_consumed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(selection, "ENTRIES", 3)
    async with consumer(tmp_path) as one:
        await put(one.node, "t", *[b"x"] * 2000, TAGS="a")
        looks = 0
        while (await one.pop(sub_expression="b")).status is PopStatus.NO_MATCH:
            looks += 1
        assert (one.committed(), looks > 1) == (2000, True)
        await put(one.node, "t", b"y", TAGS="b")
        assert await one.bodies(sub_expression="b") == [b"y"]


async def test_one_look_passes_over_a_number_of_entries_of_all_queues_together(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(selection, "ENTRIES", 3)
    async with consumer(tmp_path) as one:
        one.node.topics.put(TopicConfig("t", 3, 3), 0)
        for queue_id in range(3):
            await put(one.node, "t", *[b"x"] * 5, TAGS="a", queue_id=queue_id)
        assert (await one.pop(sub_expression="b")).status is PopStatus.NO_MATCH
        await until(lambda: one.node.store.queues.end("rmq_sys_rocketsim_state", 0), "the look is noted")
        assert sorted(one.committed(queue_id) for queue_id in range(3)) == [-1, -1, 5]
        await put(one.node, "t", b"y", TAGS="b")
        assert await one.bodies(sub_expression="b", poll_s=60) == [b"y"]


async def test_expressions_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        with pytest.raises(SubscriptionParseFailed):
            await one.pop(sub_expression="||")
        with pytest.raises(FilterNotSupported, match="enablePropertyFilter"):
            await one.pop(sub_expression="a > 1", expression_type="SQL92")
        with pytest.raises(FilterNotSupported, match="LUA"):
            await one.pop(sub_expression="a > 1", expression_type="LUA")


async def test_sql_selects_by_properties_and_what_is_excluded_is_passed_over(tmp_path: Path) -> None:
    async with consumer(tmp_path, enable_property_filter=True) as one:
        for number, price in enumerate(["5", "25", "dear", "30", ""]):
            await put(one.node, "t", b"%d" % number, **({"PRICE": price} if price else {}), TAGS="a")
        sql = {"expression_type": "SQL92", "sub_expression": "PRICE > 20 AND TAGS = 'a'"}
        (first,) = (await one.pop(**sql, max_messages=1)).deliveries
        assert body_of(first) == b"1" and one.committed() == 1
        (second,) = (await one.pop(**sql)).deliveries
        assert body_of(second) == b"3"
        assert await one.ack(first, second) == [OK, OK]
        assert one.committed() == 5
        assert (await one.pop(**sql)).status is PopStatus.NO_MESSAGE
        everything = await Consumer(one.node, group="h").bodies(expression_type="SQL92", sub_expression="TRUE")
        assert len(everything) == 5


async def test_a_retried_message_comes_again_under_a_condition_and_is_a_dead_letter_in_the_end(tmp_path: Path) -> None:
    async with consumer(tmp_path, enable_property_filter=True) as one:
        one.node.groups.put(SubscriptionGroup("g", retry_max_times=1), 0)
        await put(one.node, "t", b"a", PRICE="25")
        for attempt in (1, 2):
            (delivery,) = (await one.pop(sub_expression="PRICE > 20", expression_type="SQL92")).deliveries
            assert delivery.attempt == attempt
            await one.nack(delivery)
            await one.later(0)
        assert one.node.store.queues.end("%DLQ%g", 0) == 1


async def test_a_condition_passes_over_thousands_of_messages_with_some_looks(tmp_path: Path) -> None:
    async with consumer(tmp_path, enable_property_filter=True, max_transfer_count_on_message_in_memory=1) as one:
        for _ in range(3):
            await put(one.node, "t", *[b"x"] * 3000, PRICE="5")
        await put(one.node, "t", b"y", PRICE="21")
        sql = {"expression_type": "SQL92", "sub_expression": "PRICE > 20"}
        assert (await one.pop(**sql)).status is PopStatus.NO_MATCH
        assert one.committed() == selection.ENTRIES
        assert await one.bodies(**sql) == [b"y"]
        assert one.node.store.queues.end("rmq_sys_rocketsim_state", 0) == 2


async def test_large_messages_that_a_condition_excludes_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(finder_module, "MAX_POP_BYTES", 10_000)
    async with consumer(tmp_path, enable_property_filter=True) as one:
        one.node.topics.put(TopicConfig("t", 2, 2), 0)
        for queue_id in range(2):
            await put(one.node, "t", *[b"x" * 3000] * 10, PRICE="5", queue_id=queue_id)
        assert (await one.pop(sub_expression="PRICE > 20", expression_type="SQL92")).status is PopStatus.NO_MATCH
        assert sorted(one.committed(queue_id) for queue_id in range(2)) == [-1, 4]


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("filtered", [{}, {"sub_expression": "PRICE > 20", "expression_type": "SQL92"}])
async def test_an_answer_has_less_than_its_bytes_and_one_message_more_however_much_is_due_at_once(
    tmp_path: Path, monkeypatch: Any, is_ordered: bool, filtered: dict[str, str]
) -> None:
    most_bytes, size, count = 10_000, 3_000, 24
    monkeypatch.setattr(finder_module, "MAX_POP_BYTES", most_bytes)
    async with consumer(tmp_path, enable_property_filter=True) as one:
        one.node.topics.put(TopicConfig("t", 4, 4), 0)
        one.node.groups.put(SubscriptionGroup("g", consume_message_orderly=is_ordered), 0)
        for number in range(count):
            await put(one.node, "t", bytes(size), PRICE="21", queue_id=number % 4, __SHARDINGKEY=str(number))
        for attempt in (1, 2):
            seen = 0
            while seen < count:
                popped = await one.pop(max_messages=32, **filtered)
                sizes = [len(delivery.record) for delivery in popped.deliveries]
                assert 0 < sum(sizes) < most_bytes + max(sizes)
                assert {delivery.attempt for delivery in popped.deliveries} == {attempt}
                seen += len(sizes)
            await one.later(INVISIBLE_MS)  # all these messages are due again


def test_the_largest_answer_fits_what_a_client_receives() -> None:
    properties_and_handles = 1 << 20
    assert finder_module.MAX_POP_BYTES + MAX_BODY_BYTES + properties_and_handles <= MAX_RPC_BYTES


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("*", "not understood"),
        ("price >", "ends where more is expected"),
        (" OR ".join(f"p{number} = {number}" for number in range(100)), "201 .* and properties; at most 200"),
        ("a = '" + "x" * selection.MOST_CHARACTERS + "'", "characters; at most"),
        ("NOT " * 150 + "a", "nested deeper"),
        ("a = " + "9" * 5000, "is larger than"),
    ],
)
async def test_a_condition_that_is_none_or_too_large_is_refused_every_time(
    tmp_path: Path, text: str, reason: str
) -> None:
    async with consumer(tmp_path, enable_property_filter=True) as one:
        for _ in range(2):
            with pytest.raises(SubscriptionParseFailed, match=reason):
                await one.pop(sub_expression=text, expression_type="SQL92")


async def test_conditions_are_parsed_once_while_they_are_in_use(monkeypatch: Any) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(selection, "KEPT", 2)
    parse = selection.selection_of
    monkeypatch.setattr(selection, "selection_of", lambda text: parsed.append(text) or parse(text))
    selections = selection.Selections()
    for text in ["a = 1", "b = 1", "a = 1", "c = 1", "a = 1", "b = 1"]:
        assert (await selections.of(text, "SQL92", sql_enabled=True)).condition is not None
    assert parsed == ["a = 1", "b = 1", "c = 1", "b = 1"]


def test_a_look_evaluates_fewer_messages_the_more_parts_a_condition_has() -> None:
    small, large = (
        selection.selection_of("a = 1"),
        selection.selection_of(" OR ".join(f"p{n} = {n}" for n in range(60))),
    )
    assert isinstance(small, selection.Selection) and isinstance(large, selection.Selection)
    assert small.entries == selection.ENTRIES > 4 * large.entries


async def test_a_look_searches_fewer_bytes_the_more_texts_a_condition_searches_for(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(selection, "SEARCHED_BYTES", 40_000)
    async with consumer(tmp_path, enable_property_filter=True) as one:
        await put(one.node, "t", *[b"x" * 3000] * 10, NAME="y")
        text = " OR ".join(f"NAME CONTAINS 'x{number}'" for number in range(4))
        assert (await one.pop(sub_expression=text, expression_type="SQL92")).status is PopStatus.NO_MATCH
        assert one.committed() == 4


# --- bad sectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filtered", [{}, {"sub_expression": "TAGS = 'A'", "expression_type": "SQL92"}], ids=["", "sql"]
)
async def test_a_message_that_cannot_be_read_holds_up_its_queue_only(
    tmp_path: Path, monkeypatch: Any, caplog: Any, filtered: dict[str, str]
) -> None:
    async with consumer(tmp_path, enable_property_filter=True) as one:
        broker, store = one.node.broker, one.node.store
        one.node.topics.put(TopicConfig("t", 2, 2), 0)
        await put(one.node, "t", b"a", b"bad", b"c", TAGS="A")
        await put(one.node, "t", b"x", b"y", queue_id=1, TAGS="A")
        get_message, read_ranges, reads = store.queues.get_message, store.queues.read_ranges, []

        def check(queue_id: int, first: int, end: int) -> None:
            if queue_id == 0 and first <= 1 < end:
                reads.append(first)
                raise ReadFailed("a bad sector")

        def getting(topic: str, queue_id: int, at: int, most: int, *rest: Any) -> Any:
            check(queue_id, at, at + most)
            return get_message(topic, queue_id, at, most, *rest)

        def reading(ranges: list[tuple[str, int, int, int]], *rest: Any, **more: Any) -> Any:
            for _, *where in ranges:
                check(*where)
            return read_ranges(ranges, *rest, **more)

        started_s, later_s = broker.clock(), 0.0
        monkeypatch.setattr(broker, "clock", lambda: started_s + later_s)
        with monkeypatch.context() as patch:
            patch.setattr(store.queues, "get_message", getting)
            patch.setattr(store.queues, "read_ranges", reading)
            assert await one.bodies(**filtered) == [b"a", b"x", b"y"]
            await put(one.node, "t", b"z", queue_id=1, TAGS="A")
            assert await one.bodies(**filtered) == [b"z"]
            tries = len(reads)
            for _ in range(2):
                with pytest.raises(ReadFailed, match="a bad sector"):
                    await one.pop(poll_s=60, **filtered)
            assert len(reads) == tries, "it is not asked all the time"
        with pytest.raises(ReadFailed):
            await one.pop(**filtered)
        later_s = 10.0
        assert await one.bodies(**filtered) == [b"bad", b"c"]
        assert (
            caplog.text.count("queue 0 of topic t cannot be read at offset 1, so group g gets no more of it for now")
            == 1
        )


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_poll_is_notified_of_an_arrival_and_one_message_notifies_one_poll(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        polls = [asyncio.create_task(one.bodies(poll_s=60)) for _ in range(3)]
        other = asyncio.create_task(Consumer(one.node, group="h").bodies(poll_s=60))
        await until(lambda: one.consumption.polls_held == 4, "the polls wait")
        await put(one.node, "t", b"a")
        assert await other == [b"a"]
        await until(lambda: one.consumption.polls_held == 2, "one of the three is answered")
        assert [poll.result() for poll in polls if poll.done()] == [[b"a"]]
        await put(one.node, "t", *[b"x"] * 33)
        assert sorted(len(bodies) for bodies in await asyncio.gather(*polls)) == [1, 1, 32]


async def test_what_arrives_ends_one_poll_of_each_group_the_oldest_and_it_ends_the_next() -> None:
    polls = Polls(most=16)
    waits = [asyncio.create_task(polls.wait(group, "t", 60, "c")) for group in ("g", "h", "g", "h")]
    await until(lambda: polls.held == 4, "all wait")
    polls.arrived([("t", 0), ("t", 1), ("other", 0)])
    assert [await waits[0], await waits[1]] == [True, True]
    assert ([wait.done() for wait in waits], polls.held) == ([True, True, False, False], 2)
    polls.notify("g", "t")
    assert (await waits[2], waits[3].done()) == (True, False)
    polls.arrived([(retry_topic("h", "t"), 0)])
    assert (await waits[3], polls.held) == (True, 0)


async def test_a_client_ends_its_own_polls_of_a_group_and_topic_but_not_one_that_may_have_a_message() -> None:
    polls = Polls(most=32)
    others = [("g", "t", "other"), ("h", "t", "c"), ("g", "u", "c")]
    waits = [asyncio.create_task(polls.wait(group, topic, 60, client)) for group, topic, client in others]
    notified, ended = (asyncio.create_task(polls.wait("g", "v", 60, "c")) for _ in range(2))
    own = asyncio.create_task(polls.wait("g", "t", 60, "c"))
    await until(lambda: polls.held == 6, "all wait")
    for unknown in (("g", "t", "nobody"), ("g", "x", "c")):
        polls.end(*unknown)
    polls.end("g", "t", "c")
    assert await own is False
    assert (polls.held, [wait.done() for wait in waits]) == (5, [False] * 3)
    polls.arrived([("v", 0)])
    polls.end("g", "v", "c")
    assert (await notified, await ended) == (True, False)
    polls.close()
    assert await asyncio.gather(*waits) == [False] * 3 and polls.held == 0


async def test_a_poll_is_notified_of_a_retry(tmp_path: Path) -> None:
    """A message that comes to the retry topic wakes a poll of the topic."""
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (delivery,) = (await one.pop()).deliveries
        poll = asyncio.create_task(one.pop(poll_s=60))
        await until(lambda: one.consumption.polls_held == 1, "the poll waits")
        assert await one.nack(delivery) is OK
        assert [(body_of(it), it.attempt) for it in (await poll).deliveries] == [(b"a", 2)]


async def test_a_poll_that_is_refused_passes_its_message_on(tmp_path: Path, monkeypatch: Any) -> None:
    async with consumer(tmp_path) as one:
        polls = [asyncio.create_task(one.bodies(poll_s=60)) for _ in range(2)]
        await until(lambda: one.consumption.polls_held == 2, "the polls wait")
        scan = one.consumption.popping.scan

        def refused_once(*_: Any) -> Any:
            monkeypatch.setattr(one.consumption.popping, "scan", scan)
            raise SystemBusy("busy")

        monkeypatch.setattr(one.consumption.popping, "scan", refused_once)
        await put(one.node, "t", b"a")
        first, second = await asyncio.gather(*polls, return_exceptions=True)
        assert (type(first), second) == (SystemBusy, [b"a"])


async def test_a_poll_that_is_given_up_passes_its_message_on(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        first = asyncio.create_task(one.bodies(poll_s=60))
        await until(lambda: one.consumption.polls_held == 1, "the first poll waits")
        second = asyncio.create_task(one.bodies(poll_s=60))
        await until(lambda: one.consumption.polls_held == 2, "the second poll waits")
        await put(one.node, "t", b"a")  # wakes the first poll
        first.cancel()
        assert await second == [b"a"]


async def test_too_many_polls_are_refused_and_those_that_wait_end_when_the_broker_stops(tmp_path: Path) -> None:
    async with consumer(tmp_path, max_long_polls=1) as one:
        poll = asyncio.create_task(one.pop(poll_s=60))
        await until(lambda: one.consumption.polls_held == 1, "the poll waits")
        with pytest.raises(SystemBusy):
            await one.pop(poll_s=60)
        one.consumption.close()
        assert (await poll).status is PopStatus.NO_MESSAGE


async def test_one_client_does_not_take_all_polls(tmp_path: Path) -> None:
    async with consumer(tmp_path, max_long_polls=8) as one:
        polls = [asyncio.create_task(one.pop(poll_s=60, client_id="greedy")) for _ in range(2)]
        await until(lambda: one.consumption.polls_held == 2, "two polls wait")
        with pytest.raises(SystemBusy, match="client greedy holds 2 pops already"):
            await one.pop(poll_s=60, client_id="greedy")
        polls.append(asyncio.create_task(one.pop(poll_s=60, client_id="other")))
        await until(lambda: one.consumption.polls_held == 3, "another client's poll waits")
        polls[0].cancel()
        await until(lambda: one.consumption.polls_held == 2, "a poll has ended")
        polls.append(asyncio.create_task(one.pop(poll_s=60, client_id="greedy")))
        await until(lambda: one.consumption.polls_held == 3, "its place is free again")
        one.consumption.close()
        await asyncio.gather(*polls, return_exceptions=True)


# --- acknowledging ----------------------------------------------------------------------------------------------------


async def test_acks_are_final_and_progress_shows_what_is_acknowledged(tmp_path: Path) -> None:
    """An acknowledged message is never delivered again, nor can it be given back."""
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c")
        a, b, c = (await one.pop()).deliveries
        shown = []
        for delivery in (b, a, c):
            shown += [(row.consumer_offset, row.lag) for row, _ in await one.node.administration.progress.of("g", "t")]
            assert await one.ack(delivery) == [OK]
        assert (shown, one.committed()) == ([(0, 3), (0, 2), (2, 1)], 3)
        await one.later(INVISIBLE_MS)
        assert await one.bodies() == []
        assert await one.ack(a) == [OK]  # again
        assert await one.nack(a) is INVALID


async def lags(one: Consumer, topic: str = "") -> dict[str, int]:
    """Returns the lags by topic as consumerProgress reports them, and checks that the metrics report the same."""
    told = {row.place.topic: row.lag for row, _ in await one.node.administration.progress.of(one.group, topic)}
    metrics = await one.node.administration.lags.take()
    assert topic or told == {name: lag.messages for (group, name), lag in metrics.items() if group == one.group}
    return told


async def test_the_lag_has_what_is_under_way_and_what_waits_for_another_attempt(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", *[b"x"] * 5)
        assert (await one.pop(max_messages=4)).deliveries
        assert await lags(one) == {"t": 5}
        await one.later(INVISIBLE_MS)  # the consumer of these messages has died
        assert await lags(one) == {"t": 1, "%RETRY%g+t": 4}
        first, second, *_ = (await one.pop()).deliveries
        assert await one.ack(first, second) == [OK, OK]
        assert sum((await lags(one)).values()) == 3
        assert await lags(one, "t") == await lags(one)
        assert (await lags(one, "%RETRY%g+t")).keys() == {"%RETRY%g+t"}
        # a group whose name occurs in names of other groups' topics, and which has no retries
        other = Consumer(one.node, group="g-t")
        assert await other.ack(*(await other.pop()).deliveries) == [OK] * 5
        assert await lags(other) == {"t": 0}


async def test_the_lag_of_a_group_in_order_has_what_waits_for_others_of_its_message_group(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g", consume_message_orderly=True), 0)
        await put(one.node, "t", *[b"x"] * 3, __SHARDINGKEY="a")
        first, *_ = (await one.pop()).deliveries
        assert await lags(one) == {"t": 3}
        await one.ack(first)
        assert await lags(one) == {"t": 2}


async def test_the_lag_is_counted_from_the_first_message_that_is_there(tmp_path: Path) -> None:
    hours = ";".join(map(str, range(24)))
    async with consumer(tmp_path, mapped_file_size_commit_log=1 << 16, delete_when=hours) as one:
        node, other = one.node, Consumer(one.node, group="h")
        await put(node, "t", *[b"x"] * 4)
        a, *_ = (await one.pop(max_messages=3)).deliveries
        assert await one.ack(a) == [OK]
        Commits(node.broker).commit("h", [CommitEntry("t", 0, 1)])
        for _ in range(3):
            await put(node, "t", bytes(60_000))
        node.store.flush()
        node.store.retention.delete_expired(node.broker.now_ms() + 365 * 86_400_000)
        first, end = node.store.queues.bounds("t", 0)
        assert 4 <= first < end
        assert await lags(one) == await lags(other) == {"t": end - first}
        ((row, last_timestamp),) = await node.administration.progress.of("h", "t")
        assert (row.broker_offset, row.consumer_offset, last_timestamp) == (end, first, 0)


async def test_a_handle_dies_with_its_deadline(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        a, b = (await one.pop()).deliveries
        assert await one.nack(b, 2 * INVISIBLE_MS) is OK
        now_ms = one.node.broker.now_ms() + INVISIBLE_MS
        # the deadline has passed, but the broker has not looked for expired deadlines yet
        goes_by(one.node.broker, lambda: now_ms)
        assert await one.ack(a, b) == [INVALID, OK]
        await one.later(0)
        assert await one.ack(a) == [INVALID]
        assert await one.bodies() == [b"a"]


async def test_an_ack_after_a_nack_at_once_is_refused_and_the_message_comes_again(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (delivery,) = (await one.pop()).deliveries
        assert await one.nack(delivery) is OK
        await one.later(0)
        assert await one.ack(delivery) == [INVALID]
        assert await one.bodies() == [b"a"]


async def test_forged_cut_and_foreign_handles_are_answered_and_change_nothing(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (delivery,) = (await one.pop()).deliveries
        mine = receipt_handle.decode(delivery.receipt_handle)
        assert mine is not None
        forged = receipt_handle.encode(mine._replace(delivery=mine.delivery._replace(pop=mine.delivery.pop ^ 1)))
        for handle in ("", "x", "ä" * 40, delivery.receipt_handle[:-1], forged, "A" * 32, delivery.receipt_handle * 2):
            assert [one.status for one in await one.consumption.ack("g", "t", [handle])] == [INVALID]
            assert (await one.consumption.forward_to_dlq("g", "t", handle)).status is INVALID
            one.consumption.give_back("g", "t", [handle])
        for group, topic in (("h", "t"), ("g", "u"), ("g", "%RETRY%g+t")):
            assert (await one.consumption.ack(group, topic, [delivery.receipt_handle]))[0].status is INVALID
        assert one.node.store.queues.end("rmq_sys_rocketsim_state", 0) == 1
        assert await one.ack(delivery) == [OK]


# --- retries and dead letters -----------------------------------------------------------------------------------------


async def test_after_the_last_attempt_a_message_is_a_dead_letter(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g", retry_max_times=2), 0)
        await put(one.node, "t", b"a", UNIQ_KEY="id", TAGS="x")
        attempts = []
        for _ in range(3):
            popped = await one.pop(sub_expression="x")
            attempts += [it.attempt for it in popped.deliveries]
            await one.later(INVISIBLE_MS)
        assert attempts == [1, 2, 3]
        assert await one.bodies() == []
        dead = await Consumer(one.node, topic="%DLQ%g").pop()
        (letter,) = [record.decode(it.record) for it in dead.deliveries]
        assert dead.deliveries[0].attempt == 1
        assert (letter.body, letter.message_id, letter.properties["DLQ_ORIGIN_TOPIC"]) == (b"a", "id", "t")
        assert one.committed() == one.committed(topic="%RETRY%g+t") - 1 == 1


async def test_names_of_a_group_and_a_topic_may_be_as_long_as_possible(tmp_path: Path) -> None:
    topic, group = "t" * 127, "g" * 120
    async with consumer(tmp_path) as one:
        one.node.topics.put(TopicConfig(topic, 1, 1), 0)
        await put(one.node, topic, b"a", b"b")
        long = Consumer(one.node, group, topic)
        a, _ = (await long.pop()).deliveries
        await long.ack(a)
        await long.later(INVISIBLE_MS)
        assert [(body_of(it), it.attempt) for it in (await long.pop()).deliveries] == [(b"b", 2)]
        (tmp_path / "rocketsim" / "consumption.snapshot").unlink(missing_ok=True)
    async with consumer(tmp_path) as one:
        long = Consumer(one.node, group, topic)
        await long.later(2 * INVISIBLE_MS)
        (delivery,) = (await long.pop()).deliveries
        assert (body_of(delivery), delivery.attempt) == (b"b", 3)
        assert record.decode(delivery.record).topic == f"%RETRY%{group}+{topic}"
        assert await long.ack(delivery) == [OK]


async def test_groups_and_topics_whose_names_are_alike_put_together_have_retries_of_their_own(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        for topic in ("b_c", "c"):
            one.node.topics.put(TopicConfig(topic, 1, 1), 0)
            await put(one.node, topic, topic.encode())
        first, second = Consumer(one.node, "a", "b_c"), Consumer(one.node, "a_b", "c")
        await first.nack(*(await first.pop()).deliveries)
        await one.later(0)
        assert await second.bodies() == [b"c"]
        await Operations(one.node.broker, one.node.leadership).delete_topic("c")
        assert await first.bodies() == [b"b_c"]


async def test_a_message_can_be_made_a_dead_letter_at_once_and_only_once(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        a, b = (await one.pop()).deliveries
        assert await one.ack(b) == [OK]
        for _ in range(2):
            assert (await one.consumption.forward_to_dlq("g", "t", a.receipt_handle)).status is OK
        assert (await one.consumption.forward_to_dlq("g", "t", b.receipt_handle)).status is INVALID
        assert one.node.store.queues.end("%DLQ%g", 0) == 1
        assert await one.ack(a) == [INVALID]
        await one.later(INVISIBLE_MS)
        assert (await one.bodies(), one.committed()) == ([], 2)


async def test_without_a_time_a_nack_waits_as_the_groups_back_off_says(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        waited = []
        for _ in range(3):
            (delivery,) = (await one.pop()).deliveries
            before = one.node.broker.now_ms()
            assert await one.nack(delivery, None) is OK
            waited.append(one.consumption.state.next_deadline_ms() - before)
            await one.later(waited[-1])
        assert waited == [1000, 5000, 10_000]


async def test_what_was_not_counted_comes_with_the_same_attempt(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        a, b = (await one.pop()).deliveries
        one.consumption.give_back("g", "t", [a.receipt_handle])
        assert await one.nack(b, counted=False) is OK
        await one.later(0)
        assert [it.attempt for it in (await one.pop()).deliveries] == [1, 1]


async def test_what_was_being_sent_when_a_call_broke_off_counts_and_the_last_of_it_waits(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c")
        handles = [it.receipt_handle for it in (await one.pop()).deliveries]
        one.consumption.give_back("g", "t", handles, begun=2)
        await one.later(0)
        at_once = (await one.pop()).deliveries
        assert sorted((body_of(it), it.attempt) for it in at_once) == [(b"a", 2), (b"c", 1)]
        await one.later(999)
        assert await one.bodies() == []
        await one.later(1)
        assert [(body_of(it), it.attempt) for it in (await one.pop()).deliveries] == [(b"b", 2)]


async def test_a_pop_that_is_cancelled_before_its_answer_gives_its_messages_back(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        pop = asyncio.create_task(one.pop())
        await asyncio.sleep(0)
        pop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pop
        await one.later(0)
        assert [(body_of(it), it.attempt) for it in (await one.pop()).deliveries] == [(b"a", 1)]


async def test_renewed_deliveries_stay_while_the_client_is_there(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        there = {"c"}
        one.node.clients.is_connected = there.__contains__  # type: ignore[method-assign]
        one.consumption.expiry.grace_until = 0.0
        await put(one.node, "t", b"a", b"b")
        (a, b) = (await one.pop(auto_renew=True)).deliveries
        for _ in range(5):
            await one.later(60_000)
        assert await one.bodies() == []
        assert await one.ack(a) == [OK]
        there.clear()
        await one.later(60_000)
        assert [(body_of(it), it.attempt) for it in (await one.pop()).deliveries] == [(b"b", 2)]
        assert await one.ack(b) == [INVALID]


async def test_a_renewed_delivery_may_be_acknowledged_before_its_renewal_is_written(tmp_path: Path) -> None:
    """A renewed delivery does not expire while its client is connected, however late the broker writes the renewal."""
    async with consumer(tmp_path) as one:
        there = {"c"}
        one.node.clients.is_connected = there.__contains__  # type: ignore[method-assign]
        one.consumption.expiry.grace_until = 0.0
        await put(one.node, "t", b"a", b"b")
        a, b = (await one.pop(auto_renew=True)).deliveries
        late_ms = one.node.broker.now_ms() + RENEWED_FOR_MS + 5_000
        goes_by(one.node.broker, lambda: late_ms)
        assert await one.ack(a) == [OK]
        there.clear()
        assert await one.ack(b) == [INVALID]


async def test_renewal_ends_after_three_hours_and_with_the_clients_own_word(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        await put(one.node, "t", b"a", b"b")
        _, b = (await one.pop(auto_renew=True)).deliveries
        assert await one.nack(b, 10_000) is OK
        await one.later(10_000)
        assert await one.bodies(invisible_ms=12 * 3_600_000) == [b"b"]
        for _ in range(179):
            await one.later(60_000)
        assert await one.bodies() == []
        await one.later(60_000)
        assert await one.bodies() == [b"a"]


async def test_a_client_that_is_gone_gives_back_what_is_renewed_for_it(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        await put(one.node, "t", b"a", b"b", b"c")
        await one.pop(max_messages=1, auto_renew=True)
        await one.pop(max_messages=1, auto_renew=True, client_id="other")
        await one.pop(max_messages=1)
        one.consumption.client_gone("c")
        one.consumption.client_gone("nobody")
        await one.later(0)
        assert [(body_of(it), it.attempt) for it in (await one.pop()).deliveries] == [(b"a", 2)]


@pytest.mark.parametrize("orderly", [False, True])
async def test_after_a_restart_what_was_renewed_stays_and_what_was_just_delivered_comes_again(
    tmp_path: Path, orderly: bool
) -> None:
    """The client may have no answer to its last pop, because the broker may have died before answering."""
    async with consumer(tmp_path) as one:
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        one.node.groups.put(SubscriptionGroup("g", consume_message_orderly=orderly), 0)
        await put(one.node, "t", b"a", __SHARDINGKEY="1")
        await one.pop(auto_renew=True)
        await one.later(60_000)
        await put(one.node, "t", b"b", __SHARDINGKEY="2")
        await one.pop(auto_renew=True)
        now_ms = one.node.broker.now_ms()
    async with consumer(tmp_path) as one:
        goes_by(one.node.broker, lambda: now_ms)
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        await until(lambda: one.consumption.expiry.took_over_after_ms, "it looks for what is due")
        await one.later(60_000)
        popped = await one.pop(auto_renew=True)
        assert [(body_of(it), it.attempt) for it in popped.deliveries] == [(b"b", 2)]
        for _ in range(3):
            await one.later(60_000)
        assert await one.bodies() == []


async def test_after_a_restart_each_client_counts_as_connected_until_it_had_time_to_come_back(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        await put(one.node, "t", b"a")
        await one.pop(auto_renew=True)
        await one.later(60_000)
        now_ms = one.node.broker.now_ms()
    async with consumer(tmp_path) as one:
        goes_by(one.node.broker, lambda: now_ms)
        await until(lambda: one.consumption.expiry.took_over_after_ms, "it looks for what is due")
        await one.later(60_000)
        assert await one.bodies() == []
        clock = one.node.broker.clock
        one.node.broker.clock = lambda: clock() + 30
        await one.later(60_000)
        assert await one.bodies() == [b"a"]


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_what_pop_refuses(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        with pytest.raises(TopicNotExist):
            await one.pop(topic="unknown")
        one.node.topics.put(TopicConfig(LONG, 1, 1), 0)
        with pytest.raises(InvalidParameter, match="longer than 255"):
            await one.pop(group="g" * 120, topic=LONG)
        with pytest.raises(InvalidParameter, match="client id"):
            await one.pop(client_id="ä" * 128)
        one.node.broker.stopping = True
        with pytest.raises(ServiceNotAvailable):
            await one.pop()


async def test_too_many_deliveries_under_way_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(popping, "MAX_UNDER_WAY", 2)
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c")
        popped = await one.pop(max_messages=2)
        with pytest.raises(SystemBusy):
            await one.pop()
        await one.ack(popped.deliveries[0])
        assert await one.bodies() == [b"c"]


async def test_a_group_that_does_not_acknowledge_gets_no_more_and_others_do(tmp_path: Path) -> None:
    async with consumer(tmp_path, max_under_way_per_group=2) as one:
        await put(one.node, "t", b"a", b"b", b"c")
        popped = await one.pop(max_messages=2)
        with pytest.raises(SystemBusy, match=r"group g has 2 messages .maxUnderWayPerGroup"):
            await one.pop()
        assert await Consumer(one.node, group="h").bodies() == [b"a", b"b", b"c"]
        await one.ack(popped.deliveries[0])
        assert await one.bodies() == [b"c"]
        one.node.broker.update_config({"maxUnderWayPerGroup": "3"})
        assert (await one.pop()).status is PopStatus.NO_MESSAGE
        assert one.consumption.state.under_way_of == {"g": 2, "h": 3}
    async with consumer(tmp_path) as one:
        assert one.consumption.state.under_way_of == {"g": 2, "h": 3}


async def test_what_becomes_of_deliveries_is_counted(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g", retry_max_times=1), 0)
        await put(one.node, "t", b"a", b"b", b"c")
        a, b, c = (await one.pop()).deliveries
        await one.ack(a)
        await one.ack(a)  # settled already
        await one.nack(b)
        await one.later(0)
        (b,) = (await one.pop()).deliveries
        await one.nack(b)
        await one.later(0)
        await one.pop()
        await one.consumption.forward_to_dlq("g", "t", c.receipt_handle)
        counts = one.consumption.counts
        assert (counts.pops, counts.delivered, counts.acknowledged) == (2, 4, 1)
        assert counts.retried.rows() == [(("t", "g"), [1, 1, 1])]
        assert counts.dead_letters.rows() == [(("t", "g"), [2, 2, 2])]
        assert counts.given.rows() == [(("t", "g"), [4, ANY, 2])]
        polling = asyncio.create_task(one.pop(poll_s=60))
        await until(lambda: one.consumption.polls_held == 1, "a poll is held")
        metrics = metrics_of(one.node)
        assert {
            "rocketsim_pops_total": 2.0,
            "rocketsim_deliveries_total": 4.0,
            "rocketsim_acknowledged_total": 1.0,
            "rocketsim_retries_total": 1.0,
            "rocketsim_dead_letters_total": 2.0,
            "rocketsim_deliveries_under_way": 0.0,
            "rocketsim_pops_held": 1.0,
        }.items() <= metrics.items()
        await put(one.node, "t", b"d")
        assert (await polling).status is PopStatus.FOUND
        metrics = metrics_of(one.node)
        assert metrics["rocketsim_deliveries_under_way_of_one_group"] == 1.0
        one.node.metrics.groups.lags = await one.node.administration.lags.take()
        (lag,) = (it for it in one.node.metrics.collect() if it.name == "rocketsim_consumer_lag_messages")
        assert [(sample.labels, sample.value) for sample in lag.samples] == [
            ({"group": "g", "topic": "%RETRY%g+t"}, 0.0),
            ({"group": "g", "topic": "t"}, 1.0),
        ]


async def test_a_pop_that_could_not_be_noted_takes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (delivery,) = (await one.pop(max_messages=1)).deliveries
        await put(one.node, "t", b"b")

        def full(*_: Any) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(one.node.store, "append_one", full)
            with pytest.raises(DiskFull):
                await one.pop()
            with pytest.raises(DiskFull):
                await one.ack(delivery)
        assert await one.bodies() == [b"b"]
        assert await one.ack(delivery) == [OK]


# --- what happens to messages that are under way ----------------------------------------------------------------------


async def test_a_message_that_expired_before_its_ack_is_settled(tmp_path: Path) -> None:
    hours = ";".join(map(str, range(24)))
    async with consumer(tmp_path, mapped_file_size_commit_log=1 << 16, delete_when=hours) as one:
        await put(one.node, "t", b"a")
        await one.pop()
        for _ in range(3):
            await put(one.node, "t", bytes(60_000))
        one.node.store.flush()
        one.node.store.retention.delete_expired(one.node.broker.now_ms() + 365 * 86_400_000)
        assert one.node.store.queues.bounds("t", 0)[0] > 0
        await one.later(INVISIBLE_MS)
        assert (one.committed(), one.consumption.state.under_way_count) == (1, 0)
        assert len(await one.bodies()) == 1


async def test_a_message_whose_retry_copy_does_not_fit_is_a_dead_letter(tmp_path: Path, caplog: Any) -> None:
    async with consumer(tmp_path) as one:
        await put_send(one.node, send_of("t", message("t", b"a", 0, LARGE="x" * 32_700)))
        await one.pop()
        await one.later(INVISIBLE_MS)
        assert (one.committed(), one.consumption.state.under_way_count) == (1, 0)
        assert one.node.store.queues.end("%DLQ%g", 0) == 1
        assert one.node.topics.get("%RETRY%g+t") is None
        assert "message 0 of topic t becomes a dead letter of group g, as its properties leave no room" in caplog.text


async def test_a_full_disk_keeps_what_is_due_for_later(tmp_path: Path, monkeypatch: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        await one.pop()

        def full(*_: Any) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(one.node.store, "append_one", full)
            with pytest.raises(DiskFull):
                await one.later(INVISIBLE_MS)
        await one.later(0)
        assert await one.bodies() == [b"a"]


async def test_above_the_warning_level_of_the_disk_only_what_clients_send_is_refused(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async with consumer(tmp_path, disk_space_warning_level_ratio=90) as one:
        node = one.node
        node.groups.put(SubscriptionGroup("g", retry_max_times=1), 0)
        await put(node, "t", b"a", b"b", b"c", b"d", b"e")
        a, b, c = (await one.pop(max_messages=3)).deliveries
        monkeypatch.setattr(node.store.disk, "disk_usage", lambda _: DiskUsage(100, 5))
        node.store.retention.delete_expired(node.broker.now_ms())
        assert not node.broker.takes_clients_writes
        with pytest.raises(DiskFull, match="95 % full") as refused:
            await put(node, "t", b"refused")
        assert str(tmp_path) not in str(refused.value)
        assert (await one.ack(a), await one.nack(b, 5000)) == ([OK], OK)
        forwarded = await one.consumption.forward_to_dlq("g", "t", c.receipt_handle)
        assert (forwarded.status, forwarded.stored) == (OK, PutStatus.PUT_OK)
        d, _ = (await one.pop()).deliveries
        assert await one.ack(d) == [OK]
        await one.later(INVISIBLE_MS)
        b, e = sorted((await one.pop()).deliveries, key=body_of)
        assert ((body_of(b), b.attempt), (body_of(e), e.attempt)) == ((b"b", 2), (b"e", 2))
        await one.later(INVISIBLE_MS)
        assert node.store.queues.end("%DLQ%g", 0) == 3
        monkeypatch.setattr(node.store.disk, "disk_usage", lambda _: DiskUsage(100, 50))
        node.store.retention.delete_expired(node.broker.now_ms())
        await put(node, "t", b"f")
        assert await one.bodies() == [b"f"]


async def test_a_full_disk_keeps_what_is_renewed_for_later(tmp_path: Path, monkeypatch: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        await one.pop(auto_renew=True)

        def full(*_: Any) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(one.node.store, "append_one", full)
            with pytest.raises(DiskFull):
                await one.later(RENEWED_FOR_MS)
        await one.later(0)
        assert one.consumption.state.next_deadline_ms() == one.node.broker.now_ms() + RENEWED_FOR_MS


async def test_a_full_disk_ends_a_pop_that_only_passes_over_messages(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(selection, "ENTRIES", 3)
    async with consumer(tmp_path) as one:
        await put(one.node, "t", *[b"x"] * 2000, TAGS="a")

        def full(*_: Any) -> None:
            raise DiskFull("full")

        monkeypatch.setattr(one.node.store, "append_one", full)
        with pytest.raises(DiskFull):
            await one.pop(sub_expression="b", poll_s=60)


async def test_a_reset_begins_anew_where_it_says(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        a, _ = (await one.pop()).deliveries
        operations = Operations(one.node.broker, one.node.leadership)
        await operations.reset_offset_by_time("g", "t", 0, [], force=True)
        assert (await one.ack(a), one.committed()) == ([INVALID], 0)
        assert await one.bodies() == [b"a", b"b"]
        await one.later(INVISIBLE_MS)
        assert len(await one.bodies()) == 2  # each message comes once, although it was delivered twice


async def test_a_reset_that_would_go_forward_and_may_not_changes_nothing(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        a, b = (await one.pop()).deliveries
        assert await one.ack(b) == [OK]
        (reset,) = await Operations(one.node.broker, one.node.leadership).reset_offset_by_time(
            "g", "t", -1, [], force=False
        )
        assert (reset.previous, reset.offset) == (0, 0)
        assert await one.bodies() == []
        assert (await one.ack(a), one.committed()) == ([OK], 2)


async def test_a_reset_leaves_other_groups_and_the_groups_retries_which_are_reset_by_their_topic(
    tmp_path: Path,
) -> None:
    async with consumer(tmp_path) as one:
        other, retries = Consumer(one.node, group="h"), retry_topic("g", "t")
        await put(one.node, "t", b"a", b"b")
        a, _ = (await one.pop()).deliveries
        of_other = (await other.pop()).deliveries
        await one.nack(a)
        await one.later(0)
        (again,) = (await one.pop()).deliveries
        reset = Operations(one.node.broker, one.node.leadership).reset_offset_by_time
        await reset("g", "t", -1, [], force=True)
        assert (await other.ack(*of_other), other.committed(), one.committed()) == ([OK, OK], 2, 2)
        await one.nack(again)
        await one.later(0)
        (again,) = (await one.pop()).deliveries
        assert (body_of(again), again.attempt) == (b"a", 3)
        await reset("g", retries, -1, [], force=True)
        assert (await one.ack(again), one.committed(topic=retries)) == ([INVALID], 2)
        await one.later(INVISIBLE_MS)
        assert await one.bodies() == []


async def test_a_nack_without_a_time_waits_as_the_groups_retry_policy_says(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 700, "max": 5000, "multiplier": 3}}
        one.node.groups.put(SubscriptionGroup("g", group_retry_policy=policy), 0)
        await put(one.node, "t", b"a")
        for wait_ms in (700, 2100, 5000, 5000):
            (delivery,) = (await one.pop()).deliveries
            await one.nack(delivery, None)
            await one.later(wait_ms - 1)
            assert await one.bodies() == []
            await one.later(1)
        assert await one.bodies() == [b"a"]


async def test_a_deleted_topic_takes_its_deliveries_and_retries_with_it(tmp_path: Path) -> None:
    """A new topic of the same name has none of the old topic's retries."""
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        a, _ = (await one.pop()).deliveries
        await one.nack(a)
        await one.later(0)
        operations = Operations(one.node.broker, one.node.leadership)
        await operations.delete_topic("t")
        assert (one.consumption.state.queues, one.node.topics.get("%RETRY%g+t")) == ({}, None)
        one.node.topics.put(TopicConfig("t", 1, 1), 0)
        await put(one.node, "t", b"new")
        assert await one.bodies() == [b"new"]


async def test_the_retry_topics_of_all_groups_go_with_their_topic_in_one_write(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        for group in "ghi":
            other = Consumer(one.node, group)
            (delivery,) = (await other.pop()).deliveries
            await other.nack(delivery)
        await one.later(0)
        assert sum(name.startswith("%RETRY%") for name in one.node.topics.entries) == 3
        written, save = [], JsonFile.save
        monkeypatch.setattr(JsonFile, "save", lambda file, value: written.append(file.path.name) or save(file, value))
        await Operations(one.node.broker, one.node.leadership).delete_topic("t")
        assert written.count("topics.json") == 2, "one write for the topic, and one for its three retry topics"
        assert not any(name.startswith("%RETRY%") for name in one.node.topics.entries)
        assert one.consumption.state.queues == {}


async def test_a_group_that_is_deleted_with_its_offsets_leaves_nothing_to_a_new_one(tmp_path: Path) -> None:
    """Neither deliveries under way nor retries are left; dead letters stay, and can be deleted by name."""
    async with consumer(tmp_path) as one:
        node, other = one.node, Consumer(one.node, group="g-x")
        operations = Operations(node.broker, node.leadership)
        node.topics.put(TopicConfig("u", 1, 1), 0)
        node.groups.put(SubscriptionGroup("g", retry_max_times=1), 0)
        await put(node, "t", b"a", b"b", b"c", b"d")
        await put(node, "u", b"u")
        of_u = Consumer(node, topic="u")
        (of_u_delivery,) = (await of_u.pop()).deliveries
        await of_u.nack(of_u_delivery)
        a, b, c = (await one.pop(max_messages=3)).deliveries
        assert await one.ack(a) == [OK]
        await one.consumption.forward_to_dlq("g", "t", c.receipt_handle)
        await one.nack(b)
        await one.later(0)
        assert len((await other.pop()).deliveries) == 4
        (b, d) = (await one.pop()).deliveries  # one of the two deliveries comes from the retry topic
        await one.later(INVISIBLE_MS)
        assert {"%RETRY%g+t", "%RETRY%g+u", "%RETRY%g-x+t", "%DLQ%g"} <= node.topics.entries.keys()

        await operations.delete_group("g", remove_offset=True)
        assert {name for name in node.topics.entries if name.startswith("%")} == {"%RETRY%g-x+t", "%DLQ%g"}
        assert {place.group for place in one.consumption.state.queues} == {"g-x"}
        assert list(node.offsets.of_group("g")) == []
        assert await one.ack(b, d) == [INVALID, INVALID]
        node.groups.put(SubscriptionGroup("g"), 0)
        deliveries = (await one.pop()).deliveries
        assert [(body_of(it), it.attempt) for it in deliveries] == [(b"a", 1), (b"b", 1), (b"c", 1), (b"d", 1)]
        assert await of_u.bodies() == [b"u"]
        await one.nack(deliveries[0])
        await one.later(0)
        assert await one.bodies() == [b"a"]  # the new retry topic has no messages of the old one
        assert len((await other.pop()).deliveries) == 4

        await operations.delete_topic("%DLQ%g")
        assert "%DLQ%g" not in node.topics.entries
        with pytest.raises(InvalidParameter, match="the messages that group g gets again"):
            await operations.delete_topic("%RETRY%g+t")
        for name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_rocketsim_state"):
            with pytest.raises(NoPermission):
                await operations.delete_topic(name)


async def test_a_deleted_group_that_keeps_its_offsets_goes_on_where_it_was(tmp_path: Path) -> None:
    """The group also keeps its deliveries under way: they do not come again at once, and keep their attempts."""
    async with consumer(tmp_path) as one:
        operations = Operations(one.node.broker, one.node.leadership)
        await put(one.node, "t", b"a", b"b", b"c")
        a, b, c = (await one.pop()).deliveries
        assert await one.ack(b) == [OK]
        await one.nack(c)
        await one.later(0)
        await operations.delete_group("g", remove_offset=False)
        assert one.node.groups.get("g") is None
        (c,) = (await one.pop()).deliveries
        assert (body_of(c), c.attempt, one.committed()) == (b"c", 2, 0)
        assert await one.ack(a) == [OK]
        await one.later(INVISIBLE_MS)
        (c,) = (await one.pop()).deliveries
        assert (body_of(c), c.attempt, one.committed()) == (b"c", 3, 3)
    async with consumer(tmp_path) as one:  # a restart keeps the offsets, too
        await one.later(3 * INVISIBLE_MS)
        (c,) = (await one.pop()).deliveries
        assert (body_of(c), c.attempt) == (b"c", 4)


async def test_a_group_whose_deletion_the_disk_refuses_half_way_says_so_and_is_deleted_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async with consumer(tmp_path) as one:
        operations = Operations(one.node.broker, one.node.leadership)
        await put(one.node, "t", b"a", b"b")
        a, _ = (await one.pop()).deliveries
        await one.nack(a)
        await one.later(0)

        def full(*_: Any) -> None:
            raise DiskFull("full")

        for of, name in ((one.node.topics, "delete_all"), (one.consumption.writer, "append")):
            with monkeypatch.context() as patch:
                patch.setattr(of, name, full)
                with pytest.raises(
                    DiskFull, match="settings of group g are deleted, but not all that it has read: full"
                ):
                    await operations.delete_group("g", remove_offset=True)
        assert one.node.groups.get("g") is None
        assert one.consumption.state.queues
        await operations.delete_group("g", remove_offset=True)
        assert (one.consumption.state.queues, one.node.topics.get("%RETRY%g+t")) == ({}, None)
        with pytest.raises(SubscriptionGroupNotExist):
            await operations.delete_group("g", remove_offset=True)


async def test_retries_that_a_group_has_left_behind_are_deleted_with_it_or_by_name(tmp_path: Path) -> None:
    """Earlier versions left retry topics behind when a group was deleted."""
    async with consumer(tmp_path) as one:
        node, operations = one.node, Operations(one.node.broker, one.node.leadership)
        for name in ("%RETRY%old+t", "%RETRY%older+t"):
            node.topics.put(TopicConfig(name, 1, 1), 0)
        await operations.delete_group("old", remove_offset=True)
        await operations.delete_topic("%RETRY%older+t")
        assert not any(name.startswith("%") for name in node.topics.entries)


@pytest.mark.parametrize("way", ["expired", "forwarded"])
async def test_dead_letters_that_were_deleted_do_not_come_again_after_a_restart(tmp_path: Path, way: str) -> None:
    async with consumer(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g", retry_max_times=0), 0)
        await put(one.node, "t", b"a", b"b")
        a, _ = (await one.pop()).deliveries
        if way == "forwarded":
            await one.consumption.forward_to_dlq("g", "t", a.receipt_handle)
        await one.later(INVISIBLE_MS)
        assert one.node.store.queues.end("%DLQ%g", 0) == 2
        await Operations(one.node.broker, one.node.leadership).delete_topic("%DLQ%g")
    snapshot_in(tmp_path).unlink()
    async with consumer(tmp_path) as one:
        assert one.consumption.state.under_way_count == 0
        await one.later(INVISIBLE_MS)
        assert "%DLQ%g" not in one.node.topics.entries


async def test_a_clean_stop_notes_where_rocketmq_goes_on_with_a_group(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.topics.put(TopicConfig("t", 4, 4), 0)
        one.node.offsets.commit("g", "t", {3: 1})
        await put(one.node, "t", b"a", b"b", b"c")
        await put(one.node, "t", b"d", queue_id=1)
        await put(one.node, "t", b"e", b"f", queue_id=3)
        a, _, c, d, f = sorted((await one.pop()).deliveries, key=body_of)
        assert body_of(f) == b"f"
        assert await one.ack(a, c, f) == [OK, OK, OK]
        await one.nack(d)
        await one.later(0)
        await put(one.node, "t", b"g", queue_id=2)
    noted = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert noted == {"t@g": {"0": 1, "1": 1, "2": 0, "3": 2}, "%RETRY%g+t@g": {"0": 0}}
    async with consumer(tmp_path) as one:
        one.node.topics.put(TopicConfig("t", 4, 4), 0)
        assert one.committed() == 1
        assert await one.bodies() == [b"d", b"g"]
        await one.later(INVISIBLE_MS)
        assert await one.bodies() == [b"b", b"d", b"g"]


async def test_a_slave_notes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        await one.ack(*(await one.pop()).deliveries)
        with monkeypatch.context() as patch:
            patch.setattr(type(one.node.broker), "is_slave", True)
            one.consumption.clean_stop.note_offsets()
        assert not (tmp_path / "rocketsim" / "noted_offsets.json").exists()


async def test_a_deletion_that_the_log_did_not_hear_of_is_made_good(tmp_path: Path, monkeypatch: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        await one.pop()

        def full(*_: Any) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(one.node.store, "append_one", full)
            await Operations(one.node.broker, one.node.leadership).delete_topic("t")
        assert one.consumption.state.queues
        one.consumption.deletions.drop_deleted()
        assert one.consumption.state.queues == {}


async def test_a_deletion_that_a_full_disk_interrupts_leaves_no_retries(tmp_path: Path, monkeypatch: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        a, _ = (await one.pop()).deliveries
        await one.nack(a)
        await one.later(0)

        def full(*_: Any) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(one.node.topics, "delete_all", full)
            await Operations(one.node.broker, one.node.leadership).delete_topic("t")
        one.consumption.deletions.drop_deleted()
        assert (one.consumption.state.queues, one.node.topics.get("%RETRY%g+t")) == ({}, None)
        one.node.topics.put(TopicConfig("t", 1, 1), 0)
        assert await one.bodies() == []


def after(call: Callable[..., Any], *, times: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `call` for the first `times` calls, and `then` for all later calls."""
    calls = iter([call] * times)
    return lambda *args: next(calls, then)(*args)


# --- after a restart --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_a_restart_knows_what_was_taken_settled_and_moved(tmp_path: Path, has_snapshot: bool) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c", b"d")
        a, b, c, d = (await one.pop()).deliveries
        assert await one.ack(b) == [OK]
        assert await one.nack(c) is OK
        await one.later(0)
        (again,) = (await one.pop()).deliveries
        await one.nack(d, 600_000)
        before = one.consumption.state
    if not has_snapshot:
        snapshot_in(tmp_path).unlink()
    async with consumer(tmp_path) as one:
        state = one.consumption.state
        assert {place: (queue.next, queue.committed) for place, queue in state.queues.items()} == {
            Place("g", "t", 0): (4, 0),
            Place("g", "%RETRY%g+t", 0): (1, 0),
        }
        assert [queue.under_way for queue in state.queues.values()] == [
            before.queues[place].under_way for place in state.queues
        ]
        assert await one.ack(a, b, c, d, again) == [OK, OK, INVALID, OK, OK]
        assert (one.committed(), one.committed(topic="%RETRY%g+t")) == (4, 1)


async def test_a_start_reads_only_what_lies_behind_the_snapshot(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c")
        (a,) = (await one.pop(max_messages=1)).deliveries
        (b,) = (await one.pop(max_messages=1)).deliveries
        saving = one.consumption.saving()
        assert saving is not None
        saving()
        assert one.consumption.saving() is None  # the state has not changed since
        await one.ack(a)
        (c,) = (await one.pop(max_messages=1)).deliveries
        told: list[int] = []
        changes_in = state_log.changes_in
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_log, "changes_in", lambda *args: told.append(args[1]) or changes_in(*args))
            one.consumption.writer.reload()
        assert len(told) == 2
        assert [*one.consumption.state.queues[Place("g", "t", 0)].under_way] == [1, 2]
        assert await one.ack(b, c) == [OK, OK]


async def test_a_snapshot_that_is_damaged_or_of_another_log_is_not_used(tmp_path: Path, caplog: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        end = one.node.store.end_offset
        (a,) = (await one.pop(max_messages=1)).deliveries
        one.consumption.saving()()
        good = snapshot_in(tmp_path).read_bytes()
        expected = {**one.consumption.state.queues[Place("g", "t", 0)].under_way}
        for data in (b"", good[:-1], good[:12] + (end + 3).to_bytes(8, "big") + good[20:]):
            snapshot_in(tmp_path).write_bytes(data)
            one.consumption.writer.reload()
            assert one.consumption.state.queues[Place("g", "t", 0)].under_way == expected
            assert "is not used" in caplog.text
            caplog.clear()
        snapshot_in(tmp_path).write_bytes(good)
        one.node.store.truncate(end, None)  # this cuts off the part with the pop
        one.consumption.writer.reload()
        assert one.consumption.state.queues == {}
        assert await one.ack(a) == [INVALID]


async def test_of_two_snapshots_the_older_one_is_used_if_the_newer_one_is_not_valid(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c", b"d")
        ends, popped = [], []
        for _ in range(3):
            popped += (await one.pop(max_messages=1)).deliveries
            ends.append(one.node.store.end_offset)
            one.consumption.saving()()
        popped += (await one.pop(max_messages=1)).deliveries
        newer, older = snapshot_in(tmp_path), snapshot_in(tmp_path).with_name("consumption.snapshot.old")
        begins: list[int] = []
        told = state_log.StateLog.changes_from
        monkeypatch.setattr(state_log.StateLog, "changes_from", lambda *args: begins.append(args[3]) or told(*args))

        def reloaded_from() -> int:
            begins.clear()
            one.consumption.writer.reload()
            assert [*one.consumption.state.queues[Place("g", "t", 0)].under_way] == [0, 1, 2, 3]
            return begins[0]

        assert reloaded_from() == ends[2]
        good = newer.read_bytes()
        newer.write_bytes(good[:-1])
        assert reloaded_from() == ends[1]
        assert "consumption.snapshot is not used" in caplog.text
        newer.unlink()  # as after a crash between the two renames
        assert reloaded_from() == ends[1]
        older.write_bytes(b"")
        assert reloaded_from() == one.node.store.min_offset
        newer.write_bytes(good)
        assert reloaded_from() == ends[2]
        assert await one.ack(*popped) == [OK] * 4


async def test_without_a_snapshot_what_has_expired_with_the_log_is_neither_repeated_nor_skipped(tmp_path: Path) -> None:
    keys = {"mapped_file_size_commit_log": 1 << 16, "delete_when": ";".join(map(str, range(24)))}
    bodies = [b"%d" % number + bytes(9_000) for number in range(24)]
    async with consumer(tmp_path, **keys) as one:
        for number, body in enumerate(bodies[:20]):
            await put(one.node, "t", body)
            (delivery,) = (await one.pop(max_messages=1)).deliveries
            if number % 2:
                assert await one.ack(delivery) == [OK]
        await put(one.node, "t", *bodies[20:])
        one.node.store.flush()
        one.node.store.retention.delete_expired(one.node.broker.now_ms() + 365 * 86_400_000, needed_from=1 << 17)
        first, _ = one.node.store.queues.bounds("t", 0)
        assert 4 < first < 16
    for path in (tmp_path / "rocketsim").glob("consumption.snapshot*"):
        path.unlink()
    async with consumer(tmp_path, **keys) as one:
        await one.later(INVISIBLE_MS)
        found = {int(body_of(it).rstrip(bytes(1))): it.attempt for it in (await one.pop()).deliveries}
        left = [number for number in range(first, 20) if number % 2 == 0]
        assert found == dict.fromkeys(left, 2) | dict.fromkeys(range(20, 24), 1)
        assert one.committed() == 20


async def test_how_far_a_group_is_goes_nowhere_without_the_log_that_says_so(tmp_path: Path) -> None:
    async with consumer(tmp_path / "m") as one:
        await put(one.node, "t", b"a", b"b")
        await one.pop()
        await one.later(INVISIBLE_MS)
        assert (one.committed(), one.node.store.queues.end(retry_topic("g", "t"), 0)) == (2, 2)
        assert list(one.node.offsets.everything()) == []
        assert list(one.node.offsets.of_group("g")) == [("t", 0, (0, 2))]
        assert one.node.offsets.groups() == ["g"]
    async with running(tmp_path / "m") as former, consumer(tmp_path / "s") as promoted:
        await put(promoted.node, "t", b"a", b"b")
        handed_back = former.replication.metadata.offsets_to_hand_back()
        if handed_back is not None:
            promoted.node.replication.metadata.accept_offsets(1, handed_back)
        assert await promoted.bodies() == [b"a", b"b"]


async def test_how_far_a_group_is_shrinks_with_the_log(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        await one.pop(max_messages=1)
        end = one.node.store.end_offset
        await one.pop()
        await one.later(INVISIBLE_MS)
        assert one.committed() == 2
        one.node.store.truncate(end, None)
        one.consumption.writer.reload()
        assert one.committed() == 0


async def test_records_of_rocketmq_in_retry_topics_settle_nothing(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        await one.pop()
        one.node.store.append_one(Record("%RETRY%g+t", b"x", properties={"TAGS": "y"}), 0, one.node.broker.store_host)
        one.consumption.writer.catch_up()
        assert one.consumption.state.under_way_count == 1
