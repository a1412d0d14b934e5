"""Calls for the consumers of a group: pop, acknowledge, move deadlines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rocketsim_client.model import CommitStatus
from rocketsim_client.received_message import ReceivedMessage
from rocketsim_client.transport.under_way import UnderWay

MAX_HANDLES = 1024  # in one call; brokers have the same limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PopCall:
    group: str
    topic: str
    broker_name: str
    client_id: str
    max_messages: int
    invisible_s: float
    expression: str
    expression_type: str
    poll_s: float
    attempt_id: str


@dataclass(slots=True)
class PopAnswer:
    """`left_s`: for each message, the seconds until its deadline.  `in_order`: the group consumes in order."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)
    in_order: bool = False


class Change(NamedTuple):
    """A new deadline for a message.  `invisible_s` None: the group's back-off.  `counted`: the next delivery counts as
    another attempt."""

    receipt_handle: str
    invisible_s: float | None
    counted: bool = True


class Settled(NamedTuple):
    """`valid`: for each handle, True if its delivery was not over.  `status`: which brokers have the valid ones; UNSAID
    if none is valid, or from an older broker.  `again`: this broker has them, but its disk or slave did not take them
    in time."""

    valid: Sequence[bool]
    again: bool
    status: CommitStatus = CommitStatus.UNSAID


class ConsumptionCalls(Protocol):
    def pop(self, address: str, call: PopCall, timeout_s: float, under_way: UnderWay) -> PopAnswer:
        """Raises ClientClosed if the call is cancelled while it is in `under_way`."""

    def end_polls(self, address: str, call: PopCall, timeout_s: float) -> None:
        """Has the broker answer a pop like this one that it holds.  Cancelling that pop instead would lose messages
        that are on their way."""

    def ack(
        self, address: str, group: str, topic: str, broker_name: str, handles: Sequence[str], timeout_s: float
    ) -> Settled: ...

    def change_invisible(
        self, address: str, group: str, topic: str, broker_name: str, changes: Sequence[Change], timeout_s: float
    ) -> Settled: ...
