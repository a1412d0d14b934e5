from rocketsim_proto import broker_pb2 as _broker_pb2
from rocketsim_proto import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrepareRequest(_message.Message):
    __slots__ = ("topic", "record", "crc32", "producer_group", "epoch", "broker_name", "default_topic_queue_nums", "client_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TOPIC_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    record: bytes
    crc32: int
    producer_group: str
    epoch: int
    broker_name: str
    default_topic_queue_nums: int
    client_id: str
    def __init__(self, topic: _Optional[str] = ..., record: _Optional[bytes] = ..., crc32: _Optional[int] = ..., producer_group: _Optional[str] = ..., epoch: _Optional[int] = ..., broker_name: _Optional[str] = ..., default_topic_queue_nums: _Optional[int] = ..., client_id: _Optional[str] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("topic", "broker_name", "transaction_id", "resolution")
    class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[EndRequest.Resolution]
        COMMIT: _ClassVar[EndRequest.Resolution]
        ROLLBACK: _ClassVar[EndRequest.Resolution]
    UNKNOWN: EndRequest.Resolution
    COMMIT: EndRequest.Resolution
    ROLLBACK: EndRequest.Resolution
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    broker_name: str
    transaction_id: str
    resolution: EndRequest.Resolution
    def __init__(self, topic: _Optional[str] = ..., broker_name: _Optional[str] = ..., transaction_id: _Optional[str] = ..., resolution: _Optional[_Union[EndRequest.Resolution, str]] = ...) -> None: ...

class EndResponse(_message.Message):
    __slots__ = ("again", "status")
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    again: bool
    status: _message_pb2.CommitStatus
    def __init__(self, again: _Optional[bool] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("client_id", "broker_name", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    broker_name: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[str] = ..., broker_name: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenTransaction(_message.Message):
    __slots__ = ("topic", "transaction_id", "record", "times")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    transaction_id: str
    record: bytes
    times: int
    def __init__(self, topic: _Optional[str] = ..., transaction_id: _Optional[str] = ..., record: _Optional[bytes] = ..., times: _Optional[int] = ...) -> None: ...
