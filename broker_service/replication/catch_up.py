"""Where a slave resumes, and what it or the master must do first.  Pure: offsets and epochs in, a plan out.

slave's log is a prefix of the master's        RESUME at the slave's end
a newer epoch forked the slave's tail off      CUT    back to the common prefix, resume there
the master lost a tail of its own last epoch   REFILL the master from the slave, then resume at the slave's end
the slave is empty, ends before the master's   START_OVER at the master's minimum
minimum, or forked off before either log's
anything else                                  REFUSE, and say why
"""

from dataclasses import dataclass
from enum import Enum

from broker_service.replication.epochs import EpochList, common_prefix
from broker_service.replication.refusals import KEEP_THE_RIGHT_LOG


class Step(Enum):
    RESUME = "resume"
    CUT = "cut"
    REFILL = "refill"
    START_OVER = "start over"
    FENCE = "fence"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class LogState:
    """What a handshake says of a log."""

    epochs: EpochList
    min_offset: int
    end_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.min_offset <= self.end_offset:
            raise ValueError(f"a log from {self.min_offset} to {self.end_offset}")

    @property
    def is_empty(self) -> bool:
        return self.min_offset == self.end_offset

    def __str__(self) -> str:
        return f"[{self.min_offset}, {self.end_offset}) epochs {self.epochs}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`resume_offset` is where the master's bytes will start; `reason` is a clause for the log and the other side."""

    step: Step
    resume_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.step.value} at {self.resume_offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A slave's log lost [from_offset, until_offset) and now ends at `end_offset`; what was lost is in `kept_in`."""

    from_offset: int
    until_offset: int
    end_offset: int
    kept_in: str | None

    def __str__(self) -> str:
        kept = f", kept in {self.kept_in}" if self.kept_in else ""
        return f"cut [{self.from_offset}, {self.until_offset}){kept}; the log now ends at {self.end_offset}"


def plan(master: LogState, slave: LogState, *, takes_writes: bool) -> Plan:
    """What to do with a slave that has just shown its log.  `takes_writes`: the master may write in its last epoch."""
    end = slave.end_offset
    if slave.epochs.last > master.epochs.last:
        return Plan(Step.FENCE, end, f"epoch {slave.epochs.last} is newer than this master's {master.epochs.last}")
    if slave.is_empty:
        # A master that is empty too must still name its minimum: it need not be 0.
        if end == master.min_offset:
            return Plan(Step.RESUME, end, "new slave")
        return Plan(Step.START_OVER, master.min_offset, "new slave")
    prefix = common_prefix(master.epochs, master.end_offset, slave.epochs, end)
    if prefix is None:
        return Plan(Step.REFUSE, end, f"no epoch in common: the log of another broker? {KEEP_THE_RIGHT_LOG}")
    if prefix == end:
        if end < master.min_offset:
            return Plan(Step.START_OVER, master.min_offset, f"{end} is older than everything the master still has")
        return Plan(Step.RESUME, end, "in step")
    if prefix == master.end_offset and master.epochs.is_same_as(slave.epochs):
        if slave.min_offset > prefix:
            return Plan(
                Step.REFUSE,
                end,
                f"the master ends at {prefix}, before the slave's minimum: stop the master and promote the slave",
            )
        if takes_writes:
            # New writes would have begun a new epoch, and the lists would differ: so one of the two logs is wrong.
            ahead = f"ahead of the master's end {prefix} in the epoch that it writes"
            return Plan(Step.REFUSE, end, f"{ahead}: {KEEP_THE_RIGHT_LOG}")
        return Plan(Step.REFILL, end, f"the master lost [{prefix}, {end}) of epoch {master.epochs.last}")
    if not slave.epochs.yields_to(master.epochs):
        return Plan(Step.REFUSE, end, f"another history of epoch {slave.epochs.last}: {KEEP_THE_RIGHT_LOG}")
    if prefix < max(slave.min_offset, master.min_offset):
        return Plan(Step.START_OVER, master.min_offset, f"forked off at {prefix}, before either log's minimum")
    return Plan(Step.CUT, prefix, f"epoch {master.epochs.last} forked off at {prefix}")
