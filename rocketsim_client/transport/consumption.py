"""The calls of a group's consumers, which pop messages, acknowledge them and move their deadlines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rocketsim_client.model import CommitStatus
from rocketsim_client.received_message import ReceivedMessage
from rocketsim_client.transport.under_way import UnderWay

MAX_HANDLES = 1024  # receipt handles in one call; brokers have the same limit


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
    """The answer to a pop.  `left_s` has the seconds until each message's deadline.  `in_order` is True if the group
    consumes in order."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)
    in_order: bool = False


class Change(NamedTuple):
    """A new deadline for a message.  If `invisible_s` is None, the group's back-off gives the time.  If `counted` is
    True, the next delivery counts as another attempt."""

    receipt_handle: str
    invisible_s: float | None
    counted: bool = True


class Settled(NamedTuple):
    """The answer to acks or to changes of deadlines.  `valid` says for each receipt handle whether its delivery was
    still under way.  `status` says which brokers have stored the changes of the valid handles.  `status` is UNSAID if
    no handle is valid, or if the broker is of an older version.  `again` is True if this broker has stored the changes,
    but its disk or slave did not confirm them in time."""

    valid: Sequence[bool]
    again: bool
    status: CommitStatus = CommitStatus.UNSAID


class ConsumptionCalls(Protocol):
    def pop(self, address: str, call: PopCall, timeout_s: float, under_way: UnderWay) -> PopAnswer:
        """Raises ClientClosed if another thread cancels the call through `under_way`."""

    def end_polls(self, address: str, call: PopCall, timeout_s: float) -> None:
        """Makes the broker answer the long polls of this client at once.  Cancelling a pop instead could lose messages
        that are on their way."""

    def ack(
        self, address: str, group: str, topic: str, broker_name: str, handles: Sequence[str], timeout_s: float
    ) -> Settled: ...

    def change_invisible(
        self, address: str, group: str, topic: str, broker_name: str, changes: Sequence[Change], timeout_s: float
    ) -> Settled: ...
