"""Room: bytes that requests may take."""

import asyncio

from broker_service.runtime.remoting.room import Room


async def test_who_finds_no_room_waits_in_the_order_of_arrival() -> None:
    room, order = Room(10), list[int]()

    async def take(size: int) -> None:
        await room.take(size)
        order.append(size)

    await take(8)
    waiting = [asyncio.create_task(take(size)) for size in (5, 1, 4)]
    await asyncio.sleep(0)
    assert order == [8], "the one of 1 byte does not overtake"
    room.give_back(8)
    await asyncio.gather(*waiting)
    assert order == [8, 5, 1, 4] and room.taken_bytes == 10


async def test_what_is_larger_than_the_room_is_taken_alone() -> None:
    room = Room(10)
    await room.take(1)
    large = asyncio.create_task(room.take(50))
    await asyncio.sleep(0)
    assert not large.done()
    room.give_back(1)
    await large
    assert room.taken_bytes == 50


async def test_who_gives_up_waiting_keeps_nothing_and_lets_the_next_one_in() -> None:
    room = Room(10)
    await room.take(6)
    first, second = asyncio.create_task(room.take(8)), asyncio.create_task(room.take(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await second
    assert room.taken_bytes == 9
    third = asyncio.create_task(room.take(5))
    await asyncio.sleep(0)
    room.give_back(6)  # it is let in, and cancelled in the same turn
    third.cancel()
    await asyncio.wait([third])
    assert room.taken_bytes == 3
