"""On a disk without any space, sends are refused, and consumers continue with the space that is reserved for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import DiskFull
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import ChangeInvisible, HandleStatus, Pop
from broker_service.put_result import PutStatus
from testbed.polling import until
from tests.support.brokers import put, running
from tests.support.mounted_disks import SmallDisk

OK = HandleStatus.OK, PutStatus.PUT_OK
MESSAGES = 1000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "small-disk", mib=40) as disk:
        yield disk


async def refused_at_last(node: BrokerNode) -> str:
    """Puts messages until one is refused; returns the reason."""
    for _ in range(20_000):
        try:
            await put(node, "t", bytes(2000))
        except DiskFull as error:
            return str(error)
    raise AssertionError("the disk does not get full")


async def settle_all(node: BrokerNode, count: int) -> None:
    """Pops `count` messages one by one and acknowledges or delays each, with a record of the log for each step; the
    reserved space must suffice.
    """
    for number in range(count):
        pop = Pop(group="g", topic="t", client_id="c", max_messages=1, invisible_ms=60_000)
        (delivery,) = (await node.consumption.pop(pop)).deliveries
        handle = delivery.receipt_handle
        if number % 10 == 0:
            changed = await node.consumption.change_invisible(
                ChangeInvisible(group="g", topic="t", receipt_handle=handle, invisible_ms=90_000)
            )
            assert (changed.status, changed.stored) == OK
        (settled,) = await node.consumption.ack("g", "t", [handle])
        assert (settled.status, settled.stored) == OK


async def test_consumers_go_on_where_the_disk_has_no_room_at_all(small_disk: SmallDisk) -> None:
    async with running(small_disk.folder / "store", mapped_file_size_consume_queue=20 * 10_000) as node:
        node.topics.put(TopicConfig("t", 1, 1), 0)
        await put(node, "t", *[b"x"] * MESSAGES)
        await settle_all(node, 1)
        small_disk.fill()
        why = await refused_at_last(node)
        assert "no room" in why and str(small_disk.folder) not in why
        assert not node.broker.takes_clients_writes
        await settle_all(node, 250)  # the queue entries of these records fill more than one block of a queue's file
        assert not node.broker.takes_clients_writes  # producers stay away until there is room
        with pytest.raises(DiskFull):
            await put(node, "t", bytes(2000))
        small_disk.make_room()
        await until(lambda: node.broker.takes_clients_writes, "the broker finds that there is room")
        await put(node, "t", bytes(2000))


async def test_consumers_go_on_after_a_restart_on_a_full_disk_too(small_disk: SmallDisk) -> None:
    keys = {"mapped_file_size_consume_queue": 20 * 10_000}
    async with running(small_disk.folder / "store", **keys) as node:
        node.topics.put(TopicConfig("t", 1, 1), 0)
        await put(node, "t", *[b"x"] * MESSAGES)
        await settle_all(node, 1)
        small_disk.fill()
        await refused_at_last(node)
        await settle_all(node, 10)
    async with running(small_disk.folder / "store", **keys) as node:
        await settle_all(node, 250)
        assert node.broker.offsets.progress("g", "t", 0).offset == 261
