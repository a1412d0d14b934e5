"""Decides the response code of a pull, and which broker the consumer should ask next, like RocketMQ 4.9.8 (tables D3
and D1 of docs/decision_tables.md).

The decision uses only facts that the answering broker knows: its role, its configuration, its log, and its own copy of
the consumer group's settings.
"""

from dataclasses import dataclass
from enum import IntEnum

from rocketsim_proto.model import GetMessageStatus
from rocketsim_proto.reserved import MASTER_ID

from broker_service.modes import BrokerRole


class PullCode(IntEnum):
    """RocketMQ's response codes for a pull, with the numbers from message.proto."""

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
    """Returns the response code by table D3 of docs/decision_tables.md.  If the queue does not exist or is empty, the
    code is PULL_OFFSET_MOVED for every requested offset except 0.
    """
    if status in (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE):
        return PullCode.PULL_OFFSET_MOVED if requested_offset != 0 else PullCode.PULL_NOT_FOUND
    return _CODE_OF_STATUS[status]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """The inputs of table D1 of docs/decision_tables.md: facts about the answering broker, and the consumer group's
    settings in the broker's table.
    """

    role: BrokerRole
    slave_read_enable: bool
    offset_check_in_slave: bool = False
    group_broker_id: int = 0
    group_when_slowly: int = 1

    @property
    def corrects_offsets(self) -> bool:
        """Returns corr(x) of table D3 in docs/decision_tables.md: a slave corrects the requested offset only if
        `offsetCheckInSlave` is set.
        """
        return self.role is not BrokerRole.SLAVE or self.offset_check_in_slave

    def suggested_broker_id(self, *, from_slave: bool) -> int:
        """Returns the broker that the answer suggests, by the first three rows of table D1 of docs/decision_tables.md.

        `from_slave` is True if the consumer is far behind (SPS of table D2b).  Masters and slaves suggest the same
        broker, because a master also sends its consumers to the group's brokerId.
        """
        if not self.slave_read_enable:
            return MASTER_ID
        return self.group_when_slowly if from_slave else self.group_broker_id

    def answer(self, status: GetMessageStatus, requested_offset: int, *, from_slave: bool) -> tuple[PullCode, int]:
        """Returns the response code and suggestWhichBrokerId of a pull, by all rows of table D1 in
        docs/decision_tables.md.
        """
        code = pull_code(status, requested_offset)
        if code is PullCode.PULL_OFFSET_MOVED and not self.corrects_offsets:
            # A slave that is behind cannot know whether an offset is illegal or is only not copied yet.
            return PullCode.PULL_RETRY_IMMEDIATELY, self.group_broker_id
        return code, self.suggested_broker_id(from_slave=from_slave)
