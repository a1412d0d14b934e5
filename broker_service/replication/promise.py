"""A slave's promise to a candidate for promotion: the slave follows no master of a lower epoch.  Pure.

A promotion that is not forced asks all slaves for a promise before it compares their logs.  After its promise a slave
acknowledges nothing more to the old master, so the comparison stays true.  Candidates in Paxos and Raft do the same,
but need only a majority.  A pair without its master has no majority, so here all known slaves must promise.

A promise is on disk before the candidate gets the answer.  A promise ends when the slave's log has the promised epoch.
A promise also ends when the candidate, asked after the promise was given, says that it is no master and is not being
promoted with this epoch.  The candidate's answer is final, because each further attempt of the candidate asks for a new
promise.
"""

from dataclasses import dataclass

from rocketsim_proto.reserved import MASTER_ID


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise to the broker with this id and address, which begins this epoch or has begun it."""

    epoch: int
    broker_id: int
    address: str

    def __str__(self) -> str:
        return f"epoch {self.epoch} to broker {self.broker_id} at {self.address}"


def refusal(
    asked: Promise, given: Promise | None, newest_epoch: int, *, is_slave: bool, follows: str, candidate_epoch: int
) -> str:
    """Returns why a broker refuses a promise, as a clause that follows its name; empty if it promises.

    The arguments describe the broker that is asked: `given` is the promise that it has given already, `newest_epoch` is
    the last epoch of its log, `follows` is the address of the master whose stream it has, and `candidate_epoch` is the
    epoch with which it is being promoted itself.
    """
    if not is_slave:
        return "is a master"
    if candidate_epoch:
        return f"is being promoted itself, with epoch {candidate_epoch}"
    if follows:
        return f"follows the master at {follows}: stop it first"
    if given is not None and given.address != asked.address:
        return f"has promised {given}, and asks that broker if it has given up: try again, or start that broker"
    newest = max(newest_epoch, given.epoch - 1 if given is not None else 0)
    return f"knows of epoch {newest}: try again" if asked.epoch <= newest else ""


def is_over(promise: Promise, broker_id: int, candidate_epoch: int) -> bool:
    """Returns True if the candidate's answer ends the promise; the answer must be newer than the promise."""
    return broker_id != MASTER_ID and candidate_epoch != promise.epoch
