"""Why a replication stream ends other than by agreement, sorted by whose fault it is, and the gRPC status of each."""

import grpc

from broker_service.errors import RocketSimError, ServiceNotAvailable, StaleEpoch, StoreCorrupt
from broker_service.replication.tracker import AckRefused


class ProtocolViolation(RocketSimError):
    """The other side sent something that no such broker sends: wrong order, wrong CRC, impossible numbers."""


class Mismatch(RocketSimError):
    """The two do not belong together: another cluster, other file sizes, another history."""


class Diverged(StoreCorrupt):
    """Same epochs, same offset, different bytes."""


# Whoever wipes the master and starts it as one has an empty master, which the right log does not fit either.
KEEP_THE_RIGHT_LOG = (
    "if the slave's log is the right one, stop the master, promote the slave, and start the other as its slave with an "
    "empty store; else start the slave with an empty store"
)


class Replaced(RocketSimError):
    """A newer connection of the same slave has taken over."""


class FellSilent(RocketSimError):
    """Nothing was heard for `haHousekeepingInterval`."""


STATUS_OF: dict[type[Exception], grpc.StatusCode] = {
    AckRefused: grpc.StatusCode.OUT_OF_RANGE,
    ProtocolViolation: grpc.StatusCode.INVALID_ARGUMENT,
    Mismatch: grpc.StatusCode.FAILED_PRECONDITION,
    StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    Replaced: grpc.StatusCode.ABORTED,
    FellSilent: grpc.StatusCode.DEADLINE_EXCEEDED,
    StoreCorrupt: grpc.StatusCode.DATA_LOSS,
    ServiceNotAvailable: grpc.StatusCode.UNAVAILABLE,
}


def status_of(refusal: RocketSimError) -> grpc.StatusCode:
    """The status of the refusal's class, or of the nearest one it is derived from."""
    for kind in type(refusal).__mro__:
        if kind in STATUS_OF:
            return STATUS_OF[kind]
    return grpc.StatusCode.INTERNAL
