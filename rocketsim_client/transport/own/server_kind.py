"""Finds out what kind of server answers at a wrong address, after a call there has failed."""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

LOOK_S = 1.0
NAME_SERVER = "NameServer"
UNKNOWN = "not a RocketSim server, or one without this call"
ROCKETMQ = (
    "this is a name server or broker of RocketMQ itself: it answers in RocketMQ's remoting protocol. Leave out "
    "protocol=grpc, or give the address of a RocketSim server"
)
_ROUTE_OF_TOPIC = 105  # every RocketMQ server answers it, if only with a refusal
_MOST_BYTES = 16 << 20  # of a remoting frame
_V2_CALL = "/apache.rocketmq.v2.MessagingService/QueryRoute"


def kind_without_call(stub: Callable[[type], Any], channel: grpc.Channel, service: str) -> str:
    """What a server is that knows no call of `service`, and which address to give instead."""
    if service == NAME_SERVER:
        if _knows(lambda: stub(BrokerStub).QueueBounds(pb.QueueBoundsRequest(), timeout=LOOK_S)):
            return (
                "this is a broker's port (listenPort), and a name server was asked for: give the name server's address "
                "(its port is 9876 by default)"
            )
    elif _knows(lambda: stub(NameServerStub).TopicList(ns.TopicListRequest(), timeout=LOOK_S)):
        return "this is a name server, and a broker was asked for: give the broker's listenPort"
    if _knows(lambda: channel.unary_unary(_V2_CALL, bytes)(b"", timeout=LOOK_S)):
        return (
            "this is the port for RocketMQ 5's clients (grpcServerPort): RocketSim's clients take name servers and "
            "brokers' listenPort"
        )
    return UNKNOWN


def _knows(call: Callable[[], Any]) -> bool:
    """True if the server knows the call, whatever it answers."""
    try:
        call()
    except grpc.RpcError as error:
        unknown = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return error.code() not in unknown
    return True


def speaks_remoting(address: str) -> bool:
    """True if a RocketMQ server answers.  It says nothing until it gets a request in its own framing: a size, the
    header's size and kind (0: JSON), the header, the body."""
    host, _, port = address.rpartition(":")
    header = json.dumps(
        {"code": _ROUTE_OF_TOPIC, "opaque": 1, "flag": 0, "language": "PYTHON", "version": 409}
        | {"extFields": {"topic": "TBW102"}}
    ).encode()
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), LOOK_S) as connection:
        connection.sendall((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        size = int.from_bytes(_received(connection, 4), "big")
        header_size = int.from_bytes(_received(connection, 4)[1:], "big")
        if 4 + header_size <= size <= _MOST_BYTES:
            answer = json.loads(_received(connection, header_size))
            return isinstance(answer, dict) and answer.get("opaque") == 1 and "code" in answer
    return False


def _received(connection: socket.socket, size: int) -> bytes:
    """Raises ValueError if the connection ends before."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ValueError("the connection has ended")
        data += piece
    return data
