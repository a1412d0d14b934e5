"""Finds out what kind of server is at an address where a call has failed, so that the error can say it."""

from collections.abc import Callable
from typing import Any

import grpc
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

from rocketsim_client.transport.server_protocol import ServerProtocol, protocol_at

PROBE_S = 1.0  # the timeout of each call that finds out what a server is
NAME_SERVER = "NameServer"
UNKNOWN = "not a RocketSim server, or one without this call"
ROCKETMQ = (
    "this is a name server or broker of RocketMQ itself: it answers in RocketMQ's remoting protocol. Leave out "
    "protocol=grpc, or give the address of a RocketSim server"
)
_V2_CALL = "/apache.rocketmq.v2.MessagingService/QueryRoute"


def kind_without_call(stub: Callable[[type], Any], channel: grpc.Channel, service: str) -> str:
    """Returns the end of an error text for a server that knows no call of `service`.  The text says what kind of server
    it is, and which address to give instead."""
    if service == NAME_SERVER:
        if _knows(lambda: stub(BrokerStub).QueueBounds(pb.QueueBoundsRequest(), timeout=PROBE_S)):
            return (
                "this is a broker's port (listenPort), and a name server was asked for: give the name server's address "
                "(its port is 9876 by default)"
            )
    elif _knows(lambda: stub(NameServerStub).TopicList(ns.TopicListRequest(), timeout=PROBE_S)):
        return "this is a name server, and a broker was asked for: give the broker's listenPort"
    if _knows(lambda: channel.unary_unary(_V2_CALL, bytes)(b"", timeout=PROBE_S)):
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
    """Returns True if one of RocketMQ's own servers answers at the address."""
    return protocol_at(address, None, PROBE_S) is ServerProtocol.REMOTING
