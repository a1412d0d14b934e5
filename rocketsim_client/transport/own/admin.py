"""The Admin service's calls: generated messages on one side, `admin_model` on the other, nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto import metadata_pb2 as meta
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError

from rocketsim_client.admin_model import (
    AclInfo,
    AclPolicy,
    ConsumeProgress,
    Forfeit,
    HaSlave,
    HaStatus,
    Promotion,
    ResetOffset,
    SlavesLeft,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicStatus,
    UserInfo,
)
from rocketsim_client.errors import BadAnswer, InvalidParameter
from rocketsim_client.message_view import Messages
from rocketsim_client.model import CommitStatus, MessageQueue
from rocketsim_client.transport.own.answers import commit_status
from rocketsim_client.transport.own.channels import Channels

T = TypeVar("T")


class GrpcAdmin:
    """`AdminCalls` over gRPC."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def _call(self, address: str, method: str, request: Any, timeout_s: float) -> Any:
        return self._channels.call(address, AdminStub, method, request, timeout_s)

    # --- topics ---------------------------------------------------------------------------------------------------

    def update_topic(self, address: str, topic: TopicConfig, timeout_s: float) -> TopicConfig:
        request = pb.UpdateTopicRequest(topic=meta.TopicConfig(**_values(topic)))
        answer = self._call(address, "UpdateTopic", request, timeout_s)
        made = replace(_plain(TopicConfig, answer.topic), commit_status=commit_status(answer.status))
        for name in ("read_queue_nums", "write_queue_nums", "perm"):
            if getattr(made, name) != getattr(topic, name):
                raise InvalidParameter(
                    f"topic {topic.topic_name}: broker {address} has made {name}={getattr(made, name)} of "
                    f"{getattr(topic, name)}, which brokers of its version take for the default; upgrade it, or say 1",
                    address=address,
                )
        return made

    def delete_topic(self, address: str, topic: str, timeout_s: float) -> CommitStatus:
        request = pb.DeleteTopicRequest(topic=topic)
        return commit_status(self._call(address, "DeleteTopic", request, timeout_s).status)

    def list_topics(self, address: str, timeout_s: float) -> list[TopicConfig]:
        answer = self._call(address, "ListTopics", pb.ListTopicsRequest(), timeout_s)
        return [_plain(TopicConfig, topic) for topic in answer.topics]

    def topic_status(self, address: str, broker_name: str, topic: str, timeout_s: float) -> list[TopicStatus]:
        answer = self._call(address, "TopicStatus", pb.TopicStatusRequest(topic=topic), timeout_s)
        return [
            TopicStatus(
                MessageQueue(topic, broker_name, entry.queue_id),
                entry.min_offset,
                entry.max_offset,
                entry.last_update_timestamp,
            )
            for entry in answer.entries
        ]

    # --- groups ---------------------------------------------------------------------------------------------------

    def update_sub_group(
        self, address: str, group: SubscriptionGroupConfig, timeout_s: float
    ) -> SubscriptionGroupConfig:
        request = pb.UpdateSubGroupRequest(group=meta.SubscriptionGroupConfig(**_values(group)))
        answer = self._call(address, "UpdateSubGroup", request, timeout_s)
        return replace(_plain(SubscriptionGroupConfig, answer.group), commit_status=commit_status(answer.status))

    def delete_sub_group(self, address: str, group: str, remove_offset: bool, timeout_s: float) -> CommitStatus:
        request = pb.DeleteSubGroupRequest(group=group, remove_offset=remove_offset)
        return commit_status(self._call(address, "DeleteSubGroup", request, timeout_s).status)

    def list_sub_groups(self, address: str, timeout_s: float) -> list[SubscriptionGroupConfig]:
        answer = self._call(address, "ListSubGroups", pb.ListSubGroupsRequest(), timeout_s)
        return [_plain(SubscriptionGroupConfig, group) for group in answer.groups]

    def consumer_progress(
        self, address: str, broker_name: str, group: str, topic: str, timeout_s: float
    ) -> list[ConsumeProgress]:
        request = pb.ConsumerProgressRequest(group=group, topic=topic)
        answer = self._call(address, "ConsumerProgress", request, timeout_s)
        return [
            ConsumeProgress(
                entry.group,
                MessageQueue(entry.topic, broker_name, entry.queue_id),
                entry.broker_offset,
                entry.consumer_offset,
                entry.last_timestamp,
                answer.broker_id,
                entry.generation,
                entry.lag if entry.HasField("lag") else None,
            )
            for entry in answer.entries
        ]

    def reset_offset_by_time(
        self,
        address: str,
        broker_name: str,
        group: str,
        topic: str,
        timestamp_ms: int,
        queue_ids: Sequence[int],
        force: bool,
        timeout_s: float,
    ) -> list[ResetOffset]:
        request = pb.ResetOffsetByTimeRequest(
            group=group, topic=topic, timestamp=timestamp_ms, queue_ids=queue_ids, force=force
        )
        answer = self._call(address, "ResetOffsetByTime", request, timeout_s)
        return [
            ResetOffset(
                MessageQueue(topic, broker_name, entry.queue_id),
                entry.offset,
                entry.previous,
                commit_status(answer.status),
            )
            for entry in answer.entries
        ]

    # --- brokers --------------------------------------------------------------------------------------------------

    def ha_status(self, address: str, timeout_s: float) -> HaStatus:
        answer = self._call(address, "HaStatus", pb.HaStatusRequest(), timeout_s)
        slaves = [_plain(HaSlave, slave) for slave in answer.slaves]
        return HaStatus(
            address,
            answer.is_master,
            answer.epoch,
            answer.master_address,
            answer.commit_log_max_offset,
            answer.confirm_offset,
            answer.master_flush_offset,
            slaves,
            answer.state,
        )

    def broker_status(self, address: str, timeout_s: float) -> dict[str, str]:
        return dict(self._call(address, "BrokerStatus", pb.BrokerStatusRequest(), timeout_s).values)

    def get_broker_config(self, address: str, timeout_s: float) -> dict[str, str]:
        return dict(self._call(address, "GetBrokerConfig", pb.GetBrokerConfigRequest(), timeout_s).values)

    def update_broker_config(self, address: str, values: Mapping[str, str], timeout_s: float) -> dict[str, str]:
        request = pb.UpdateBrokerConfigRequest(values=dict(values))
        return dict(self._call(address, "UpdateBrokerConfig", request, timeout_s).values)

    def promote_slave(
        self, address: str, broker_name: str, expected_epoch: int, broker_role: str, force: bool, timeout_s: float
    ) -> Promotion:
        request = pb.PromoteSlaveRequest(
            broker_name=broker_name, expected_epoch=expected_epoch, broker_role=broker_role, force=force
        )
        answer = self._call(address, "PromoteSlave", request, timeout_s)
        lost = tuple(
            Forfeit(item.broker_id, item.address, item.bytes if item.HasField("bytes") else None)
            for item in answer.forfeits
        )
        meaning = answer.broker_role, answer.flush_disk_type, answer.former_role
        return Promotion(address, answer.epoch, answer.start_offset, lost, *meaning)

    def remove_slave(self, address: str, broker_id: int, timeout_s: float) -> SlavesLeft:
        answer = self._call(address, "RemoveSlave", pb.RemoveSlaveRequest(broker_id=broker_id), timeout_s)
        return SlavesLeft(answer.known_slaves, commit_status(answer.status))

    # --- access control -------------------------------------------------------------------------------------------

    def create_user(self, address: str, username: str, password: str, user_type: str, timeout_s: float) -> UserInfo:
        user = meta.User(username=username, password=password, user_type=user_type)
        return _changed_user(self._call(address, "CreateUser", pb.CreateUserRequest(user=user), timeout_s))

    def update_user(
        self, address: str, username: str, password: str, user_type: str, user_status: str, timeout_s: float
    ) -> UserInfo:
        user = meta.User(username=username, password=password, user_type=user_type, user_status=user_status)
        return _changed_user(self._call(address, "UpdateUser", pb.UpdateUserRequest(user=user), timeout_s))

    def delete_user(self, address: str, username: str, timeout_s: float) -> CommitStatus:
        request = pb.DeleteUserRequest(username=username)
        return commit_status(self._call(address, "DeleteUser", request, timeout_s).status)

    def list_users(self, address: str, username: str, timeout_s: float) -> list[UserInfo]:
        answer = self._call(address, "ListUsers", pb.ListUsersRequest(username=username), timeout_s)
        return [UserInfo(user.username, user.user_type, user.user_status) for user in answer.users]

    def create_acl(self, address: str, acl: AclInfo, timeout_s: float) -> AclInfo:
        answer = self._call(address, "CreateAcl", pb.CreateAclRequest(acl=_acl_message(acl)), timeout_s)
        return replace(_acl(answer.acl), commit_status=commit_status(answer.status))

    def update_acl(self, address: str, acl: AclInfo, timeout_s: float) -> AclInfo:
        answer = self._call(address, "UpdateAcl", pb.UpdateAclRequest(acl=_acl_message(acl)), timeout_s)
        return replace(_acl(answer.acl), commit_status=commit_status(answer.status))

    def delete_acl(self, address: str, subject: str, resource: str, timeout_s: float) -> CommitStatus:
        request = pb.DeleteAclRequest(subject=subject, resource=resource)
        return commit_status(self._call(address, "DeleteAcl", request, timeout_s).status)

    def list_acls(self, address: str, subject: str, resource: str, timeout_s: float) -> list[AclInfo]:
        request = pb.ListAclsRequest(subject=subject, resource=resource)
        return [_acl(acl) for acl in self._call(address, "ListAcls", request, timeout_s).acls]

    # --- messages -------------------------------------------------------------------------------------------------

    def query_msg_by_id(self, address: str, broker_name: str, topic: str, msg_id: str, timeout_s: float) -> Messages:
        request = pb.QueryMsgByIdRequest(topic=topic, message_id=msg_id)
        return _messages(self._call(address, "QueryMsgById", request, timeout_s), broker_name)

    def query_msg_by_key(
        self,
        address: str,
        broker_name: str,
        topic: str,
        key: str,
        max_num: int,
        begin_timestamp: int,
        end_timestamp: int | None,
        before: int | None,
        timeout_s: float,
    ) -> tuple[Messages, int | None]:
        """Messages, newest first, and what to ask for as `before` to get older ones; None: there are none."""
        request = pb.QueryMsgByKeyRequest(
            topic=topic,
            key=key,
            max_num=max_num,
            begin_timestamp=begin_timestamp,
            end_timestamp=end_timestamp,
            before=before,
        )
        answer = self._call(address, "QueryMsgByKey", request, timeout_s)
        return _messages(answer, broker_name), answer.more_before if answer.HasField("more_before") else None

    def query_msg_by_offset(self, address: str, queue: MessageQueue, offset: int, timeout_s: float) -> Messages:
        request = pb.QueryMsgByOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        return _messages(self._call(address, "QueryMsgByOffset", request, timeout_s), queue.broker_name)


def _changed_user(answer: pb.UserResponse) -> UserInfo:
    user = answer.user
    return UserInfo(user.username, user.user_type, user.user_status, commit_status(answer.status))


def _acl_message(acl: AclInfo) -> meta.Acl:
    return meta.Acl(
        subject=acl.subject,
        policies=[
            meta.Acl.Policy(
                resource=one.resource, actions=one.actions, source_ips=one.source_ips, decision=one.decision
            )
            for one in acl.policies
        ],
    )


def _acl(acl: meta.Acl) -> AclInfo:
    return AclInfo(
        acl.subject,
        tuple(AclPolicy(one.resource, tuple(one.actions), tuple(one.source_ips), one.decision) for one in acl.policies),
    )


_OF_THE_ANSWER = ("commit_status",)  # fields that no message with a setting has


def _values(config: TopicConfig | SubscriptionGroupConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name not in _OF_THE_ANSWER}


def _plain(kind: type[T], message: Any) -> T:
    """The dataclass with the message's values: their fields have the same names."""
    names = [field.name for field in fields(kind) if field.name not in _OF_THE_ANSWER]  # type: ignore[arg-type]
    values = {name: getattr(message, name) for name in names}
    return kind(**{name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()})


def _messages(answer: pb.QueryMsgResponse, broker_name: str) -> Messages:
    try:
        records = Records.walk(answer.records, answer.count)
        records.check()
    except RecordError as error:
        raise BadAnswer(f"broker {broker_name!r} sent damaged records: {error}") from error
    return Messages(records, answer.records, broker_name)
