"""Encodes and decodes the messages of a master, and copies log bytes only once.  Pure.

The bytes on the wire are those of protobuf.  Log bytes are a field of LogData, which is a field of MasterMessage.  The
log bytes are encoded before all other fields, so that they can be found without decoding the message:

    | tag of log | its length | tag of data | its length | the log's bytes | epoch, offset, CRC ... |
"""

from typing import Any, NamedTuple

import grpc
from rocketsim_proto import bytes_field
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.replication_pb2_grpc import ReplicationServicer, ReplicationStub, add_ReplicationServicer_to_server

_SERVICE = pb.DESCRIPTOR.services_by_name["Replication"].full_name


class MasterFrame(NamedTuple):
    """A message, whose log bytes are in `data` and not in `message.log`."""

    message: pb.MasterMessage
    data: bytes | memoryview = b""


def to_bytes(frame: MasterFrame) -> bytes:
    if frame.message.WhichOneof("kind") != "log":
        return frame.message.SerializeToString()
    head = bytes_field.head(pb.LogData.DATA_FIELD_NUMBER, len(frame.data))
    others = frame.message.log.SerializeToString()
    return bytes_field.join(pb.MasterMessage.LOG_FIELD_NUMBER, (head, frame.data, others), b"")


def from_bytes(received: bytes) -> MasterFrame:
    """Decodes a message.  Does not copy the log bytes if `to_bytes` has encoded the message."""
    log, behind = bytes_field.split(pb.MasterMessage.LOG_FIELD_NUMBER, received)
    if not log or behind:
        message = pb.MasterMessage.FromString(received)
        return MasterFrame(message, message.log.data)
    data, others = bytes_field.split(pb.LogData.DATA_FIELD_NUMBER, log)
    message = pb.MasterMessage(log=pb.LogData.FromString(bytes(others)))
    return MasterFrame(message, data or message.log.data)


def stub(channel: grpc.aio.Channel) -> ReplicationStub:
    """Makes the generated stub, but with `from_bytes` for the messages of the stream."""
    made = ReplicationStub(channel)
    made.Replicate = channel.stream_stream(
        f"/{_SERVICE}/Replicate",
        request_serializer=pb.SlaveMessage.SerializeToString,
        response_deserializer=from_bytes,
    )
    return made


def add_to_server(servicer: ReplicationServicer, server: Any) -> None:
    """Adds the service as generated code does, but with `to_bytes` for the messages of the stream."""
    add_ReplicationServicer_to_server(servicer, server)
    streams: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.Replicate, request_deserializer=pb.SlaveMessage.FromString, response_serializer=to_bytes
    )
    server.add_registered_method_handlers(_SERVICE, {"Replicate": streams})
