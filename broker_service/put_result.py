"""The outcome of a put: where its records are, and which brokers have them.

Two kinds of offset exist, and names tell them apart.  `commit_log_offset`, `end_offset`, `ack_offset` and
`confirm_offset` are byte positions in the log.  A `queue_offset` counts the messages of one queue.  Every end in this
module is exclusive.
"""

from dataclasses import dataclass
from enum import IntEnum


class PutStatus(IntEnum):
    """The values of RocketMQ's PutMessageStatus for stored messages (see table D4 in docs/decision_tables.md), with the
    numbers of broker.proto.
    """

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class CommitStatus(IntEnum):
    """Says which brokers have a committed offset, an acknowledgement or an operator's change.  The numbers are those of
    message.proto.

    docs/replication.md lists the failures that a change with COMMIT_OK survives, which depend on the broker's role.
    """

    COMMIT_OK = 1  # a SYNC_MASTER and its slave have the change, or an ASYNC_MASTER has it
    COMMIT_FLUSH_SLAVE_TIMEOUT = 2
    COMMIT_SLAVE_NOT_AVAILABLE = 3
    COMMIT_MASTER_NOT_AVAILABLE = 4
    COMMIT_FLUSH_DISK_TIMEOUT = 5


def commit_status(status: PutStatus) -> CommitStatus:
    """Returns the status of a committed offset, an acknowledgement or a reset that was stored with this put status."""
    return CommitStatus.COMMIT_OK if status is PutStatus.PUT_OK else CommitStatus[f"COMMIT_{status.name}"]


@dataclass(frozen=True, slots=True)
class QueueAppend:
    """`count` records of one queue got consecutive queue offsets from `first_queue_offset` on."""

    queue_id: int
    first_queue_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append.

    `extents` has (commit_log_offset, count) for each run of adjacent records, in the order of the frame.
    """

    queues: list[QueueAppend]
    extents: list[tuple[int, int]]
    end_offset: int
    store_timestamp: int
