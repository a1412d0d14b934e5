"""Held pulls end with an arrival or at their timeout; they are counted and bounded."""

import asyncio

import pytest

from broker_service.broker.core.long_polling import LongPolling, Queue
from broker_service.errors import SystemBusy

LONG_S = 60.0


async def held(polls: LongPolling, count: int) -> None:
    while polls.held != count:  # noqa: ASYNC110 - the tasks need a turn each, and there is no event for that
        await asyncio.sleep(0)


async def test_an_arrival_notifies_everybody_who_waits_for_the_queue_and_nobody_else() -> None:
    polls = LongPolling(10)
    async with asyncio.TaskGroup() as tasks:
        first, second = (tasks.create_task(polls.wait({("t", 0): 5}, LONG_S)) for _ in range(2))
        other = tasks.create_task(polls.wait({("t", 1): 5}, 0.05))
        await held(polls, 3)
        polls.arrived([("t", 0)])
    assert (first.result(), second.result(), other.result()) == (True, True, False)
    assert (polls.held, polls.queues()) == (0, [])


@pytest.mark.parametrize("queue", [("t", 0), ("u", 3)])
async def test_an_arrival_in_any_of_its_queues_ends_a_wait(queue: Queue) -> None:
    polls = LongPolling(1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(polls.wait({("t", 0): 5, ("u", 3): 0}, LONG_S))
        await held(polls, 1)
        polls.arrived([("t", 1), ("u", 0)])
        assert polls.queues() == [("t", 0), ("u", 3)]
        polls.arrived([queue])
    assert waiting.result()
    assert (polls.held, polls.queues()) == (0, [])


async def test_a_wait_ends_when_its_time_is_over() -> None:
    assert not await LongPolling(1).wait({("t", 0): 5}, 0.01)


async def test_no_time_is_no_wait() -> None:
    assert not await LongPolling(0).wait({("t", 0): 5}, 0.0)


async def test_long_polls_beyond_the_limit_are_told_to_come_back() -> None:
    polls = LongPolling(1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(polls.wait({("t", 0): 5}, LONG_S))
        await held(polls, 1)
        with pytest.raises(SystemBusy, match="1 calls wait"):
            await polls.wait({("t", 0): 5}, LONG_S)
        polls.arrived([("t", 0)])


async def test_a_caller_that_goes_away_leaves_nothing_behind() -> None:
    polls = LongPolling(10)
    waiting = asyncio.create_task(polls.wait({("t", 0): 5}, LONG_S))
    await held(polls, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (polls.held, polls.queues()) == (0, [])


async def test_a_slave_notifies_those_whose_queue_has_grown_past_them() -> None:
    polls = LongPolling(10)
    async with asyncio.TaskGroup() as tasks:
        grown = tasks.create_task(polls.wait({("t", 0): 5}, LONG_S))
        not_grown = tasks.create_task(polls.wait({("t", 1): 5}, 0.05))
        await held(polls, 2)
        polls.arrived_somewhere(lambda topic, queue_id: 6 if queue_id == 0 else 5)
    assert (grown.result(), not_grown.result()) == (True, False)


async def test_closing_notifies_everybody_and_nobody_waits_any_more() -> None:
    polls = LongPolling(10)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(polls.wait({("t", 0): 5}, LONG_S))
        await held(polls, 1)
        polls.close()
    assert not waiting.result()
    assert not await polls.wait({("t", 0): 5}, LONG_S)
