"""Every change by an operator is answered when slaves have it, or the answer says that they lack it.  The answer
follows the rule for commits of offsets, in every mode.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.message_pb2 import CommitStatus
from rocketsim_proto.metadata_pb2 import Acl, SubscriptionGroupConfig, TopicConfig, User
from rocketsim_proto.reserved import CHANGES_TOPIC
from rocketsim_proto.signature import Credentials, SigningChannel

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.errors import DiskFull
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop
from broker_service.replication.flusher import Flusher
from rocketsim_client.admin_model import ChangedAt, SlavesLeft
from rocketsim_client.model import CommitStatus as Status
from rocketsim_client.transport.admin import command_name
from rocketsim_client.transport.own.admin import GrpcAdmin
from testbed.polling import until
from tests.broker.test_committed_offsets import acks_name_no_changes, pair_without_ticks
from tests.support.brokers import put, running, stub_of

READS = {
    *("ListTopics", "TopicStatus", "ListSubGroups", "ConsumerProgress", "HaStatus", "BrokerStatus", "GetBrokerConfig"),
    *("QueryMsgById", "QueryMsgByKey", "QueryMsgByOffset", "ListUsers", "ListAcls", "ConsumerConnection"),
}
OF_ONE_BROKER = {"UpdateBrokerConfig", "PromoteSlave"}  # no slave gets them
USERS = {"CreateUser", "UpdateUser", "DeleteUser", "CreateAcl", "UpdateAcl", "DeleteAcl"}
GONE = "g"


class Change(NamedTuple):
    method: str
    request: Any
    is_there: Callable[[BrokerNode], bool]


CHANGES = (
    Change(
        "ResetOffsetByTime",
        pb.ResetOffsetByTimeRequest(group=GONE, topic="t", queue_ids=[0]),
        lambda node: node.offsets.get(GONE, "t", 0) == (1, 0),
    ),
    Change(
        "UpdateTopic",
        pb.UpdateTopicRequest(topic=TopicConfig(topic_name="made")),
        lambda node: "made" in node.topics.entries,
    ),
    Change("DeleteTopic", pb.DeleteTopicRequest(topic="t"), lambda node: "t" not in node.topics.entries),
    Change(
        "UpdateSubGroup",
        pb.UpdateSubGroupRequest(group=SubscriptionGroupConfig(group_name="fifo", consume_message_orderly=True)),
        lambda node: "fifo" in node.groups.entries and node.groups.entries["fifo"].consume_message_orderly,
    ),
    Change(
        "DeleteSubGroup",
        pb.DeleteSubGroupRequest(group=GONE, remove_offset=True),
        lambda node: GONE in node.groups.tombstones and node.offsets.get(GONE, "t", 0).offset == -1,
    ),
    Change(
        "RemoveSlave",
        pb.RemoveSlaveRequest(broker_id=7),
        lambda node: 7 not in node.known_slaves.addresses,
    ),
)
by_method = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.method)


async def answered(node: BrokerNode, change: Change) -> str:
    """Prepares what the change is about, makes the change, and returns the name of the answer's status."""
    node.groups.put(SubscriptionGroup(GONE), 0)
    node.offsets.commit(GONE, "t", {0: 1})
    node.known_slaves.joined(7, "10.0.0.7:10911")
    await node.broker.shared_changes(60)
    async with stub_of(node, AdminStub) as admin:
        answer = await getattr(admin, change.method)(change.request, timeout=60)
    assert change.is_there(node)
    return CommitStatus.Name(answer.status)


def test_no_change_is_without_a_status() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Admin"].methods
    changes = {method.name: method for method in methods if method.name not in READS | OF_ONE_BROKER}
    assert changes.keys() == {change.method for change in CHANGES} | USERS
    for name, method in changes.items():
        status = method.output_type.fields_by_name.get("status")
        assert status is not None and status.enum_type.name == "CommitStatus", name


@by_method
async def test_a_change_answered_ok_by_a_synchronous_master_is_on_the_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch) as (master, slave):
        assert await answered(master, change) == "COMMIT_OK"
        assert change.is_there(slave)


@by_method
async def test_a_change_that_the_slave_does_not_acknowledge_says_so_and_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch, slave_timeout=200) as (master, _slave):
        acks_name_no_changes(monkeypatch)
        assert await answered(master, change) == "COMMIT_FLUSH_SLAVE_TIMEOUT"


@pytest.mark.parametrize(
    ("role", "status"),
    [(BrokerRole.SYNC_MASTER, "COMMIT_SLAVE_NOT_AVAILABLE"), (BrokerRole.ASYNC_MASTER, "COMMIT_OK")],
    ids=lambda value: str(value),
)
async def test_without_a_slave_the_answer_is_that_of_a_commit(tmp_path: Path, role: BrokerRole, status: str) -> None:
    async with running(tmp_path, broker_role=role) as node:
        for change in CHANGES:
            await put(node, "t", b"x")
            assert (change.method, await answered(node, change)) == (change.method, status)


async def test_with_several_slaves_the_log_has_a_record_behind_the_change_or_the_answer_is_no_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_without_ticks(tmp_path, monkeypatch) as (master, slave):
        assert await answered(master, CHANGES[1]) == "COMMIT_OK"
        assert master.store.queues.end(CHANGES_TOPIC, 0) == slave.store.queues.end(CHANGES_TOPIC, 0) == 1

        def full(*_: Any) -> None:
            raise DiskFull("no room")

        monkeypatch.setattr(master.store, "append_one", full)
        assert await answered(master, CHANGES[3]) == "COMMIT_FLUSH_SLAVE_TIMEOUT"
        master.known_slaves.remove(7)
        async with stub_of(master, AdminStub) as admin:
            answer = await admin.UpdateTopic(CHANGES[1].request, timeout=60)
        assert CommitStatus.Name(answer.status) == "COMMIT_OK", "of two slaves the other one has no more"


async def test_an_asynchronous_master_waits_for_its_slave_with_users_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = '{"accessKey": "brokers", "secretKey": "12345678"}'
    keys = {"authentication_enabled": True, "inner_client_authentication_credentials": key}
    keys |= {"broker_role": BrokerRole.ASYNC_MASTER, "slave_timeout": 60_000}
    async with pair_without_ticks(tmp_path, monkeypatch, **keys) as (master, slave):
        async with grpc.aio.insecure_channel(master.address) as channel:
            admin: Any = AdminStub(SigningChannel(channel, Credentials("brokers", "12345678"), now=time.time))
            asked = pb.CreateUserRequest(user=User(username="ann", password="12345678"))
            answer = await admin.CreateUser(asked, timeout=60)
            assert CommitStatus.Name(answer.status) == "COMMIT_OK"
            assert slave.access is not None and "ann" in slave.access.users.entries
            acks_name_no_changes(monkeypatch)
            master.broker.become(replace(master.broker.config, slave_timeout=200))
            policy = Acl.Policy(resource="Topic:t", actions=["Sub"], decision="Allow")
            asked_acl = pb.CreateAclRequest(acl=Acl(subject="User:ann", policies=[policy]))
            answer = await admin.CreateAcl(asked_acl, timeout=60)
            assert CommitStatus.Name(answer.status) == "COMMIT_FLUSH_SLAVE_TIMEOUT"
            answer = await admin.UpdateTopic(CHANGES[1].request, timeout=60)
            assert CommitStatus.Name(answer.status) == "COMMIT_OK"


class HeldFlusher:
    """Flushes nothing as long as it is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_held = False
        self.asked: list[int] = []
        request = Flusher.request

        def ask(flusher: Flusher, offset: int) -> None:
            if self.is_held:
                self.asked.append(offset)
            else:
                request(flusher, offset)

        monkeypatch.setattr(Flusher, "request", ask)

    def go_on(self, node: BrokerNode) -> None:
        self.is_held = False
        node.flusher.request(self.asked[-1])


SYNC_FLUSH = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "flush_interval_commit_log": 3_600_000}


async def popped(node: BrokerNode) -> None:
    """Lets a group have a message under way, so that a reset also writes a record to the log."""
    await put(node, "t", b"x")
    found = await node.consumption.pop(Pop(group=GONE, topic="t", invisible_ms=60_000))
    assert found.deliveries


async def test_a_reset_is_answered_when_its_record_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flusher = HeldFlusher(monkeypatch)
    async with running(tmp_path, **SYNC_FLUSH) as node, stub_of(node, AdminStub) as admin:
        await popped(node)
        await until(lambda: node.store.flushed_offset == node.store.end_offset, "what came before is on disk")
        flusher.is_held = True
        before = node.store.end_offset
        asked = pb.ResetOffsetByTimeRequest(group=GONE, topic="t", timestamp=-1, force=True)
        answer = asyncio.ensure_future(admin.ResetOffsetByTime(asked, timeout=60))
        while not flusher.asked:
            assert not answer.done()
            await asyncio.sleep(0)
        assert before < node.store.end_offset == flusher.asked[-1] and not answer.done()
        flusher.go_on(node)
        assert CommitStatus.Name((await answer).status) == "COMMIT_OK"
        assert node.store.flushed_offset >= flusher.asked[-1]


async def test_a_reset_whose_record_is_not_flushed_in_time_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = HeldFlusher(monkeypatch)
    async with running(tmp_path, **SYNC_FLUSH, sync_flush_timeout=100) as node, stub_of(node, AdminStub) as admin:
        await popped(node)
        await until(lambda: node.store.flushed_offset == node.store.end_offset, "what came before is on disk")
        flusher.is_held = True
        asked = pb.ResetOffsetByTimeRequest(group=GONE, topic="t", timestamp=-1, force=True)
        answer = await admin.ResetOffsetByTime(asked, timeout=60)
        assert CommitStatus.Name(answer.status) == "COMMIT_FLUSH_DISK_TIMEOUT"


@pytest.mark.parametrize("status", [Status.COMMIT_OK, Status.SLAVE_NOT_AVAILABLE, Status.FLUSH_DISK_TIMEOUT])
def test_the_python_api_has_the_status_of_every_change(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    from rocketsim_client import Admin
    from rocketsim_client.admin_model import SubscriptionGroupConfig as Group

    def answered(_: GrpcAdmin, __: str, request: Any, ___: float) -> Any:
        answer = getattr(pb, f"{command_name(request)}Response")(status=int(status))
        if command_name(request) == "UpdateTopic":
            answer.topic.CopyFrom(request.topic)
        return answer

    monkeypatch.setattr(GrpcAdmin, "command", answered)
    with Admin("h:1") as admin:
        assert admin.update_topic("t", broker_addr="a")["a"].commit_status is status
        assert admin.update_sub_group(Group(group_name="g"), broker_addr="a")["a"].commit_status is status
        assert admin.remove_slave("a", 1).commit_status is status
        deletions = (
            admin.delete_topic("t", broker_addr="a"),
            admin.delete_sub_group("g", broker_addr="a"),
            admin.delete_user("u", broker_addr="a"),
            admin.delete_acl("User:u", broker_addr="a"),
        )
    assert [deletion.statuses for deletion in deletions] == [{"a": status}] * 4
    assert ChangedAt({"a": status}) == ["a"] and ChangedAt({"a": status}).statuses == {"a": status}
    assert SlavesLeft({1: "a"}, status) == {1: "a"}
