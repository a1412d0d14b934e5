"""proto <-> Operations and Status for operators; decides nothing itself."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import grpc
from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto import admin_pb2_grpc, metadata_pb2

from broker_service.access.model import Action, Policy, User
from broker_service.access.rights import (
    GET,
    LISTING,
    READ,
    SUPER_USER,
    Need,
    by_path,
    declared_rights,
    needs,
    of_cluster,
    of_group,
    of_topic,
    user,
)
from broker_service.admin.operations import Operations
from broker_service.admin.progress import Progress
from broker_service.admin.status import Status
from broker_service.admin.users import UserOperations
from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.messages import (
    acl_to_proto,
    group_to_proto,
    policies_from_proto,
    retry_policy_from_proto,
    topic_to_proto,
    version_to_proto,
)
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.errors import InvalidParameter
from broker_service.runtime.deadlines import longest_wait_s
from broker_service.runtime.rpc_errors import maps_errors

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Response = TypeVar("Response")


def _change(
    *, past_start: bool = True, in_any_mode: bool = False
) -> Callable[[Callable[[Any, Request], Awaitable[Response]]], Callable[[Any, Request, Context], Awaitable[Response]]]:
    """For a method that makes an operator's change, which slaves get, too: the one rule for when these are made and
    answered.

    `past_start`: a master that has just started makes it in a moment, once it takes writes.  The answer's `status` says
    who has the change (`Broker.shared_change`, which `in_any_mode` is for).
    """

    def decorated(
        method: Callable[[Any, Request], Awaitable[Response]],
    ) -> Callable[[Any, Request, Context], Awaitable[Response]]:
        @maps_errors
        @functools.wraps(method)
        async def changed(self: "AdminServicer", request: Request, context: Context) -> Response:
            if past_start:
                await self._operations.past_start()
            response: Any = await method(self, request)
            response.status = await self._broker.shared_change(longest_wait_s(context), in_any_mode=in_any_mode)
            return response  # type: ignore[no-any-return]

        return changed

    return decorated


def _progress(request: Any) -> list[Need]:
    return [of_group(request.group, *GET), *([of_topic(request.topic, *READ)] if request.topic else [])]


def _reset(request: Any) -> list[Need]:
    return [of_group(request.group, Action.UPDATE), of_topic(request.topic, Action.UPDATE)]


class AdminServicer(admin_pb2_grpc.AdminServicer):
    def __init__(
        self,
        broker: Broker,
        operations: Operations,
        progress: Progress,
        status: Status,
        queues: QueueLookup,
        users: UserOperations,
    ) -> None:
        self._broker = broker
        self._operations = operations
        self._progress = progress
        self._status = status
        self._queues = queues
        self._users = users

    # --- topics and groups ------------------------------------------------------------------------------------------

    @needs(user(lambda request: [of_topic(request.topic.topic_name, Action.CREATE)]))
    @_change()
    async def UpdateTopic(self, request: pb.UpdateTopicRequest) -> pb.UpdateTopicResponse:
        topic = await self._operations.update_topic(asked_topic(request.topic))
        return pb.UpdateTopicResponse(topic=topic_to_proto(topic))

    @needs(user(lambda request: [of_topic(request.topic, Action.DELETE)]))
    @_change()
    async def DeleteTopic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        await self._operations.delete_topic(request.topic)
        return pb.DeleteTopicResponse()

    @needs(user(lambda request: [of_topic("", *LISTING)]))
    @maps_errors
    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        topics = self._broker.topics
        return pb.ListTopicsResponse(
            version=version_to_proto(topics.version),
            topics=[topic_to_proto(topics.entries[name]) for name in sorted(topics.entries)],
        )

    @needs(user(lambda request: [of_topic(request.topic, *READ)]))
    @maps_errors
    async def TopicStatus(self, request: pb.TopicStatusRequest, context: Context) -> pb.TopicStatusResponse:
        return pb.TopicStatusResponse(
            entries=[
                pb.TopicStatusResponse.Entry(
                    queue_id=bounds.queue_id,
                    min_offset=bounds.min_offset,
                    max_offset=bounds.max_offset,
                    last_update_timestamp=bounds.last_store_timestamp,
                )
                for bounds in await self._queues.bounds(request.topic, ())
            ]
        )

    @needs(user(lambda request: [of_group(request.group.group_name, Action.CREATE)]))
    @_change()
    async def UpdateSubGroup(self, request: pb.UpdateSubGroupRequest) -> pb.UpdateSubGroupResponse:
        group = await self._operations.update_group(asked_group(request.group))
        return pb.UpdateSubGroupResponse(group=group_to_proto(group))

    @needs(user(lambda request: [of_group(request.group, Action.DELETE)]))
    @_change()
    async def DeleteSubGroup(self, request: pb.DeleteSubGroupRequest) -> pb.DeleteSubGroupResponse:
        await self._operations.delete_group(request.group, remove_offset=request.remove_offset)
        return pb.DeleteSubGroupResponse()

    @needs(user(lambda request: [of_group("", *LISTING)]))
    @maps_errors
    async def ListSubGroups(self, request: pb.ListSubGroupsRequest, context: Context) -> pb.ListSubGroupsResponse:
        groups = self._broker.groups
        return pb.ListSubGroupsResponse(
            version=version_to_proto(groups.version),
            groups=[group_to_proto(groups.entries[name]) for name in sorted(groups.entries)],
        )

    # --- offsets ----------------------------------------------------------------------------------------------------

    @needs(user(_progress))
    @maps_errors
    async def ConsumerProgress(
        self, request: pb.ConsumerProgressRequest, context: Context
    ) -> pb.ConsumerProgressResponse:
        return pb.ConsumerProgressResponse(
            entries=[
                pb.ConsumerProgressResponse.Entry(
                    group=item.place.group,
                    topic=item.place.topic,
                    queue_id=item.place.queue_id,
                    broker_offset=item.broker_offset,
                    consumer_offset=item.consumer_offset,
                    last_timestamp=last_timestamp,
                    generation=item.generation,
                    lag=item.lag,
                )
                for item, last_timestamp in await self._progress.of(request.group, request.topic)
            ],
            broker_id=self._broker.broker_id,
        )

    @needs(user(_reset))
    @_change()
    async def ResetOffsetByTime(self, request: pb.ResetOffsetByTimeRequest) -> pb.ResetOffsetByTimeResponse:
        resets = await self._operations.reset_offset_by_time(
            request.group, request.topic, request.timestamp, list(request.queue_ids), force=request.force
        )
        return pb.ResetOffsetByTimeResponse(
            entries=[
                pb.ResetOffsetByTimeResponse.Entry(queue_id=item.queue_id, offset=item.offset, previous=item.previous)
                for item in resets
            ],
        )

    # --- the broker -------------------------------------------------------------------------------------------------

    @needs(user(lambda request: [of_cluster(*GET)]))
    @maps_errors
    async def HaStatus(self, request: pb.HaStatusRequest, context: Context) -> pb.HaStatusResponse:
        store = self._broker.store
        return pb.HaStatusResponse(
            is_master=not self._broker.is_slave,
            epoch=self._broker.epoch,
            master_address=self._status.master_address,
            commit_log_max_offset=store.end_offset,
            confirm_offset=self._status.confirm_offset,
            slaves=[
                pb.HaStatusResponse.Slave(
                    address=slave.address,
                    broker_id=slave.broker_id,
                    ack_offset=slave.ack_offset,
                    diff_bytes=slave.diff_bytes,
                    in_sync=slave.in_sync,
                    transfer_bytes_per_second=slave.transfer_bytes_per_second,
                    transfer_from_where=slave.transfer_from_where,
                )
                for slave in self._status.slaves()
            ],
            master_flush_offset=store.flushed_offset,
            state=self._status.line(),
        )

    @needs(user(lambda request: [of_cluster(*GET)]))
    @maps_errors
    async def BrokerStatus(self, request: pb.BrokerStatusRequest, context: Context) -> pb.BrokerStatusResponse:
        return pb.BrokerStatusResponse(values=self._status.values())

    @needs(user(lambda request: [of_cluster(*GET)]))
    @maps_errors
    async def GetBrokerConfig(self, request: pb.GetBrokerConfigRequest, context: Context) -> pb.GetBrokerConfigResponse:
        return pb.GetBrokerConfigResponse(values=self._operations.config())

    @needs(user(lambda request: [of_cluster(Action.UPDATE)]))
    @maps_errors
    async def UpdateBrokerConfig(
        self, request: pb.UpdateBrokerConfigRequest, context: Context
    ) -> pb.UpdateBrokerConfigResponse:
        return pb.UpdateBrokerConfigResponse(values=self._operations.update_config(dict(request.values)))

    @needs(user(lambda request: [of_cluster(Action.UPDATE)]))
    @_change(past_start=False)  # a master that starts may wait for this very slave
    async def RemoveSlave(self, request: pb.RemoveSlaveRequest) -> pb.RemoveSlaveResponse:
        self._operations.remove_slave(request.broker_id)
        return pb.RemoveSlaveResponse(known_slaves=self._broker.known_slaves.addresses)

    @needs(user(lambda request: [of_cluster(Action.UPDATE)]))
    @maps_errors
    async def PromoteSlave(self, request: pb.PromoteSlaveRequest, context: Context) -> pb.PromoteSlaveResponse:
        if request.expected_epoch < 0:
            raise InvalidParameter(f"expected epoch {request.expected_epoch} is negative")
        promoted = await self._operations.promote(
            request.broker_name, request.expected_epoch, request.broker_role, force=request.force
        )
        return pb.PromoteSlaveResponse(
            epoch=promoted.epoch,
            start_offset=promoted.start_offset,
            broker_role=promoted.role.name,
            flush_disk_type=promoted.flush_disk_type.name,
            former_role=promoted.former_role.name if promoted.former_role is not None else "",
            forfeits=[
                pb.PromoteSlaveResponse.Forfeit(broker_id=lost.broker_id, address=lost.address, bytes=lost.bytes)
                for lost in promoted.forfeits
            ],
        )

    # --- messages ---------------------------------------------------------------------------------------------------

    @needs(user(lambda request: [of_topic(request.topic, *READ)]))
    @maps_errors
    async def QueryMsgById(self, request: pb.QueryMsgByIdRequest, context: Context) -> pb.QueryMsgResponse:
        return _messages(await self._operations.message_by_id(request.topic, request.message_id))

    @needs(user(lambda request: [of_topic(request.topic, *READ)]))
    @maps_errors
    async def QueryMsgByKey(self, request: pb.QueryMsgByKeyRequest, context: Context) -> pb.QueryMsgResponse:
        before = request.before if request.HasField("before") else None
        end = request.end_timestamp if request.HasField("end_timestamp") else None
        records, more_before = await self._operations.messages_by_key(
            request.topic, request.key, request.max_num, request.begin_timestamp, end, before
        )
        return _messages(records, more_before)

    @needs(user(lambda request: [of_topic(request.topic, *READ)]))
    @maps_errors
    async def QueryMsgByOffset(self, request: pb.QueryMsgByOffsetRequest, context: Context) -> pb.QueryMsgResponse:
        return _messages([await self._operations.message_by_offset(request.topic, request.queue_id, request.offset)])

    # --- access control ---------------------------------------------------------------------------------------------

    @needs(SUPER_USER)
    @_change(in_any_mode=True)
    async def CreateUser(self, request: pb.CreateUserRequest) -> pb.UserResponse:
        user = await self._users.create_user(*_fields(request.user))
        return pb.UserResponse(user=_without_password(user))

    @needs(SUPER_USER)
    @_change(in_any_mode=True)
    async def UpdateUser(self, request: pb.UpdateUserRequest) -> pb.UserResponse:
        user = await self._users.update_user(*_fields(request.user))
        return pb.UserResponse(user=_without_password(user))

    @needs(SUPER_USER)
    @_change(in_any_mode=True)
    async def DeleteUser(self, request: pb.DeleteUserRequest) -> pb.DeleteUserResponse:
        await self._users.delete_user(request.username)
        return pb.DeleteUserResponse()

    @needs(SUPER_USER)
    @maps_errors
    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersResponse:
        return pb.ListUsersResponse(users=map(_without_password, self._users.users(request.username)))

    @needs(SUPER_USER)
    @_change(in_any_mode=True)
    async def CreateAcl(self, request: pb.CreateAclRequest) -> pb.AclResponse:
        acl = await self._users.create_acl(request.acl.subject, asked_policies(request.acl))
        return pb.AclResponse(acl=acl_to_proto(acl))

    @needs(SUPER_USER)
    @_change(in_any_mode=True)
    async def UpdateAcl(self, request: pb.UpdateAclRequest) -> pb.AclResponse:
        acl = await self._users.update_acl(request.acl.subject, asked_policies(request.acl))
        return pb.AclResponse(acl=acl_to_proto(acl))

    @needs(SUPER_USER)
    @_change(in_any_mode=True)
    async def DeleteAcl(self, request: pb.DeleteAclRequest) -> pb.DeleteAclResponse:
        await self._users.delete_acl(request.subject, request.resource)
        return pb.DeleteAclResponse()

    @needs(SUPER_USER)
    @maps_errors
    async def ListAcls(self, request: pb.ListAclsRequest, context: Context) -> pb.ListAclsResponse:
        return pb.ListAclsResponse(acls=map(acl_to_proto, self._users.acls(request.subject, request.resource)))


ADMIN_RIGHTS = by_path({"rocketsim.Admin": declared_rights(AdminServicer)})


def _fields(user: metadata_pb2.User) -> tuple[str, str, str, str]:
    return user.username, user.password, user.user_type, user.user_status


def _without_password(user: User) -> metadata_pb2.User:
    return metadata_pb2.User(username=user.username, user_type=user.user_type, user_status=user.user_status)


def asked_policies(acl: metadata_pb2.Acl) -> tuple[Policy, ...]:
    try:
        return policies_from_proto(acl)
    except ValueError as error:
        raise InvalidParameter(str(error)) from error


def asked_topic(asked: metadata_pb2.TopicConfig) -> TopicConfig:
    """What is left out means the default."""
    values = {
        name: getattr(asked, name) for name in ("read_queue_nums", "write_queue_nums", "perm") if asked.HasField(name)
    }
    return TopicConfig(asked.topic_name, **values, order=asked.order, attributes=dict(asked.attributes))


def asked_group(asked: metadata_pb2.SubscriptionGroupConfig) -> SubscriptionGroup:
    """What is left out means the default."""
    own = ("group_name", "attributes", "group_retry_policy")
    names = [field.name for field in fields(SubscriptionGroup) if field.name not in own]
    values = {name: getattr(asked, name) for name in names if asked.HasField(name)}
    try:
        policy = retry_policy_from_proto(asked)
        return SubscriptionGroup(
            asked.group_name, **values, attributes=dict(asked.attributes), group_retry_policy=policy
        )
    except ValueError as error:
        raise InvalidParameter(str(error)) from error


def _messages(records: Sequence[bytes], more_before: int | None = None) -> pb.QueryMsgResponse:
    return pb.QueryMsgResponse(records=b"".join(records), count=len(records), more_before=more_before)
