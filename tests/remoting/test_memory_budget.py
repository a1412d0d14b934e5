"""MemoryBudget: the bytes that requests may use together."""

import asyncio

from broker_service.runtime.remoting.memory_budget import MemoryBudget


async def test_requests_get_their_bytes_in_the_order_of_arrival() -> None:
    budget, order = MemoryBudget(10), list[int]()

    async def take(size: int) -> None:
        await budget.take(size)
        order.append(size)

    await take(8)
    waiting = [asyncio.create_task(take(size)) for size in (5, 1, 4)]
    await asyncio.sleep(0)
    assert order == [8], "the one of 1 byte does not overtake"
    budget.give_back(8)
    await asyncio.gather(*waiting)
    assert order == [8, 5, 1, 4] and budget.taken_bytes == 10


async def test_a_request_larger_than_the_budget_is_taken_alone() -> None:
    budget = MemoryBudget(10)
    await budget.take(1)
    large = asyncio.create_task(budget.take(50))
    await asyncio.sleep(0)
    assert not large.done()
    budget.give_back(1)
    await large
    assert budget.taken_bytes == 50


async def test_a_cancelled_request_takes_nothing_and_the_next_one_continues() -> None:
    budget = MemoryBudget(10)
    await budget.take(6)
    first, second = asyncio.create_task(budget.take(8)), asyncio.create_task(budget.take(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await second
    assert budget.taken_bytes == 9
    third = asyncio.create_task(budget.take(5))
    await asyncio.sleep(0)
    budget.give_back(6)  # the third task gets its bytes, and is cancelled in the same turn
    third.cancel()
    await asyncio.wait([third])
    assert budget.taken_bytes == 3
