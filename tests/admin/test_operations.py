"""Admin operations of a broker over real gRPC."""

import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.broker_pb2 import (
    CommitOffsetsRequest,
    PullRangeRequest,
    PullRequest,
    QueryOffsetsRequest,
    QueueBoundsRequest,
    SearchOffsetsRequest,
)
from rocketsim_proto.message_pb2 import QueueId
from rocketsim_proto.metadata_pb2 import SubscriptionGroupConfig, TopicConfig
from rocketsim_proto.records import kernels
from rocketsim_proto.records.record import offset_message_id

from broker_service.admin import messages
from broker_service.admin.operations import Operations
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig as TableTopic
from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.errors import (
    InvalidParameter,
    NotFound,
    QueueNotExist,
    ServiceNotAvailable,
    SubscriptionGroupNotExist,
    TopicNotExist,
)
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.replication.epochs import PROMOTION
from broker_service.store import key_search
from broker_service.store.commit_log import file_name
from broker_service.store.cuts import diverged_directory
from broker_service.store.key_search import KeySearch, KeySearchResult
from testbed.polling import until
from tests.support.access import allowed
from tests.support.brokers import bodies_in, goes_by, message, put, put_send, running, send_of, stub_of, while_reading

SLAVE = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


@asynccontextmanager
async def admin_of(folder: Path, **keys: Any) -> AsyncIterator[tuple[BrokerNode, Any]]:
    async with running(folder, **keys) as node, stub_of(node, AdminStub) as stub:
        yield node, stub


async def refused(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code().name, error.value.details() or ""


# --- topics and groups ------------------------------------------------------------------------------------------------


async def test_a_topic_is_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        made = await admin.UpdateTopic(pb.UpdateTopicRequest(topic=TopicConfig(topic_name="t")))
        assert (made.topic.read_queue_nums, made.topic.write_queue_nums, made.topic.perm) == (8, 8, 6)
        assert made.topic.topic_filter_type == "SINGLE_TAG"
        changed = TopicConfig(topic_name="t", read_queue_nums=2, write_queue_nums=1, perm=4)
        await admin.UpdateTopic(pb.UpdateTopicRequest(topic=changed))
        listed = (await admin.ListTopics(pb.ListTopicsRequest())).topics
        assert [topic.topic_name for topic in listed] == ["SCHEDULE_TOPIC_XXXX", "TBW102", "t"]
        assert listed[-1].perm == 4
        await admin.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
        assert "t" not in node.topics.entries
        assert await refused(admin.DeleteTopic(pb.DeleteTopicRequest(topic="t"))) == (
            "NOT_FOUND",
            "topic 't' does not exist here",
        )


async def test_zero_queues_and_permissions_are_not_taken_for_settings_that_are_left_out(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"kept")
        drained = TopicConfig(topic_name="t", write_queue_nums=0)
        made = (await admin.UpdateTopic(pb.UpdateTopicRequest(topic=drained))).topic
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (8, 0, 6)
        with pytest.raises(QueueNotExist):
            await put(node, "t", b"refused")
        none = TopicConfig(topic_name="t", perm=0)
        assert (await refused(admin.UpdateTopic(pb.UpdateTopicRequest(topic=none))))[0] == "INVALID_ARGUMENT"
    async with admin_of(tmp_path) as (node, admin), stub_of(node) as stub:
        bounds = await stub.QueueBounds(QueueBoundsRequest(topic="t", queue_ids=[0]))
        assert bounds.HasField("write_queue_nums") and not bounds.write_queue_nums
        pulled = await stub.Pull(PullRequest(consumer_group="g", topic="t", queue_id=0, queue_offset=0))
        assert bodies_in(pulled.records) == [b"kept"]
        for wrong in ({"max_msg_nums": -1}, {"max_msg_bytes": -1}):
            pull = PullRequest(consumer_group="g", topic="t", queue_id=0, **wrong)
            assert (await refused(stub.Pull(pull)))[0] == "INVALID_ARGUMENT"
        by_key = pb.QueryMsgByKeyRequest(topic="t", key="k", max_num=-1)
        assert (await refused(admin.QueryMsgByKey(by_key)))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(("read", "write", "queue_id"), [(4, 2, 1), (4, 0, 3), (0, 0, 0)])
def test_a_message_that_was_taken_before_goes_to_a_queue_that_is_read(read: int, write: int, queue_id: int) -> None:
    assert TableTopic("t", read, write).queue_of(7) == queue_id


async def test_a_deleted_topic_that_is_made_again_goes_on_with_its_offsets_and_without_its_messages(
    tmp_path: Path,
) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"a", b"b")
        Commits(node.broker).commit("g", [CommitEntry("t", 0, 2)])
        await admin.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
        assert list(node.offsets.of_group("g")) == []
        await put(node, "t", b"c")
        assert node.store.queues.bounds("t", 0) == (2, 3)
    async with running(tmp_path) as node:
        assert node.store.queues.bounds("t", 0) == (2, 3)


async def answers_of_an_empty_queue(node: BrokerNode) -> dict[str, Any]:
    """Returns what each call says of queue 0 of topic t, which has no message."""
    async with stub_of(node) as stub, stub_of(node, AdminStub) as admin:
        group = SubscriptionGroupConfig(group_name="g")
        if not node.broker.is_slave:
            await admin.UpdateSubGroup(pb.UpdateSubGroupRequest(group=group))
        asked = QueryOffsetsRequest(
            consumer_group="new", queues=[QueueId(topic="t", queue_id=0)], zero_for_new_group=True
        )
        (bounds,) = (await stub.QueueBounds(QueueBoundsRequest(topic="t", queue_ids=[0]))).entries
        status = (await admin.TopicStatus(pb.TopicStatusRequest(topic="t"))).entries[0]
        times = [SearchOffsetsRequest.Entry(queue_id=0, timestamp=at) for at in (0, 1 << 50)]
        pulled = await stub.Pull(PullRequest(consumer_group="g", topic="t", queue_offset=bounds.max_offset))
        return {
            "bounds": (bounds.min_offset, bounds.max_offset),
            "status": (status.min_offset, status.max_offset),
            "search": list((await stub.SearchOffsets(SearchOffsetsRequest(topic="t", entries=times))).offsets),
            "new group": (await stub.QueryOffsets(asked)).entries[0].offset,
            "pull": (pulled.min_offset, pulled.max_offset, pulled.next_begin_offset),
        }


@pytest.mark.parametrize("restart", ["none", "clean", "killed"])
async def test_a_topic_made_again_says_in_every_answer_where_it_goes_on(tmp_path: Path, restart: str) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"a", b"b")
        await admin.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
        await admin.UpdateTopic(pb.UpdateTopicRequest(topic=TopicConfig(topic_name="t")))
        if restart == "killed":
            shutil.copytree(tmp_path, tmp_path.with_suffix(".killed"))
    folder = tmp_path.with_suffix(".killed") if restart == "killed" else tmp_path
    goes_on = {"bounds": (2, 2), "status": (2, 2), "search": [2, 2], "new group": 2, "pull": (2, 2, 2)}
    async with admin_of(folder) as (node, admin), stub_of(node) as stub:
        assert await answers_of_an_empty_queue(node) == goes_on
        for timestamp in (-1, 0):
            reset = pb.ResetOffsetByTimeRequest(group="g", topic="t", timestamp=timestamp, queue_ids=[0], force=True)
            assert (await admin.ResetOffsetByTime(reset)).entries[0].offset == 2
        commit = CommitOffsetsRequest(
            consumer_group="g", entries=[CommitOffsetsRequest.Entry(topic="t", queue_id=0, offset=2)]
        )
        assert list((await stub.CommitOffsets(commit)).offsets) == [2]
        commit.entries[0].offset = 3
        assert (await refused(stub.CommitOffsets(commit)))[0] == "INVALID_ARGUMENT"
        await put(node, "t", b"new")
        ranges = [PullRangeRequest.Range(topic="t", queue_id=0, from_offset=2, until_offset=3)]
        frames = [frame async for frame in stub.PullRange(PullRangeRequest(consumer_group="g", ranges=ranges))]
        assert bodies_in(b"".join(frame.records for frame in frames)) == [b"new"]
        found = await node.commits.query("other", [("t", 0)], zero_for_new_group=True)
        assert [one.offset for one in found] == [2], "a new group reads the new topic from its first message"


async def test_a_pull_held_on_a_topic_that_is_deleted_ends_with_the_reason(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin), stub_of(node) as stub:
        await put(node, "t", b"a")
        held = stub.Pull(PullRequest(consumer_group="g", topic="t", queue_offset=1, suspend_timeout_ms=60_000))
        await until(lambda: node.broker.long_polling.held, "held")
        await admin.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
        assert await refused(held) == (
            "NOT_FOUND",
            "topic 't' does not exist here; create it with `rocketsim admin updateTopic`",
        )


async def test_a_group_is_made_with_rocketmqs_defaults_and_only_what_is_given_differs(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (_, admin):
        given = SubscriptionGroupConfig(group_name="g", broker_id=1, consume_enable=False)
        made = (await admin.UpdateSubGroup(pb.UpdateSubGroupRequest(group=given))).group
        assert (made.broker_id, made.which_broker_when_consume_slowly, made.consume_enable) == (1, 1, False)
        assert (made.consume_from_min_enable, made.retry_queue_nums, made.retry_max_times) == (True, 1, 16)
        listed = (await admin.ListSubGroups(pb.ListSubGroupsRequest())).groups
        assert [group.group_name for group in listed] == ["g"]


async def test_a_groups_retry_policy_is_checked_kept_and_shown(tmp_path: Path) -> None:
    policy = '{"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [700, 900]}}'
    async with admin_of(tmp_path) as (node, admin):
        for bad, says in (('{"type": "X"}', "CUSTOMIZED or"), ("[1]", "not a JSON object"), ("{", "Expecting")):
            given = SubscriptionGroupConfig(group_name="g", group_retry_policy=bad)
            status, text = await refused(admin.UpdateSubGroup(pb.UpdateSubGroupRequest(group=given)))
            assert status == "INVALID_ARGUMENT" and says in text
        assert node.groups.entries == {}
        given = SubscriptionGroupConfig(group_name="g", group_retry_policy=policy)
        made = (await admin.UpdateSubGroup(pb.UpdateSubGroupRequest(group=given))).group
        assert json.loads(made.group_retry_policy) == json.loads(policy)
    async with admin_of(tmp_path) as (node, admin):
        assert [node.groups.entries["g"].backoff_ms(attempt) for attempt in (1, 2, 3)] == [700, 900, 900]
        (listed,) = (await admin.ListSubGroups(pb.ListSubGroupsRequest())).groups
        assert json.loads(listed.group_retry_policy) == json.loads(policy)


@pytest.mark.parametrize("remove_offset", [True, False])
async def test_a_deleted_group_takes_its_offsets_with_it_if_asked_to(tmp_path: Path, remove_offset: bool) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"a")
        node.groups.put(SubscriptionGroup("g"), 0)
        Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)])
        await admin.DeleteSubGroup(pb.DeleteSubGroupRequest(group="g", remove_offset=remove_offset))
        assert node.groups.get("g") is None
        assert len(list(node.offsets.of_group("g"))) == (0 if remove_offset else 1)


# --- offsets ----------------------------------------------------------------------------------------------------------


async def test_progress_has_every_queue_of_what_the_group_reads(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put_send(node, send_of("t", message("t", b"a"), message("t", b"b"), default_queue_nums=2))
        await put(node, "u", b"x")
        Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)])
        Commits(node.broker).commit("h", [CommitEntry("u", 0, 1)])
        stored = node.store.queues.store_timestamp_of("t", 0, 0)
        found = (await admin.ConsumerProgress(pb.ConsumerProgressRequest(group="g"))).entries
        assert [
            (item.topic, item.queue_id, item.broker_offset, item.consumer_offset, item.last_timestamp) for item in found
        ] == [
            ("t", 0, 2, 1, stored),
            ("t", 1, 0, 0, 0),
        ]
        everybody = (await admin.ConsumerProgress(pb.ConsumerProgressRequest())).entries
        assert {item.group for item in everybody} == {"g", "h"}
        assert (await refused(admin.ConsumerProgress(pb.ConsumerProgressRequest(group="nobody"))))[0] == "NOT_FOUND"


async def test_offsets_go_back_by_time_and_forward_only_by_force(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        now = [1_000]
        goes_by(node.broker, lambda: now[0])
        for body in (b"a", b"b", b"c"):
            await put(node, "t", body)
            now[0] += 1_000
        Commits(node.broker).commit("g", [CommitEntry("t", 0, 2)])

        async def reset(timestamp: int, **fields: Any) -> tuple[int, int]:
            asked = pb.ResetOffsetByTimeRequest(group="g", topic="t", timestamp=timestamp, queue_ids=[0], **fields)
            (entry,) = (await admin.ResetOffsetByTime(asked)).entries
            return entry.previous, entry.offset

        assert await reset(1_500) == (2, 1)
        assert node.offsets.get("g", "t", 0) == (1, 1)
        assert await reset(-1) == (1, 1)
        assert node.offsets.get("g", "t", 0) == (1, 1)
        assert await reset(-1, force=True) == (1, 3)
        assert await reset(0) == (3, 0)
        assert Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)]) == [1]


async def test_a_reset_of_a_whole_topic_covers_all_its_queues(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"a")
        Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)])
        asked = pb.ResetOffsetByTimeRequest(group="g", topic="t", timestamp=-1, force=True)
        assert [(entry.queue_id, entry.offset) for entry in (await admin.ResetOffsetByTime(asked)).entries] == [
            (0, 1),
            *[(queue_id, 0) for queue_id in range(1, 8)],
        ]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (pb.ResetOffsetByTimeRequest(group="nobody", topic="t"), "NOT_FOUND"),
        (pb.ResetOffsetByTimeRequest(group="g", topic="absent"), "NOT_FOUND"),
        (pb.ResetOffsetByTimeRequest(group="g", topic="t", timestamp=-2), "INVALID_ARGUMENT"),
        (pb.ResetOffsetByTimeRequest(group="g", topic="t", queue_ids=[99]), "INVALID_ARGUMENT"),
    ],
    ids=str,
)
async def test_a_wrong_reset_changes_nothing(tmp_path: Path, asked: pb.ResetOffsetByTimeRequest, status: str) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"a")
        Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)])
        assert (await refused(admin.ResetOffsetByTime(asked)))[0] == status
        assert node.offsets.get("g", "t", 0) == (0, 1)


async def _delete(operations: Operations) -> None:
    await operations.delete_topic("t")


async def _delete_and_make_again(operations: Operations) -> None:
    await operations.delete_topic("t")
    await operations.update_topic(TableTopic("t"))


async def _take_queues(operations: Operations) -> None:
    await operations.update_topic(TableTopic("t", read_queue_nums=1, write_queue_nums=1))


async def _delete_group(operations: Operations) -> None:
    await operations.delete_group("g", remove_offset=True)


async def _delete_both(operations: Operations) -> None:
    await _delete(operations)
    await _delete_group(operations)


@pytest.mark.parametrize(
    ("meanwhile", "error", "says", "stands"),
    [
        pytest.param(_delete, TopicNotExist, "topic 't' does not exist", -1, id="topic deleted"),
        pytest.param(_delete_both, TopicNotExist, "topic 't' does not exist", -1, id="topic and group deleted"),
        pytest.param(
            _delete_and_make_again, ServiceNotAvailable, "created again", -1, id="topic deleted and made again"
        ),
        pytest.param(_take_queues, InvalidParameter, "queue 1 does not exist: topic t has 1", 3, id="fewer queues"),
        pytest.param(_delete_group, SubscriptionGroupNotExist, "'g' is not known", -1, id="group deleted"),
    ],
)
async def test_a_reset_of_what_is_deleted_while_the_disk_is_read_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Operations], Awaitable[None]],
    error: type[Exception],
    says: str,
    stands: int,
) -> None:
    async with running(tmp_path) as node:
        operations = Operations(node.broker, node.leadership)
        await put(node, "t", b"a", b"b", b"c", queue_id=1)
        node.groups.put(SubscriptionGroup("g"), 0)
        Commits(node.broker).commit("g", [CommitEntry("t", 1, 3)])
        while_reading(monkeypatch, lambda: meanwhile(operations))
        with pytest.raises(error, match=says):
            await operations.reset_offset_by_time("g", "t", 1, [1], force=True)
        assert node.offsets.get("g", "t", 1).offset == stands


# --- the broker -------------------------------------------------------------------------------------------------------


async def test_ha_status_tells_of_each_slave(tmp_path: Path) -> None:
    async with admin_of(tmp_path, broker_role=BrokerRole.SYNC_MASTER) as (node, admin):
        await put(node, "t", b"a")
        slave = node.acknowledgements.on_join(1, "10.0.0.2:10911", 0)
        node.acknowledgements.on_ack(slave, 10)
        status = await admin.HaStatus(pb.HaStatusRequest())
        assert (status.is_master, status.epoch, status.master_address) == (True, 1, node.address)
        assert status.commit_log_max_offset == node.store.end_offset
        (entry,) = status.slaves
        assert (entry.broker_id, entry.address, entry.ack_offset, entry.in_sync) == (1, "10.0.0.2:10911", 10, True)
        assert entry.diff_bytes == node.store.end_offset - 10
        assert "SYNC_MASTER writable" in status.state
        assert [(one.epoch, one.start_offset) for one in status.epochs] == [(1, 0)]


async def test_ha_status_lists_what_was_cut_off_the_log_the_oldest_first(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        kept = diverged_directory(node.broker.config.store_path_root_dir)
        assert not (await admin.HaStatus(pb.HaStatusRequest())).cuts
        kept.mkdir()
        for offset, size, at_s in ((400, 3, 1_700_000_002), (900, 5, 1_700_000_001)):
            (kept / file_name(offset)).write_bytes(bytes(size))
            os.utime(kept / file_name(offset), (at_s, at_s))
        (kept / "notes of an operator").write_text("not a cut")
        cuts = (await admin.HaStatus(pb.HaStatusRequest())).cuts
        assert [(cut.offset, cut.size, cut.timestamp) for cut in cuts] == [
            (900, 5, 1_700_000_001_000),
            (400, 3, 1_700_000_002_000),
        ]


async def test_a_slaves_ha_status_names_the_master_it_looks_for(tmp_path: Path) -> None:
    async with admin_of(tmp_path, **SLAVE, ha_master_address="127.0.0.1:1") as (_, admin):
        status = await admin.HaStatus(pb.HaStatusRequest())
        assert (status.is_master, status.master_address) == (False, "127.0.0.1:1")


async def test_broker_status_has_rocketmqs_names(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"a")
        node.status.sample()
        values = (await admin.BrokerStatus(pb.BrokerStatusRequest())).values
        assert values["commitLogMaxOffset"] == str(node.store.end_offset)
        assert values["commitLogMinOffset"] == "0"
        assert values["putMessageTimesTotal"] == "1"
        assert values["recordKernels"] == kernels.in_use()
        assert {"putTps", "getTransferedTps", "commitLogDiskRatio", "dispatchBehindBytes", "runtime"} <= set(values)


async def test_configuration_is_read_and_changed_by_rocketmqs_keys(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        before = (await admin.GetBrokerConfig(pb.GetBrokerConfigRequest())).values
        assert (before["brokerName"], before["slaveReadEnable"]) == ("broker-a", "false")
        changed = {"slaveReadEnable": "true", "fileReservedTime": "48"}
        answer = await admin.UpdateBrokerConfig(pb.UpdateBrokerConfigRequest(values=changed))
        assert dict(answer.values) == changed
        assert node.broker.config.slave_read_enable
        assert node.store.config.file_reserved_time_h == 48


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"storePathRootDir": "/"},
        {"listenPort": "1"},
        {"brokerRole": "SLAVE"},
        {"slaveReadEnable": "perhaps"},
        {"fileReservedTime": "-1"},
        {"slaveReadEnabled": "true"},
        {"fileReservedTime": "48", "bindAddress": "0.0.0.0"},
    ],
    ids=str,
)
async def test_other_keys_and_bad_values_are_refused_as_a_whole(tmp_path: Path, values: dict[str, str]) -> None:
    async with admin_of(tmp_path) as (node, admin):
        before = node.broker.config
        status, details = await refused(admin.UpdateBrokerConfig(pb.UpdateBrokerConfigRequest(values=values)))
        assert status == "INVALID_ARGUMENT"
        assert details
        assert node.broker.config is before


async def test_promotion_by_an_operator(tmp_path: Path) -> None:
    async with admin_of(tmp_path, **SLAVE) as (node, admin):
        assert (await refused(admin.PromoteSlave(pb.PromoteSlaveRequest(broker_name="x"))))[0] == "INVALID_ARGUMENT"
        wrong = pb.PromoteSlaveRequest(broker_name="broker-a", broker_role="KING")
        assert (await refused(admin.PromoteSlave(wrong)))[0] == "INVALID_ARGUMENT"
        answer = await admin.PromoteSlave(pb.PromoteSlaveRequest(broker_name="broker-a", broker_role="ASYNC_MASTER"))
        assert (answer.epoch, answer.start_offset) == (PROMOTION, 0)
        assert node.broker.config.broker_role is BrokerRole.ASYNC_MASTER


# --- messages ---------------------------------------------------------------------------------------------------------


async def test_a_message_is_found_by_either_id_by_key_and_by_offset(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        unique = "7F00000100002A9F0000000000000001"
        await put(node, "t", b"other")
        await put(node, "t", b"wanted", UNIQ_KEY=unique, KEYS="k1 k2")
        await until(lambda: node.store.index.behind == 0, "indexed")
        at = int.from_bytes(node.store.read_log(0, 4), "big")
        by_offset_id = pb.QueryMsgByIdRequest(message_id=offset_message_id(node.broker.store_host, at))
        by_unique_id = pb.QueryMsgByIdRequest(topic="t", message_id=unique)
        for answer in (
            await admin.QueryMsgById(by_offset_id),
            await admin.QueryMsgById(by_unique_id),
            await admin.QueryMsgByKey(pb.QueryMsgByKeyRequest(topic="t", key="k2")),
            await admin.QueryMsgByOffset(pb.QueryMsgByOffsetRequest(topic="t", queue_id=0, offset=1)),
        ):
            assert (answer.count, bodies_in(answer.records)) == (1, [b"wanted"])
        nothing = await admin.QueryMsgByKey(pb.QueryMsgByKeyRequest(topic="t", key="k3"))
        assert (nothing.count, nothing.records) == (0, b"")


async def test_what_many_messages_share_is_found_in_several_answers(tmp_path: Path, monkeypatch: Any) -> None:
    """An answer ends when it would take long or become large, and says where the next one continues."""
    monkeypatch.setattr(key_search, "BUDGET", 100)
    monkeypatch.setattr(messages, "MAX_QUERY_BYTES", 400)
    async with admin_of(tmp_path) as (node, admin):
        for number in range(50):
            await put(node, "t", b"%d" % number, KEYS="k", UNIQ_KEY=f"U{number}")
        await until(lambda: node.store.index.behind == 0, "indexed")
        found, asked = [], pb.QueryMsgByKeyRequest(topic="t", key="k", max_num=64)
        while True:
            answer = await admin.QueryMsgByKey(asked)
            found += bodies_in(answer.records)
            if not answer.HasField("more_before"):
                break
            assert 0 < answer.count < 10
            asked.before = answer.more_before
        assert found == [b"%d" % number for number in reversed(range(50))]
        oldest = await admin.QueryMsgById(pb.QueryMsgByIdRequest(topic="t", message_id="U0"))
        assert bodies_in(oldest.records) == [b"0"]


async def test_records_that_expire_between_search_and_read_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_four_days = datetime.now().replace(hour=4, minute=30) + timedelta(days=4)
    async with running(tmp_path) as node:
        for number in range(7):  # three messages fit into a file of the log
            await put(node, "t", b"%d" % number * 300_000, KEYS="k")
        await until(lambda: node.store.index.behind == 0, "indexed")
        asked = Operations(node.broker, node.leadership)
        offsets = node.store.key_search("t", "k", 7, 0, 2**62, None).run().offsets
        await until(lambda: node.store.flushed_offset == node.store.end_offset, "flushed")

        def expire() -> None:
            assert node.store.retention.delete_expired(int(in_four_days.timestamp() * 1000))
            assert node.store.min_offset == offsets[0]

        with monkeypatch.context() as patched:
            while_reading(patched, expire, call=3)  # after the search and after reading the newest record
            records, more_before = await asked.messages_by_key("t", "k", 7, 0, None, None)
        assert [body[:1] for record in records for body in bodies_in(record)] == [b"6"]
        assert more_before is None, "all others were looked at"


def reading_after_searches(monkeypatch: pytest.MonkeyPatch, node: BrokerNode, read: Callable[[int], bytes]) -> None:
    """Records are read by `read` once a search by key has found them."""
    run = KeySearch.run

    def searching(search: KeySearch) -> KeySearchResult:
        with monkeypatch.context() as patch:
            patch.setattr(node.store.log, "record_at", record_at)
            return run(search)

    record_at = node.store.log.record_at
    monkeypatch.setattr(KeySearch, "run", searching)
    monkeypatch.setattr(node.store.log, "record_at", read)


async def test_a_message_that_expires_between_search_and_read_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x", UNIQ_KEY="U")
        await until(lambda: node.store.index.behind == 0, "indexed")

        def gone(offset: int) -> bytes:
            raise NotFound(f"no record starts at log offset {offset}")

        reading_after_searches(monkeypatch, node, gone)
        with pytest.raises(NotFound, match="no message of topic t has the id 'U'"):
            await Operations(node.broker, node.leadership).message_by_id("t", "U", allowed)


async def test_what_an_answer_has_no_room_for_follows_where_others_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four messages, newest first, an answer has room for two; the third has expired, and the next answer begins
    with the fourth.
    """
    monkeypatch.setattr(messages, "MAX_QUERY_BYTES", 2500)
    async with running(tmp_path) as node:
        for number in range(4):
            await put(node, "t", b"%d" % number * 1000, KEYS="k")
        await until(lambda: node.store.index.behind == 0, "indexed")
        asked = Operations(node.broker, node.leadership)
        offsets = node.store.key_search("t", "k", 4, 0, 2**62, None).run().offsets
        read_record = node.store.log.record_at

        def read(offset: int) -> bytes:
            if offset == offsets[1]:
                raise NotFound(f"no record starts at log offset {offset}")
            return read_record(offset)

        reading_after_searches(monkeypatch, node, read)
        records, more_before = await asked.messages_by_key("t", "k", 4, 0, None, None)
        assert [bodies_in(record)[0][:1] for record in records] == [b"3", b"1"]
        assert more_before == offsets[2]
        records, more_before = await asked.messages_by_key("t", "k", 4, 0, None, more_before)
        assert ([bodies_in(record)[0][:1] for record in records], more_before) == ([b"0"], None)


@pytest.mark.parametrize(
    ("call", "asked", "status"),
    [
        ("QueryMsgById", pb.QueryMsgByIdRequest(message_id="FF" * 16), "NOT_FOUND"),
        ("QueryMsgById", pb.QueryMsgByIdRequest(message_id="no id", topic="t"), "NOT_FOUND"),
        ("QueryMsgByKey", pb.QueryMsgByKeyRequest(topic="t"), "INVALID_ARGUMENT"),
        ("QueryMsgByKey", pb.QueryMsgByKeyRequest(topic="absent", key="k"), "NOT_FOUND"),
        ("QueryMsgByOffset", pb.QueryMsgByOffsetRequest(topic="t", offset=9), "NOT_FOUND"),
        ("QueryMsgByOffset", pb.QueryMsgByOffsetRequest(topic="absent"), "NOT_FOUND"),
    ],
    ids=str,
)
async def test_what_is_not_there_is_said(tmp_path: Path, call: str, asked: Any, status: str) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put(node, "t", b"a")
        assert (await refused(getattr(admin, call)(asked)))[0] == status


async def test_topic_status_has_every_queue(tmp_path: Path) -> None:
    async with admin_of(tmp_path) as (node, admin):
        await put_send(node, send_of("t", message("t", b"a"), default_queue_nums=2))
        entries = (await admin.TopicStatus(pb.TopicStatusRequest(topic="t"))).entries
        assert [(entry.queue_id, entry.min_offset, entry.max_offset) for entry in entries] == [(0, 0, 1), (1, 0, 0)]
        assert entries[0].last_update_timestamp > 0
