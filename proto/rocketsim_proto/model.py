"""Value types that clients and brokers use in their calls.  This module imports no generated code."""

from enum import IntEnum
from typing import NamedTuple


class GetMessageStatus(IntEnum):
    """RocketMQ's GetMessageStatus (table D3 of docs/decision_tables.md), which says how a pull went.  The numbers are
    those of broker.proto.
    """

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_TRUNCATED = 9  # not in RocketMQ: the broker lost records that were read (an unclean promotion)


class LogEpoch(NamedTuple):
    """The term of the master that wrote the end of a log, like Kafka's leader epoch.  (0, 0) means unknown.

    A newer epoch has a higher number `epoch`.
    """

    epoch: int = 0
    epoch_id: int = 0


NO_EPOCH = LogEpoch()
