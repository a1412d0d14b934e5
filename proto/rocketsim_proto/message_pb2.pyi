from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ResponseCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUCCESS: _ClassVar[ResponseCode]
    SYSTEM_ERROR: _ClassVar[ResponseCode]
    SYSTEM_BUSY: _ClassVar[ResponseCode]
    REQUEST_CODE_NOT_SUPPORTED: _ClassVar[ResponseCode]
    MESSAGE_ILLEGAL: _ClassVar[ResponseCode]
    SERVICE_NOT_AVAILABLE: _ClassVar[ResponseCode]
    NO_PERMISSION: _ClassVar[ResponseCode]
    TOPIC_NOT_EXIST: _ClassVar[ResponseCode]
    PULL_NOT_FOUND: _ClassVar[ResponseCode]
    PULL_RETRY_IMMEDIATELY: _ClassVar[ResponseCode]
    PULL_OFFSET_MOVED: _ClassVar[ResponseCode]
    QUERY_NOT_FOUND: _ClassVar[ResponseCode]
    SUBSCRIPTION_PARSE_FAILED: _ClassVar[ResponseCode]
    SUBSCRIPTION_GROUP_NOT_EXIST: _ClassVar[ResponseCode]
    INVALID_PARAMETER: _ClassVar[ResponseCode]

class CommitStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMIT_UNSAID: _ClassVar[CommitStatus]
    COMMIT_OK: _ClassVar[CommitStatus]
    COMMIT_FLUSH_SLAVE_TIMEOUT: _ClassVar[CommitStatus]
    COMMIT_SLAVE_NOT_AVAILABLE: _ClassVar[CommitStatus]
    COMMIT_MASTER_NOT_AVAILABLE: _ClassVar[CommitStatus]
    COMMIT_FLUSH_DISK_TIMEOUT: _ClassVar[CommitStatus]
SUCCESS: ResponseCode
SYSTEM_ERROR: ResponseCode
SYSTEM_BUSY: ResponseCode
REQUEST_CODE_NOT_SUPPORTED: ResponseCode
MESSAGE_ILLEGAL: ResponseCode
SERVICE_NOT_AVAILABLE: ResponseCode
NO_PERMISSION: ResponseCode
TOPIC_NOT_EXIST: ResponseCode
PULL_NOT_FOUND: ResponseCode
PULL_RETRY_IMMEDIATELY: ResponseCode
PULL_OFFSET_MOVED: ResponseCode
QUERY_NOT_FOUND: ResponseCode
SUBSCRIPTION_PARSE_FAILED: ResponseCode
SUBSCRIPTION_GROUP_NOT_EXIST: ResponseCode
INVALID_PARAMETER: ResponseCode
COMMIT_UNSAID: CommitStatus
COMMIT_OK: CommitStatus
COMMIT_FLUSH_SLAVE_TIMEOUT: CommitStatus
COMMIT_SLAVE_NOT_AVAILABLE: CommitStatus
COMMIT_MASTER_NOT_AVAILABLE: CommitStatus
COMMIT_FLUSH_DISK_TIMEOUT: CommitStatus

class QueueId(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...
