"""A master and its slaves on real gRPC, with logs in memory."""

import asyncio

from broker_service.model import PutStatus
from tests.support.memory_log import MemoryLog
from tests.support.pair import Node, until


def test_a_new_slave_gets_the_whole_log_and_a_put_waits_for_it(tmp_path):
    async def scenario():
        master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
        async with master.serving():
            master.put(*[b"x" * 1000 for _ in range(5000)])
            async with slave.following(master):
                await until(lambda: master.acks.tracker.confirm_offset == master.log.end_offset)
                assert await master.put_and_wait() is PutStatus.PUT_OK
                assert slave.log.data == master.log.data
                assert slave.epochs.epochs == master.epochs.epochs

    asyncio.run(scenario())
