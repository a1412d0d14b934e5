"""The start of a master: a new epoch first, then offsets that fit the log; failures are tried again."""

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker_service.broker.core.mastership import Standing
from broker_service.errors import ServiceNotAvailable, StoreCorrupt
from broker_service.leadership.membership import Membership
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.replication.epochs import PROMOTION
from broker_service.replication.slave import SlaveSettings
from testbed.polling import until
from tests.support.brokers import name_server, put, registers_rarely, running, small_config

SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


def crash(root: Path) -> None:
    """Makes the last stop an unclean one."""
    (root / "abort").touch()


async def run_pair_without_name_server(folder: Path) -> None:
    """Runs a pair until the slave has a message of its master."""
    async with (
        running(folder / "m") as master,
        running(folder / "s", **SLAVE, ha_master_address=master.address) as slave,
    ):
        await put(master, "t", b"x")
        await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")


async def test_a_clean_restart_goes_on_in_its_epoch_and_an_unclean_one_begins_another(tmp_path: Path) -> None:
    epochs = []
    for _ in range(2):
        async with running(tmp_path) as node:
            epochs.append(node.broker.epoch)
            await put(node, "t", b"x")
    crash(tmp_path)
    async with running(tmp_path) as node:
        epochs.append(node.broker.epoch)
        assert node.epochs.epochs.epochs[-1].start_offset == node.store.end_offset
    assert epochs == [1, 1, 2]


async def test_a_clean_stop_before_the_new_epoch_does_not_hide_an_unclean_one(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x")
    crash(tmp_path)
    async with running(tmp_path, writable=False, namesrv_addr="127.0.0.1:1") as node:
        assert node.mastership.standing is Standing.WAITING
    async with running(tmp_path) as node:
        assert node.broker.epoch == 2


async def test_a_start_that_is_refused_does_not_hide_an_unclean_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x")
    crash(tmp_path)
    epochs = tmp_path / "rocketsim" / "epochs.json"
    content = epochs.read_bytes()
    epochs.write_bytes(b"damaged")
    with pytest.raises(StoreCorrupt, match=r"epochs\.json"):
        BrokerNode.open(small_config(tmp_path))
    epochs.write_bytes(content)
    async with running(tmp_path) as node:
        assert node.broker.epoch == 2


async def test_a_slave_that_its_configuration_makes_a_master_begins_an_epoch_of_its_own(tmp_path: Path) -> None:
    await run_pair_without_name_server(tmp_path)
    async with running(tmp_path / "s") as node:
        # a normal next epoch could also be begun by the old master when it comes back
        assert node.broker.epoch == PROMOTION


async def test_a_stale_master_that_restarts_twice_without_name_servers_does_not_outrank_the_promoted_one(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "m") as master:
        port = int(master.address.rpartition(":")[2])
        async with running(tmp_path / "s", **SLAVE, ha_master_address=master.address) as slave:
            await put(master, "t", b"both")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
    async with running(tmp_path / "s", **SLAVE) as promoted:
        await promoted.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await put(promoted, "t", b"acknowledged")
        for _ in range(3):
            crash(tmp_path / "m")
            async with running(tmp_path / "m", slave_wait_time_ms=100) as stale:
                await put(stale, "t", b"from the past")
                assert stale.broker.epoch < promoted.broker.epoch
        keys = {"ha_slave_addresses": promoted.address, "listen_port": port}
        async with running(tmp_path / "m", writable=False, **keys) as stale:
            await until(lambda: stale.mastership.standing is Standing.FENCED, "the promoted one is the newer")
        async with running(
            tmp_path / "m", broker_role=BrokerRole.SLAVE, broker_id=2, ha_master_address=promoted.address
        ) as former:
            await until(lambda: former.store.end_offset == promoted.store.end_offset, "it follows")
            assert former.store.read_log(0, 1 << 20) == promoted.store.read_log(0, 1 << 20)
            (cut,) = former.status.cuts()
            (kept,) = (tmp_path / "m/rocketsim/diverged").iterdir()
            assert (cut.offset, cut.size) == (int(kept.name), kept.stat().st_size)
            assert cut.offset < former.store.end_offset and abs(cut.at_ms - time.time() * 1000) < 3_600_000


async def test_a_copied_store_goes_on_in_nobodys_epoch_once_it_was_a_slaves(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        await put(master, "t", b"x")
    shutil.copytree(tmp_path / "m", tmp_path / "s")
    async with (
        running(tmp_path / "m") as master,
        running(tmp_path / "s", **SLAVE, ha_master_address=master.address) as slave,
    ):
        await until(slave.replication.slave.is_following, "it follows")
        assert slave.epochs.epochs == master.epochs.epochs
        assert (slave.epochs.may_resume, slave.epochs.begun_here) == (False, False)
    async with running(tmp_path / "s") as copy, running(tmp_path / "m", slave_wait_time_ms=0) as master:
        assert master.broker.epoch == 1
        assert copy.broker.epoch == PROMOTION


async def test_two_slaves_that_are_promoted_at_once_begin_epochs_that_are_told_apart(tmp_path: Path) -> None:
    begun = []
    for name in ("a", "b"):
        async with running(tmp_path / name, **SLAVE) as node:
            promoted = await node.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            assert promoted.epoch == PROMOTION
            begun.append(node.epochs.epochs)
    assert not begun[0].is_same_as(begun[1])


async def test_after_an_unclean_stop_no_offset_stands_beyond_its_queue(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0", b"1", b"2")
        node.offsets.commit("g", "t", {0: 99})  # offset of records that were only in the page cache
        node.offsets.commit("h", "t", {0: 2})
    async with running(tmp_path) as node:
        assert node.offsets.get("g", "t", 0) == (0, 99)
    crash(tmp_path)
    async with running(tmp_path) as node:
        assert node.offsets.get("g", "t", 0) == (1, 3)
        assert node.offsets.get("h", "t", 0) == (0, 2)


async def test_a_promoted_slaves_offsets_end_where_its_log_does(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0")
        node.offsets.commit("g", "t", {0: 5})
    async with running(tmp_path, **SLAVE) as slave:
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        assert slave.offsets.get("g", "t", 0) == (1, 1)


@pytest.mark.parametrize(
    "refuses",
    [
        "broker_service.replication.epoch_file.EpochFile.save",
        "broker_service.leadership.role_file.RoleFile.save",
        "broker_service.broker.metadata.consumer_offsets.ConsumerOffsetTable.clamp",
    ],
)
async def test_a_slave_whose_promotion_fails_follows_its_master_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    def full(*args: object, **keys: object) -> None:
        raise OSError(28, "No space left on device")

    async with (
        running(tmp_path / "m") as master,
        running(tmp_path / "s", **SLAVE, ha_master_address=master.address) as slave,
    ):
        await put(master, "t", b"x")
        await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
        with monkeypatch.context() as disk:
            disk.setattr(refuses, full)
            with pytest.raises(OSError, match="No space left"):
                await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await until(slave.replication.slave.is_following, "it follows again")
        await put(master, "t", b"y")
        await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
        assert slave.broker.is_slave and slave.broker.epoch == master.broker.epoch
    async with running(tmp_path / "s", **SLAVE) as slave:
        assert slave.broker.is_slave


async def test_an_epoch_that_cannot_be_written_is_tried_again_and_nothing_is_taken_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, epochs: object, **_: bool) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("broker_service.replication.epoch_file.EpochFile.save", full)
        async with running(tmp_path, writable=False) as node:
            with pytest.raises(ServiceNotAvailable, match="takes no writes yet"):
                await put(node, "t", b"x")
            disk.undo()
            await until(lambda: node.mastership.standing is Standing.WRITABLE, "the disk has room again")
            await put(node, "t", b"x")


async def test_a_slave_with_a_configured_master_follows_it_without_a_name_server(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        async with running(tmp_path / "s", **SLAVE, ha_master_address=master.address) as slave:
            await until(slave.replication.slave.is_following, "it follows")


async def test_a_slave_follows_as_soon_as_a_name_server_knows_its_master_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = partial(SlaveSettings, retry_first_s=3600.0, retry_last_s=3600.0)
    monkeypatch.setattr("broker_service.node.replication.SlaveSettings", slow)
    async with name_server() as names:
        keys = {"namesrv_addr": names.address}
        async with running(tmp_path / "s", **keys, **SLAVE) as slave:
            async with running(tmp_path / "m", **keys) as master:
                await until(slave.replication.slave.is_following, "it follows")
                port = int(master.address.rpartition(":")[2])
            await until(lambda: slave.broker.peers.master() is None, "the master is gone")
            async with running(tmp_path / "m", listen_port=port, **keys):
                await until(slave.replication.slave.is_following, "it follows again")


async def test_a_slave_finds_its_master_at_another_address(tmp_path: Path) -> None:
    async with name_server() as names:
        keys = {"namesrv_addr": names.address}
        async with running(tmp_path / "s", **keys, **SLAVE) as slave:
            for round_number in range(2):
                async with running(tmp_path / "m", **keys) as master:
                    await put(master, "t", b"%d" % round_number)
                    await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")


async def test_a_master_hears_at_once_from_a_name_server_that_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master hears that from the name server only, because it asks no slave here."""
    registers_rarely(monkeypatch)
    monkeypatch.setattr(Membership, "slaves", lambda _: set())
    async with name_server() as names:
        keys = {"namesrv_addr": names.address}
        async with running(tmp_path / "m", **keys) as old, running(tmp_path / "s", **SLAVE) as slave:
            await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            assert old.mastership.standing is Standing.WRITABLE  # nobody could tell it
            port = int(slave.address.rpartition(":")[2])
        async with (
            running(tmp_path / "m", **keys) as old,
            running(tmp_path / "s", **SLAVE, **keys, listen_port=port) as promoted,
        ):
            await until(lambda: old.mastership.standing is Standing.FENCED, "the name server tells it")
            await put(promoted, "t", b"x")
