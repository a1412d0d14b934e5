"""A broker that is killed during transactions: what was answered stays, and no message is delivered twice or without a
commit.
"""

import asyncio
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from rocketmq_v2 import definition_pb2 as d
from rocketsim_proto.reserved import HALF_TOPIC

from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from testbed.polling import until
from testbed.processes import ROOT
from tests.support.brokers import name_server, running
from tests.support.v2 import client_of
from tests.v2.test_transactions import bodies, end, opened, records

Said = dict[str, set[str]]
KEYS = {"grpc_server_port": 0, "transaction_time_out": 3_600_000}


async def killed(committed: int, *arguments: object) -> Said:
    """Runs a broker, kills it after so many commits, and returns what it has printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.v2.committing_broker", *map(str, arguments)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    said: Said = defaultdict(set)
    try:
        while (line := (await process.stdout.readline()).decode()).endswith("\n"):
            word, name = line.split()
            said[word].add(name)
            if len(said["committed"]) == committed:
                process.kill()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert len(said["committed"]) >= committed
    return said


async def check(node: BrokerNode, said: Said) -> None:
    """Checks that the broker knows all transactions, and then commits those that are still open."""
    await until(node.consumption.transactions.ready.is_set, "all commits are known")
    state = node.consumption.state.transactions
    stored = bodies(node)
    assert len(stored) == len(set(stored))
    assert said["committed"] <= set(stored) <= said["committed"] | (said["ends"] - said["rolled_back"])
    assert set(stored).isdisjoint(opened(node))
    answered = said["prepared"] - said["ends"]
    assert answered <= set(opened(node)) <= said["prepares"] - said["committed"] - said["rolled_back"]
    halves = {one.message_id: one.queue_offset for one in records(node, HALF_TOPIC)}
    assert all(halves[name] == state.open["X", name].queue_offset for name in opened(node))  # type: ignore[index]
    left = opened(node)
    async with client_of(node) as client:
        for name in [*left, *said["committed"]]:
            assert (await end(client, name)).code == d.OK
        for name in said["rolled_back"]:
            assert (await end(client, name)).code == d.INVALID_TRANSACTION_ID
    assert sorted(bodies(node)) == sorted([*stored, *left])
    assert opened(node) == []


@pytest.mark.parametrize("committed", [1, 60])
async def test_a_broker_that_is_killed_knows_its_transactions(tmp_path: Path, committed: int) -> None:
    """Clients end their transactions late, after the broker has started again."""
    said = await killed(committed, tmp_path)
    async with running(tmp_path, **KEYS) as node:
        await check(node, said)


async def test_a_slave_goes_on_where_a_synchronous_master_was_killed(tmp_path: Path) -> None:
    async with name_server() as names:
        slave_keys = {"namesrv_addr": names.address, "broker_role": BrokerRole.SLAVE, "broker_id": 1}
        async with running(tmp_path / "s", **KEYS, **slave_keys) as slave:
            said = await killed(40, tmp_path / "m", names.address)
            await until(lambda: not slave.replication.slave.is_following(), "the slave is alone")
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            await check(slave, said)
