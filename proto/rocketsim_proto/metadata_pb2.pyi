from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataVersion(_message.Message):
    __slots__ = ("timestamp", "counter", "state_version")
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    timestamp: int
    counter: int
    state_version: int
    def __init__(self, timestamp: _Optional[int] = ..., counter: _Optional[int] = ..., state_version: _Optional[int] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("topic_name", "read_queue_nums", "write_queue_nums", "perm", "topic_filter_type", "topic_sys_flag", "order", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FILTER_TYPE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int
    order: bool
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, topic_name: _Optional[str] = ..., read_queue_nums: _Optional[int] = ..., write_queue_nums: _Optional[int] = ..., perm: _Optional[int] = ..., topic_filter_type: _Optional[str] = ..., topic_sys_flag: _Optional[int] = ..., order: _Optional[bool] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SubscriptionGroupConfig(_message.Message):
    __slots__ = ("group_name", "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "consume_message_orderly", "retry_queue_nums", "retry_max_times", "broker_id", "which_broker_when_consume_slowly", "notify_consumer_ids_changed_enable", "group_sys_flag", "consume_timeout_minute", "attributes", "group_retry_policy")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FROM_MIN_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_BROADCAST_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_MESSAGE_ORDERLY_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    WHICH_BROKER_WHEN_CONSUME_SLOWLY_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CONSUMER_IDS_CHANGED_ENABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    CONSUME_TIMEOUT_MINUTE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    group_name: str
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    broker_id: int
    which_broker_when_consume_slowly: int
    notify_consumer_ids_changed_enable: bool
    group_sys_flag: int
    consume_timeout_minute: int
    attributes: _containers.ScalarMap[str, str]
    group_retry_policy: str
    def __init__(self, group_name: _Optional[str] = ..., consume_enable: _Optional[bool] = ..., consume_from_min_enable: _Optional[bool] = ..., consume_broadcast_enable: _Optional[bool] = ..., consume_message_orderly: _Optional[bool] = ..., retry_queue_nums: _Optional[int] = ..., retry_max_times: _Optional[int] = ..., broker_id: _Optional[int] = ..., which_broker_when_consume_slowly: _Optional[int] = ..., notify_consumer_ids_changed_enable: _Optional[bool] = ..., group_sys_flag: _Optional[int] = ..., consume_timeout_minute: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., group_retry_policy: _Optional[str] = ...) -> None: ...

class ConsumerOffset(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "generation", "offset", "epoch", "epoch_id", "log_offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    generation: int
    offset: int
    epoch: int
    epoch_id: int
    log_offset: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., generation: _Optional[int] = ..., offset: _Optional[int] = ..., epoch: _Optional[int] = ..., epoch_id: _Optional[int] = ..., log_offset: _Optional[int] = ...) -> None: ...

class DelayOffset(_message.Message):
    __slots__ = ("delay_level", "offset")
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    delay_level: int
    offset: int
    def __init__(self, delay_level: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class QueueFloor(_message.Message):
    __slots__ = ("topic", "queue_id", "next_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    next_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class KnownSlaves(_message.Message):
    __slots__ = ("addresses",)
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.ScalarMap[int, str]
    def __init__(self, addresses: _Optional[_Mapping[int, str]] = ...) -> None: ...

class User(_message.Message):
    __slots__ = ("username", "password", "user_type", "user_status")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    USER_TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_STATUS_FIELD_NUMBER: _ClassVar[int]
    username: str
    password: str
    user_type: str
    user_status: str
    def __init__(self, username: _Optional[str] = ..., password: _Optional[str] = ..., user_type: _Optional[str] = ..., user_status: _Optional[str] = ...) -> None: ...

class Acl(_message.Message):
    __slots__ = ("subject", "policies")
    class Policy(_message.Message):
        __slots__ = ("resource", "actions", "source_ips", "decision")
        RESOURCE_FIELD_NUMBER: _ClassVar[int]
        ACTIONS_FIELD_NUMBER: _ClassVar[int]
        SOURCE_IPS_FIELD_NUMBER: _ClassVar[int]
        DECISION_FIELD_NUMBER: _ClassVar[int]
        resource: str
        actions: _containers.RepeatedScalarFieldContainer[str]
        source_ips: _containers.RepeatedScalarFieldContainer[str]
        decision: str
        def __init__(self, resource: _Optional[str] = ..., actions: _Optional[_Iterable[str]] = ..., source_ips: _Optional[_Iterable[str]] = ..., decision: _Optional[str] = ...) -> None: ...
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    subject: str
    policies: _containers.RepeatedCompositeFieldContainer[Acl.Policy]
    def __init__(self, subject: _Optional[str] = ..., policies: _Optional[_Iterable[_Union[Acl.Policy, _Mapping]]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("topics_version", "topics", "groups_version", "groups", "consumer_offsets", "delay_offsets", "deleted_topics", "deleted_groups", "complete", "epoch", "end_offset", "deleted_queues", "sequence", "known_slaves", "users_version", "users", "deleted_users", "acls_version", "acls", "deleted_acls")
    TOPICS_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DELAY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DELETED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DELETED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELETED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_SLAVES_FIELD_NUMBER: _ClassVar[int]
    USERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    DELETED_USERS_FIELD_NUMBER: _ClassVar[int]
    ACLS_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACLS_FIELD_NUMBER: _ClassVar[int]
    DELETED_ACLS_FIELD_NUMBER: _ClassVar[int]
    topics_version: DataVersion
    topics: _containers.RepeatedCompositeFieldContainer[TopicConfig]
    groups_version: DataVersion
    groups: _containers.RepeatedCompositeFieldContainer[SubscriptionGroupConfig]
    consumer_offsets: _containers.RepeatedCompositeFieldContainer[ConsumerOffset]
    delay_offsets: _containers.RepeatedCompositeFieldContainer[DelayOffset]
    deleted_topics: _containers.RepeatedScalarFieldContainer[str]
    deleted_groups: _containers.RepeatedScalarFieldContainer[str]
    complete: bool
    epoch: int
    end_offset: int
    deleted_queues: _containers.RepeatedCompositeFieldContainer[QueueFloor]
    sequence: int
    known_slaves: KnownSlaves
    users_version: DataVersion
    users: _containers.RepeatedCompositeFieldContainer[User]
    deleted_users: _containers.RepeatedScalarFieldContainer[str]
    acls_version: DataVersion
    acls: _containers.RepeatedCompositeFieldContainer[Acl]
    deleted_acls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics_version: _Optional[_Union[DataVersion, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicConfig, _Mapping]]] = ..., groups_version: _Optional[_Union[DataVersion, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[SubscriptionGroupConfig, _Mapping]]] = ..., consumer_offsets: _Optional[_Iterable[_Union[ConsumerOffset, _Mapping]]] = ..., delay_offsets: _Optional[_Iterable[_Union[DelayOffset, _Mapping]]] = ..., deleted_topics: _Optional[_Iterable[str]] = ..., deleted_groups: _Optional[_Iterable[str]] = ..., complete: _Optional[bool] = ..., epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., deleted_queues: _Optional[_Iterable[_Union[QueueFloor, _Mapping]]] = ..., sequence: _Optional[int] = ..., known_slaves: _Optional[_Union[KnownSlaves, _Mapping]] = ..., users_version: _Optional[_Union[DataVersion, _Mapping]] = ..., users: _Optional[_Iterable[_Union[User, _Mapping]]] = ..., deleted_users: _Optional[_Iterable[str]] = ..., acls_version: _Optional[_Union[DataVersion, _Mapping]] = ..., acls: _Optional[_Iterable[_Union[Acl, _Mapping]]] = ..., deleted_acls: _Optional[_Iterable[str]] = ...) -> None: ...
