"""The calls for operators' commands."""

from typing import Any, Protocol

from google.protobuf.message import Message
from rocketsim_proto import admin_pb2

_NAMES = {method.input_type.full_name: method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}


class AdminCalls(Protocol):
    def command(self, address: str, request: Message, timeout_s: float) -> Any:
        """Calls one broker, once, with the request of a command in admin.proto, and returns the command's response."""


def command_name(request: Message) -> str:
    """Returns the name of the command in admin.proto that takes this request."""
    return _NAMES[request.DESCRIPTOR.full_name]
