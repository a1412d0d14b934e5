"""Values of the calls that broker and client use as they are.  Plain; knows no generated code."""

from enum import IntEnum
from typing import NamedTuple


class GetMessageStatus(IntEnum):
    """RocketMQ's GetMessageStatus (table D3), the broker's reason for what a pull gets; numbers as in broker.proto."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_TRUNCATED = 9  # ours: other records were read up to there than the broker has now (an unclean promotion)


class LogEpoch(NamedTuple):
    """The term of the master that wrote the end of a log, like Kafka's leader epoch; (0, 0): not known.  A newer one
    has the higher number."""

    epoch: int = 0
    epoch_id: int = 0


NO_EPOCH = LogEpoch()
