"""Decides where a slave resumes, and what the slave or the master must do first.  Pure.

| the two logs                                                | step                                                   |
|-------------------------------------------------------------|--------------------------------------------------------|
| the slave's log is a prefix of the master's                 | RESUME at the slave's end                              |
| the master has a newer epoch, and the slave has a tail that | CUT the slave back to the common prefix, resume there  |
| the master's history does not have                          |                                                        |
| the master lost the tail of its own last epoch              | REFILL the master, then resume at the slave's end      |
| the slave is empty, or ends before the master's minimum, or | START_OVER with an empty log at the master's minimum   |
| the logs part before the minimum of one of them             |                                                        |
| the slave knows a newer epoch than the master               | FENCE the master, which was replaced                   |
| anything else                                               | REFUSE, with the reason                                |
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
    """The state of a log, as its broker sends it in a handshake."""

    epochs: EpochList
    min_offset: int
    end_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.min_offset <= self.end_offset:
            raise ValueError(f"impossible bounds: a log from {self.min_offset} to {self.end_offset}")

    @property
    def is_empty(self) -> bool:
        return self.min_offset == self.end_offset

    def __str__(self) -> str:
        return f"[{self.min_offset}, {self.end_offset}) epochs {self.epochs}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan by which a slave catches up.

    The master will send log bytes from `resume_offset` on.  `reason` is a clause for log lines and for the answer to
    the slave.
    """

    step: Step
    resume_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.step.value} at {self.resume_offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of a slave's log: it lost [from_offset, until_offset) and now ends at `end_offset`.

    The removed bytes are in `kept_in`.
    """

    from_offset: int
    until_offset: int
    end_offset: int
    kept_in: str | None

    def __str__(self) -> str:
        kept = f", kept in {self.kept_in}" if self.kept_in else ""
        return f"cut [{self.from_offset}, {self.until_offset}){kept}; the log now ends at {self.end_offset}"


def plan(master: LogState, slave: LogState, *, takes_writes: bool) -> Plan:
    """Plans how a slave that has sent its handshake catches up.

    `takes_writes` is True if the master may already have written in its last epoch.
    """
    end = slave.end_offset
    if slave.epochs.last > master.epochs.last:
        return Plan(Step.FENCE, end, f"epoch {slave.epochs.last} is newer than this master's {master.epochs.last}")
    if slave.is_empty:
        # An empty slave resumes at the master's minimum, which need not be 0 even if the master's log is empty.
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
            # A master that lost its tail begins a new epoch before it writes.  The epochs are equal, so this master has
            # not lost a tail, and one of the two logs is wrong.
            ahead = f"ahead of the master's end {prefix} in the epoch that it writes"
            return Plan(Step.REFUSE, end, f"{ahead}: {KEEP_THE_RIGHT_LOG}")
        return Plan(Step.REFILL, end, f"the master lost [{prefix}, {end}) of epoch {master.epochs.last}")
    if not slave.epochs.yields_to(master.epochs):
        return Plan(Step.REFUSE, end, f"another history of epoch {slave.epochs.last}: {KEEP_THE_RIGHT_LOG}")
    if prefix < max(slave.min_offset, master.min_offset):
        return Plan(Step.START_OVER, master.min_offset, f"forked off at {prefix}, before either log's minimum")
    return Plan(Step.CUT, prefix, f"epoch {master.epochs.last} forked off at {prefix}")
