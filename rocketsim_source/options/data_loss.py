"""Decides what to do about missing records.  Pure.  There are four kinds of data loss:

- trimmed: the queue's smallest offset is above the offset of the next record to read, because retention has deleted
  records or a file of the log is gone.
- truncated: the queue ends before the offset up to which it was read, because a broker restarted empty, or lost the end
  of its log.
- deleted: the queue's master answers that it has no such topic, or fewer queues.  A queue whose
  brokers do not answer, or whose topic is unknown to a name server, does not count as deleted.
- unsubscribed: the checkpoint has a topic or queue that the options no longer name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.option_values import OptionError, choice

FAIL = "fail"
SKIP = "skip"
EARLIEST = "earliest"

TRIMMED = "trimmed"
TRUNCATED = "truncated"
DELETED = "deleted"
UNSUBSCRIBED = "unsubscribed"
KINDS = (TRIMMED, TRUNCATED, DELETED, UNSUBSCRIBED)

NEAREST = (
    "set dataLossAction={kind}=skip (continue at the nearest offset that exists) or {kind}=earliest (continue at the "
    "queue's smallest), or failOnDataLoss=false for all kinds."
)
LEAVE = "set dataLossAction={kind}=skip (the queue is read no more), or failOnDataLoss=false for all kinds."
ADVICE = {TRIMMED: NEAREST, TRUNCATED: NEAREST, DELETED: LEAVE, UNSUBSCRIBED: LEAVE}


class DataLossError(RuntimeError):
    """Raised if records that a query had to read are missing, and the options do not allow this."""

    def __init__(self, kind: str, queue: MessageQueue, what: str) -> None:
        super().__init__(f"{queue} {what}. To continue without these records, {ADVICE[kind].format(kind=kind)}")
        self.kind = kind
        self.queue = queue


def data_loss_action(value: str) -> dict[str, str]:
    """Parses `skip` for every kind, or `trimmed=skip,truncated=fail`."""
    action = choice(FAIL, SKIP, EARLIEST)
    if "=" not in value:
        word: str = action(value)
        return dict.fromkeys(KINDS, word)
    found: dict[str, str] = {}
    for piece in value.split(","):
        kind, _, what = piece.partition("=")
        kind = choice(*KINDS)(kind)
        if kind in found:
            raise OptionError(f"names {kind} twice")
        found[kind] = action(what)
    return found


@dataclass(frozen=True, slots=True)
class DataLossPolicy:
    """The action for each kind of data loss: fail, skip or earliest."""

    trimmed: str = FAIL
    truncated: str = FAIL
    deleted: str = FAIL
    unsubscribed: str = FAIL

    @classmethod
    def of(cls, fail_on_data_loss: bool, actions: Mapping[str, str] | None) -> "DataLossPolicy":
        return cls(**(dict.fromkeys(KINDS, FAIL if fail_on_data_loss else SKIP) | dict(actions or {})))

    def action(self, kind: str) -> str:
        found: str = getattr(self, kind)
        return found

    def allow(self, kind: str, queue: MessageQueue, what: str) -> str:
        """Returns the action, which is skip or earliest.  Raises DataLossError if the action is fail."""
        if self.action(kind) == FAIL:
            raise DataLossError(kind, queue, what)
        return self.action(kind)
