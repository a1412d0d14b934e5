"""Groups that consume in order, on a real broker whose clock the tests move: a message waits for the earlier popped
messages of its message group, and for no others.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import InvalidParameter, ReadFailed
from broker_service.pop import finder as finder_module
from broker_service.pop.deliveries import Delivery, HandleStatus, PopStatus
from broker_service.rocketmq_handover.order_info import table_of
from broker_service.state.state import State
from broker_service.state.transitions import DeliveryId, Ordered, Place, Settle, Step, TakeInOrder
from broker_service.store import json_file
from testbed.polling import until
from tests.consumption.test_consumption import INVISIBLE_MS, Consumer, body_of, consumer, snapshot_in
from tests.support.brokers import goes_by, put

OK, INVALID = HandleStatus.OK, HandleStatus.INVALID_RECEIPT_HANDLE
IN_ORDER = SubscriptionGroup("g", consume_message_orderly=True)


class InOrder(Consumer):
    async def send(self, words: str, queue_id: int = 0) -> None:
        """Sends a message for each word, whose letters are its message group: "a1 a2 b1"."""
        for word in words.split():
            group = word.rstrip("0123456789")
            keys = {"__SHARDINGKEY": group} if group else {}
            await put(self.node, "t", word.encode(), queue_id=queue_id, **keys)

    async def take(self, **fields: Any) -> list[Delivery]:
        return list((await self.pop(**fields)).deliveries)

    async def texts(self, **fields: Any) -> str:
        return said(await self.take(**fields))


def said(deliveries: list[Delivery]) -> str:
    return " ".join(body_of(one).decode() for one in deliveries)


def attempts(deliveries: list[Delivery]) -> list[int]:
    return [one.attempt for one in deliveries]


@asynccontextmanager
async def in_order(folder: Path, **keys: Any) -> AsyncIterator[InOrder]:
    async with consumer(folder, **keys) as one:
        one.node.groups.put(IN_ORDER, 0)
        yield InOrder(one.node)


# --- locks ------------------------------------------------------------------------------------------------------------


async def test_a_message_waits_for_those_of_its_group_that_were_popped_before_and_for_no_others(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 b1 a2 b2 a3 c1")
        (a1,) = await one.take(max_messages=1)
        others = await one.take()
        assert (said([a1]), said(others)) == ("a1", "b1 b2 c1")
        assert await one.texts() == ""
        assert one.committed() == 0
        await one.send("a4 b3 d1")
        assert await one.texts() == "d1"
        assert await one.ack(a1) == [OK]
        assert one.committed() == 1
        assert await one.texts() == "a2 a3 a4"
        assert await one.ack(*others[:2]) == [OK, OK]
        assert await one.texts() == "b3"
        assert one.node.topics.get("%RETRY%g+t") is None


async def test_a_message_that_waits_and_cannot_be_read_holds_up_its_message_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 b1 a2 b2")
        taken = await one.take(max_messages=2)
        assert (said(taken), await one.texts()) == ("a1 b1", "")
        await one.ack(*taken)
        read_ranges = one.node.store.queues.read_ranges
        is_bad = True

        def reading(ranges: list[tuple[str, int, int, int]], max_bytes: int) -> Any:
            if is_bad and any(first <= 2 < end for _, _, first, end in ranges):
                raise ReadFailed("a bad sector under a2")
            return read_ranges(ranges, max_bytes)

        monkeypatch.setattr(one.node.store.queues, "read_ranges", reading)
        await one.send("a3 c1")
        assert await one.texts(max_messages=1) == "b2"
        assert await one.texts() == "c1"
        is_bad = False
        assert await one.texts() == "a2 a3"


async def test_what_waits_is_delivered_though_what_is_behind_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        (a1,) = await one.take(max_messages=1)
        assert await one.texts() == ""
        await one.send("b1")
        get_message = one.node.store.queues.get_message

        def failing(topic: str, queue_id: int, at: int, *rest: Any) -> Any:
            if at == 2:
                raise ReadFailed("a bad sector")
            return get_message(topic, queue_id, at, *rest)

        monkeypatch.setattr(one.node.store.queues, "get_message", failing)
        with pytest.raises(ReadFailed):
            await one.take()
        await one.ack(a1)
        assert await one.texts() == "a2"


async def test_messages_without_a_group_keep_the_order_of_their_queue(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        one.node.topics.put(TopicConfig("t", 2, 2), 0)
        await one.send("1 2")
        await one.send("3", queue_id=1)
        first = await one.take(max_messages=1)
        second = await one.take(max_messages=1)
        assert (sorted([said(first), said(second)]), await one.texts()) == (["1", "3"], "")
        await one.ack(*first, *second)
        assert await one.texts() == "2"


async def test_a_group_that_does_not_consume_in_order_gets_messages_with_groups_as_they_come(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        other = Consumer(one.node, group="h")
        assert [await other.bodies(max_messages=1) for _ in range(2)] == [[b"a1"], [b"a2"]]


async def test_long_names_of_message_groups_are_told_apart(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        for number, name in enumerate(["ä" * 1000 + "x", "ä" * 1000 + "y", "ä" * 1000 + "x"]):
            await put(one.node, "t", b"%d" % number, __SHARDINGKEY=name)
        assert [await one.texts(max_messages=1) for _ in range(3)] == ["0", "1", ""]


async def test_excluded_messages_are_passed_over_and_block_nobody(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        for number, tag in enumerate("xyx"):
            await put(one.node, "t", b"%d" % number, __SHARDINGKEY="a", TAGS=tag)
        assert await one.texts(sub_expression="x") == "0 2"
        await put(one.node, "t", b"3", __SHARDINGKEY="b", TAGS="y")
        assert (await one.pop(sub_expression="x")).status is PopStatus.NO_MATCH
        assert (await one.pop(sub_expression="x")).status is PopStatus.NO_MESSAGE


async def test_conditions_of_sql_select_messages_and_the_order_stays(tmp_path: Path) -> None:
    async with in_order(tmp_path, enable_property_filter=True) as one:
        for word, price in (("a1", 1), ("a2", 5), ("b1", 9), ("a3", 7), ("b2", 2), ("a4", 8)):
            await put(one.node, "t", word.encode(), __SHARDINGKEY=word[0], PRICE=str(price))
        dear = {"sub_expression": "PRICE > 3", "expression_type": "SQL92"}
        (a2,) = await one.take(max_messages=1, **dear)
        assert (said([a2]), await one.texts(**dear)) == ("a2", "b1")
        await one.ack(a2)
        assert await one.texts(**dear) == "a3 a4"


async def test_only_so_many_messages_wait_and_the_next_ones_are_read_when_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder_module, "MAX_ORDERED_OF_A_QUEUE", 3)
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3 a4 b1")
        (a1,) = await one.take(max_messages=1)
        assert await one.texts() == ""
        assert one.consumption.state.ordered_count == 3
        poll = asyncio.create_task(one.take(max_messages=2, poll_s=60))
        await until(lambda: one.consumption.polls_held == 1, "the poll waits")
        await one.ack(a1)
        taken = await poll
        assert said(taken) == "a2 a3"
        await one.ack(*taken)
        assert await one.texts() == "a4 b1"


async def test_a_group_whose_messages_wait_leaves_room_for_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder_module, "MAX_ORDERED", 8)
    async with in_order(tmp_path) as one:
        one.node.groups.put(replace(IN_ORDER, group_name="h"), 0)
        other = InOrder(one.node, "h")
        await one.send("a1 a2 a3 a4 a5 a6 b1")
        for consumer_of in (one, other):
            assert said(await consumer_of.take(max_messages=1)) == "a1"
            assert await consumer_of.texts() == ""
        assert one.consumption.state.ordered_of == {"g": 4, "h": 2}
        assert one.consumption.state.ordered_count == 6


async def test_one_scan_passes_over_a_number_of_messages_and_a_poll_scans_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder_module, "WAITING_A_SCAN", 2)
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3 a4 a5 a6 b1")
        assert await one.texts(max_messages=1) == "a1"
        assert await one.texts(poll_s=60) == "b1"


async def test_others_go_on_between_two_scans_of_a_pop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder_module, "WAITING_A_SCAN", 2)
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3 a4 a5 a6 b1")
        assert await one.texts(max_messages=1) == "a1"
        turns, seen = 0, []
        scan = one.consumption.popping.scan

        def noted(*arguments: Any) -> Any:
            seen.append(turns)
            return scan(*arguments)

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(one.consumption.popping, "scan", noted)
        counting = asyncio.create_task(count_turns())
        assert await one.texts(poll_s=60) == "b1"
        counting.cancel()
        assert len(seen) == len(set(seen)) == 3


async def test_one_look_passes_over_only_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder_module, "MAX_POP_BYTES", 2500)
    async with in_order(tmp_path) as one:
        await put(one.node, "t", *[bytes(1000)] * 10, __SHARDINGKEY="a")
        await one.send("b1")
        assert len(await one.take(max_messages=1)) == 1
        assert await one.texts() == ""
        assert one.consumption.state.ordered_count < 6
        assert await one.texts(poll_s=60) == "b1"


async def test_what_waits_is_read_as_far_as_it_fits_and_one_message_always_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_order(tmp_path) as one:
        await one.send("y1 z1 y2 z2")
        y1, z1 = await one.take(max_messages=2)
        assert await one.texts() == ""
        await one.ack(z1)
        await one.ack(y1)
        monkeypatch.setattr(finder_module, "MAX_POP_BYTES", 1)
        assert [await one.texts() for _ in range(3)] == ["z2", "y2", ""]


# --- redelivery -------------------------------------------------------------------------------------------------------


async def test_redelivery_begins_at_the_first_message_without_an_ack_and_includes_those_behind_it(
    tmp_path: Path,
) -> None:
    """The test follows the official suite's testFIFO_simple_receive_multi_nack."""
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3 a4 a5")
        for attempt in (1, 2, 3):
            taken = await one.take(max_messages=3)
            assert (said(taken), set(attempts(taken))) == ("a1 a2 a3", {attempt})
            assert await one.ack(*taken[1:]) == [OK, OK]
            assert await one.texts(max_messages=3) == ""
            await one.later(INVISIBLE_MS)
        taken = await one.take()
        assert (said(taken), attempts(taken)) == ("a1 a2 a3 a4 a5", [4, 4, 4, 1, 1])
        assert one.consumption.counts.retried.messages == 3
        assert await one.ack(*taken) == [OK] * 5
        assert (one.committed(), one.consumption.state.ordered_count) == (5, 0)
        assert one.node.topics.get("%RETRY%g+t") is None


async def test_a_message_that_is_given_back_waits_for_the_rest_of_its_batch(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 b1")
        a1, a2, b1 = await one.take()
        assert await one.nack(a1) is OK
        assert await one.nack(b1) is OK
        await one.later(0)
        assert await one.texts() == "b1"
        assert await one.ack(a2) == [OK]
        again = await one.take()
        assert (said(again), attempts(again)) == ("a1 a2", [2, 2])
        assert await one.ack(a1) == [INVALID]


async def test_a_message_that_is_given_back_with_a_time_comes_again_after_it(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        (a1,) = await one.take(max_messages=1)
        assert await one.nack(a1, None) is OK
        await one.later(999)
        assert await one.texts() == ""
        await one.later(1)
        again = await one.take()
        assert (said(again), attempts(again)) == ("a1 a2", [2, 1])


async def test_what_never_reached_the_client_comes_at_once_and_counts_no_attempt(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 b1")
        taken = await one.take()
        one.consumption.give_back("g", "t", [it.receipt_handle for it in taken])
        await one.later(0)
        again = await one.take()
        assert (said(again), attempts(again)) == ("a1 a2 b1", [1, 1, 1])


async def test_after_the_last_attempt_a_message_is_a_dead_letter_and_its_group_goes_on(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        one.node.groups.put(replace(IN_ORDER, retry_max_times=1), 0)
        await one.send("a1 a2")
        for attempt in (1, 2):
            (a1,) = await one.take(max_messages=1)
            assert (said([a1]), a1.attempt) == ("a1", attempt)
            await one.later(INVISIBLE_MS)
        assert await one.texts() == "a2"
        assert one.committed() == 1
        dead = Consumer(one.node, topic="%DLQ%g", group="undertaker")
        assert await dead.bodies() == [b"a1"]
        assert one.node.topics.get("%RETRY%g+t") is None


async def test_a_dead_letter_that_does_not_fit_is_without_the_largest_property_and_its_group_goes_on(
    tmp_path: Path,
) -> None:
    async with in_order(tmp_path) as one:
        one.node.groups.put(replace(IN_ORDER, retry_max_times=0), 0)
        await put(one.node, "t", b"a1", __SHARDINGKEY="a", SMALL="s", BIG="x" * 32_735)
        await one.send("a2")
        assert await one.texts(max_messages=1) == "a1"
        await one.later(INVISIBLE_MS)
        assert await one.texts() == "a2"
        (dead,) = (await Consumer(one.node, topic="%DLQ%g", group="undertaker").pop()).deliveries
        properties = record.decode(dead.record).properties
        assert "BIG" not in properties
        assert properties["SMALL"] == "s"


async def test_a_client_may_make_a_message_a_dead_letter_and_its_group_goes_on(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3")
        a1, _ = await one.take(max_messages=2)
        for _ in range(2):
            assert (await one.consumption.forward_to_dlq("g", "t", a1.receipt_handle)).status is OK
        assert one.node.store.queues.end("%DLQ%g", 0) == 1
        assert (await one.texts(), one.committed()) == ("", 1)
        await one.later(INVISIBLE_MS)
        assert await one.texts() == "a2 a3"


# --- attempt ids ------------------------------------------------------------------------------------------------------


async def test_the_same_attempt_id_gets_the_same_batch_and_counts_no_attempt(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 b1 a2")
        first = await one.take(max_messages=2, attempt_id="x")
        await one.later(INVISIBLE_MS - 1)
        assert await one.texts(max_messages=2, attempt_id="y") == ""
        again = await one.take(max_messages=1, attempt_id="x")
        assert (said(again), attempts(again)) == ("a1 b1", [1, 1])
        assert [it.receipt_handle for it in again] == [it.receipt_handle for it in first]
        third = await one.take(attempt_id="x")
        assert [it.receipt_handle for it in third] == [it.receipt_handle for it in first]
        await one.later(INVISIBLE_MS - 1)
        assert await one.ack(*again) == [OK, OK]
        assert await one.texts(attempt_id="x") == "a2"


async def test_an_attempt_that_comes_again_goes_on_without_a_message_group_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 b1 a2 b2 c1")
        assert await one.texts(max_messages=4, attempt_id="x") == "a1 b1 a2 b2"
        read_ranges = one.node.store.queues.read_ranges
        bad = {0, 2}

        def reading(ranges: list[tuple[str, int, int, int]], max_bytes: int) -> Any:
            if any(first in bad for _, _, first, _ in ranges):
                raise ReadFailed("a bad sector")
            return read_ranges(ranges, max_bytes)

        monkeypatch.setattr(one.node.store.queues, "read_ranges", reading)
        bad.remove(2)
        again = await one.take(attempt_id="x")
        assert (said(again), attempts(again)) == ("b1 b2", [1, 1]), "not a2 without a1"
        await one.ack(*again)
        assert await one.texts(attempt_id="x") == "c1"
        bad.clear()
        await one.later(INVISIBLE_MS)
        again = await one.take()
        assert (said(again[:2]), attempts(again[:2])) == ("a1 a2", [2, 2])


async def test_renewed_deliveries_are_renewed_for_no_longer_when_they_are_asked_for_again(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        await one.send("a1")
        for _ in range(179):
            assert await one.texts(attempt_id="x", auto_renew=True) == "a1"
            await one.later(60_000)
        assert await one.texts(attempt_id="y") == ""
        await one.later(60_000)
        again = await one.take(attempt_id="x", auto_renew=True)
        assert attempts(again) == [2]


async def test_what_the_client_has_given_back_is_not_its_batch_any_more(tmp_path: Path) -> None:
    """A client that could not receive a message asks again under the same attempt id, and the lost delivery counts as
    an attempt.
    """
    async with in_order(tmp_path) as one:
        await one.send("a1")
        (a1,) = await one.take(attempt_id="x", auto_renew=True)
        one.consumption.give_back("g", "t", [a1.receipt_handle], begun=1)
        await one.later(0)
        assert await one.texts(attempt_id="x", auto_renew=True) == ""
        await one.later(1000)
        again = await one.take(attempt_id="x", auto_renew=True)
        assert (said(again), attempts(again)) == ("a1", [2])


@pytest.mark.parametrize("auto_renew", [True, False])
async def test_a_call_whose_end_is_noticed_late_takes_nothing_from_the_next_attempt(
    tmp_path: Path, auto_renew: bool
) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        (first,) = await one.take(max_messages=1, attempt_id="x", auto_renew=auto_renew)
        (again,) = await one.take(max_messages=1, attempt_id="x", auto_renew=auto_renew)
        one.consumption.give_back("g", "t", [first.receipt_handle], begun=1, deadlines_ms=[first.deadline_ms])
        await one.later(0)
        assert await one.texts(attempt_id="y") == ""
        one.consumption.give_back("g", "t", [again.receipt_handle], deadlines_ms=[again.deadline_ms])
        assert await one.texts(attempt_id="x") == ""  # the message was given back in this turn of the event loop
        await one.later(0)
        assert await one.texts(attempt_id="y") == "a1 a2"


async def test_an_attempt_id_has_as_many_bytes_as_a_client_id(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        with pytest.raises(InvalidParameter, match="attempt id"):
            await one.pop(attempt_id="ä" * 128)


# --- polls ------------------------------------------------------------------------------------------------------------


async def test_a_busy_message_group_is_waited_for_and_one_poll_is_notified(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        (a1,) = await one.take(max_messages=1)
        polls = [asyncio.create_task(one.texts(poll_s=60)) for _ in range(3)]
        await until(lambda: one.consumption.polls_held == 3, "the polls wait")
        await one.ack(a1)
        await until(lambda: any(poll.done() for poll in polls), "one poll is answered")
        assert [poll.result() for poll in polls if poll.done()] == ["a2"]
        one.consumption.close()
        await asyncio.gather(*polls)


@pytest.mark.parametrize("end", ["deadline", "dead letter"])
async def test_a_poll_is_notified_when_a_message_group_is_free_without_an_ack(tmp_path: Path, end: str) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        (a1,) = await one.take(max_messages=1)
        poll = asyncio.create_task(one.texts(poll_s=60))
        await until(lambda: one.consumption.polls_held == 1, "the poll waits")
        if end == "deadline":
            await one.later(INVISIBLE_MS)
        else:
            await one.consumption.forward_to_dlq("g", "t", a1.receipt_handle)
        assert await poll == ("a1 a2" if end == "deadline" else "a2")


async def test_pops_of_one_turn_of_the_loop_take_no_message_group_twice(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 b1 b2 c1")
        taken = await asyncio.gather(*(one.texts(max_messages=1) for _ in range(4)))
        assert sorted(taken) == ["", "a1", "b1", "c1"]


# --- what changes meanwhile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_a_restart_keeps_the_locks(tmp_path: Path, has_snapshot: bool) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3 b1 b2")
        a1, a2, b1 = [*(await one.take(max_messages=2, attempt_id="x")), *(await one.take(max_messages=1))]
        await one.ack(a2)
    if not has_snapshot:
        snapshot_in(tmp_path).unlink()
    async with in_order(tmp_path) as one:
        now_ms = a1.deadline_ms - INVISIBLE_MS
        goes_by(one.node.broker, lambda: now_ms)
        assert await one.texts() == ""
        assert await one.texts(attempt_id="x") == "a1"
        assert await one.ack(b1) == [OK]
        assert await one.texts() == "b2"
        await one.later(INVISIBLE_MS + 1)  # a1 was asked for again, so its deadline is later than before
        again = await one.take()
        assert (said(again), attempts(again)) == ("b2 a1 a2 a3", [2, 2, 2, 1])


async def test_a_group_that_no_longer_consumes_in_order_gets_all_that_waits(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3 b1")
        (a1,) = await one.take(max_messages=1)
        assert await one.texts() == "b1"
        one.node.groups.put(SubscriptionGroup("g"), 0)
        await one.send("a4")
        assert await one.texts() == "a4"
        await one.later(INVISIBLE_MS)
        assert sorted((await one.texts()).split()) == ["a1", "a2", "a3", "a4", "b1"]
        assert await one.ack(a1) == [INVALID]


async def test_a_group_that_begins_to_consume_in_order_gets_its_retries(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g"), 0)
        await one.send("a1 a2")
        await one.take()
        one.node.groups.put(IN_ORDER, 0)
        await one.later(INVISIBLE_MS)
        first = await one.take(max_messages=1)
        assert (said(first), attempts(first), await one.texts()) == ("a1", [2], "")
        await one.ack(*first)
        (a2,) = await one.take()
        assert (said([a2]), a2.attempt) == ("a2", 2)


async def test_a_reset_drops_the_locks(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2 a3")
        (a1,) = await one.take(max_messages=1, attempt_id="x")
        assert await one.texts() == ""
        one.consumption.deletions.reset("g", "t", {0: 1})
        assert await one.ack(a1) == [INVALID]
        again = await one.take(attempt_id="x")
        assert (said(again), attempts(again)) == ("a2 a3", [1, 1])


async def test_what_waits_and_expires_with_the_log_is_passed_over(tmp_path: Path) -> None:
    hours = ";".join(map(str, range(24)))
    async with in_order(tmp_path, mapped_file_size_commit_log=1 << 16, delete_when=hours) as one:
        await one.send("a1 a2 a3")
        (a1,) = await one.take(max_messages=1)
        assert await one.texts() == ""
        for _ in range(6):
            await put(one.node, "t", bytes(20_000), __SHARDINGKEY="z")
        await one.send("a4")
        one.node.store.flush()
        one.node.store.retention.delete_expired(one.node.broker.now_ms() + 365 * 86_400_000)
        assert one.node.store.queues.bounds("t", 0)[0] > 2
        await one.ack(a1)
        seen: list[str] = []
        while taken := await one.take(max_messages=2):
            seen += [body_of(it).decode() for it in taken if len(body_of(it)) < 10]
            await one.ack(*taken)
        assert seen == ["a4"]
        assert one.consumption.state.ordered_count == 0


# --- all together -----------------------------------------------------------------------------------------------------


class Promise:
    """Finds out only from the sends and the answers which messages a consumer in order may get."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}
        self.out: dict[str, list[Delivery]] = {}  # message group -> its deliveries under way
        self.acked: set[str] = set()

    def delivered(self, group: str, taken: list[Delivery]) -> None:
        assert not self.out.get(group), f"{said(taken)} while {said(self.out[group])} is under way"
        texts = said(taken).split()
        everything = self.sent[group]
        at = everything.index(texts[0])
        assert texts == everything[at : at + len(texts)], "in order, without a gap"
        assert all(one in self.acked for one in everything[:at]), "nothing before it is left"
        self.acked -= set(texts)
        self.out[group] = taken


async def test_whatever_consumers_do_each_message_group_is_in_order_and_nothing_is_lost(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with in_order(tmp_path) as one:
        one.node.topics.put(TopicConfig("t", 2, 2), 0)
        one.node.groups.put(replace(IN_ORDER, retry_max_times=1000), 0)
        promise = Promise()

        def group_of(delivery: Delivery) -> str:
            return body_of(delivery).decode().rstrip("0123456789")

        async def send() -> None:
            group = chance.choice("abcdef")
            sent = promise.sent.setdefault(group, [])
            sent.append(f"{group}{len(sent)}")
            await one.send(sent[-1], queue_id=ord(group) % 2)

        async def pop() -> None:
            taken = await one.take(max_messages=chance.randint(1, 5), attempt_id=chance.choice(["", "x", "y"]))
            known = {it.receipt_handle for deliveries in promise.out.values() for it in deliveries}
            fresh = [it for it in taken if it.receipt_handle not in known]
            assert not fresh or len(fresh) == len(taken), "the same batch again, or none of it"
            for group in dict.fromkeys(map(group_of, fresh)):
                promise.delivered(group, [it for it in fresh if group_of(it) == group])

        async def end(act: Callable[[Delivery], Any]) -> None:
            under_way = [it for deliveries in promise.out.values() for it in deliveries]
            for delivery in chance.sample(under_way, min(len(under_way), chance.randint(1, 3))):
                await act(delivery)
                promise.out[group_of(delivery)].remove(delivery)

        async def ack(delivery: Delivery) -> None:
            assert await one.ack(delivery) == [OK]
            promise.acked.add(body_of(delivery).decode())

        async def nack(delivery: Delivery) -> None:
            assert await one.nack(delivery) is OK
            await one.later(0)

        async def expire() -> None:
            await one.later(2 * INVISIBLE_MS)
            promise.out.clear()

        acts = [send, send, pop, pop, pop, lambda: end(ack), lambda: end(ack), lambda: end(nack)]
        for _ in range(600):
            await (expire if chance.random() < 0.02 else chance.choice(acts))()
        await expire()
        while taken := await one.take():
            for group in dict.fromkeys(map(group_of, taken)):
                promise.delivered(group, [it for it in taken if group_of(it) == group])
            for delivery in taken:
                await ack(delivery)
            promise.out.clear()
        assert promise.acked == {text for texts in promise.sent.values() for text in texts}
        state = one.consumption.state
        assert (state.ordered_count, state.under_way_count) == (0, 0)
        assert {queue_id: one.committed(queue_id) for queue_id in (0, 1)} == {
            queue_id: one.node.store.queues.end("t", queue_id) for queue_id in (0, 1)
        }
        assert state.queues[Place("g", "t", 0)].locks is None


# --- a real RocketMQ's file -------------------------------------------------------------------------------------------


def order_info(folder: Path) -> Any:
    return json_file.loads((folder / "config/consumerOrderInfo.json").read_text())["table"]


async def test_a_clean_stop_says_what_a_real_rocketmq_has_under_way_in_order(tmp_path: Path) -> None:
    """The stop writes into RocketMQ's file the deadline of each delivery, the number of earlier deliveries of the
    message, and which messages were acknowledged although an earlier one was not.  Messages that were never delivered
    are left out.
    """
    async with in_order(tmp_path) as one:
        await one.send("a1 b1 a2 b2 c1")
        a1, b1, a2, _ = await one.take(max_messages=4)
        await one.ack(b1)
        for again in range(2):
            assert await one.nack(a1, 0) is OK and await one.nack(a2, 0) is OK
            await one.later(0)
            a1, a2 = await one.take(max_messages=2, attempt_id=f"attempt {again}")
        assert attempts([a1, a2]) == [3, 3]
        await one.ack(a2)
        now_ms = one.node.broker.now_ms()
    assert order_info(tmp_path) == {
        "t@g": {
            "0": {
                "popTime": now_ms,
                "i": 1,
                "o": [0, 2, 3],
                "ot": {"0": now_ms + INVISIBLE_MS, "3": now_ms + INVISIBLE_MS},
                "oc": {"0": 2, "2": 2},
                "cm": 0b010,
                "l": now_ms,
            }
        }
    }
    async with in_order(tmp_path) as one:
        await one.later(INVISIBLE_MS)
        left = await one.take()
        assert said(left) == "a1 a2 b2 c1", "our own broker goes on where it was"
        await one.ack(*left)
    assert order_info(tmp_path) == {}, "what is over is not said any more"


async def test_one_batch_under_way_in_a_queue_names_its_attempt(tmp_path: Path) -> None:
    """A RocketMQ that goes on with this file gives the same batch to the same attempt, as our broker does."""
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        await one.take(attempt_id="x")
    assert order_info(tmp_path)["t@g"]["0"]["a"] == "x"


async def test_rocketmqs_file_is_written_also_where_no_snapshot_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 a2")
        await one.take(attempt_id="x")

        def failing() -> None:
            raise ReadFailed("a bad sector near the end of the log")

        monkeypatch.setattr(one.consumption, "saving", failing)
    assert order_info(tmp_path)["t@g"]["0"]["a"] == "x"


async def test_without_deliveries_in_order_no_such_file_is_made_and_rocketmqs_old_one_says_nothing(
    tmp_path: Path,
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"1")
        await one.pop()
    path = tmp_path / "config/consumerOrderInfo.json"
    assert not path.exists()
    path.write_text('{"table":{"t@g":{0:{"popTime":1,"i":60000,"o":[0]}}}}')
    async with consumer(tmp_path):
        pass
    assert order_info(tmp_path) == {}


def test_of_a_queue_no_more_is_said_than_the_bits_of_a_long_can_say() -> None:
    state, place = State(), Place("g", "t", 0)
    messages = tuple(Ordered(offset, 1, Step.DELIVERED) for offset in range(100))
    state.apply(TakeInOrder(place=place, pop=1, start=0, next=100, groups=(("a", messages),)))
    state.apply(Settle(place=place, deliveries=(DeliveryId(1, 63),)))
    told = table_of(state.queues, 7)["table"]["t@g"][0]
    assert told["o"] == [*range(64)] and told["cm"] == -(1 << 63)
