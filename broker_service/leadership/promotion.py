"""Objections to a promotion, and the bytes that it cuts elsewhere.  Pure: the answers of the other brokers come in.

A slave may be promoted when nobody who can be reached has more than it, by the epoch of the last byte, then the end
(Raft's rule), and everybody who is known can be reached.  What another one has beyond the common history is cut there
when it follows the promoted one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from broker_service.model import MASTER_ID
from broker_service.replication.catch_up import LogState
from broker_service.replication.epochs import Epoch, EpochList, common_prefix


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a broker has said.  One of an older version names of its epochs the last number only."""

    epoch: int
    end_offset: int
    epochs: EpochList | None = None
    min_offset: int = 0
    is_master: bool = False
    follows: str = ""  # the address of the master whose stream it has
    promised_epoch: int = 0  # to another one that was to be promoted, or to this one


@dataclass(frozen=True, slots=True)
class OtherMember:
    """Another broker of the name; `answer` is None if it does not answer now.  `refusal`: why it does not promise to
    follow no master of a lower epoch than ours is to be, once it was asked to."""

    broker_id: int
    address: str
    answer: MemberReport | None
    refusal: str = ""

    def __str__(self) -> str:
        role = "the master" if self.broker_id == MASTER_ID else f"slave {self.broker_id}"
        return f"{role} at {self.address}"


@dataclass(frozen=True, slots=True)
class Forfeit:
    """What only that broker has, and what is cut there; None: it did not answer, or cannot tell."""

    broker_id: int
    address: str
    bytes: int | None

    def __str__(self) -> str:
        how_many = "nobody knows how many" if self.bytes is None else self.bytes
        return f"{how_many} bytes that only broker {self.broker_id} at {self.address} has are cut there"


def objections(ours: LogState, others: Iterable[OtherMember]) -> list[str]:
    """Why not, one clause for each; nothing: go on."""
    found = []
    for other in others:
        if (reason := _objection(ours, other)) is not None:
            found.append(reason)
    return found


def forfeits(ours: LogState, others: Iterable[OtherMember]) -> list[Forfeit]:
    """What a promotion cuts, or may cut, elsewhere; nobody who has nothing to lose is among them."""
    found = [Forfeit(other.broker_id, other.address, _forfeited(ours, other)) for other in others]
    return [forfeit for forfeit in found if forfeit.bytes != 0]


def _objection(ours: LogState, other: OtherMember) -> str | None:
    answer = other.answer
    if answer is None:
        if other.broker_id == MASTER_ID:
            return None  # that is why somebody is to be promoted
        return (
            f"{other}, which is known, does not answer and may have more: start it, or forget it with `rocketsim admin "
            f"removeSlave -i {other.broker_id}` if it is gone for good"
        )
    if other.refusal:
        return f"{other} {other.refusal}"
    if answer.is_master:
        return None if answer.epoch < ours.epochs.last else f"{other} answers, in epoch {answer.epoch}: stop it first"
    if answer.follows:
        return f"{other} follows the master at {answer.follows}: stop it first"
    cost = _forfeited(ours, other)
    what = "how much is not known" if cost is None else f"{cost} bytes"
    if _is_fork(ours, answer):
        return f"{other} has another history of epoch {answer.epoch} ({what} would be cut there): decide which is right"
    if not _has_more(ours, answer):
        return None
    return (
        f"{other} has more: up to {answer.end_offset} in epoch {_written_in(answer).epoch}, and here it is "
        f"{ours.end_offset} in epoch {_epoch_here(ours).epoch} ({what}, perhaps acknowledged, would be cut there): "
        "promote that one"
    )


def _forfeited(ours: LogState, other: OtherMember) -> int | None:
    answer = other.answer
    if answer is None:
        return None
    if not _has_more(ours, answer) and not _is_fork(ours, answer):
        return 0  # what parts from ours there, an epoch of before now has cut already
    if answer.epochs is None:
        return answer.end_offset - ours.end_offset if answer.epoch == _epoch_here(ours).epoch else None
    joint = common_prefix(ours.epochs, ours.end_offset, answer.epochs, answer.end_offset)
    return answer.end_offset - max(joint or 0, answer.min_offset)


def _has_more(ours: LogState, answer: MemberReport) -> bool:
    """A slave knows of an epoch before it has a byte of it, and has no more for that: the last byte's epoch counts."""
    return (_written_in(answer).epoch, answer.end_offset) > (_epoch_here(ours).epoch, ours.end_offset)


def _is_fork(ours: LogState, answer: MemberReport) -> bool:
    """Whether somebody else wrote the last byte there, in an epoch of the same number."""
    our, their = _epoch_here(ours), _written_in(answer)
    return answer.epochs is not None and our.epoch == their.epoch and not our.is_same_as(their)


def _epoch_here(ours: LogState) -> Epoch:
    return ours.epochs.of_last_byte(ours.end_offset)


def _written_in(answer: MemberReport) -> Epoch:
    """The epoch of its last byte; of an older version the newest that it knows."""
    return answer.epochs.of_last_byte(answer.end_offset) if answer.epochs is not None else Epoch(answer.epoch, 0)
