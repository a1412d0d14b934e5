"""Brokers with access control: which calls they refuse, which users and policies they keep, and what a slave gets of
them.
"""

import asyncio
import json
import logging
import socket
import stat
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto import (
    admin_pb2,
    broker_pb2,
    consumption_pb2,
    message_pb2,
    metadata_pb2,
    namesrv_pb2,
    namesrv_pb2_grpc,
    replication_pb2,
    transactions_pb2,
)
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.consumption_pb2_grpc import ConsumptionStub
from rocketsim_proto.metadata_pb2 import Metadata
from rocketsim_proto.replication_pb2_grpc import ReplicationStub
from rocketsim_proto.reserved import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rocketsim_proto.signature import Credentials, SigningChannel
from rocketsim_proto.transactions_pb2_grpc import TransactionsStub

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from broker_service.admin.operations import Operations
from broker_service.broker.metadata.messages import access_to_proto
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.errors import InvalidParameter, NotFound, StoreCorrupt
from broker_service.modes import BrokerRole
from broker_service.namesrv.server import run_namesrv
from broker_service.node.app import run_broker
from broker_service.node.node import BrokerNode
from broker_service.runtime.server import warn_of_open_access
from testbed.polling import until
from tests.support.access import ADMIN, INNER, KEYS, first_user, guarded_name_server, signed, v2_headers, v2_stub
from tests.support.brokers import (
    message as message_of,
)
from tests.support.brokers import (
    put,
    running,
    send_of,
    slave_link,
    small_config,
)
from tests.support.v2 import make_topics, message, receive, resource

NORMAL = Credentials("n", "n0rm4l-s3cr3t")
SECRETS = (ADMIN.secret_key, INNER.secret_key, NORMAL.secret_key)
NOT_SIGNED = "username cannot be null: the call is not signed; give this client an access key and its secret key."
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


def user(who: Credentials, **fields: str) -> metadata_pb2.User:
    return metadata_pb2.User(username=who.access_key, password=who.secret_key, **fields)


def acl(who: Credentials, *policies: str) -> metadata_pb2.Acl:
    """Makes the policies of a user from texts like `Topic:x Pub,Sub`."""
    return metadata_pb2.Acl(
        subject=f"User:{who.access_key}",
        policies=[
            metadata_pb2.Acl.Policy(resource=resource, actions=actions.split(","), decision="Allow")
            for resource, actions in map(str.split, policies)
        ],
    )


async def allow(node: BrokerNode, who: Credentials, *policies: str) -> None:
    """Puts a user and its policies directly into the node's tables."""
    await first_user(node)
    assert node.access is not None
    await node.access.users.settled()
    node.access.users.put(User(who.access_key, who.secret_key), 0)
    parsed = [Policy.parse(name, actions.split(",")) for name, actions in map(str.split, policies)]
    node.access.acls.put(Acl(f"User:{who.access_key}").with_policies(parsed), 0)


# --- users and policies -----------------------------------------------------------------------------------------------


async def test_users_and_policies_are_made_changed_listed_and_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "broker_service")
    async with running(tmp_path, **KEYS) as node, signed(node, ADMIN) as admin:
        await first_user(node)
        made = await admin.CreateUser(admin_pb2.CreateUserRequest(user=user(NORMAL)))
        assert (made.user.username, made.user.user_type, made.user.user_status, made.user.password) == (
            *("n", "Normal", "enable"),
            "",
        )
        again = await refused(admin.CreateUser(admin_pb2.CreateUserRequest(user=user(NORMAL))))
        assert "exists already; change it with updateUser" in str(again.details())
        changed = await admin.UpdateUser(
            admin_pb2.UpdateUserRequest(user=metadata_pb2.User(username="n", user_status="disable"))
        )
        assert (changed.user.user_type, changed.user.user_status) == ("Normal", "disable")
        listed = (await admin.ListUsers(admin_pb2.ListUsersRequest())).users
        assert [(one.username, one.user_type, one.password) for one in listed] == [
            ("admin", "Super", ""),
            ("n", "Normal", ""),
        ]
        one = await admin.CreateAcl(admin_pb2.CreateAclRequest(acl=acl(NORMAL, "Topic:x* Pub,Sub", "Group:y Sub")))
        assert [(p.resource, list(p.actions)) for p in one.acl.policies] == [
            ("Topic:x*", ["Pub", "Sub"]),
            ("Group:y", ["Sub"]),
        ]
        (found,) = (await admin.ListAcls(admin_pb2.ListAclsRequest(resource="Group:y"))).acls
        assert [p.resource for p in found.policies] == ["Group:y"]
        await admin.UpdateAcl(admin_pb2.UpdateAclRequest(acl=acl(NORMAL, "Topic:x* Pub")))
        await admin.DeleteAcl(admin_pb2.DeleteAclRequest(subject="User:n", resource="Group:y"))
        (found,) = (await admin.ListAcls(admin_pb2.ListAclsRequest(resource="Topic:x*"))).acls
        assert [(p.resource, list(p.actions), p.decision) for p in found.policies] == [("Topic:x*", ["Pub"], "Allow")]
        config = (await admin.GetBrokerConfig(admin_pb2.GetBrokerConfigRequest())).values
        assert config["innerClientAuthenticationCredentials"] == config["initAuthenticationUser"] == "******"
        status = str(await admin.BrokerStatus(admin_pb2.BrokerStatusRequest()))
        for name in ("users.json", "acls.json"):
            assert stat.S_IMODE((tmp_path / "rocketsim" / name).stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "rocketsim" / "users.json.bak").stat().st_mode) == 0o600
        assert NORMAL.secret_key in (tmp_path / "rocketsim" / "users.json").read_text()
        node.metrics.take_snapshot()
        said = caplog.text + str(listed) + str(config) + status + repr(node.config) + repr(node.access)
        assert not [secret for secret in SECRETS if secret in said]
        # Wrong users and policies are refused with their reason.
        for call, said in (
            (admin.CreateUser(admin_pb2.CreateUserRequest(user=user(INNER))), "User:broker is the brokers' own"),
            (admin.CreateUser(admin_pb2.CreateUserRequest(user=metadata_pb2.User(username="x"))), "password of user x"),
            (
                admin.CreateAcl(admin_pb2.CreateAclRequest(acl=acl(Credentials("no", ""), "Topic:x Pub"))),
                "User:no does",
            ),
            (admin.CreateAcl(admin_pb2.CreateAclRequest(acl=acl(NORMAL))), "a policy must name a resource"),
            (admin.CreateAcl(admin_pb2.CreateAclRequest(acl=acl(NORMAL, "Topic:%DLQ%g Sub"))), "name Group:g"),
            (admin.UpdateAcl(admin_pb2.UpdateAclRequest(acl=acl(NORMAL, "Topic:%RETRY%a* Sub"))), "name Group:a*"),
            (admin.CreateAcl(admin_pb2.CreateAclRequest(acl=acl(NORMAL, "Topic:%DLQ%* Sub"))), "name Group:*"),
            (admin.CreateAcl(admin_pb2.CreateAclRequest(acl=acl(NORMAL, "Topic:x Publish"))), "'Publish' is none of"),
            (admin.DeleteAcl(admin_pb2.DeleteAclRequest(subject="User:n", resource="Topic:z")), "has no policy for"),
            (admin.ListUsers(admin_pb2.ListUsersRequest(username="no")), "User:no does not exist"),
        ):
            assert said in str((await refused(call)).details())
        # A user's policies go with it.
        await admin.DeleteUser(admin_pb2.DeleteUserRequest(username="n"))
        assert not (await admin.ListAcls(admin_pb2.ListAclsRequest())).acls
        await admin.CreateUser(admin_pb2.CreateUserRequest(user=user(NORMAL)))
        assert node.access is not None and not node.access.acls.policies_of("n")
    # Users and policies outlive a restart, and the first user is not created again.
    async with running(
        tmp_path, **KEYS | {"init_authentication_user": '{"username":"admin","password":"other"}'}
    ) as node:
        assert node.access is not None
        assert node.access.users.existing("n").password == NORMAL.secret_key
        async with signed(node, ADMIN) as admin:
            assert len((await admin.ListUsers(admin_pb2.ListUsersRequest())).users) == 2


@pytest.mark.parametrize(
    "source", ["0.0.0.0", "::", "0.1.2.3", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:0.0.0.0"]
)
async def test_a_policy_for_an_address_that_nobody_has_is_refused(tmp_path: Path, source: str) -> None:
    """A policy for a whole network has to name 0.0.0.0/0, not 0.0.0.0; one that is already stored stays, and matches
    nobody.
    """
    async with running(tmp_path, **KEYS) as node:
        await first_user(node)
        await allow(node, NORMAL, "Topic:t Sub")
        users = Operations(node.broker, node.leadership)
        policies = (Policy.parse("Topic:u", ["Pub"], [source]),)
        for change in (users.create_acl, users.update_acl):
            with pytest.raises(InvalidParameter, match=r"no caller has such an address; 0[.]0[.]0[.]0/0 is"):
                await change("User:n", policies)
        assert node.access is not None and list(node.access.acls.existing("User:n").policies) == ["Topic:t"]


async def test_policies_that_are_made_while_their_user_is_deleted_go_with_it(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS) as node:
        await allow(node, NORMAL, "Topic:t Sub")
        users, policies = Operations(node.broker, node.leadership), (Policy.parse("Topic:u", ["Pub"]),)
        results = await asyncio.gather(
            users.delete_user("n"), users.create_acl("User:n", policies), return_exceptions=True
        )
        assert results[0] is None and isinstance(results[1], NotFound)
        assert node.access is not None and node.access.acls.get("User:n") is None


@pytest.mark.parametrize("damage", ["{", None])
async def test_damaged_users_are_not_replaced_by_those_before_the_last_change(
    tmp_path: Path, damage: str | None
) -> None:
    async with running(tmp_path, **KEYS) as node:
        await allow(node, NORMAL, "Topic:t Sub")
        assert node.access is not None
        node.access.users.delete(NORMAL.access_key, 0)
    path = tmp_path / "rocketsim" / "users.json"
    assert NORMAL.access_key in json.loads(path.with_name("users.json.bak").read_text())["users"]
    path.unlink()
    if damage:
        path.write_text(damage)
    with pytest.raises(StoreCorrupt, match=r"users[.]json.* is (missing|damaged).*lacks the last change"):
        async with running(tmp_path, **KEYS):
            pass
    path.with_name("users.json.bak").unlink()
    path.unlink(missing_ok=True)
    async with running(tmp_path, **KEYS) as node:
        assert node.access is not None and node.access.users.get(NORMAL.access_key) is None


async def test_files_that_were_copied_back_are_made_the_owners_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, **KEYS) as node:
        await allow(node, NORMAL, "Topic:t Sub")
    secrets = [tmp_path / "rocketsim" / name for name in ("users.json", "users.json.bak", "acls.json")]
    for path in secrets:
        path.chmod(0o644)
    async with running(tmp_path, **KEYS):
        assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600] * 3
    assert "others could use 3 of its files and directories" in caplog.text and str(tmp_path) in caplog.text


async def test_without_access_control_there_are_no_users(tmp_path: Path) -> None:
    async with running(tmp_path) as node, signed(node, None) as admin:
        error = await refused(admin.CreateUser(admin_pb2.CreateUserRequest(user=user(NORMAL))))
        assert "authenticationEnabled is false" in str(error.details())
        assert not (tmp_path / "rocketsim" / "users.json").exists()


@pytest.mark.parametrize("role", [BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER])
async def test_a_change_is_on_the_slave_when_it_is_answered(tmp_path: Path, role: BrokerRole) -> None:
    keys = KEYS | {"broker_role": role, "sync_metadata_interval": 1_000_000, "slave_timeout": 60_000}
    async with AsyncExitStack() as parts:
        master = await parts.enter_async_context(running(tmp_path / "m", **keys))
        slave = await parts.enter_async_context(
            running(
                tmp_path / "s",
                **keys | {"broker_role": BrokerRole.SLAVE, "broker_id": 1, "ha_master_address": master.address},
            )
        )
        await until(lambda: bool(master.status.slaves()) and master.status.slaves()[0].in_sync, "the slave is in sync")
        await until(lambda: master.acknowledgements.tracker.takes_metadata(), "the slave says what it has")
        await first_user(master)
        admin = await parts.enter_async_context(signed(master, ADMIN))
        assert slave.access is not None
        made = await admin.CreateUser(admin_pb2.CreateUserRequest(user=user(NORMAL)))
        assert made.status == message_pb2.COMMIT_OK
        assert slave.access.users.existing("n").password == NORMAL.secret_key
        assert slave.access.users.existing("admin").is_super
        await admin.CreateAcl(admin_pb2.CreateAclRequest(acl=acl(NORMAL, "Topic:t Sub", "Group:g Sub")))
        assert len(slave.access.acls.policies_of("n")) == 2
        # The slave recognizes the users, but refuses a change of them.
        await put(master, "t", b"x")
        async with signed(slave, NORMAL, BrokerStub) as reader, signed(slave, ADMIN) as its_admin:
            pulled = broker_pb2.PullRequest(consumer_group="g", topic="t", max_msg_nums=1)
            await until(lambda: slave.store.queues.end("t", 0) == 1, "the message")
            assert (await reader.Pull(pulled)).count == 1
            error = await refused(its_admin.DeleteUser(admin_pb2.DeleteUserRequest(username="n")))
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        await admin.DeleteUser(admin_pb2.DeleteUserRequest(username="n"))
        assert slave.access.users.get("n") is None and not slave.access.acls.policies_of("n")
        secrets = (tmp_path / "s" / "rocketsim" / "users.json").stat()
        assert stat.S_IMODE(secrets.st_mode) == 0o600
        # A master without access control says nothing of users, and the slave keeps its own.
        slave_link(slave).apply_metadata(Metadata(complete=True))
        assert slave.access.users.existing("admin")


async def test_a_slave_that_dies_while_a_user_is_deleted_keeps_no_policies_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave can be promoted then, and an operator can create another user with that name."""
    async with running(tmp_path, **KEYS) as node:
        await allow(node, NORMAL, "Topic:t Sub")
        assert node.access is not None
        deletion = access_to_proto(node.access, [], ["n"], [], ["User:n"])

        def dies(*_: object, **__: object) -> None:
            raise OSError("no disk any more")

        monkeypatch.setattr(node.access.users, "adopt", dies)
        with pytest.raises(OSError, match="no disk"):
            slave_link(node).apply_metadata(deletion)
        assert node.access.users.get("n") and node.access.acls.get("User:n") is None


async def test_the_status_of_a_change_says_that_no_slave_has_it_if_there_ever_was_a_slave(tmp_path: Path) -> None:
    async with running(tmp_path / "m", **KEYS) as master:
        await first_user(master)
        async with signed(master, ADMIN) as admin:
            made = await admin.CreateUser(admin_pb2.CreateUserRequest(user=user(NORMAL)))
            assert made.status == message_pb2.COMMIT_OK
            keys = KEYS | {"broker_role": BrokerRole.SLAVE, "broker_id": 1, "ha_master_address": master.address}
            async with running(tmp_path / "s", **keys):
                await until(lambda: bool(master.status.slaves()), "the slave is there")
            await until(lambda: not master.status.slaves(), "the slave is gone")
            gone = await admin.DeleteUser(admin_pb2.DeleteUserRequest(username="n"))
            assert gone.status == message_pb2.COMMIT_SLAVE_NOT_AVAILABLE


# --- who may call -----------------------------------------------------------------------------------------------------


async def test_calls_of_our_own_clients_and_operators(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS) as node:
        await first_user(node)
        await put(node, "t", b"x")
        await put(node, "u", b"x")
        await allow(node, NORMAL, "Topic:t Sub", "Group:g Sub")
        pull = broker_pb2.PullRequest(consumer_group="g", topic="t", max_msg_nums=1)
        for who, said in (
            (None, NOT_SIGNED),
            (Credentials("nobody", "x"), "User:nobody is not found."),
            (Credentials("n", "wrong"), "check signature failed."),
        ):
            async with signed(node, who, BrokerStub) as reader, signed(node, who) as admin:
                for call in (reader.Pull(pull), admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"))):
                    error = await refused(call)
                    assert (error.code(), error.details()) == (UNAUTHENTICATED, said)
                    assert ("rocketsim-code", "16") in list(error.trailing_metadata())
        async with signed(node, NORMAL, BrokerStub) as reader, signed(node, NORMAL) as admin:
            assert (await reader.Pull(pull)).count == 1
            other = broker_pb2.PullRequest(consumer_group="g", topic="u", max_msg_nums=1)
            assert (await refused(reader.Pull(other))).details() == (
                "User:n has no permission to access Topic:u from 127.0.0.1, no matched policies. Action: Sub."
            )
            frames = broker_pb2.PullRangeRequest(
                consumer_group="g", ranges=[broker_pb2.PullRangeRequest.Range(topic="t", until_offset=1)]
            )
            frames.accepts_stream = True
            answers = [frame async for frame in reader.PullRange(frames)]
            assert answers and not any(frame.HasField("stream") for frame in answers)
            frames.ranges[0].topic = "u"
            assert (await refused(anext(aiter(reader.PullRange(frames))))).code() is UNAUTHENTICATED
            for call in (
                admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t")),
                admin.UpdateBrokerConfig(admin_pb2.UpdateBrokerConfigRequest(values={"brokerPermission": "6"})),
                admin.ListUsers(admin_pb2.ListUsersRequest()),
            ):
                assert (await refused(call)).code() is UNAUTHENTICATED
        # Nobody is offered a stream beside gRPC, because such a stream does not check who calls.
        assert node.range_streams.offer() is None
        # The health check needs no signature.
        async with grpc.aio.insecure_channel(node.address) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_replication_is_for_brokers(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS) as node:
        await allow(node, NORMAL, "Topic:* All", "Group:* All", "Cluster:* All")
        request = replication_pb2.GetMetadataRequest(broker_name="broker-a", broker_id=1)
        for who in (None, NORMAL, ADMIN):
            async with signed(node, who, ReplicationStub) as peer:
                assert (await refused(peer.GetMetadata(request))).code() is UNAUTHENTICATED
                assert (await refused(anext(aiter(peer.Replicate())))).code() is UNAUTHENTICATED
        async with signed(node, INNER, ReplicationStub) as peer:
            assert NORMAL.access_key in {one.username for one in (await peer.GetMetadata(request)).users}


async def test_a_snapshot_without_access_control_has_no_secrets(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS) as node:
        await first_user(node)
        assert node.replication.metadata.snapshot().users
    async with running(tmp_path) as node:
        snapshot = node.replication.metadata.snapshot()
        assert not snapshot.users and not snapshot.HasField("users_version")


async def test_ranges_travel_over_grpc_alone(tmp_path: Path) -> None:
    """With access control a broker opens no plain sockets, because these do not check who calls."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with (
            # port is taken: a broker that opened it would not start
            running(tmp_path, pull_range_stream_port=port, **KEYS) as node,
            signed(node, NORMAL, BrokerStub) as broker,
            signed(node, None, BrokerStub) as nobody,
        ):
            await allow(node, NORMAL, "Topic:T Pub,Sub", "Group:g Sub")
            make_topics(node)
            await put(node, "T", b"secret")
            assert node.range_streams.offer() is None
            with socket.socket(socket.AF_UNIX) as caller, pytest.raises(ConnectionRefusedError):
                caller.connect(f"\0{node.range_streams.unix_name}")
            ranges = [broker_pb2.PullRangeRequest.Range(topic="T", until_offset=1)]
            asked = broker_pb2.PullRangeRequest(consumer_group="g", ranges=ranges, accepts_stream=True)
            frames = [frame async for frame in broker.PullRange(asked)]
            assert frames and not any(frame.HasField("stream") for frame in frames)
            assert any(b"secret" in frame.records for frame in frames)
            assert (await refused(nobody.PullRange(asked).read())).code() is UNAUTHENTICATED
            bounds = await broker.QueueBounds(broker_pb2.QueueBoundsRequest(topic="T", queue_ids=[0]))
            assert not bounds.offers_streams


async def test_waiting_messages_are_not_read_by_a_user_who_may_not_read_their_topic(tmp_path: Path) -> None:
    """Delayed and timed messages and half messages wait in topics of the broker."""
    async with running(tmp_path, **KEYS) as node:
        await allow(node, NORMAL, "Topic:* Pub,Sub,Get", "Group:* Sub,Get")
        assert node.access is not None
        denied = Policy.parse("Topic:secret", ["All"], [], "Deny")
        node.access.acls.put(node.access.acls.existing("User:n").with_policies([denied]), 0)
        await put(node, "secret", b"later", DELAY="1")
        await put(node, "secret", b"at a time", TIMER_DELIVER_MS=str(node.broker.now_ms() + 3_600_000))
        begins = send_of("secret", message_of("secret", b"perhaps", UNIQ_KEY="k"))
        await node.consumption.transactions.begin(node.puts, begins, client_id="c")
        waiting = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
        assert all(node.store.queues.end(name, 0) == 1 for name in waiting)

        async def calls(who: Credentials, name: str) -> Sequence[Any]:
            """Returns the answer or the error of each call that can read a message of the topic."""
            ranges = [broker_pb2.PullRangeRequest.Range(topic=name, until_offset=1)]
            asked = broker_pb2.PullRequest(consumer_group="g", topic=name, max_msg_nums=1)
            async with signed(node, who, BrokerStub) as reader, signed(node, who) as admin:
                return await asyncio.gather(
                    reader.Pull(asked),
                    reader.PullRange(broker_pb2.PullRangeRequest(consumer_group="g", ranges=ranges)).read(),
                    admin.QueryMsgByOffset(admin_pb2.QueryMsgByOffsetRequest(topic=name)),
                    admin.QueryMsgByKey(admin_pb2.QueryMsgByKeyRequest(topic=name, key="k")),
                    admin.QueryMsgById(admin_pb2.QueryMsgByIdRequest(topic=name, message_id="k")),
                    return_exceptions=True,
                )

        for name in waiting:
            for found in await calls(NORMAL, name):
                assert isinstance(found, grpc.aio.AioRpcError) and found.code() is UNAUTHENTICATED
        # An administrator can read the waiting messages.  The schedule topic has no entry in the table of topics, and
        # so no queue to pull.
        for name, readable in ((SCHEDULE_TOPIC, 3), (HALF_TOPIC, 5)):
            found = [one for one in await calls(ADMIN, name) if not isinstance(one, grpc.aio.AioRpcError)]
            assert sum(b"secret" in one.records for one in found) == readable
        allowed = Policy.parse(f"Topic:{SCHEDULE_TOPIC}", ["Sub"])
        node.access.acls.put(node.access.acls.existing("User:n").with_policies([allowed]), 0)
        assert (await calls(NORMAL, SCHEDULE_TOPIC))[0].count == 1


async def test_a_group_that_a_user_may_not_read_is_not_counted_for_him(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS) as node, signed(node, NORMAL, BrokerStub) as reader:
        await put(node, "t", b"x")
        await allow(node, NORMAL, "Topic:t Pub")
        node.wire.ranges.calls.note("g", ["t"], is_stream=False)
        request = broker_pb2.QueueBoundsRequest(topic="t")
        assert not (await reader.QueueBounds(request)).ranges_over_grpc
        request.consumer_group = "g"
        assert (await refused(reader.QueueBounds(request))).code() is UNAUTHENTICATED
        await allow(node, NORMAL, "Topic:t Pub", "Group:g Get")
        assert (await reader.QueueBounds(request)).ranges_over_grpc == 1


async def test_calls_of_rocketmq_5s_clients(tmp_path: Path) -> None:
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        make_topics(node)
        await allow(node, NORMAL, "Topic:T Pub,Sub", "Group:g Sub")

        async def send(topic: str, headers: Any) -> tuple[int, str]:
            answer = await v2.SendMessage(s.SendMessageRequest(messages=[message(topic)]), metadata=headers)
            return answer.status.code, answer.status.message

        own = v2_headers(NORMAL)
        assert await send("T", own) == (d.OK, "OK")
        assert await send("M", own) == (
            d.UNAUTHORIZED,
            "UNAUTHORIZED: User:n has no permission to access Topic:M from 127.0.0.1, no matched policies. "
            "Action: Pub.",
        )
        assert await send("T", [("x-mq-client-id", "c")]) == (d.UNAUTHORIZED, "UNAUTHORIZED: username cannot be null.")
        wrong = v2_headers(Credentials("n", "wrong"))
        assert await send("T", wrong) == (d.UNAUTHORIZED, "UNAUTHORIZED: check signature failed.")
        await first_user(node)
        assert await send("M", v2_headers(ADMIN)) == (d.OK, "OK")  # a super user

        answers = [answer async for answer in v2.ReceiveMessage(receive("M", size=1), metadata=own)]
        assert [answer.status.code for answer in answers] == [d.UNAUTHORIZED]
        answers = [answer async for answer in v2.ReceiveMessage(receive(size=1), metadata=own, timeout=30)]
        assert answers[0].status.code == d.OK
        change = s.ChangeInvisibleDurationRequest(group=resource("g"), topic=resource("M"), receipt_handle="h")
        answer = await v2.ChangeInvisibleDuration(change, metadata=own)
        assert (answer.status.code, answer.receipt_handle) == (d.UNAUTHORIZED, "h")
        pulled = [answer async for answer in v2.PullMessage(s.PullMessageRequest(group=resource("g")), metadata=wrong)]
        assert [answer.status.code for answer in pulled] == [d.UNAUTHORIZED]
        # Go's heartbeat has no headers; any other needs a signature.
        assert (await v2.Heartbeat(s.HeartbeatRequest())).status.code == d.OK
        named = await v2.Heartbeat(s.HeartbeatRequest(), metadata=[("x-mq-client-id", "c")])
        assert named.status.code == d.UNAUTHORIZED
        # A stream of settings is answered with a status and ends without an error.
        for headers, topic in ((own, "M"), (wrong, "")):
            stream = v2.Telemetry(metadata=headers)
            if topic:  # without a topic the headers are wrong: the call is refused for them, maybe before a write
                publishing = d.Publishing(topics=[resource(topic)])
                await stream.write(s.TelemetryCommand(settings=d.Settings(publishing=publishing)))
            assert [command.status.code async for command in stream] == [d.UNAUTHORIZED]
            assert await stream.code() is grpc.StatusCode.OK
        stream = v2.Telemetry(metadata=own)
        await stream.write(s.TelemetryCommand(settings=d.Settings(publishing=d.Publishing(topics=[resource("T")]))))
        assert (await stream.read()).status.code == d.OK
        stream.cancel()


async def test_a_client_of_one_user_is_not_that_of_another(tmp_path: Path) -> None:
    other = Credentials("other", "0th3r")
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        make_topics(node)
        await allow(node, NORMAL, "Topic:T Pub,Sub", "Group:g Sub")
        await allow(node, other)
        clients = node.clients.is_connected
        stream, intruder = v2.Telemetry(metadata=v2_headers(NORMAL)), v2.Telemetry(metadata=v2_headers(other))
        settings = d.Settings(publishing=d.Publishing(topics=[resource("T")]))
        await stream.write(s.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == d.OK
        # A stream of another user with the same client id, which has no rights and sends no settings, does not replace
        # the first user's stream, and its termination does not end the first user's client.
        await intruder.write(s.TelemetryCommand())
        await until(lambda: clients("other/client-1"), "the other stream is there")
        ended = await v2.NotifyClientTermination(s.NotifyClientTerminationRequest(), metadata=v2_headers(other))
        assert ended.status.code == d.OK
        assert clients("n/client-1") and not clients("other/client-1")
        # A client id that names another user, given to the port for our own clients, does not take over that user's
        # client either.
        await allow(node, other, "Topic:M Pub")
        async with signed(node, other, TransactionsStub) as transactions:
            asked = transactions_pb2.CheckRequest(client_id="n/client-1", topics=["M"])
            call = transactions.Check(asked, timeout=60)
            await until(lambda: clients("other/n/client-1"), "its stream is there")
            call.cancel()
        stream.cancel()
        intruder.cancel()


async def test_polls_of_one_user_are_not_those_of_another_ones_client(tmp_path: Path) -> None:
    """A client may hold a share of all polls.  Another user can neither use up that share nor end the polls, whatever
    client id that user sends.
    """
    other = Credentials("other", "0th3r")
    async with (
        running(tmp_path, grpc_server_port=0, max_long_polls=4, **KEYS) as node,
        v2_stub(node) as v2,
        signed(node, other, ConsumptionStub) as intruder,
    ):
        make_topics(node)
        await allow(node, NORMAL, "Topic:T Sub", "Group:g Sub")
        await allow(node, other, "Topic:T Sub", "Group:h Sub", "Group:g Sub")
        fields = {"topic": "T", "max_messages": 1, "invisible_ms": 60_000, "poll_ms": 50_000}
        polls: list[Any] = []
        for client_id in ("client-1", "n/client-1"):
            held = node.consumption.polls_held
            asked = consumption_pb2.PopRequest(consumer_group="h", client_id=client_id, **fields)
            polls.append(intruder.Pop(asked, timeout=55))
            await until(lambda held=held: node.consumption.polls_held > held, "it waits")
        mine = v2.ReceiveMessage(receive(size=1), metadata=v2_headers(NORMAL), timeout=55)
        await until(lambda: node.consumption.polls_held == 3 or mine.done(), "it waits beside them")
        # meant to end polls of the intruder's own clients only
        ends = consumption_pb2.PopRequest(topic="T", ends_polls=True)
        for client_id, group, held in (("n/client-1", "g", 3), ("client-1", "g", 3), ("client-1", "h", 2)):
            ends.client_id, ends.consumer_group = client_id, group
            await intruder.Pop(ends, timeout=55)
            await until(lambda held=held: node.consumption.polls_held <= held, "they are answered")
        assert not (await polls[0]).deliveries and not polls[1].done() and node.consumption.polls_held == 2
        await put(node, "T", b"for n")
        answers = [answer async for answer in mine]
        assert answers[0].status.code == d.OK
        assert [answer.message.body for answer in answers if answer.HasField("message")] == [b"for n"]


async def test_a_user_that_is_disabled_or_deleted_is_refused_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS) as node:
        assert node.access is not None
        await allow(node, NORMAL, "Topic:* All")
        request = admin_pb2.ListTopicsRequest()
        async with signed(node, NORMAL) as admin:
            await admin.ListTopics(request)
            node.access.users.put(User(NORMAL.access_key, NORMAL.secret_key, user_status="disable"), 0)
            assert (await refused(admin.ListTopics(request))).details() == "User:n is disabled."
            node.access.users.delete("n", 0)
            assert (await refused(admin.ListTopics(request))).details() == "User:n is not found."


# --- the address ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "enabled", "warns"),
    [("127.0.0.2", False, False), ("::1", False, False), ("0.0.0.0", False, True), ("10.0.0.1", True, False)],
)
def test_an_address_that_others_reach_is_warned_of(
    address: str, enabled: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_open_access(address, has_access_control=enabled)
    assert ("NO ACCESS CONTROL" in caplog.text) == warns
    assert len(caplog.records) == warns


async def test_a_broker_and_a_name_server_warn_once_when_they_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutdown = asyncio.Event()
    shutdown.set()
    broker = small_config(tmp_path, bind_address="0.0.0.0", broker_ip1="127.0.0.1", grpc_server_port=0)
    for run in (
        lambda: run_broker(broker, shutdown),
        lambda: run_namesrv(NamesrvConfig(listen_port=0, bind_address="0.0.0.0"), shutdown),
    ):
        caplog.clear()
        await run()
        assert [r.levelname for r in caplog.records if "NO ACCESS CONTROL" in r.getMessage()] == ["WARNING"]


# --- brokers and name servers -----------------------------------------------------------------------------------------


async def test_a_name_server_takes_registrations_of_brokers_and_changes_of_operators(tmp_path: Path) -> None:
    keys = {
        "authentication_enabled": True,
        "init_authentication_user": KEYS["init_authentication_user"],
        "inner_client_authentication_credentials": KEYS["inner_client_authentication_credentials"],
    }
    async with (
        guarded_name_server(**keys) as names,
        running(tmp_path / "a", namesrv_addr=names.address, **KEYS) as node,
        running(tmp_path / "b", writable=False, namesrv_addr=names.address, broker_name="stranger") as stranger,
        grpc.aio.insecure_channel(names.address) as channel,
    ):
        anybody = namesrv_pb2_grpc.NameServerStub(channel)
        listed = await anybody.ClusterList(namesrv_pb2.ClusterListRequest())
        assert [broker.broker_name for broker in listed.brokers] == ["broker-a"]
        assert not stranger.broker.takes_clients_writes  # no name server has answered the stranger
        await put(node, "t", b"x")
        await until(lambda: bool(names.table.route("t")), "the topic is told")
        assert (await anybody.TopicRoute(namesrv_pb2.TopicRouteRequest(topic="t"))).queue_datas
        wipe = namesrv_pb2.WritePermRequest(broker_name="broker-a")
        for who, said in (
            (None, NOT_SIGNED),
            (Credentials("n", "x"), "User:n is not found: a name server knows only initAuthenticationUser and"),
            (Credentials("admin", "wrong"), "check signature failed."),
        ):
            stub = anybody if who is None else namesrv_pb2_grpc.NameServerStub(SigningChannel(channel, who))
            error = await refused(stub.WipeWritePerm(wipe))
            assert error.code() is UNAUTHENTICATED and str(error.details()).startswith(said)
        for who in (ADMIN, INNER):
            stub = namesrv_pb2_grpc.NameServerStub(SigningChannel(channel, who))
            await stub.WipeWritePerm(wipe)


async def test_without_authorization_users_may_make_every_call_that_shows_no_secrets(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS | {"authorization_enabled": False}) as node:
        await allow(node, NORMAL)
        async with signed(node, NORMAL) as admin:
            await admin.ListTopics(admin_pb2.ListTopicsRequest())
            assert (await refused(admin.ListUsers(admin_pb2.ListUsersRequest()))).code() is UNAUTHENTICATED
        async with signed(node, None) as admin:
            assert (await refused(admin.ListTopics(admin_pb2.ListTopicsRequest()))).code() is UNAUTHENTICATED


async def test_the_first_user_is_made_once(tmp_path: Path) -> None:
    keys = KEYS | {"init_authentication_user": '{"username":"first","password":"one"}'}
    async with running(tmp_path, **keys) as node:
        assert node.access is not None
        users = node.access.users
        await until(lambda: users.get("first") is not None, "the first user")
        assert users.existing("first").is_super
        await users.settled()
        users.put(User("first", "another"), 0)
    async with running(tmp_path, **keys) as node:
        assert node.access is not None
        assert node.access.users.existing("first") == User("first", "another")
