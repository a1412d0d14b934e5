"""A slave's promise to a candidate, which is about to be promoted: it follows no master of a lower epoch.  Pure.

A promotion that is not forced has every slave promise before it compares their logs, as a candidate does in Paxos and
Raft: what a slave has acknowledged cannot grow any more by then.  There is no majority among two or three brokers, so
all slaves have to promise.

A promise is on disk before the candidate hears of it.  It ends when the slave's log has the epoch, or when the
candidate answers that it is no master and not being promoted with this epoch.  That answer is final if it was asked for
after the promise was given: each further attempt of the candidate asks for a promise anew.
"""

from dataclasses import dataclass

from broker_service.model import MASTER_ID


@dataclass(frozen=True, slots=True)
class Promise:
    """To the broker with this id and address, which begins this epoch, or has begun it."""

    epoch: int
    broker_id: int
    address: str

    def __str__(self) -> str:
        return f"epoch {self.epoch} to broker {self.broker_id} at {self.address}"


def refusal(
    asked: Promise, given: Promise | None, newest_epoch: int, *, is_slave: bool, follows: str, candidate_epoch: int
) -> str:
    """Why a broker does not promise, a clause that its name precedes; empty: it does.

    `given`: what it has promised already; `newest_epoch`: of its log; `follows`: the address of the master whose
    stream it has; `candidate_epoch`: with which it is being promoted itself.
    """
    if not is_slave:
        return "is a master"
    if candidate_epoch:
        return f"is being promoted itself, with epoch {candidate_epoch}"
    if follows:
        return f"follows the master at {follows}: stop it first"
    if given is not None and given.address != asked.address:
        return f"has promised {given}, and asks it whether that is over: try again, or start that one"
    newest = max(newest_epoch, given.epoch - 1 if given is not None else 0)
    return f"knows of epoch {newest}: try again" if asked.epoch <= newest else ""


def is_over(promise: Promise, broker_id: int, candidate_epoch: int) -> bool:
    """Whether the candidate's answer, asked for after the promise was given, ends it."""
    return broker_id != MASTER_ID and candidate_epoch != promise.epoch
