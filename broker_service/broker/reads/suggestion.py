"""Which response code a pull gets and which broker its consumer should ask next: RocketMQ 4.9.8's tables D3 and D1.

Pure.  The inputs are those of the broker that answers: its role, its keys, its log, its copy of the group.
"""

from dataclasses import dataclass
from enum import IntEnum

from broker_service.model import MASTER_ID, BrokerRole, GetMessageStatus


class PullCode(IntEnum):
    """RocketMQ's response codes of a pull; numbers as in message.proto."""

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
    """Table D3's code.  A queue that is absent or empty has moved the offset of everybody who asked for more than 0."""
    if status in (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE):
        return PullCode.PULL_OFFSET_MOVED if requested_offset != 0 else PullCode.PULL_NOT_FOUND
    return _CODE_OF_STATUS[status]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """What table D1 knows of the answering broker and of the consumer's group there."""

    role: BrokerRole
    slave_read_enable: bool
    offset_check_in_slave: bool = False
    group_broker_id: int = 0
    group_when_slowly: int = 1

    @property
    def corrects_offsets(self) -> bool:
        """Table D3's corr(x): a slave leaves the request's offset as it is unless `offsetCheckInSlave`."""
        return self.role is not BrokerRole.SLAVE or self.offset_check_in_slave

    def suggested_broker_id(self, *, from_slave: bool) -> int:
        """The first six rows of table D1.  `from_slave`: the store finds the consumer far behind (SPS, table D2b).

        There is no role test: a master, too, sends its normal consumers to where the group's brokerId says.
        """
        if not self.slave_read_enable:
            return MASTER_ID
        return self.group_when_slowly if from_slave else self.group_broker_id

    def answer(self, status: GetMessageStatus, requested_offset: int, *, from_slave: bool) -> tuple[PullCode, int]:
        """The code and suggestWhichBrokerId of one pull, table D1's last row included."""
        code = pull_code(status, requested_offset)
        if code is PullCode.PULL_OFFSET_MOVED and not self.corrects_offsets:
            # A lagging slave cannot tell an illegal offset from one that it has not got yet.
            return PullCode.PULL_RETRY_IMMEDIATELY, self.group_broker_id
        return code, self.suggested_broker_id(from_slave=from_slave)
