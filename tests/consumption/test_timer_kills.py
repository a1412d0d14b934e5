"""A broker that is killed while it delivers messages at their time: all messages arrive once, from it or from its
slave.
"""

import asyncio
import sys
from pathlib import Path

import pytest

from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from testbed.polling import until
from testbed.processes import ROOT
from tests.consumption.timing_broker import MESSAGES, in_an_hour
from tests.support.brokers import bodies_in, name_server, running


async def killed(batches: int, *arguments: object) -> None:
    """Runs a broker until it has taken all messages and delivered `batches` batches.  Then kills the broker before or
    within the next batch.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.consumption.timing_broker", *map(str, arguments)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    delivered = 0
    try:
        while await process.stdout.readline():
            delivered += 1
            if delivered == batches:
                process.kill()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert delivered >= batches


async def all_came_once(node: BrokerNode) -> None:
    in_an_hour(node)
    await until(lambda: node.store.queues.end("t", 0) >= MESSAGES, "all are delivered")
    await until(lambda: not node.consumption.state.timers.count, "none is left")
    found = node.store.queues.read_ranges([("t", 0, 0, node.store.queues.end("t", 0))], 4 << 20)
    assert sorted(map(int, bodies_in(b"".join(found.records)))) == list(range(MESSAGES))


@pytest.mark.parametrize("batches", [1, 20, 100])
async def test_a_broker_that_is_killed_delivers_the_rest_and_nothing_twice(tmp_path: Path, batches: int) -> None:
    await killed(batches, tmp_path)
    async with running(tmp_path) as node:
        await all_came_once(node)


async def test_a_slave_delivers_what_a_killed_master_has_not(tmp_path: Path) -> None:
    async with name_server() as names:
        slave_keys = {"namesrv_addr": names.address, "broker_role": BrokerRole.SLAVE, "broker_id": 1}
        async with running(tmp_path / "s", **slave_keys) as slave:
            await killed(30, tmp_path / "m", names.address)
            await until(lambda: not slave.replication.slave.is_following(), "the slave is alone")
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            await all_came_once(slave)
