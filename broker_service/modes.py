"""The modes in which a broker runs, with the values of RocketMQ's keys."""

from enum import Enum


class BrokerRole(Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(Enum):
    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class HaMasterProtocol(Enum):
    """The protocol that a slave speaks with its master."""

    rocketsim = "rocketsim"
    rocketmq = "rocketmq"


class GrpcServerLibrary(Enum):
    """The library that serves the port for RocketMQ 5's clients."""

    grpcio = "grpcio"
    pygrpc_native = "pygrpc_native"


class TlsMode(Enum):
    """The values of RocketMQ's `tls.server.mode` that a port with a certificate can have."""

    PERMISSIVE = "PERMISSIVE"
    ENFORCING = "ENFORCING"
