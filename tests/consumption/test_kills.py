"""A broker that is killed between pops and acks: acknowledged messages stay acknowledged, and all others are delivered
again.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest
from rocketsim_proto.records import record

from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop
from testbed.polling import until
from testbed.processes import ROOT
from tests.consumption.popping_broker import GROUPS, MESSAGES
from tests.support.brokers import goes_by, name_server, running

ALL = {str(number) for number in range(MESSAGES)}


async def killed(acked: int, *arguments: object) -> tuple[set[str], set[str]]:
    """Returns the bodies whose acks had begun, and those whose acks were answered OK, when the broker was killed after
    `acked` OKs.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.consumption.popping_broker", *map(str, arguments)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    said: dict[str, set[str]] = {"acks": set(), "acked": set()}
    try:
        while line := (await process.stdout.readline()).decode():
            if not line.endswith("\n"):
                break
            word, body = line.split()
            said[word].add(body)
            if len(said["acked"]) == acked:
                process.kill()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert len(said["acked"]) >= acked
    return said["acks"], said["acked"]


async def delivered_again(node: BrokerNode) -> Counter[str]:
    """Returns all messages that come once every earlier deadline has passed."""
    now_ms = node.broker.now_ms() + 120_000
    goes_by(node.broker, lambda: now_ms)
    await node.consumption.expiry.expire()
    bodies: Counter[str] = Counter()
    while deliveries := (await node.consumption.pop(Pop(group="g", topic="t"))).deliveries:
        bodies.update(record.decode(one.record).body.decode() for one in deliveries)
    return bodies


def check(again: Counter[str], begun: set[str], acked: set[str]) -> None:
    assert not again.keys() & acked
    assert not ALL - again.keys() - begun  # an ack whose answer was lost may have taken effect
    assert set(again.values()) == {1}


@pytest.mark.parametrize("acked", [1, 40, 200])
async def test_a_broker_that_is_killed_knows_what_was_acknowledged(tmp_path: Path, acked: int) -> None:
    """An ack that was answered is not lost."""
    begun, done = await killed(acked, tmp_path)
    async with running(tmp_path) as node:
        check(await delivered_again(node), begun, done)


async def test_a_slave_goes_on_where_a_synchronous_master_was_killed(tmp_path: Path) -> None:
    async with name_server() as names:
        slave_keys = {"namesrv_addr": names.address, "broker_role": BrokerRole.SLAVE, "broker_id": 1}
        async with running(tmp_path / "s", **slave_keys) as slave:
            begun, done = await killed(100, tmp_path / "m", names.address)
            await until(lambda: not slave.replication.slave.is_following(), "the slave is alone")
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            check(await delivered_again(slave), begun, done)


async def delivered_in_order(node: BrokerNode) -> list[int]:
    """Returns all messages that come, each acknowledged at once, after every earlier deadline has passed."""
    now_ms = node.broker.now_ms() + 120_000
    goes_by(node.broker, lambda: now_ms)
    await node.consumption.expiry.expire()
    bodies: list[int] = []
    while deliveries := (await node.consumption.pop(Pop(group="g", topic="t"))).deliveries:
        bodies += [int(record.decode(one.record).body) for one in deliveries]
        await node.consumption.ack("g", "t", [one.receipt_handle for one in deliveries])
    return bodies


def check_order(again: list[int], begun: set[str], acked: set[str]) -> None:
    """Checks that each message group continues after its last acknowledged message."""
    for group in range(GROUPS):
        found = [number for number in again if number % GROUPS == group]
        first = found[0] if found else MESSAGES + group
        assert found == list(range(first, MESSAGES, GROUPS))
        assert not {str(number) for number in found} & acked
        assert {str(number) for number in range(group, first, GROUPS)} <= begun


async def test_a_broker_that_is_killed_knows_the_order_of_each_message_group(tmp_path: Path) -> None:
    begun, done = await killed(100, tmp_path, "in-order")
    async with running(tmp_path) as node:
        check_order(await delivered_in_order(node), begun, done)


async def test_a_slave_goes_on_in_order_where_a_synchronous_master_was_killed(tmp_path: Path) -> None:
    async with name_server() as names:
        slave_keys = {"namesrv_addr": names.address, "broker_role": BrokerRole.SLAVE, "broker_id": 1}
        async with running(tmp_path / "s", **slave_keys) as slave:
            begun, done = await killed(60, tmp_path / "m", names.address, "in-order")
            await until(lambda: not slave.replication.slave.is_following(), "the slave is alone")
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            check_order(await delivered_in_order(slave), begun, done)
