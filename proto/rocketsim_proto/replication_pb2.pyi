from rocketsim_proto import broker_pb2 as _broker_pb2
from rocketsim_proto import metadata_pb2 as _metadata_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Epoch(_message.Message):
    __slots__ = ("epoch", "start_offset", "id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_offset: int
    id: int
    def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("cluster_name", "broker_name", "broker_id", "address", "epochs", "min_offset", "end_offset", "mapped_file_size_commit_log", "mapped_file_size_consume_queue", "tail_size", "tail_crc32", "accepts_stream", "version")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAPPED_FILE_SIZE_COMMIT_LOG_FIELD_NUMBER: _ClassVar[int]
    MAPPED_FILE_SIZE_CONSUME_QUEUE_FIELD_NUMBER: _ClassVar[int]
    TAIL_SIZE_FIELD_NUMBER: _ClassVar[int]
    TAIL_CRC32_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_STREAM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
    min_offset: int
    end_offset: int
    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    tail_size: int
    tail_crc32: int
    accepts_stream: bool
    version: int
    def __init__(self, cluster_name: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., address: _Optional[str] = ..., epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., min_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., mapped_file_size_commit_log: _Optional[int] = ..., mapped_file_size_consume_queue: _Optional[int] = ..., tail_size: _Optional[int] = ..., tail_crc32: _Optional[int] = ..., accepts_stream: _Optional[bool] = ..., version: _Optional[int] = ...) -> None: ...

class HandshakeReply(_message.Message):
    __slots__ = ("epochs", "min_offset", "end_offset", "resume_offset", "refill", "refill_from", "sync_flush", "sync_master", "tail_size", "tail_crc32", "queue_floors", "version")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REFILL_FIELD_NUMBER: _ClassVar[int]
    REFILL_FROM_FIELD_NUMBER: _ClassVar[int]
    SYNC_FLUSH_FIELD_NUMBER: _ClassVar[int]
    SYNC_MASTER_FIELD_NUMBER: _ClassVar[int]
    TAIL_SIZE_FIELD_NUMBER: _ClassVar[int]
    TAIL_CRC32_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FLOORS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
    min_offset: int
    end_offset: int
    resume_offset: int
    refill: bool
    refill_from: int
    sync_flush: bool
    sync_master: bool
    tail_size: int
    tail_crc32: int
    queue_floors: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.QueueFloor]
    version: int
    def __init__(self, epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., min_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., resume_offset: _Optional[int] = ..., refill: _Optional[bool] = ..., refill_from: _Optional[int] = ..., sync_flush: _Optional[bool] = ..., sync_master: _Optional[bool] = ..., tail_size: _Optional[int] = ..., tail_crc32: _Optional[int] = ..., queue_floors: _Optional[_Iterable[_Union[_metadata_pb2.QueueFloor, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class LogData(_message.Message):
    __slots__ = ("epoch", "commit_log_offset", "data", "crc32", "confirm_offset", "master_end_offset", "master_min_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MASTER_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MASTER_MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    commit_log_offset: int
    data: bytes
    crc32: int
    confirm_offset: int
    master_end_offset: int
    master_min_offset: int
    def __init__(self, epoch: _Optional[int] = ..., commit_log_offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., master_end_offset: _Optional[int] = ..., master_min_offset: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("ack_offset", "epoch", "metadata_sequence")
    ACK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ack_offset: int
    epoch: int
    metadata_sequence: int
    def __init__(self, ack_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., metadata_sequence: _Optional[int] = ...) -> None: ...

class SlaveMessage(_message.Message):
    __slots__ = ("handshake", "ack", "refill", "offsets")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REFILL_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    handshake: Handshake
    ack: Ack
    refill: LogData
    offsets: _metadata_pb2.Metadata
    def __init__(self, handshake: _Optional[_Union[Handshake, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., refill: _Optional[_Union[LogData, _Mapping]] = ..., offsets: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ...) -> None: ...

class MasterMessage(_message.Message):
    __slots__ = ("handshake", "log", "metadata", "stream")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    handshake: HandshakeReply
    log: LogData
    metadata: _metadata_pb2.Metadata
    stream: _broker_pb2.StreamOffer
    def __init__(self, handshake: _Optional[_Union[HandshakeReply, _Mapping]] = ..., log: _Optional[_Union[LogData, _Mapping]] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ..., stream: _Optional[_Union[_broker_pb2.StreamOffer, _Mapping]] = ...) -> None: ...

class GetMetadataRequest(_message.Message):
    __slots__ = ("broker_name", "broker_id", "epoch")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    broker_id: int
    epoch: int
    def __init__(self, broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetMemberRequest(_message.Message):
    __slots__ = ("broker_name", "broker_id", "epoch", "address")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    broker_id: int
    epoch: int
    address: str
    def __init__(self, broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class GetMemberResponse(_message.Message):
    __slots__ = ("broker_id", "epoch", "end_offset", "epochs", "min_offset", "follows", "promised_epoch", "candidate_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    epoch: int
    end_offset: int
    epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
    min_offset: int
    follows: str
    promised_epoch: int
    candidate_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., min_offset: _Optional[int] = ..., follows: _Optional[str] = ..., promised_epoch: _Optional[int] = ..., candidate_epoch: _Optional[int] = ...) -> None: ...

class PromiseEpochRequest(_message.Message):
    __slots__ = ("broker_name", "broker_id", "epoch", "address")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    broker_id: int
    epoch: int
    address: str
    def __init__(self, broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class PromiseEpochResponse(_message.Message):
    __slots__ = ("refusal", "member")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    member: GetMemberResponse
    def __init__(self, refusal: _Optional[str] = ..., member: _Optional[_Union[GetMemberResponse, _Mapping]] = ...) -> None: ...
