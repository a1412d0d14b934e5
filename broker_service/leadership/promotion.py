"""Decides whether a slave may be promoted, and how many bytes a promotion cuts at other brokers.  Pure.

A slave may be promoted when every other known slave has answered, and no other log has more than the slave's own log.
Of two logs, the one whose last byte has the newer epoch has more; if both last bytes have the same epoch, the longer
log has more (Raft's rule).  When another broker follows the promoted one, it cuts those bytes from its log that are not
in the promoted broker's history.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rocketsim_proto.reserved import MASTER_ID

from broker_service.replication.catch_up import LogState
from broker_service.replication.epochs import Epoch, EpochList, common_prefix


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A broker's report about itself.  A broker of an older version sends only its last epoch (`epoch`), so that
    `epochs` is None.
    """

    epoch: int
    end_offset: int
    epochs: EpochList | None = None
    min_offset: int = 0
    is_master: bool = False
    follows: str = ""  # the address of the master whose stream the broker has
    promised_epoch: int = 0  # the epoch that the broker has promised, to this candidate or to another one


@dataclass(frozen=True, slots=True)
class OtherMember:
    """What another broker with the same broker name answers to a promotion.

    `answer` is None if the broker does not answer now.  `refusal` is the reason of a broker that has refused to give
    the promise.
    """

    broker_id: int
    address: str
    answer: MemberReport | None
    refusal: str = ""

    def __str__(self) -> str:
        role = "the master" if self.broker_id == MASTER_ID else f"slave {self.broker_id}"
        return f"{role} at {self.address}"


@dataclass(frozen=True, slots=True)
class Forfeit:
    """The bytes that only one other broker has, and that a promotion cuts from its log.

    `bytes` is None if the broker did not answer, or if its version does not send its epochs.
    """

    broker_id: int
    address: str
    bytes: int | None

    def __str__(self) -> str:
        how_many = "nobody knows how many" if self.bytes is None else self.bytes
        return f"{how_many} bytes that only broker {self.broker_id} at {self.address} has are cut there"


def objections(ours: LogState, others: Iterable[OtherMember]) -> list[str]:
    """Returns the reasons against the promotion, each as a clause; if there are none, the slave may be promoted."""
    found = []
    for other in others:
        if (reason := _objection(ours, other)) is not None:
            found.append(reason)
    return found


def forfeits(ours: LogState, others: Iterable[OtherMember]) -> list[Forfeit]:
    """Returns what a promotion cuts, or may cut, at other brokers; brokers that lose nothing are left out."""
    found = [Forfeit(other.broker_id, other.address, _forfeited(ours, other)) for other in others]
    return [forfeit for forfeit in found if forfeit.bytes != 0]


def _objection(ours: LogState, other: OtherMember) -> str | None:
    answer = other.answer
    if answer is None:
        if other.broker_id == MASTER_ID:
            return None  # a slave is usually promoted because the master is gone, so a silent master is no objection
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
        return 0  # bytes that only the other log has were given up before, when a newer epoch of this log began
    if answer.epochs is None:
        return answer.end_offset - ours.end_offset if answer.epoch == _epoch_here(ours).epoch else None
    joint = common_prefix(ours.epochs, ours.end_offset, answer.epochs, answer.end_offset)
    return answer.end_offset - max(joint or 0, answer.min_offset)


def _has_more(ours: LogState, answer: MemberReport) -> bool:
    """Returns True if the other log has more than this one, by the rule at the top of this module.

    The epochs of the logs' last bytes are compared first.  Comparing the newest epochs that the brokers know would be
    wrong, because a slave knows its master's epochs before it has their bytes.
    """
    return (_written_in(answer).epoch, answer.end_offset) > (_epoch_here(ours).epoch, ours.end_offset)


def _is_fork(ours: LogState, answer: MemberReport) -> bool:
    """Returns True if the last bytes of both logs have the same epoch number, but different masters wrote them."""
    our, their = _epoch_here(ours), _written_in(answer)
    return answer.epochs is not None and our.epoch == their.epoch and not our.is_same_as(their)


def _epoch_here(ours: LogState) -> Epoch:
    return ours.epochs.of_last_byte(ours.end_offset)


def _written_in(answer: MemberReport) -> Epoch:
    """Returns the epoch of the other log's last byte; if the other broker has an older version, the newest epoch that
    it knows.
    """
    return answer.epochs.of_last_byte(answer.end_offset) if answer.epochs is not None else Epoch(answer.epoch, 0)
