from rocketsim_proto import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PopRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "broker_name", "client_id", "max_messages", "invisible_ms", "sub_expression", "expression_type", "poll_ms", "attempt_id", "ends_polls")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    SUB_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    POLL_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    ENDS_POLLS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    broker_name: str
    client_id: str
    max_messages: int
    invisible_ms: int
    sub_expression: str
    expression_type: str
    poll_ms: int
    attempt_id: str
    ends_polls: bool
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., broker_name: _Optional[str] = ..., client_id: _Optional[str] = ..., max_messages: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., sub_expression: _Optional[str] = ..., expression_type: _Optional[str] = ..., poll_ms: _Optional[int] = ..., attempt_id: _Optional[str] = ..., ends_polls: _Optional[bool] = ...) -> None: ...

class PopResponse(_message.Message):
    __slots__ = ("records", "deliveries", "in_order")
    class Delivery(_message.Message):
        __slots__ = ("receipt_handle", "attempt", "left_ms")
        RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        LEFT_MS_FIELD_NUMBER: _ClassVar[int]
        receipt_handle: str
        attempt: int
        left_ms: int
        def __init__(self, receipt_handle: _Optional[str] = ..., attempt: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    deliveries: _containers.RepeatedCompositeFieldContainer[PopResponse.Delivery]
    in_order: bool
    def __init__(self, records: _Optional[bytes] = ..., deliveries: _Optional[_Iterable[_Union[PopResponse.Delivery, _Mapping]]] = ..., in_order: _Optional[bool] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "broker_name", "receipt_handles")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLES_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    broker_name: str
    receipt_handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., broker_name: _Optional[str] = ..., receipt_handles: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeInvisibleRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "broker_name", "entries")
    class Entry(_message.Message):
        __slots__ = ("receipt_handle", "invisible_ms", "uncounted")
        RECEIPT_HANDLE_FIELD_NUMBER: _ClassVar[int]
        INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
        UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
        receipt_handle: str
        invisible_ms: int
        uncounted: bool
        def __init__(self, receipt_handle: _Optional[str] = ..., invisible_ms: _Optional[int] = ..., uncounted: _Optional[bool] = ...) -> None: ...
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    broker_name: str
    entries: _containers.RepeatedCompositeFieldContainer[ChangeInvisibleRequest.Entry]
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., broker_name: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[ChangeInvisibleRequest.Entry, _Mapping]]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("valid", "again", "status")
    VALID_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    valid: _containers.RepeatedScalarFieldContainer[bool]
    again: bool
    status: _message_pb2.CommitStatus
    def __init__(self, valid: _Optional[_Iterable[bool]] = ..., again: _Optional[bool] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...
