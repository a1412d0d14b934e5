from rocketsim_proto import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SendRequest(_message.Message):
    __slots__ = ("topic", "records", "count", "crc32", "producer_group", "epoch", "broker_name", "default_topic_queue_nums", "accepts_stream")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TOPIC_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_STREAM_FIELD_NUMBER: _ClassVar[int]
    topic: str
    records: bytes
    count: int
    crc32: int
    producer_group: str
    epoch: int
    broker_name: str
    default_topic_queue_nums: int
    accepts_stream: bool
    def __init__(self, topic: _Optional[str] = ..., records: _Optional[bytes] = ..., count: _Optional[int] = ..., crc32: _Optional[int] = ..., producer_group: _Optional[str] = ..., epoch: _Optional[int] = ..., broker_name: _Optional[str] = ..., default_topic_queue_nums: _Optional[int] = ..., accepts_stream: _Optional[bool] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("status", "queues", "runs", "store_timestamp", "store_host", "epoch", "stream")
    class PutStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PUT_OK: _ClassVar[SendResponse.PutStatus]
        FLUSH_DISK_TIMEOUT: _ClassVar[SendResponse.PutStatus]
        FLUSH_SLAVE_TIMEOUT: _ClassVar[SendResponse.PutStatus]
        SLAVE_NOT_AVAILABLE: _ClassVar[SendResponse.PutStatus]
    PUT_OK: SendResponse.PutStatus
    FLUSH_DISK_TIMEOUT: SendResponse.PutStatus
    FLUSH_SLAVE_TIMEOUT: SendResponse.PutStatus
    SLAVE_NOT_AVAILABLE: SendResponse.PutStatus
    class QueueAppend(_message.Message):
        __slots__ = ("queue_id", "first_queue_offset", "count")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        FIRST_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        first_queue_offset: int
        count: int
        def __init__(self, queue_id: _Optional[int] = ..., first_queue_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
    class LogRun(_message.Message):
        __slots__ = ("commit_log_offset", "count")
        COMMIT_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        commit_log_offset: int
        count: int
        def __init__(self, commit_log_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    status: SendResponse.PutStatus
    queues: _containers.RepeatedCompositeFieldContainer[SendResponse.QueueAppend]
    runs: _containers.RepeatedCompositeFieldContainer[SendResponse.LogRun]
    store_timestamp: int
    store_host: bytes
    epoch: int
    stream: StreamOffer
    def __init__(self, status: _Optional[_Union[SendResponse.PutStatus, str]] = ..., queues: _Optional[_Iterable[_Union[SendResponse.QueueAppend, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[SendResponse.LogRun, _Mapping]]] = ..., store_timestamp: _Optional[int] = ..., store_host: _Optional[bytes] = ..., epoch: _Optional[int] = ..., stream: _Optional[_Union[StreamOffer, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "queue_offset", "max_msg_nums", "max_msg_bytes", "sub_expression", "expression_type", "suspend_timeout_ms", "commit_offset", "read_in")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MSG_NUMS_FIELD_NUMBER: _ClassVar[int]
    MAX_MSG_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUB_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    READ_IN_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    max_msg_bytes: int
    sub_expression: str
    expression_type: str
    suspend_timeout_ms: int
    commit_offset: int
    read_in: LogEpoch
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., max_msg_nums: _Optional[int] = ..., max_msg_bytes: _Optional[int] = ..., sub_expression: _Optional[str] = ..., expression_type: _Optional[str] = ..., suspend_timeout_ms: _Optional[int] = ..., commit_offset: _Optional[int] = ..., read_in: _Optional[_Union[LogEpoch, _Mapping]] = ...) -> None: ...

class LogEpoch(_message.Message):
    __slots__ = ("epoch", "epoch_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    epoch_id: int
    def __init__(self, epoch: _Optional[int] = ..., epoch_id: _Optional[int] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("code", "status", "next_begin_offset", "min_offset", "max_offset", "suggest_which_broker_id", "broker_id", "count", "records", "sizes", "epoch", "read_in")
    class GetMessageStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FOUND: _ClassVar[PullResponse.GetMessageStatus]
        NO_MATCHED_MESSAGE: _ClassVar[PullResponse.GetMessageStatus]
        MESSAGE_WAS_REMOVING: _ClassVar[PullResponse.GetMessageStatus]
        OFFSET_FOUND_NULL: _ClassVar[PullResponse.GetMessageStatus]
        OFFSET_OVERFLOW_BADLY: _ClassVar[PullResponse.GetMessageStatus]
        OFFSET_OVERFLOW_ONE: _ClassVar[PullResponse.GetMessageStatus]
        OFFSET_TOO_SMALL: _ClassVar[PullResponse.GetMessageStatus]
        NO_MATCHED_LOGIC_QUEUE: _ClassVar[PullResponse.GetMessageStatus]
        NO_MESSAGE_IN_QUEUE: _ClassVar[PullResponse.GetMessageStatus]
        OFFSET_TRUNCATED: _ClassVar[PullResponse.GetMessageStatus]
    FOUND: PullResponse.GetMessageStatus
    NO_MATCHED_MESSAGE: PullResponse.GetMessageStatus
    MESSAGE_WAS_REMOVING: PullResponse.GetMessageStatus
    OFFSET_FOUND_NULL: PullResponse.GetMessageStatus
    OFFSET_OVERFLOW_BADLY: PullResponse.GetMessageStatus
    OFFSET_OVERFLOW_ONE: PullResponse.GetMessageStatus
    OFFSET_TOO_SMALL: PullResponse.GetMessageStatus
    NO_MATCHED_LOGIC_QUEUE: PullResponse.GetMessageStatus
    NO_MESSAGE_IN_QUEUE: PullResponse.GetMessageStatus
    OFFSET_TRUNCATED: PullResponse.GetMessageStatus
    CODE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NEXT_BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SUGGEST_WHICH_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    READ_IN_FIELD_NUMBER: _ClassVar[int]
    code: _message_pb2.ResponseCode
    status: PullResponse.GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int
    broker_id: int
    count: int
    records: bytes
    sizes: bytes
    epoch: int
    read_in: LogEpoch
    def __init__(self, code: _Optional[_Union[_message_pb2.ResponseCode, str]] = ..., status: _Optional[_Union[PullResponse.GetMessageStatus, str]] = ..., next_begin_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., suggest_which_broker_id: _Optional[int] = ..., broker_id: _Optional[int] = ..., count: _Optional[int] = ..., records: _Optional[bytes] = ..., sizes: _Optional[bytes] = ..., epoch: _Optional[int] = ..., read_in: _Optional[_Union[LogEpoch, _Mapping]] = ...) -> None: ...

class PullRangeRequest(_message.Message):
    __slots__ = ("consumer_group", "ranges", "sub_expression", "expression_type", "max_frame_bytes", "accepts_stream")
    class Range(_message.Message):
        __slots__ = ("topic", "queue_id", "from_offset", "until_offset", "read_in")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
        UNTIL_OFFSET_FIELD_NUMBER: _ClassVar[int]
        READ_IN_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        from_offset: int
        until_offset: int
        read_in: LogEpoch
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., from_offset: _Optional[int] = ..., until_offset: _Optional[int] = ..., read_in: _Optional[_Union[LogEpoch, _Mapping]] = ...) -> None: ...
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SUB_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_STREAM_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    ranges: _containers.RepeatedCompositeFieldContainer[PullRangeRequest.Range]
    sub_expression: str
    expression_type: str
    max_frame_bytes: int
    accepts_stream: bool
    def __init__(self, consumer_group: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[PullRangeRequest.Range, _Mapping]]] = ..., sub_expression: _Optional[str] = ..., expression_type: _Optional[str] = ..., max_frame_bytes: _Optional[int] = ..., accepts_stream: _Optional[bool] = ...) -> None: ...

class PullFrame(_message.Message):
    __slots__ = ("records", "sizes", "segments", "suggest_which_broker_id", "broker_id", "epoch", "stream")
    class Segment(_message.Message):
        __slots__ = ("range_index", "count", "next_offset", "min_offset", "max_offset", "status")
        RANGE_INDEX_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        range_index: int
        count: int
        next_offset: int
        min_offset: int
        max_offset: int
        status: PullResponse.GetMessageStatus
        def __init__(self, range_index: _Optional[int] = ..., count: _Optional[int] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., status: _Optional[_Union[PullResponse.GetMessageStatus, str]] = ...) -> None: ...
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SUGGEST_WHICH_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    sizes: bytes
    segments: _containers.RepeatedCompositeFieldContainer[PullFrame.Segment]
    suggest_which_broker_id: int
    broker_id: int
    epoch: int
    stream: StreamOffer
    def __init__(self, records: _Optional[bytes] = ..., sizes: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[PullFrame.Segment, _Mapping]]] = ..., suggest_which_broker_id: _Optional[int] = ..., broker_id: _Optional[int] = ..., epoch: _Optional[int] = ..., stream: _Optional[_Union[StreamOffer, _Mapping]] = ...) -> None: ...

class StreamOffer(_message.Message):
    __slots__ = ("instance", "unix_name", "port", "max_send_bytes", "address")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    UNIX_NAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    MAX_SEND_BYTES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    instance: bytes
    unix_name: str
    port: int
    max_send_bytes: int
    address: str
    def __init__(self, instance: _Optional[bytes] = ..., unix_name: _Optional[str] = ..., port: _Optional[int] = ..., max_send_bytes: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("version", "instance", "credentials", "timeout_ms", "pull", "send", "records_bytes", "replication")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    RECORDS_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    version: int
    instance: bytes
    credentials: bytes
    timeout_ms: int
    pull: PullRangeRequest
    send: SendRequest
    records_bytes: int
    replication: bool
    def __init__(self, version: _Optional[int] = ..., instance: _Optional[bytes] = ..., credentials: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., pull: _Optional[_Union[PullRangeRequest, _Mapping]] = ..., send: _Optional[_Union[SendRequest, _Mapping]] = ..., records_bytes: _Optional[int] = ..., replication: _Optional[bool] = ...) -> None: ...

class StreamRefusal(_message.Message):
    __slots__ = ("status", "code", "details")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    status: int
    code: int
    details: str
    def __init__(self, status: _Optional[int] = ..., code: _Optional[int] = ..., details: _Optional[str] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("consumer_group", "entries", "client_id")
    class Entry(_message.Message):
        __slots__ = ("topic", "queue_id", "offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        offset: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    entries: _containers.RepeatedCompositeFieldContainer[CommitOffsetsRequest.Entry]
    client_id: str
    def __init__(self, consumer_group: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[CommitOffsetsRequest.Entry, _Mapping]]] = ..., client_id: _Optional[str] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("offsets", "broker_id", "epoch", "status")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    broker_id: int
    epoch: int
    status: _message_pb2.CommitStatus
    def __init__(self, offsets: _Optional[_Iterable[int]] = ..., broker_id: _Optional[int] = ..., epoch: _Optional[int] = ..., status: _Optional[_Union[_message_pb2.CommitStatus, str]] = ...) -> None: ...

class QueryOffsetsRequest(_message.Message):
    __slots__ = ("consumer_group", "queues", "zero_for_new_group")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ZERO_FOR_NEW_GROUP_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    queues: _containers.RepeatedCompositeFieldContainer[_message_pb2.QueueId]
    zero_for_new_group: bool
    def __init__(self, consumer_group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[_message_pb2.QueueId, _Mapping]]] = ..., zero_for_new_group: _Optional[bool] = ...) -> None: ...

class QueryOffsetsResponse(_message.Message):
    __slots__ = ("entries", "broker_id", "epoch")
    class Entry(_message.Message):
        __slots__ = ("topic", "queue_id", "offset", "generation")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        GENERATION_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        offset: int
        generation: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[QueryOffsetsResponse.Entry]
    broker_id: int
    epoch: int
    def __init__(self, entries: _Optional[_Iterable[_Union[QueryOffsetsResponse.Entry, _Mapping]]] = ..., broker_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class QueueBoundsRequest(_message.Message):
    __slots__ = ("topic", "queue_ids", "read_in", "consumer_group", "closed_queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    READ_IN_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLOSED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    read_in: _containers.RepeatedCompositeFieldContainer[LogEpoch]
    consumer_group: str
    closed_queues: bool
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., read_in: _Optional[_Iterable[_Union[LogEpoch, _Mapping]]] = ..., consumer_group: _Optional[str] = ..., closed_queues: _Optional[bool] = ...) -> None: ...

class QueueBoundsResponse(_message.Message):
    __slots__ = ("entries", "broker_id", "epoch", "is_master", "read_queue_nums", "log_epoch", "epoch_ends", "write_queue_nums", "offers_streams", "ranges_over_streams", "ranges_over_grpc")
    class Entry(_message.Message):
        __slots__ = ("queue_id", "min_offset", "max_offset", "last_store_timestamp", "size_bytes")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAST_STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        min_offset: int
        max_offset: int
        last_store_timestamp: int
        size_bytes: int
        def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_store_timestamp: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...
    class EpochEnd(_message.Message):
        __slots__ = ("epoch", "offsets")
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        epoch: LogEpoch
        offsets: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, epoch: _Optional[_Union[LogEpoch, _Mapping]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_MASTER_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ENDS_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    OFFERS_STREAMS_FIELD_NUMBER: _ClassVar[int]
    RANGES_OVER_STREAMS_FIELD_NUMBER: _ClassVar[int]
    RANGES_OVER_GRPC_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[QueueBoundsResponse.Entry]
    broker_id: int
    epoch: int
    is_master: bool
    read_queue_nums: int
    log_epoch: LogEpoch
    epoch_ends: _containers.RepeatedCompositeFieldContainer[QueueBoundsResponse.EpochEnd]
    write_queue_nums: int
    offers_streams: bool
    ranges_over_streams: int
    ranges_over_grpc: int
    def __init__(self, entries: _Optional[_Iterable[_Union[QueueBoundsResponse.Entry, _Mapping]]] = ..., broker_id: _Optional[int] = ..., epoch: _Optional[int] = ..., is_master: _Optional[bool] = ..., read_queue_nums: _Optional[int] = ..., log_epoch: _Optional[_Union[LogEpoch, _Mapping]] = ..., epoch_ends: _Optional[_Iterable[_Union[QueueBoundsResponse.EpochEnd, _Mapping]]] = ..., write_queue_nums: _Optional[int] = ..., offers_streams: _Optional[bool] = ..., ranges_over_streams: _Optional[int] = ..., ranges_over_grpc: _Optional[int] = ...) -> None: ...

class WaitForRecordsRequest(_message.Message):
    __slots__ = ("topic", "queue_ids", "ends", "hold_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    hold_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., hold_ms: _Optional[int] = ...) -> None: ...

class WaitForRecordsResponse(_message.Message):
    __slots__ = ("arrived",)
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    arrived: bool
    def __init__(self, arrived: _Optional[bool] = ...) -> None: ...

class SearchOffsetsRequest(_message.Message):
    __slots__ = ("topic", "entries")
    class Entry(_message.Message):
        __slots__ = ("queue_id", "timestamp")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        timestamp: int
        def __init__(self, queue_id: _Optional[int] = ..., timestamp: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    entries: _containers.RepeatedCompositeFieldContainer[SearchOffsetsRequest.Entry]
    def __init__(self, topic: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[SearchOffsetsRequest.Entry, _Mapping]]] = ...) -> None: ...

class SearchOffsetsResponse(_message.Message):
    __slots__ = ("offsets", "broker_id")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    broker_id: int
    def __init__(self, offsets: _Optional[_Iterable[int]] = ..., broker_id: _Optional[int] = ...) -> None: ...
