from rocketsim_proto import message_pb2 as _message_pb2
from rocketsim_proto import metadata_pb2 as _metadata_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateUserRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: _metadata_pb2.User
    def __init__(self, user: _Optional[_Union[_metadata_pb2.User, _Mapping]] = ...) -> None: ...

class UpdateUserRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: _metadata_pb2.User
    def __init__(self, user: _Optional[_Union[_metadata_pb2.User, _Mapping]] = ...) -> None: ...

class UserResponse(_message.Message):
    __slots__ = ("user", "status")
    USER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    user: _metadata_pb2.User
    status: _message_pb2.CommitStatus
    def __init__(self, user: _Optional[_Union[_metadata_pb2.User, _Mapping]] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("username",)
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    username: str
    def __init__(self, username: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _message_pb2.CommitStatus
    def __init__(self, status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("username",)
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    username: str
    def __init__(self, username: _Optional[str] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.User]
    def __init__(self, users: _Optional[_Iterable[_Union[_metadata_pb2.User, _Mapping]]] = ...) -> None: ...

class CreateAclRequest(_message.Message):
    __slots__ = ("acl",)
    ACL_FIELD_NUMBER: _ClassVar[int]
    acl: _metadata_pb2.Acl
    def __init__(self, acl: _Optional[_Union[_metadata_pb2.Acl, _Mapping]] = ...) -> None: ...

class UpdateAclRequest(_message.Message):
    __slots__ = ("acl",)
    ACL_FIELD_NUMBER: _ClassVar[int]
    acl: _metadata_pb2.Acl
    def __init__(self, acl: _Optional[_Union[_metadata_pb2.Acl, _Mapping]] = ...) -> None: ...

class AclResponse(_message.Message):
    __slots__ = ("acl", "status")
    ACL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    acl: _metadata_pb2.Acl
    status: _message_pb2.CommitStatus
    def __init__(self, acl: _Optional[_Union[_metadata_pb2.Acl, _Mapping]] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class DeleteAclRequest(_message.Message):
    __slots__ = ("subject", "resource")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    resource: str
    def __init__(self, subject: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class DeleteAclResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _message_pb2.CommitStatus
    def __init__(self, status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class ListAclsRequest(_message.Message):
    __slots__ = ("subject", "resource")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    resource: str
    def __init__(self, subject: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class ListAclsResponse(_message.Message):
    __slots__ = ("acls",)
    ACLS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Acl]
    def __init__(self, acls: _Optional[_Iterable[_Union[_metadata_pb2.Acl, _Mapping]]] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: _metadata_pb2.TopicConfig
    def __init__(self, topic: _Optional[_Union[_metadata_pb2.TopicConfig, _Mapping]] = ...) -> None: ...

class UpdateTopicResponse(_message.Message):
    __slots__ = ("topic", "status")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    topic: _metadata_pb2.TopicConfig
    status: _message_pb2.CommitStatus
    def __init__(self, topic: _Optional[_Union[_metadata_pb2.TopicConfig, _Mapping]] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _message_pb2.CommitStatus
    def __init__(self, status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("version", "topics")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    version: _metadata_pb2.DataVersion
    topics: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.TopicConfig]
    def __init__(self, version: _Optional[_Union[_metadata_pb2.DataVersion, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_metadata_pb2.TopicConfig, _Mapping]]] = ...) -> None: ...

class TopicStatusRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class TopicStatusResponse(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("queue_id", "min_offset", "max_offset", "last_update_timestamp")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAST_UPDATE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        min_offset: int
        max_offset: int
        last_update_timestamp: int
        def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_update_timestamp: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[TopicStatusResponse.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[TopicStatusResponse.Entry, _Mapping]]] = ...) -> None: ...

class UpdateSubGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: _metadata_pb2.SubscriptionGroupConfig
    def __init__(self, group: _Optional[_Union[_metadata_pb2.SubscriptionGroupConfig, _Mapping]] = ...) -> None: ...

class UpdateSubGroupResponse(_message.Message):
    __slots__ = ("group", "status")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    group: _metadata_pb2.SubscriptionGroupConfig
    status: _message_pb2.CommitStatus
    def __init__(self, group: _Optional[_Union[_metadata_pb2.SubscriptionGroupConfig, _Mapping]] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class DeleteSubGroupRequest(_message.Message):
    __slots__ = ("group", "remove_offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REMOVE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    remove_offset: bool
    def __init__(self, group: _Optional[str] = ..., remove_offset: _Optional[bool] = ...) -> None: ...

class DeleteSubGroupResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _message_pb2.CommitStatus
    def __init__(self, status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class ListSubGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSubGroupsResponse(_message.Message):
    __slots__ = ("version", "groups")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    version: _metadata_pb2.DataVersion
    groups: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.SubscriptionGroupConfig]
    def __init__(self, version: _Optional[_Union[_metadata_pb2.DataVersion, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[_metadata_pb2.SubscriptionGroupConfig, _Mapping]]] = ...) -> None: ...

class ConsumerProgressRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class ConsumerProgressResponse(_message.Message):
    __slots__ = ("entries", "broker_id")
    class Entry(_message.Message):
        __slots__ = ("group", "topic", "queue_id", "broker_offset", "consumer_offset", "last_timestamp", "generation", "lag")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        BROKER_OFFSET_FIELD_NUMBER: _ClassVar[int]
        CONSUMER_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        GENERATION_FIELD_NUMBER: _ClassVar[int]
        LAG_FIELD_NUMBER: _ClassVar[int]
        group: str
        topic: str
        queue_id: int
        broker_offset: int
        consumer_offset: int
        last_timestamp: int
        generation: int
        lag: int
        def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., broker_offset: _Optional[int] = ..., consumer_offset: _Optional[int] = ..., last_timestamp: _Optional[int] = ..., generation: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ConsumerProgressResponse.Entry]
    broker_id: int
    def __init__(self, entries: _Optional[_Iterable[_Union[ConsumerProgressResponse.Entry, _Mapping]]] = ..., broker_id: _Optional[int] = ...) -> None: ...

class ConsumerConnectionRequest(_message.Message):
    __slots__ = ("consumer_group",)
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    def __init__(self, consumer_group: _Optional[str] = ...) -> None: ...

class ConsumerConnectionResponse(_message.Message):
    __slots__ = ("clients", "broker_id")
    class Client(_message.Message):
        __slots__ = ("client_id", "way", "last_ms_ago", "messages")
        CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        WAY_FIELD_NUMBER: _ClassVar[int]
        LAST_MS_AGO_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        client_id: str
        way: str
        last_ms_ago: int
        messages: int
        def __init__(self, client_id: _Optional[str] = ..., way: _Optional[str] = ..., last_ms_ago: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[ConsumerConnectionResponse.Client]
    broker_id: int
    def __init__(self, clients: _Optional[_Iterable[_Union[ConsumerConnectionResponse.Client, _Mapping]]] = ..., broker_id: _Optional[int] = ...) -> None: ...

class ResetOffsetByTimeRequest(_message.Message):
    __slots__ = ("group", "topic", "timestamp", "queue_ids", "force")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    timestamp: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    force: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., timestamp: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ..., force: _Optional[bool] = ...) -> None: ...

class ResetOffsetByTimeResponse(_message.Message):
    __slots__ = ("entries", "status")
    class Entry(_message.Message):
        __slots__ = ("queue_id", "offset", "previous")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        PREVIOUS_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        offset: int
        previous: int
        def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., previous: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ResetOffsetByTimeResponse.Entry]
    status: _message_pb2.CommitStatus
    def __init__(self, entries: _Optional[_Iterable[_Union[ResetOffsetByTimeResponse.Entry, _Mapping]]] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class HaStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HaStatusResponse(_message.Message):
    __slots__ = ("is_master", "epoch", "master_address", "commit_log_max_offset", "confirm_offset", "slaves", "master_flush_offset", "state", "epochs", "cuts")
    class Slave(_message.Message):
        __slots__ = ("address", "broker_id", "ack_offset", "diff_bytes", "in_sync", "transfer_bytes_per_second", "transfer_from_where")
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        BROKER_ID_FIELD_NUMBER: _ClassVar[int]
        ACK_OFFSET_FIELD_NUMBER: _ClassVar[int]
        DIFF_BYTES_FIELD_NUMBER: _ClassVar[int]
        IN_SYNC_FIELD_NUMBER: _ClassVar[int]
        TRANSFER_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        TRANSFER_FROM_WHERE_FIELD_NUMBER: _ClassVar[int]
        address: str
        broker_id: int
        ack_offset: int
        diff_bytes: int
        in_sync: bool
        transfer_bytes_per_second: int
        transfer_from_where: int
        def __init__(self, address: _Optional[str] = ..., broker_id: _Optional[int] = ..., ack_offset: _Optional[int] = ..., diff_bytes: _Optional[int] = ..., in_sync: _Optional[bool] = ..., transfer_bytes_per_second: _Optional[int] = ..., transfer_from_where: _Optional[int] = ...) -> None: ...
    class Epoch(_message.Message):
        __slots__ = ("epoch", "start_offset")
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        START_OFFSET_FIELD_NUMBER: _ClassVar[int]
        epoch: int
        start_offset: int
        def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...
    class Cut(_message.Message):
        __slots__ = ("offset", "size", "timestamp")
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        offset: int
        size: int
        timestamp: int
        def __init__(self, offset: _Optional[int] = ..., size: _Optional[int] = ..., timestamp: _Optional[int] = ...) -> None: ...
    IS_MASTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LOG_MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SLAVES_FIELD_NUMBER: _ClassVar[int]
    MASTER_FLUSH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    is_master: bool
    epoch: int
    master_address: str
    commit_log_max_offset: int
    confirm_offset: int
    slaves: _containers.RepeatedCompositeFieldContainer[HaStatusResponse.Slave]
    master_flush_offset: int
    state: str
    epochs: _containers.RepeatedCompositeFieldContainer[HaStatusResponse.Epoch]
    cuts: _containers.RepeatedCompositeFieldContainer[HaStatusResponse.Cut]
    def __init__(self, is_master: _Optional[bool] = ..., epoch: _Optional[int] = ..., master_address: _Optional[str] = ..., commit_log_max_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., slaves: _Optional[_Iterable[_Union[HaStatusResponse.Slave, _Mapping]]] = ..., master_flush_offset: _Optional[int] = ..., state: _Optional[str] = ..., epochs: _Optional[_Iterable[_Union[HaStatusResponse.Epoch, _Mapping]]] = ..., cuts: _Optional[_Iterable[_Union[HaStatusResponse.Cut, _Mapping]]] = ...) -> None: ...

class BrokerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerStatusResponse(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetBrokerConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBrokerConfigResponse(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateBrokerConfigRequest(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateBrokerConfigResponse(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PromoteSlaveRequest(_message.Message):
    __slots__ = ("broker_name", "expected_epoch", "broker_role", "force")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BROKER_ROLE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    expected_epoch: int
    broker_role: str
    force: bool
    def __init__(self, broker_name: _Optional[str] = ..., expected_epoch: _Optional[int] = ..., broker_role: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class PromoteSlaveResponse(_message.Message):
    __slots__ = ("epoch", "start_offset", "forfeits", "broker_role", "flush_disk_type", "former_role")
    class Forfeit(_message.Message):
        __slots__ = ("broker_id", "address", "bytes")
        BROKER_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        broker_id: int
        address: str
        bytes: int
        def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FORFEITS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ROLE_FIELD_NUMBER: _ClassVar[int]
    FLUSH_DISK_TYPE_FIELD_NUMBER: _ClassVar[int]
    FORMER_ROLE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_offset: int
    forfeits: _containers.RepeatedCompositeFieldContainer[PromoteSlaveResponse.Forfeit]
    broker_role: str
    flush_disk_type: str
    former_role: str
    def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ..., forfeits: _Optional[_Iterable[_Union[PromoteSlaveResponse.Forfeit, _Mapping]]] = ..., broker_role: _Optional[str] = ..., flush_disk_type: _Optional[str] = ..., former_role: _Optional[str] = ...) -> None: ...

class RemoveSlaveRequest(_message.Message):
    __slots__ = ("broker_id",)
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    def __init__(self, broker_id: _Optional[int] = ...) -> None: ...

class RemoveSlaveResponse(_message.Message):
    __slots__ = ("known_slaves", "status")
    class KnownSlavesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    KNOWN_SLAVES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    known_slaves: _containers.ScalarMap[int, str]
    status: _message_pb2.CommitStatus
    def __init__(self, known_slaves: _Optional[_Mapping[int, str]] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class QueryMsgByIdRequest(_message.Message):
    __slots__ = ("topic", "message_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class QueryMsgByKeyRequest(_message.Message):
    __slots__ = ("topic", "key", "max_num", "begin_timestamp", "end_timestamp", "before")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    END_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    before: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., max_num: _Optional[int] = ..., begin_timestamp: _Optional[int] = ..., end_timestamp: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class QueryMsgByOffsetRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class QueryMsgResponse(_message.Message):
    __slots__ = ("records", "count", "more_before")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MORE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    count: int
    more_before: int
    def __init__(self, records: _Optional[bytes] = ..., count: _Optional[int] = ..., more_before: _Optional[int] = ...) -> None: ...
