"""A slave's promise to a candidate for promotion: the slave follows no master of a lower epoch.  Pure.

A promotion that is not forced asks all slaves for a promise before it compares their logs.  After its promise a slave
acknowledges nothing more to the old master, so the candidate's comparison of the logs stays true.  Candidates in Paxos
and Raft also ask for promises, but need only those of a majority.  A pair without its master has no majority, so in
RocketSim all known slaves must promise.

A promise is on disk before the candidate gets the answer.  A promise ends when the slave's log has the promised epoch.
A promise also ends if the candidate is asked later, and answers that it is neither master nor being promoted with this
epoch.  The candidate does not need the promise after this answer, because each further attempt to be promoted asks for
a new one.
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
    """Returns why the asked broker refuses a promise, as words to put behind the broker's name; "" if the broker
    promises.

    All arguments but `asked` describe the asked broker.  `given` is a promise that this broker has given already, and
    `newest_epoch` is the last epoch of its log.  `follows` is the address of the master whose stream the broker has.
    `candidate_epoch` is not 0 if the broker is being promoted itself, with this epoch.
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
    """Returns True if the candidate's answer ends the promise.  The candidate must have been asked after it got the
    promise.
    """
    return broker_id != MASTER_ID and candidate_epoch != promise.epoch
