"""The words the broker's parts share.  Plain values; knows neither gRPC nor generated code.

A position is never a bare `offset`: a `commit_log_offset` (also `end_offset`, `ack_offset`, `confirm_offset`) is a byte
position in the log, a `queue_offset` counts the messages of one queue.  Every end is exclusive.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum

from rocketsim_proto.model import NO_EPOCH as NO_EPOCH
from rocketsim_proto.model import GetMessageStatus as GetMessageStatus
from rocketsim_proto.model import LogEpoch as LogEpoch
from rocketsim_proto.reserved import MASTER_ID as MASTER_ID


class BrokerRole(Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(Enum):
    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class TlsMode(Enum):
    """RocketMQ's `tls.server.mode`, as far as a port with a certificate has it."""

    PERMISSIVE = "PERMISSIVE"
    ENFORCING = "ENFORCING"


class PutStatus(IntEnum):
    """RocketMQ's PutMessageStatus, as far as a stored message can have it (table D4); numbers as in broker.proto."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class CommitStatus(IntEnum):
    """Who has what was committed, settled or changed by an operator; numbers as in message.proto.  What OK survives is
    the role's choice: docs/replication.md.
    """

    COMMIT_OK = 1  # a SYNC_MASTER and its slave; an ASYNC_MASTER
    COMMIT_FLUSH_SLAVE_TIMEOUT = 2
    COMMIT_SLAVE_NOT_AVAILABLE = 3
    COMMIT_MASTER_NOT_AVAILABLE = 4
    COMMIT_FLUSH_DISK_TIMEOUT = 5


def commit_status(status: PutStatus) -> CommitStatus:
    """What a caller is told who has committed, settled or reset something, not sent it."""
    return CommitStatus.COMMIT_OK if status is PutStatus.PUT_OK else CommitStatus[f"COMMIT_{status.name}"]


@dataclass(frozen=True, slots=True)
class QueueAppend:
    """`count` records of one queue got consecutive queue offsets from `first_queue_offset` on."""

    queue_id: int
    first_queue_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did.  `extents`: (commit_log_offset, count) of records that lie back to back, in frame order."""

    queues: list[QueueAppend]
    extents: list[tuple[int, int]]
    end_offset: int
    store_timestamp: int
