"""A starting master waits for brokers and name servers, so that no acknowledged message is lost and no two masters
write.
"""

import socket
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto.admin_pb2 import RemoveSlaveRequest
from rocketsim_proto.admin_pb2_grpc import AdminStub

from broker_service.broker.core.mastership import Standing
from broker_service.broker.reads.pull import Pull
from broker_service.config.store_settings import store_config
from broker_service.errors import ServiceNotAvailable
from broker_service.modes import BrokerRole
from broker_service.namesrv.route_table import Registration as Registered
from broker_service.node.node import BrokerNode
from broker_service.replication.epochs import PROMOTION
from broker_service.replication.promise import Promise
from broker_service.store.message_store import MessageStore
from testbed.polling import until
from tests.support.brokers import bodies_in, name_server, put, running, small_config, stub_of

MASTER: dict[str, Any] = {"broker_role": BrokerRole.SYNC_MASTER}
SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
NO_WAIT = {"slave_wait_time_ms": 0}
LONG_WAIT = {"slave_wait_time_ms": 600_000}


def lose_power(root: Path, end_offset: int) -> None:
    """Leaves the store as a power loss does when only the log up to `end_offset` was on disk."""
    store = MessageStore.open(store_config(small_config(root)), time.time_ns() // 1_000_000)
    store.truncate(end_offset, None)
    store.close()
    (root / "abort").touch()


async def in_step(master: BrokerNode, *slaves: BrokerNode) -> None:
    await until(lambda: all(slave.store.end_offset == master.store.end_offset for slave in slaves), "copied")


async def bodies(node: BrokerNode) -> list[bytes]:
    return bodies_in((await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=0))).records)


async def a_pair_whose_master_lost_b(folder: Path, **keys: Any) -> int:
    """Both brokers are down, and only the slave has the message that was acknowledged last.  Returns the port that the
    master had.
    """
    async with (
        running(folder / "m", **(keys | MASTER)) as master,
        running(folder / "s", **(keys | SLAVE | {"ha_master_address": master.address})) as slave,
    ):
        await put(master, "t", b"a")
        kept = master.store.end_offset
        await put(master, "t", b"b")
        await in_step(master, slave)
        port = int(master.address.rpartition(":")[2])
    lose_power(folder / "m", kept)
    return port


def diverged(folder: Path) -> list[Path]:
    """Returns the directories that keep what was cut off."""
    return list(folder.glob("*/rocketsim/diverged"))


# --- a slave that comes later than the name server's word -------------------------------------------------------------


async def test_what_only_the_slave_has_is_fetched_although_it_comes_back_after_the_master(tmp_path: Path) -> None:
    await a_pair_whose_master_lost_b(tmp_path)
    async with name_server() as names:
        keys = {"namesrv_addr": names.address} | LONG_WAIT
        async with running(tmp_path / "m", writable=False, **(keys | MASTER)) as master:
            await until(lambda: "0 of 1 slaves" in str(master.broker.waits_for()), "the name server knows no slave")
            with pytest.raises(ServiceNotAvailable, match="0 of 1 slaves have shown their logs"):
                await put(master, "t", b"x")
            async with running(tmp_path / "s", **(keys | SLAVE)) as slave:
                await until(lambda: master.mastership.standing is Standing.WRITABLE, "it has heard the slave")
                await put(master, "t", b"c")
                await in_step(master, slave)
                assert await bodies(master) == [b"a", b"b", b"c"]
    assert diverged(tmp_path) == []


@pytest.mark.parametrize("wait_ms", [0, 200])
async def test_a_master_whose_slave_does_not_come_opens_alone_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wait_ms: int
) -> None:
    await a_pair_whose_master_lost_b(tmp_path)
    async with running(tmp_path / "m", **MASTER, slave_wait_time_ms=wait_ms) as master:
        await put(master, "t", b"x")
        assert await bodies(master) == [b"a", b"x"]
    alone = [line for line in caplog.messages if "this master goes on alone" in line]
    assert len(alone) == 1 and f"within slaveWaitTimeMs={wait_ms} 0 of 1 slaves have shown their logs" in alone[0]
    assert "the messages that this one acknowledges from now on without a slave are lost" in alone[0]


async def test_after_a_clean_stop_nobody_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        async with running(tmp_path / "m", **MASTER, **LONG_WAIT) as master:
            await put(master, "t", b"a")
    assert "goes on alone" not in caplog.text


async def test_a_master_that_was_stopped_cleanly_and_replaced_takes_no_writes_before_the_promoted_slave_is_back(
    tmp_path: Path,
) -> None:
    """A name server that was started after the promotion knows nothing of it."""
    async with running(tmp_path / "m") as master:
        async with running(tmp_path / "s", **SLAVE, ha_master_address=master.address) as slave:
            await put(master, "t", b"before")
            await in_step(master, slave)
            port = int(slave.address.rpartition(":")[2])
    async with running(tmp_path / "s", **SLAVE, listen_port=port) as slave:
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=False)
        await put(slave, "t", b"after")
    async with name_server() as names:
        keys = {"namesrv_addr": names.address} | LONG_WAIT
        async with running(tmp_path / "m", writable=False, **keys) as master:
            silent = f"127.0.0.1:{port} has not answered since the start"
            await until(lambda: silent in str(master.broker.waits_for()), "the name server alone has answered")
            with pytest.raises(ServiceNotAvailable, match=silent):
                await put(master, "t", b"lost")
            async with running(tmp_path / "s", **SLAVE, **keys, listen_port=port) as promoted:
                await until(lambda: master.mastership.standing is Standing.FENCED, "it was replaced")
                assert await bodies(promoted) == [b"before", b"after"]


async def test_a_slave_that_takes_part_in_a_promotion_is_no_answer_that_nothing_has_changed(tmp_path: Path) -> None:
    """The candidate that this slave has promised to support may be the master already, and may be away now."""
    async with running(tmp_path / "m") as master:
        async with running(tmp_path / "s", **SLAVE, ha_master_address=master.address) as slave:
            await put(master, "t", b"before")
            await in_step(master, slave)
    async with running(tmp_path / "s", **SLAVE) as slave:
        candidate = Promise(PROMOTION, 2, "127.0.0.1:1")
        assert slave.replication.promises.promise(candidate) == ""
        keys = {"ha_slave_addresses": slave.address} | LONG_WAIT
        async with running(tmp_path / "m", writable=False, **keys) as master:
            await until(lambda: "has not answered since the start" in str(master.broker.waits_for()), "it has promised")
            assert slave.replication.promises.forget(2, "")
            await until(lambda: slave.address not in str(master.broker.waits_for()), "the promise is over")


# --- configured slaves ----------------------------------------------------------------------------------------------


async def test_without_a_name_server_a_master_takes_no_writes_until_a_configured_slave_has_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "s", **SLAVE) as slave:
        address = slave.address
    keys = MASTER | {"ha_slave_addresses": address}
    async with running(tmp_path / "m", writable=False, **keys) as master:
        await until(lambda: f"slave {address} does not answer" in caplog.text, "asked in vain")
        with pytest.raises(ServiceNotAvailable, match="no name server and no slave has answered"):
            await put(master, "t", b"x")
        # This slave has never been told of its master, but its answer alone is enough.
        async with running(tmp_path / "s", **SLAVE, listen_port=int(address.rpartition(":")[2])):
            await until(lambda: master.mastership.standing is Standing.WRITABLE, "the slave has answered")
            await put(master, "t", b"x")


async def test_a_configured_slave_that_was_promoted_fences_the_old_master(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        port = int(master.address.rpartition(":")[2])
    async with running(tmp_path / "s", **SLAVE, ha_master_address=f"127.0.0.1:{port}") as slave:
        keys = {"listen_port": port, "ha_slave_addresses": slave.address}
        async with running(tmp_path / "m", **keys) as master:
            await put(master, "t", b"x")
            await in_step(master, slave)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        async with running(tmp_path / "m", writable=False, **keys) as returned:
            await until(lambda: returned.mastership.standing is Standing.FENCED, "fenced")
            # the reason names the broker's address instead of its id if this master asked the slave first
            assert "of broker 0" in returned.mastership.fenced_by


async def test_a_configured_slave_that_is_ahead_refills_its_master_without_a_name_server(tmp_path: Path) -> None:
    port = await a_pair_whose_master_lost_b(tmp_path)
    async with running(tmp_path / "s", **SLAVE, ha_master_address=f"127.0.0.1:{port}") as slave:
        keys = MASTER | NO_WAIT | {"listen_port": port, "ha_slave_addresses": slave.address}
        async with running(tmp_path / "m", **keys) as master:
            await put(master, "t", b"c")
            assert await bodies(master) == [b"a", b"b", b"c"]


async def test_a_master_behind_both_its_slaves_refills_from_the_longer_one(tmp_path: Path) -> None:
    keys = {"flush_interval_commit_log": 3_600_000}
    slaves = [SLAVE | {"broker_id": broker_id} | keys for broker_id in (1, 2)]
    async with running(tmp_path / "m", **MASTER, **keys) as master:
        address = {"ha_master_address": master.address}
        async with running(tmp_path / "s1", **slaves[0], **address) as longer:
            async with running(tmp_path / "s2", **slaves[1], **address) as shorter:
                await put(master, "t", b"a")
                kept = master.store.end_offset
                await put(master, "t", b"b")
                await in_step(master, longer, shorter)
            await put(master, "t", b"c")  # only the slave that is in sync acknowledges c
            await in_step(master, longer)
        port = int(master.address.rpartition(":")[2])
    lose_power(tmp_path / "m", kept)
    async with (
        running(tmp_path / "s2", **slaves[1], **address) as shorter,
        running(tmp_path / "s1", **slaves[0], **address) as longer,
    ):
        both = {"ha_slave_addresses": f"{shorter.address};{longer.address}", "listen_port": port}
        async with running(tmp_path / "m", **MASTER, **keys, **both, **LONG_WAIT) as master:
            await put(master, "t", b"d")
            await in_step(master, longer, shorter)
            for node in (master, longer, shorter):
                await until(lambda node=node: node.store.queues.bounds("t", 0) == (0, 4), "shown")
                assert await bodies(node) == [b"a", b"b", b"c", b"d"]
    assert diverged(tmp_path) == []


# --- a master that was replaced, and whose name server has forgotten --------------------------------------------------


async def a_pair_whose_slave_was_promoted(folder: Path, **keys: Any) -> str:
    """Both brokers are down, the old master after a crash.  Returns the address of the promoted broker."""
    async with (
        running(folder / "m", **keys) as master,
        running(folder / "s", **(keys | SLAVE | {"ha_master_address": master.address})) as slave,
    ):
        await put(master, "t", b"x")
        await in_step(master, slave)
        promoted = slave.address
    async with running(folder / "s", **SLAVE) as slave:
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
    (folder / "m" / "abort").touch()
    return promoted


def held(address: str) -> socket.socket:
    """Returns a socket that reserves the slave's port, so that no other program on this machine answers there."""
    host, _, port = address.rpartition(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, int(port)))
    return made


async def test_an_old_master_whose_name_server_has_forgotten_hears_it_from_its_slave(tmp_path: Path) -> None:
    promoted = await a_pair_whose_slave_was_promoted(tmp_path)
    with held(promoted) as port:
        async with name_server() as forgetful:
            keys = {"namesrv_addr": forgetful.address} | LONG_WAIT
            async with running(tmp_path / "m", writable=False, **keys) as old:
                await until(
                    lambda: f"{promoted} has not answered" in str(old.broker.waits_for()), "the slave is waited for"
                )
                with pytest.raises(ServiceNotAvailable, match="takes no writes yet"):
                    await put(old, "t", b"from the past")
                port.close()
                async with running(tmp_path / "s", **SLAVE, listen_port=int(promoted.rpartition(":")[2])):
                    await until(lambda: old.mastership.standing is Standing.FENCED, "the promoted one has answered")


async def test_after_a_crash_one_name_server_that_has_forgotten_is_not_believed_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        await put(master, "t", b"x")
    (tmp_path / "m" / "abort").touch()
    async with name_server() as gone:
        port = int(gone.address.rpartition(":")[2])
    async with name_server() as forgetful:
        keys = {"namesrv_addr": f"{forgetful.address};127.0.0.1:{port}"} | LONG_WAIT
        async with running(tmp_path / "m", writable=False, **keys) as old:
            await until(lambda: f":{port} has not answered" in str(old.broker.waits_for()), "the other is waited for")
            async with name_server(port) as remembers:
                newer = Registered(
                    cluster_name="c", broker_name="broker-a", broker_id=0, address="127.0.0.1:1", epoch=7 * PROMOTION
                )
                remembers.table.register(newer, object(), 0)
                await until(lambda: old.mastership.standing is Standing.FENCED, "the other one knows")


async def test_a_known_slave_outlives_restarts_until_an_operator_removes_it(tmp_path: Path) -> None:
    promoted = await a_pair_whose_slave_was_promoted(tmp_path)
    async with running(tmp_path / "m", writable=False, **LONG_WAIT) as master:
        await until(lambda: promoted in str(master.broker.waits_for()), "the slave is waited for")
        async with stub_of(master, AdminStub) as admin:
            with pytest.raises(grpc.aio.AioRpcError, match=f"known are: 1 at {promoted}"):
                await admin.RemoveSlave(RemoveSlaveRequest(broker_id=7))
            assert not (await admin.RemoveSlave(RemoveSlaveRequest(broker_id=1))).known_slaves
        await until(lambda: master.mastership.standing is Standing.WRITABLE, "nobody is waited for")
    (tmp_path / "m" / "abort").touch()
    async with running(tmp_path / "m", **LONG_WAIT) as master:
        assert str(master.known_slaves) == "none"


async def test_a_slave_that_follows_is_not_removed_and_every_slave_knows_the_others(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        address = {"ha_master_address": master.address}
        async with (
            running(tmp_path / "s1", **SLAVE, **address) as one,
            running(tmp_path / "s2", **(SLAVE | {"broker_id": 2}), **address) as two,
        ):
            await until(lambda: one.known_slaves.addresses == {2: two.address}, "one knows two")
            await until(lambda: two.known_slaves.addresses == {1: one.address}, "two knows one")
            async with stub_of(master, AdminStub) as admin:
                with pytest.raises(grpc.aio.AioRpcError, match="slave 2 follows this master now"):
                    await admin.RemoveSlave(RemoveSlaveRequest(broker_id=2))
        async with running(tmp_path / "s1", **SLAVE, **address) as one:
            assert list(one.known_slaves.addresses) == [2]
            await until(lambda: 2 not in master.acknowledgements.tracker.slaves, "two has left")
            async with stub_of(master, AdminStub) as admin:
                await admin.RemoveSlave(RemoveSlaveRequest(broker_id=2))
            await until(lambda: not one.known_slaves.addresses, "one has heard of it")
