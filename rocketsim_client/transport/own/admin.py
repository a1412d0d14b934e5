"""Makes operators' commands over gRPC."""

from typing import Any

from google.protobuf.message import Message
from rocketsim_proto.admin_pb2_grpc import AdminStub

from rocketsim_client.transport.admin import command_name
from rocketsim_client.transport.own.channels import Channels


class GrpcAdmin:
    """Implements `AdminCalls` over gRPC."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    def command(self, address: str, request: Message, timeout_s: float) -> Any:
        return self._channels.call(address, AdminStub, command_name(request), request, timeout_s)
