"""The errors with which a replication stream ends, and the gRPC status of each."""

import grpc

from broker_service.errors import RocketSimError, ServiceNotAvailable, StaleEpoch, StoreCorrupt
from broker_service.replication.tracker import AckRefused


class ProtocolViolation(RocketSimError):
    """The other side sent what no working broker sends: a wrong order, a wrong CRC, impossible numbers."""


class Mismatch(RocketSimError):
    """The two brokers do not belong together: they differ in cluster, file sizes or history."""


class Diverged(StoreCorrupt):
    """Both logs have the same epochs up to an offset, but different bytes before it."""


# A broker with an empty store must not become master, because a slave with the right log could not follow it.
KEEP_THE_RIGHT_LOG = (
    "if the slave's log is the right one, stop the master, promote the slave, and start the other as its slave with an "
    "empty store; else start the slave with an empty store"
)


class Replaced(RocketSimError):
    """A newer connection of the same slave has taken over."""


class PeerSilent(RocketSimError):
    """No message arrived for `haHousekeepingInterval`."""


STATUS_OF: dict[type[Exception], grpc.StatusCode] = {
    AckRefused: grpc.StatusCode.OUT_OF_RANGE,
    ProtocolViolation: grpc.StatusCode.INVALID_ARGUMENT,
    Mismatch: grpc.StatusCode.FAILED_PRECONDITION,
    StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    Replaced: grpc.StatusCode.ABORTED,
    PeerSilent: grpc.StatusCode.DEADLINE_EXCEEDED,
    StoreCorrupt: grpc.StatusCode.DATA_LOSS,
    ServiceNotAvailable: grpc.StatusCode.UNAVAILABLE,
}


def status_of(refusal: RocketSimError) -> grpc.StatusCode:
    """Returns the status of the refusal's class, or of its nearest base class that has one."""
    for kind in type(refusal).__mro__:
        if kind in STATUS_OF:
            return STATUS_OF[kind]
    return grpc.StatusCode.INTERNAL
