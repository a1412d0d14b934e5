from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class DataVersion(_message.Message):
    __slots__ = ("counter", "state_version", "timestamp")
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    timestamp: int
    counter: int
    state_version: int
    def __init__(self, timestamp: int | None = ..., counter: int | None = ..., state_version: int | None = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("attributes", "order", "perm", "read_queue_nums", "topic_filter_type", "topic_name", "topic_sys_flag", "write_queue_nums")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...
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
    def __init__(self, topic_name: str | None = ..., read_queue_nums: int | None = ..., write_queue_nums: int | None = ..., perm: int | None = ..., topic_filter_type: str | None = ..., topic_sys_flag: int | None = ..., order: bool | None = ..., attributes: _Mapping[str, str] | None = ...) -> None: ...

class SubscriptionGroupConfig(_message.Message):
    __slots__ = ("attributes", "broker_id", "consume_broadcast_enable", "consume_enable", "consume_from_min_enable", "consume_message_orderly", "consume_timeout_minute", "group_name", "group_sys_flag", "notify_consumer_ids_changed_enable", "retry_max_times", "retry_queue_nums", "which_broker_when_consume_slowly")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...
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
    def __init__(self, group_name: str | None = ..., consume_enable: bool | None = ..., consume_from_min_enable: bool | None = ..., consume_broadcast_enable: bool | None = ..., consume_message_orderly: bool | None = ..., retry_queue_nums: int | None = ..., retry_max_times: int | None = ..., broker_id: int | None = ..., which_broker_when_consume_slowly: int | None = ..., notify_consumer_ids_changed_enable: bool | None = ..., group_sys_flag: int | None = ..., consume_timeout_minute: int | None = ..., attributes: _Mapping[str, str] | None = ...) -> None: ...

class ConsumerOffset(_message.Message):
    __slots__ = ("generation", "group", "offset", "queue_id", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    generation: int
    offset: int
    def __init__(self, group: str | None = ..., topic: str | None = ..., queue_id: int | None = ..., generation: int | None = ..., offset: int | None = ...) -> None: ...

class DelayOffset(_message.Message):
    __slots__ = ("delay_level", "offset")
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    delay_level: int
    offset: int
    def __init__(self, delay_level: int | None = ..., offset: int | None = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("complete", "consumer_offsets", "delay_offsets", "deleted_groups", "deleted_topics", "end_offset", "epoch", "groups", "groups_version", "topics", "topics_version")
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
    def __init__(self, topics_version: DataVersion | _Mapping | None = ..., topics: _Iterable[TopicConfig | _Mapping] | None = ..., groups_version: DataVersion | _Mapping | None = ..., groups: _Iterable[SubscriptionGroupConfig | _Mapping] | None = ..., consumer_offsets: _Iterable[ConsumerOffset | _Mapping] | None = ..., delay_offsets: _Iterable[DelayOffset | _Mapping] | None = ..., deleted_topics: _Iterable[str] | None = ..., deleted_groups: _Iterable[str] | None = ..., complete: bool | None = ..., epoch: int | None = ..., end_offset: int | None = ...) -> None: ...
