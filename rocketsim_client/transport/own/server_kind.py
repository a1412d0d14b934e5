"""Finds out what kind of server is at an address where a call has failed, so that the error can say it."""

import time
from collections.abc import Callable
from typing import Any

import grpc
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

from rocketsim_client.transport.server_protocol import GRPC_PORT_ADVICE, ServerProtocol, protocol_at

PROBE_S = 1.0  # the limit of each call that finds out what a server is
NAME_SERVER = "NameServer"
UNKNOWN = "not a RocketSim server, or one without this call"
_V2_CALL = "/apache.rocketmq.v2.MessagingService/QueryRoute"


def kind_without_call(stub: Callable[[type], Any], channel: grpc.Channel, service: str, deadline: float) -> str:
    """Returns the end of an error text for a server that knows no call of `service`.  The text says what kind of server
    it is, and which address to give instead.  Finding that out ends by the deadline (of `time.monotonic`)."""
    if service == NAME_SERVER:
        if _knows(lambda: stub(BrokerStub).QueueBounds(pb.QueueBoundsRequest(), timeout=_probe_s(deadline))):
            return (
                "this is a broker's port (listenPort), and a name server was asked for: give the name server's address "
                "(its port is 9876 by default)"
            )
    elif _knows(lambda: stub(NameServerStub).TopicList(ns.TopicListRequest(), timeout=_probe_s(deadline))):
        return "this is a name server, and a broker was asked for: give the broker's listenPort"
    if _knows(lambda: channel.unary_unary(_V2_CALL, bytes)(b"", timeout=_probe_s(deadline))):
        return f"this is {GRPC_PORT_ADVICE}"
    return UNKNOWN


def _knows(call: Callable[[], Any]) -> bool:
    """True if the server knows the call, whatever it answers."""
    try:
        call()
    except grpc.RpcError as error:
        unknown = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return error.code() not in unknown
    return True


def protocol_now(address: str, deadline: float) -> ServerProtocol:
    """Returns the protocol that the server speaks over plaintext.  Finding that out ends by the deadline (of
    `time.monotonic`)."""
    return protocol_at(address, None, _probe_s(deadline))


def _probe_s(deadline: float) -> float:
    return min(PROBE_S, max(deadline - time.monotonic(), 0.001))
