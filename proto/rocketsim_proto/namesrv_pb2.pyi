from rocketsim_proto import metadata_pb2 as _metadata_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BrokerRegistration(_message.Message):
    __slots__ = ("cluster_name", "broker_name", "broker_id", "address", "epoch", "end_offset", "topics_version", "topics", "unregister", "broker_permission", "writable", "v2_address", "broker_role", "remoting_address", "groups", "follows_rocketmq", "wire_version")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPICS_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_PERMISSION_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    V2_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ROLE_FIELD_NUMBER: _ClassVar[int]
    REMOTING_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_ROCKETMQ_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    epoch: int
    end_offset: int
    topics_version: _metadata_pb2.DataVersion
    topics: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.TopicConfig]
    unregister: bool
    broker_permission: int
    writable: bool
    v2_address: str
    broker_role: str
    remoting_address: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    follows_rocketmq: bool
    wire_version: int
    def __init__(self, cluster_name: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., topics_version: _Optional[_Union[_metadata_pb2.DataVersion, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_metadata_pb2.TopicConfig, _Mapping]]] = ..., unregister: _Optional[bool] = ..., broker_permission: _Optional[int] = ..., writable: _Optional[bool] = ..., v2_address: _Optional[str] = ..., broker_role: _Optional[str] = ..., remoting_address: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., follows_rocketmq: _Optional[bool] = ..., wire_version: _Optional[int] = ...) -> None: ...

class BrokerMember(_message.Message):
    __slots__ = ("broker_id", "address", "epoch", "end_offset")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    epoch: int
    end_offset: int
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class RegistrationReply(_message.Message):
    __slots__ = ("members", "refused", "newest_epoch", "wire_version")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[BrokerMember]
    refused: str
    newest_epoch: int
    wire_version: int
    def __init__(self, members: _Optional[_Iterable[_Union[BrokerMember, _Mapping]]] = ..., refused: _Optional[str] = ..., newest_epoch: _Optional[int] = ..., wire_version: _Optional[int] = ...) -> None: ...

class TopicRouteRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class QueueData(_message.Message):
    __slots__ = ("broker_name", "read_queue_nums", "write_queue_nums", "perm", "message_type")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    message_type: str
    def __init__(self, broker_name: _Optional[str] = ..., read_queue_nums: _Optional[int] = ..., write_queue_nums: _Optional[int] = ..., perm: _Optional[int] = ..., message_type: _Optional[str] = ...) -> None: ...

class BrokerData(_message.Message):
    __slots__ = ("cluster_name", "broker_name", "broker_addrs", "epoch", "v2_address", "broker_roles", "wire_version")
    class BrokerAddrsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class BrokerRolesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    V2_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ROLES_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    broker_name: str
    broker_addrs: _containers.ScalarMap[int, str]
    epoch: int
    v2_address: str
    broker_roles: _containers.ScalarMap[int, str]
    wire_version: int
    def __init__(self, cluster_name: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_addrs: _Optional[_Mapping[int, str]] = ..., epoch: _Optional[int] = ..., v2_address: _Optional[str] = ..., broker_roles: _Optional[_Mapping[int, str]] = ..., wire_version: _Optional[int] = ...) -> None: ...

class TopicRouteResponse(_message.Message):
    __slots__ = ("queue_datas", "broker_datas", "wire_version")
    QUEUE_DATAS_FIELD_NUMBER: _ClassVar[int]
    BROKER_DATAS_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    queue_datas: _containers.RepeatedCompositeFieldContainer[QueueData]
    broker_datas: _containers.RepeatedCompositeFieldContainer[BrokerData]
    wire_version: int
    def __init__(self, queue_datas: _Optional[_Iterable[_Union[QueueData, _Mapping]]] = ..., broker_datas: _Optional[_Iterable[_Union[BrokerData, _Mapping]]] = ..., wire_version: _Optional[int] = ...) -> None: ...

class TopicListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TopicListResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ClusterListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterListResponse(_message.Message):
    __slots__ = ("brokers", "wire_version")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerData]
    wire_version: int
    def __init__(self, brokers: _Optional[_Iterable[_Union[BrokerData, _Mapping]]] = ..., wire_version: _Optional[int] = ...) -> None: ...

class WritePermRequest(_message.Message):
    __slots__ = ("broker_name",)
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    def __init__(self, broker_name: _Optional[str] = ...) -> None: ...

class WritePermResponse(_message.Message):
    __slots__ = ("topic_count",)
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_count: int
    def __init__(self, topic_count: _Optional[int] = ...) -> None: ...
