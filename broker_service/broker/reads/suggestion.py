"""Decides a pull's response code, and which broker its consumer should ask next, by RocketMQ 4.9.8 (tables D3 and D1).

All inputs are those of the answering broker: its role, its configuration, its log and its copy of the group.
"""

from dataclasses import dataclass
from enum import IntEnum

from rocketsim_proto.model import GetMessageStatus
from rocketsim_proto.reserved import MASTER_ID

from broker_service.modes import BrokerRole


class PullCode(IntEnum):
    """RocketMQ's response codes of a pull, with the numbers of message.proto."""

    SUCCESS = 0
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21


_CODE_OF_STATUS = {
    GetMessageStatus.FOUND: PullCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: PullCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: PullCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: PullCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: PullCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: PullCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_TOO_SMALL: PullCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TRUNCATED: PullCode.PULL_OFFSET_MOVED,
}


def pull_code(status: GetMessageStatus, requested_offset: int) -> PullCode:
    """Returns the code of table D3.  In a queue that is absent or empty, any requested offset except 0 has moved."""
    if status in (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE):
        return PullCode.PULL_OFFSET_MOVED if requested_offset != 0 else PullCode.PULL_NOT_FOUND
    return _CODE_OF_STATUS[status]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """The inputs of table D1: the answering broker, and its copy of the consumer's group."""

    role: BrokerRole
    slave_read_enable: bool
    offset_check_in_slave: bool = False
    group_broker_id: int = 0
    group_when_slowly: int = 1

    @property
    def corrects_offsets(self) -> bool:
        """Returns corr(x) of table D3: a slave corrects the requested offset only if `offsetCheckInSlave` is set."""
        return self.role is not BrokerRole.SLAVE or self.offset_check_in_slave

    def suggested_broker_id(self, *, from_slave: bool) -> int:
        """Returns the suggested broker by the first six rows of table D1.

        `from_slave` says that the consumer is far behind (SPS, table D2b).  The role does not matter, because a master
        also sends its consumers to the group's brokerId.
        """
        if not self.slave_read_enable:
            return MASTER_ID
        return self.group_when_slowly if from_slave else self.group_broker_id

    def answer(self, status: GetMessageStatus, requested_offset: int, *, from_slave: bool) -> tuple[PullCode, int]:
        """Returns the response code and suggestWhichBrokerId of one pull, including the last row of table D1."""
        code = pull_code(status, requested_offset)
        if code is PullCode.PULL_OFFSET_MOVED and not self.corrects_offsets:
            # A lagging slave cannot tell an illegal offset from an offset that it has not copied yet.
            return PullCode.PULL_RETRY_IMMEDIATELY, self.group_broker_id
        return code, self.suggested_broker_id(from_slave=from_slave)
