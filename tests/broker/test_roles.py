"""An OK promises the same after a promotion, and an operator can change the promise while the master runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rocketsim_proto import namesrv_pb2
from rocketsim_proto.admin_pb2 import PromoteSlaveRequest, PromoteSlaveResponse, UpdateBrokerConfigRequest
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub
from rocketsim_proto.replication_pb2 import Ack, SlaveMessage

from broker_service.broker.core.mastership import Standing
from broker_service.broker.reads.pull import Pull
from broker_service.errors import InvalidParameter, ServiceNotAvailable, StaleEpoch, StoreCorrupt
from broker_service.leadership.master_file import MasterFile
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from broker_service.store.json_file import JsonFile
from testbed.polling import until
from tests.support.brokers import bodies_in, name_server, put, running, stub_of

SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
ASYNC, SYNC = BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER
NO_WAIT = {"slave_wait_time_ms": 0}


@asynccontextmanager
async def pair(folder: Path, **keys: Any) -> AsyncIterator[tuple[BrokerNode, BrokerNode]]:
    async with (
        running(folder / "m", **keys) as master,
        running(folder / "s", **SLAVE, ha_master_address=master.address) as slave,
    ):
        await put(master, "t", b"before")
        await in_step(master, slave)
        yield master, slave


async def in_step(master: BrokerNode, slave: BrokerNode) -> None:
    def is_in_step() -> bool:
        return master.acknowledgements.confirm_offset == slave.store.end_offset == master.store.end_offset

    await until(is_in_step, "the slave has acknowledged everything")


async def promoted(slave: BrokerNode, **request: Any) -> PromoteSlaveResponse:
    async with stub_of(slave, AdminStub) as stub:
        return await stub.PromoteSlave(PromoteSlaveRequest(broker_name="broker-a", **request))


def meaning(node: BrokerNode) -> tuple[BrokerRole, FlushDiskType]:
    levels, config = node.acknowledgements.levels, node.broker.config
    assert levels.sync_master == (config.broker_role is SYNC) and node.mastership.role is config.broker_role
    assert levels.sync_flush == (config.flush_disk_type is FlushDiskType.SYNC_FLUSH)
    return config.broker_role, config.flush_disk_type


# --- a promotion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [ASYNC, SYNC])
@pytest.mark.parametrize("flush", FlushDiskType)
async def test_a_promotion_keeps_what_an_ok_of_the_former_master_meant(
    tmp_path: Path, role: BrokerRole, flush: FlushDiskType
) -> None:
    """The promise also stays if the slave was restarted after its master's death, and after a restart of the promoted
    slave.
    """
    async with pair(tmp_path, broker_role=role, flush_disk_type=flush):
        pass
    async with running(tmp_path / "s", **SLAVE) as slave:
        answer = await promoted(slave)
        assert (answer.broker_role, answer.flush_disk_type, answer.former_role) == (role.name, flush.name, role.name)
        assert meaning(slave) == (role, flush)
        expected = PutStatus.SLAVE_NOT_AVAILABLE if role is SYNC else PutStatus.PUT_OK
        assert await put(slave, "t", b"after") is expected
    async with running(tmp_path / "s", **SLAVE, **NO_WAIT) as master:
        assert meaning(master) == (role, flush)


async def test_a_slave_that_is_to_flush_before_an_ok_does_so_whatever_the_former_master_did(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        keys = {"ha_master_address": master.address, "flush_disk_type": FlushDiskType.SYNC_FLUSH}
        async with running(tmp_path / "s", **SLAVE, **keys) as slave:
            await until(slave.replication.slave.is_following, "it follows")
            assert (await promoted(slave, force=True)).flush_disk_type == "SYNC_FLUSH"
            assert meaning(slave) == (ASYNC, FlushDiskType.SYNC_FLUSH)


async def test_a_promotion_to_less_is_asked_for_by_name_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path, broker_role=SYNC) as (_, slave):
        answer = await promoted(slave, broker_role="ASYNC_MASTER", force=True)
        assert (answer.broker_role, answer.former_role) == ("ASYNC_MASTER", "SYNC_MASTER")
        assert "an OK no longer says that a slave has the message" in caplog.text


async def test_a_slave_that_does_not_know_the_role_of_its_master_asks_for_it(tmp_path: Path) -> None:
    async with running(tmp_path, **SLAVE) as slave:
        with pytest.raises(InvalidParameter, match=r"name the role, SYNC_MASTER \(--sync\) if the master was one"):
            await slave.leadership.promote("broker-a", 0, None, force=True)
        assert slave.broker.is_slave
        await slave.leadership.promote("broker-a", 0, SYNC, force=True)
        assert meaning(slave)[0] is SYNC


def test_what_the_master_has_said_counts_although_the_disk_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: object, value: object) -> None:
        raise OSError(28, "No space left on device")

    file = MasterFile(JsonFile(tmp_path / "master.json"))
    with monkeypatch.context() as disk:
        disk.setattr(JsonFile, "save", full)
        file.followed(SYNC, FlushDiskType.SYNC_FLUSH)
        file.followed(SYNC, FlushDiskType.SYNC_FLUSH)
    assert (file.role, file.flush_disk_type) == (SYNC, FlushDiskType.SYNC_FLUSH)
    assert caplog.text.count("in memory only") == 1
    assert MasterFile(JsonFile(tmp_path / "master.json")).role is None
    file.followed(SYNC, FlushDiskType.SYNC_FLUSH)  # the next handshake saves the role again
    assert MasterFile(JsonFile(tmp_path / "master.json")).role is SYNC


@pytest.mark.parametrize("text", ['{"brokerRole": "SYNC_MASTER"}', '{"brokerRole": "X", "flushDiskType": "Y"}'])
def test_a_file_that_makes_no_sense_is_removed_and_written_again_when_the_master_is_followed(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "master.json"
    path.write_text(text)
    with pytest.raises(StoreCorrupt, match="remove it: it is written again when this broker follows its master"):
        MasterFile(JsonFile(path))
    path.unlink()
    MasterFile(JsonFile(path)).followed(ASYNC, FlushDiskType.ASYNC_FLUSH)
    assert MasterFile(JsonFile(path)).role is ASYNC


# --- a change at run time ---------------------------------------------------------------------------------------------


async def test_an_ok_of_a_master_that_becomes_synchronous_is_on_a_slave_that_knows_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        master.leadership.update_config({"brokerRole": "SYNC_MASTER"})
        assert meaning(master)[0] is SYNC
        statuses = [await put(master, "t", b"at once")]
        is_available = master.acknowledgements.tracker.is_slave_available
        while statuses[-1] is not PutStatus.PUT_OK:
            await until(lambda: is_available(master.store.end_offset), "the slave is there")
            statuses.append(await put(master, "t", b"again"))
        assert slave.store.end_offset == master.store.end_offset
        assert set(statuses[:-1]) <= {PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT}
        await promoted(slave, force=True)
        assert meaning(slave)[0] is SYNC


async def test_consumers_keep_what_they_have_seen_of_a_master_that_becomes_synchronous(tmp_path: Path) -> None:
    """The slave is in sync but has fewer messages than consumers have read."""

    async def seen() -> list[bytes]:
        found = await master.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=0))
        return bodies_in(found.records)

    async with pair(tmp_path) as (master, _):
        tracker = master.acknowledgements.tracker
        slave = tracker.slaves[1]
        master.acknowledgements.on_ack = lambda *_: None  # type: ignore[method-assign]
        await put(master, "t", b"not acknowledged")
        assert await seen() == [b"before", b"not acknowledged"]
        master.leadership.update_config({"brokerRole": "SYNC_MASTER"})
        assert tracker.is_in_sync(slave, master.store.end_offset)
        assert tracker.visible_offset(master.store.end_offset) == master.store.end_offset > tracker.confirm_offset
        assert await seen() == [b"before", b"not acknowledged"]


async def test_what_was_acknowledged_before_a_slave_heard_of_the_change_does_not_count(tmp_path: Path) -> None:
    """The bytes that were acknowledged before the change may not be on the slave's disk."""
    async with pair(tmp_path, broker_role=SYNC) as (master, _):
        (stream,) = master.replication_master.streams
        confirmed = master.acknowledgements.confirm_offset
        master.leadership.update_config({"flushDiskType": "SYNC_FLUSH"})
        end = master.store.end_offset + 100
        stream.transfer.sent_offset = end
        master.acknowledgements._log = SimpleNamespace(end_offset=end, flushed_offset=end)  # type: ignore[assignment]
        stream._apply(SlaveMessage(ack=Ack(ack_offset=end, epoch=master.broker.epoch)))
        assert master.acknowledgements.confirm_offset == confirmed


async def test_a_slave_flushes_what_it_acknowledges_once_its_master_does(tmp_path: Path) -> None:
    async with pair(tmp_path, broker_role=SYNC) as (master, slave):
        master.leadership.update_config({"flushDiskType": "SYNC_FLUSH"})
        await until(lambda: slave.storage.master_file.flush_disk_type is FlushDiskType.SYNC_FLUSH, "it has heard of it")
        await until(lambda: master.status.slaves(), "it follows")
        while await put(master, "t", b"x") is not PutStatus.PUT_OK:
            pass
        assert slave.store.flushed_offset == master.store.flushed_offset == master.store.end_offset


async def test_a_master_that_becomes_asynchronous_does_not_wait_for_its_slave(tmp_path: Path) -> None:
    async with running(tmp_path, broker_role=SYNC) as master:
        assert await put(master, "t", b"a") is PutStatus.SLAVE_NOT_AVAILABLE
        master.leadership.update_config({"brokerRole": "ASYNC_MASTER"})
        assert await put(master, "t", b"b") is PutStatus.PUT_OK
    assert not (tmp_path / "rocketsim/role.json").exists()
    async with running(tmp_path, broker_role=SYNC) as master:
        assert meaning(master)[0] is SYNC, "the configuration file says so"


async def test_a_change_of_a_promoted_master_outlives_a_restart_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's configuration file still says that it is a slave."""

    def full(self: object, value: object) -> None:
        raise OSError(28, "No space left on device")

    async with running(tmp_path, **SLAVE) as node:
        await node.leadership.promote("broker-a", 0, ASYNC, force=True)
        with monkeypatch.context() as disk:
            disk.setattr(JsonFile, "save", full)
            with pytest.raises(ServiceNotAvailable, match=r"role\.json"):
                node.leadership.update_config({"brokerRole": "SYNC_MASTER"})
        assert meaning(node) == (ASYNC, FlushDiskType.ASYNC_FLUSH)
        node.leadership.update_config({"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH"})
        epoch = node.broker.epoch
    async with running(tmp_path, **SLAVE, **NO_WAIT) as node:
        assert meaning(node) == (SYNC, FlushDiskType.SYNC_FLUSH)
        assert (node.broker.broker_id, node.broker.epoch) == (0, epoch)


async def test_role_files_of_older_versions_leave_the_flush_to_the_configuration(tmp_path: Path) -> None:
    async with running(tmp_path, **SLAVE) as node:
        await node.leadership.promote("broker-a", 0, ASYNC, force=True)
    JsonFile(tmp_path / "rocketsim/role.json").save({"brokerRole": "SYNC_MASTER", "brokerId": 0})
    keys = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with running(tmp_path, **SLAVE, **keys, **NO_WAIT) as node:
        assert meaning(node) == (SYNC, FlushDiskType.SYNC_FLUSH)


async def test_only_a_master_that_was_not_replaced_changes_its_role_and_it_does_not_become_a_slave(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (master, slave):
        with pytest.raises(InvalidParameter, match="this broker is a slave; promoteSlave makes it a master"):
            slave.leadership.update_config({"brokerRole": "SYNC_MASTER"})
        with pytest.raises(InvalidParameter, match="promote another broker"):
            master.leadership.update_config({"brokerRole": "SLAVE"})
        assert meaning(master)[0] is ASYNC and slave.broker.is_slave
        await promoted(slave, force=True)
        await until(lambda: master.mastership.standing is Standing.FENCED, "it was replaced")
        with pytest.raises(StaleEpoch):
            master.leadership.update_config({"brokerRole": "SYNC_MASTER"})


async def test_name_servers_and_the_answer_name_the_role(tmp_path: Path) -> None:
    async with name_server() as names:
        keys = {"namesrv_addr": names.address, "register_name_server_period": 60_000}
        async with (
            running(tmp_path / "m", **keys) as master,
            running(tmp_path / "s", **SLAVE, **keys),
            stub_of(master, AdminStub) as admin,
            stub_of(names, NameServerStub) as stub,
        ):
            await until(lambda: len(names.table.members("broker-a")) == 2, "both are registered")
            (told,) = (await stub.ClusterList(namesrv_pb2.ClusterListRequest())).brokers
            assert dict(told.broker_roles) == {0: "ASYNC_MASTER", 1: "SLAVE"}
            request = UpdateBrokerConfigRequest(values={"brokerRole": "SYNC_MASTER"})
            assert dict((await admin.UpdateBrokerConfig(request)).values) == {"brokerRole": "SYNC_MASTER"}
            await until(lambda: names.table.members("broker-a")[0].broker_role == "SYNC_MASTER", "told at once")
