"""Handles a range that a broker has ended early, because the broker has no record at the next offset.  Finds out why
the record is missing, and where the task continues.

A slave that lacks a record may only be behind, which is no data loss.  If a slave lacks a record, the task asks the
master, and waits if the master does not answer.  Only the master's answer proves that records are lost.
"""

from rocketsim_client.model import MASTER_ID, GetMessageStatus
from rocketsim_source.options.data_loss import TRUNCATED
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.reading.broker_choice import BrokerChoice
from rocketsim_source.reading.losses import Losses
from rocketsim_source.reading.patience import Patience
from rocketsim_source.reading.task_progress import EarlyEnd, TaskProgress

TRUNCATION_GRACE_S = 3.0
NOT_ENOUGH = frozenset(
    {
        GetMessageStatus.OFFSET_OVERFLOW_BADLY,
        GetMessageStatus.OFFSET_OVERFLOW_ONE,
        GetMessageStatus.OFFSET_FOUND_NULL,
        GetMessageStatus.NO_MESSAGE_IN_QUEUE,
        GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)


class SlaveBehind(RuntimeError):
    """Raised if the master does not answer, and its slave lacks records that were planned while the master answered."""


class EarlyEnds:
    """Decides how one task continues ranges that a broker has ended early."""

    def __init__(
        self, progress: TaskProgress, brokers: BrokerChoice, patience: Patience, losses: Losses, options: SourceOptions
    ) -> None:
        self._progress = progress
        self._brokers = brokers
        self._patience = patience
        self._losses = losses
        self._options = options

    def resolve(self, end: EarlyEnd) -> None:
        """Decides how the task continues a range that ended early.  Returns when another broker or position is chosen,
        or after a pause.  Raises an error, which fails the task, if the range cannot continue.
        """
        if end.broker_id != MASTER_ID:
            if self._is_left_to_the_master(end):
                return
        elif end.segment.status in NOT_ENOUGH and self._patience.wait(end.index, TRUNCATION_GRACE_S):
            return
        self._patience.end_wait(end.index)
        if end.segment.status == GetMessageStatus.OFFSET_TOO_SMALL:
            self._skip_trimmed(end)
        else:
            self._skip_truncated(end)

    def _is_left_to_the_master(self, end: EarlyEnd) -> bool:
        """Returns True if only the master can say whether the records are lost.  The slave's answer is enough if the
        slave says that the records are deleted, and if no master has answered for slaveBehindWaitMs.
        """
        queue, _, until = self._progress.ranges[end.index]
        if self._brokers.leave_slave(queue):
            return True
        if self._patience.wait(end.index, self._options.slave_behind_wait_ms / 1000):
            return True
        if end.segment.status != GetMessageStatus.OFFSET_TOO_SMALL:
            raise SlaveBehind(
                f"{queue}: broker {end.broker_id} has records only up to {end.segment.max_offset}, and the master, "
                f"which has records up to {until}, did not answer for {self._options.slave_behind_wait_ms} ms "
                "(slaveBehindWaitMs)"
            )
        return False

    def _skip_trimmed(self, end: EarlyEnd) -> None:
        queue, _, until = self._progress.ranges[end.index]
        at, first = self._progress.at[end.index], end.segment.min_offset
        self._losses.trimmed(queue, at, min(first, until))
        self._progress.at[end.index] = min(max(at, first), until)

    def _skip_truncated(self, end: EarlyEnd) -> None:
        queue, _, until = self._progress.ranges[end.index]
        at, segment = self._progress.at[end.index], end.segment
        if segment.status == GetMessageStatus.OFFSET_TRUNCATED:
            what = (
                f"was planned to be read from {at} to {until}, but a broker that did not have all of that was promoted "
                f"since: from offset {segment.next_offset} on it has other records, or none"
            )
        else:
            what = (
                f"ends at {segment.max_offset}, but was planned to be read from {at} to {until} ({segment.status.name})"
            )
        self._losses.allow(TRUNCATED, queue, what)
        self._progress.at[end.index] = until
