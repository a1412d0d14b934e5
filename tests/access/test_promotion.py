"""Users and policies survive the loss of their master: a slave has them, including changes while the slave was away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import admin_pb2, broker_pb2, message_pb2, metadata_pb2
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.signature import Credentials

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from testbed.polling import until
from tests.support.access import ADMIN, KEYS, first_user, signed
from tests.support.brokers import put, running

STAYS, GOES = Credentials("n", "n0rm4l-s3cr3t"), Credentials("m", "0th3r-s3cr3t")
ROLES = [BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER]
FOLLOWS = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


@asynccontextmanager
async def following(root: Path, master: str, **keys: Any) -> AsyncIterator[BrokerNode]:
    async with running(root, **KEYS | FOLLOWS | {"ha_master_address": master} | keys) as slave:
        yield slave


async def allow(node: BrokerNode, who: Credentials, *policies: str) -> None:
    assert node.access is not None
    access = node.access
    await access.users.apply(lambda: access.users.putting(User(who.access_key, who.secret_key), 1))
    parsed = [Policy.parse(name, actions.split(",")) for name, actions in map(str.split, policies)]
    await access.acls.apply(lambda: access.acls.putting(Acl(f"User:{who.access_key}").with_policies(parsed), 1))
    node.broker.changes.publish()


def knows(node: BrokerNode, who: Credentials) -> bool:
    return node.access is not None and node.access.users.get(who.access_key) is not None


async def bounds(node: BrokerNode, who: Credentials, topic: str) -> str:
    """Returns "" if the user gets an answer, else the reason for the refusal."""
    async with signed(node, who, BrokerStub) as stub:
        try:
            await stub.QueueBounds(broker_pb2.QueueBoundsRequest(topic=topic), timeout=60)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            return str(error.details())
    return ""


@pytest.mark.parametrize("role", ROLES)
async def test_a_slave_that_was_away_hears_of_changes_and_is_promoted_with_them(
    tmp_path: Path, role: BrokerRole
) -> None:
    async with running(tmp_path / "m", **KEYS | {"broker_role": role}) as master, signed(master, ADMIN) as admin:
        await first_user(master)
        await put(master, "t", b"x")
        await put(master, "u", b"x")
        async with following(tmp_path / "s", master.address) as slave:
            for who in (STAYS, GOES):
                await allow(master, who, "Topic:t Get")
            await until(lambda: knows(slave, STAYS) and knows(slave, GOES), "it has the users")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "it has the messages")
            await until(lambda: not slave.access.acls.entries.keys() ^ {"User:n", "User:m"}, "it has the policies")
            assert await bounds(slave, GOES, "t") == ""
        await until(lambda: not master.status.slaves(), "the slave is gone")
        gone = await admin.DeleteUser(admin_pb2.DeleteUserRequest(username="m"), timeout=60)
        assert gone.status == message_pb2.COMMIT_SLAVE_NOT_AVAILABLE
        policies = [metadata_pb2.Acl.Policy(resource="Topic:u", actions=["Get"], decision="Allow")]
        await admin.UpdateAcl(admin_pb2.UpdateAclRequest(acl=metadata_pb2.Acl(subject="User:n", policies=policies)))
        await admin.DeleteAcl(admin_pb2.DeleteAclRequest(subject="User:n", resource="Topic:t"))
        async with following(tmp_path / "s", master.address) as slave:
            await until(lambda: not knows(slave, GOES), "it has heard of it")
            await until(lambda: slave.access.acls.version == master.access.acls.version, "and of the policies")
            await until(lambda: bool(master.status.slaves()) and master.status.slaves()[0].in_sync, "it is in sync")
            port = int(slave.address.rpartition(":")[2])
    async with following(tmp_path / "s", master.address, listen_port=port) as slave:
        await slave.leadership.promote("broker-a", 0, role, force=False)
        assert not slave.broker.is_slave
        assert await bounds(slave, GOES, "t") == "User:m is not found."
        assert await bounds(slave, STAYS, "u") == ""
        assert "has no permission to access Topic:t" in await bounds(slave, STAYS, "t")
        async with signed(slave, ADMIN) as admin:  # from now on the slave keeps users of its own
            made = metadata_pb2.User(username="m", password="another")
            await admin.CreateUser(admin_pb2.CreateUserRequest(user=made), timeout=60)
        assert "has no permission" in await bounds(slave, Credentials("m", "another"), "t")


async def test_what_only_a_former_master_had_is_gone_once_it_follows_the_new_one(tmp_path: Path) -> None:
    """The former master's users go although it has counted more changes than the new one: nobody has
    acknowledged them.
    """
    async with running(tmp_path / "m", **KEYS) as master:
        await first_user(master)
        await put(master, "t", b"x")
        async with following(tmp_path / "s", master.address) as slave:
            await allow(master, STAYS, "Topic:t Get")
            await until(lambda: knows(slave, STAYS) and "User:n" in slave.access.acls.entries, "it has the user")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "it has the messages")
        for _ in range(3):
            await allow(master, GOES, "Topic:t Get")
            master.access.acls.delete("User:n", 1)
            await allow(master, STAYS, "Topic:t All", "Topic:* All")
        assert await bounds(master, GOES, "t") == ""
    async with following(tmp_path / "s", master.address) as slave:
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        assert not knows(slave, GOES)
        async with following(tmp_path / "m", slave.address, broker_id=2) as former:
            await until(lambda: not knows(former, GOES), "it has the new master's users")
            await until(lambda: former.access.acls.entries == slave.access.acls.entries, "and policies")
            assert former.access.acls.entries.keys() == {"User:n"}
            assert await bounds(former, GOES, "t") == "User:m is not found."
            assert "has no permission" in await bounds(former, STAYS, "u")


async def test_a_long_poll_at_a_slave_ends_when_it_hears_that_its_user_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path / "m", **KEYS) as master, signed(master, ADMIN) as admin:
        await first_user(master)
        await put(master, "t", b"x")
        async with following(tmp_path / "s", master.address) as slave, signed(slave, GOES, BrokerStub) as reader:
            await allow(master, GOES, "Topic:t Sub", "Group:g Sub")
            await until(lambda: knows(slave, GOES) and "User:m" in slave.access.acls.entries, "it has the user")
            await until(lambda: slave.store.queues.end("t", 0) == 1, "it has the message")
            asked = broker_pb2.PullRequest(
                consumer_group="g", topic="t", queue_offset=1, max_msg_nums=1, suspend_timeout_ms=50_000
            )
            poll = reader.Pull(asked, timeout=55)
            await until(lambda: slave.broker.long_polling.held == 1, "it waits")
            await admin.DeleteUser(admin_pb2.DeleteUserRequest(username="m"), timeout=60)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await poll
            assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
            # the broker deletes the user's policies first, and then the user
            assert "User:m" in str(ended.value.details())


async def test_a_slave_with_other_credentials_gets_nothing_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"inner_client_authentication_credentials": '{"accessKey":"broker","secretKey":"an0ther-s3cr3t"}'}
    async with running(tmp_path / "m", **KEYS) as master:
        await first_user(master)
        await put(master, "t", b"x")
        async with following(tmp_path / "s", master.address, **wrong) as slave:
            why = f"master {master.address} lost: UNAUTHENTICATED check signature failed."
            await until(lambda: why in caplog.text, "it is refused")
            assert not slave.access.users.entries and slave.store.end_offset == 0
            assert not master.status.slaves()
    assert "s3cr3t" not in caplog.text
