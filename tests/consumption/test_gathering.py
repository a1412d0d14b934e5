"""Concurrent calls store their changes of the state in one record, and calls that come before the record is stored
already see the state that it leads to.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import STATE_TOPIC

from broker_service.broker.core.mastership import Standing
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import DiskFull, ServiceNotAvailable, SystemBusy
from broker_service.pop import receipt_handle
from broker_service.pop.deliveries import HandleStatus, PopStatus
from broker_service.runtime.group_commit import QUIET_TURNS
from broker_service.state import transitions
from broker_service.state import writer as writer_module
from broker_service.state.transitions import Settle
from tests.consumption.test_consumption import INVALID, INVISIBLE_MS, OK, Consumer, body_of, consumer
from tests.support.brokers import put, running

pytestmark = pytest.mark.usefixtures("no_ticks")

Task = asyncio.Task[Any]


def records(one: Consumer) -> int:
    return one.node.store.queues.end(STATE_TOPIC, 0)


async def quiet(one: Consumer) -> None:
    """Waits until nothing is pending and no call came lately."""
    for _ in range(QUIET_TURNS + 4):
        await asyncio.sleep(0)
    assert not one.consumption.writer.pending


async def begun(one: Consumer, *calls: Coroutine[Any, Any, Any]) -> list[Task]:
    """Starts the calls, and returns once their changes of the state are pending.  The changes stay pending for a while
    because another call came just before these calls.
    """
    if one.node.groups.get("g") is None:
        one.node.groups.put(SubscriptionGroup("g"), 0)  # creating the group would delay a call
    await quiet(one)
    one.consumption.writer.group_commit.call_came()
    tasks = [asyncio.ensure_future(call) for call in calls]
    for _ in range(QUIET_TURNS - 1):
        if one.consumption.writer.pending >= len(calls):
            break
        await asyncio.sleep(0)
    assert one.consumption.writer.pending >= len(calls) and not any(task.done() for task in tasks)
    return tasks


async def turns_of(call: Coroutine[Any, Any, Any]) -> int:
    task, turns = asyncio.ensure_future(call), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    return turns


async def test_a_call_while_it_is_quiet_does_not_wait_and_those_that_come_together_are_one_record(
    tmp_path: Path,
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", *(b"%d" % number for number in range(12)))
        found = (await one.pop()).deliveries
        for delivery in found[:2]:
            await quiet(one)
            assert await turns_of(one.ack(delivery)) < QUIET_TURNS
        await quiet(one)
        before = records(one)
        tasks = []
        for delivery in found[2:]:
            tasks.append(asyncio.ensure_future(one.ack(delivery)))
            for _ in range(QUIET_TURNS - 2):
                await asyncio.sleep(0)
        assert await asyncio.gather(*tasks) == [[OK]] * 10
        assert records(one) == before + 2, "the first one at once, the others together"
        assert one.committed() == 12


async def test_no_more_than_so_many_transitions_wait_whatever_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_PENDING", 4)
    async with consumer(tmp_path) as one:
        await put(one.node, "t", *(b"%d" % number for number in range(9)))
        found = (await one.pop()).deliveries
        await quiet(one)
        before = records(one)
        one.consumption.writer.group_commit.call_came()
        tasks = [asyncio.ensure_future(one.ack(delivery)) for delivery in found]
        while not all(task.done() for task in tasks[:8]):
            one.consumption.writer.group_commit.call_came()  # it is never quiet
            await asyncio.sleep(0)
        assert records(one) == before + 2 and not tasks[8].done()
        assert await tasks[8] == [OK]
        assert one.committed() == 9


async def test_a_second_ack_while_the_first_is_pending_is_ok_and_both_are_one(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (delivery,) = (await one.pop()).deliveries
        (first,) = await begun(one, one.ack(delivery))
        assert await one.ack(delivery) == await first == await one.ack(delivery) == [OK]
        await one.later(INVISIBLE_MS)
        assert await one.bodies() == []


async def test_a_pop_takes_nothing_that_pending_pops_have_taken(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", *(b"%d" % number for number in range(6)))
        await one.pop(max_messages=1)
        (first,) = await begun(one, one.bodies(max_messages=2))
        assert await one.bodies(max_messages=2) == [b"3", b"4"]
        assert await first == [b"1", b"2"]
        assert await one.bodies() == [b"5"]


async def test_acks_keep_their_order_with_pops_and_changes_of_the_deadline(tmp_path: Path) -> None:
    """An acknowledged message stays acknowledged, whether its ack or the change of its deadline comes first."""
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        first, second = (await one.pop()).deliveries
        acked, nacked = await begun(one, one.ack(first), one.nack(second))
        nacked_late, acked_late = asyncio.ensure_future(one.nack(first)), asyncio.ensure_future(one.ack(second))
        assert (await acked, await nacked, await acked_late) == ([OK], OK, [OK])
        assert await nacked_late == OK, "it may have come before the ack"
        await one.later(INVISIBLE_MS)
        assert await one.bodies() == []
        assert one.committed() == 2


async def test_a_delivery_does_not_expire_while_its_ack_is_pending(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (delivery,) = (await one.pop()).deliveries
        (acked,) = await begun(one, one.ack(delivery))
        await one.later(INVISIBLE_MS)
        assert await acked == [OK]
        assert await one.bodies() == []
        assert one.consumption.counts.retried.messages == 0


async def test_a_message_whose_ack_is_pending_is_no_dead_letter_any_more(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        first, second = (await one.pop()).deliveries
        await one.consumption.forward_to_dlq("g", "t", first.receipt_handle)  # creates the dead letter topic
        (acked,) = await begun(one, one.ack(second))
        moved = await one.consumption.forward_to_dlq("g", "t", second.receipt_handle)
        assert (await acked, moved.status) == ([OK], INVALID)
        assert one.node.store.queues.end("%DLQ%g", 0) == 1


async def test_a_message_is_forwarded_once_and_an_ack_that_comes_meanwhile_is_refused(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        first, second = (await one.pop()).deliveries
        (acked,) = await begun(one, one.ack(first))
        forwarded = await one.consumption.forward_to_dlq("g", "t", second.receipt_handle)
        assert (await acked, forwarded.status, await one.ack(second)) == ([OK], OK, [INVALID])
        assert one.committed() == 2


async def test_a_pop_in_order_finds_the_message_group_free_whose_ack_is_pending(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g", consume_message_orderly=True), 0)
        await put(one.node, "t", b"a", b"b", __SHARDINGKEY="s")
        (first,) = (await one.pop(max_messages=1)).deliveries
        assert await one.bodies() == []
        (acked,) = await begun(one, one.ack(first))
        assert await one.bodies() == [b"b"], "a poll that is not held"
        assert await acked == [OK]


async def test_the_same_attempt_gets_nothing_whose_nack_is_pending(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.groups.put(SubscriptionGroup("g", consume_message_orderly=True), 0)
        await put(one.node, "t", b"a", b"b", __SHARDINGKEY="s")
        first, _ = (await one.pop(attempt_id="x")).deliveries
        (changed,) = await begun(one, one.nack(first, INVISIBLE_MS))
        assert (await one.pop(attempt_id="x")).status is not PopStatus.FOUND
        assert await changed == OK


async def test_a_client_that_is_gone_gives_back_what_its_pending_pop_takes(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        one.node.clients.is_connected = lambda client_id: True  # type: ignore[method-assign]
        await put(one.node, "t", b"a")
        (popped,) = await begun(one, one.pop(auto_renew=True, client_id="gone"))
        one.node.clients.is_connected = lambda client_id: client_id != "gone"  # type: ignore[method-assign]
        one.consumption.expiry.grace_until = 0.0
        one.consumption.client_gone("gone")
        await popped
        await one.later(0)
        assert await one.bodies() == [b"a"]


async def test_a_pending_pop_that_is_given_up_gives_its_messages_back(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (popped,) = await begun(one, one.pop())
        popped.cancel()
        await quiet(one)
        await one.later(0)
        (again,) = (await one.pop()).deliveries
        assert (body_of(again), again.attempt) == (b"a", 1)


async def test_a_limit_counts_what_pending_pops_take_and_pending_acks_free(tmp_path: Path) -> None:
    async with consumer(tmp_path, max_under_way_per_group=2) as one:
        await put(one.node, "t", *(b"%d" % number for number in range(8)))
        (first,) = await begun(one, one.pop(max_messages=2))
        with pytest.raises(SystemBusy, match="maxUnderWayPerGroup"):
            await one.pop()
        (acked,) = await begun(one, one.ack(*(await first).deliveries))
        assert await one.bodies(max_messages=2) == [b"2", b"3"]
        assert await acked == [OK, OK]


async def test_a_reset_counts_for_a_queue_of_which_a_pending_pop_takes_the_first(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c")
        (popped,) = await begun(one, one.pop(max_messages=1))
        for listener in one.node.broker.offsets_reset:
            listener("g", "t", {0: 2})
        await popped
        assert await one.bodies() == [b"c"]


@pytest.mark.parametrize("deleted", ["topic", "group"])
async def test_a_deletion_takes_what_a_pending_pop_takes_with_it(tmp_path: Path, deleted: str) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        one.node.groups.put(SubscriptionGroup("g"), 0)
        (popped,) = await begun(one, one.pop())
        if deleted == "topic":
            one.node.topics.delete_all({"t": {0: 1}}, 0)
        else:
            one.node.groups.delete("g", 0)
            one.consumption.deletions.drop_group("g")
        await popped
        await quiet(one)
        assert not one.consumption.state.queues


async def test_a_deleted_group_leaves_the_offset_of_a_pending_ack(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        (delivery,) = (await one.pop(max_messages=1)).deliveries
        (acked,) = await begun(one, one.ack(delivery))
        one.node.groups.delete("g", 0)
        assert await acked == [OK]
        assert one.committed() == 1


async def test_each_caller_is_told_that_the_log_took_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        (delivery,) = (await one.pop(max_messages=1)).deliveries
        calls = await begun(one, one.ack(delivery), one.pop(), one.ack(delivery))

        def full(*_: Any) -> None:
            raise DiskFull("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(one.node.store, "append_one", full)
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [DiskFull] * 3
        assert await one.bodies() == [b"b"], "nothing was taken"
        assert await one.ack(delivery) == [OK]


async def test_a_master_that_is_replaced_refuses_what_is_pending_and_a_cut_forgets_it(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        (delivery,) = (await one.pop(max_messages=1)).deliveries
        acked, popped = await begun(one, one.ack(delivery), one.pop())
        mastership = one.node.broker.mastership
        mastership.standing = Standing.SLAVE
        before = records(one)
        one.consumption.writer.reload()
        mastership.standing = Standing.WRITABLE
        for answer in await asyncio.gather(acked, popped, return_exceptions=True):
            assert isinstance(answer, ServiceNotAvailable)
        await quiet(one)
        assert records(one) == before
        assert await one.bodies() == [b"b"]


async def test_a_snapshot_has_nothing_of_what_is_pending_and_the_log_has_it(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        (delivery,) = (await one.pop(max_messages=1)).deliveries
        (acked,) = await begun(one, one.ack(delivery))
        saving = one.consumption.saving()
        assert saving is not None
        saving()
        assert await acked == [OK]
        known = one.consumption.state.queues
        one.consumption.writer.reload()
        assert one.consumption.state.queues == known
        assert one.committed() == 1


async def test_a_master_applies_what_it_has_just_appended_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c")

        def reads(offset: int) -> bytes:
            raise AssertionError(f"the record at {offset} is read")

        with monkeypatch.context() as patched:
            patched.setattr(one.node.store.log, "record_at", reads)
            first, second, _ = (await one.pop()).deliveries
            assert await one.ack(first) == [OK]
            assert await one.nack(second, 60_000) == OK
        state = one.consumption.state
        known = {place: (queue.next, queue.under_way) for place, queue in state.queues.items()}
        one.consumption.writer.reload()
        state = one.consumption.state
        assert {place: (queue.next, queue.under_way) for place, queue in state.queues.items()} == known


async def test_a_record_that_is_there_already_is_applied_before_the_one_that_was_just_appended(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        found = (await one.pop()).deliveries
        place = next(iter(one.consumption.state.queues))
        named = receipt_handle.decode(found[0].receipt_handle)
        assert named is not None
        body = transitions.encode([Settle(place, (named.delivery,))])
        one.node.store.append_one(Record(STATE_TOPIC, body), 1, bytes(8))  # and not applied yet
        assert await one.ack(*found) == [OK, OK]
        assert one.committed() == 2


async def test_a_broker_that_stops_answers_what_is_pending(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t", 1, 1), 0)
        one = Consumer(node)
        await put(node, "t", b"a", b"b")
        (delivery,) = (await one.pop(max_messages=1)).deliveries
        acked, popped = await begun(one, one.ack(delivery), one.pop())
        node.broker.stopping = True
        for answer in await asyncio.gather(acked, popped, return_exceptions=True):
            assert isinstance(answer, ServiceNotAvailable)
    async with running(tmp_path) as node:
        one = Consumer(node)
        assert await one.ack(delivery) == [HandleStatus.OK]
        assert await one.bodies() == [b"b"]
