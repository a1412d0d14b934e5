"""The calls for transactions: half messages, their commit or rollback, and the questions that brokers ask about open
ones."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rocketsim_client.message_view import MessageView
from rocketsim_client.model import CommitStatus
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall
from rocketsim_client.transport.under_way import UnderWay


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction about which a broker asks.  `times` counts the broker's questions about the transaction,
    including this one."""

    topic: str
    transaction_id: str
    message: MessageView
    times: int


class EndAnswer(NamedTuple):
    """The answer to a commit or rollback.  `status` says which brokers have stored the commit or rollback.  `again` is
    True if this broker has stored the commit or rollback, but its disk or slave did not confirm that in time."""

    again: bool
    status: CommitStatus


class TransactionCalls(Protocol):
    def prepare(
        self, address: str, outgoing: Outgoing, call: SendCall, client_id: str, timeout_s: float
    ) -> Acknowledged:
        """Does the same as `SendCalls.send` for one message, which is stored as a half message."""

    def end(
        self, address: str, topic: str, broker_name: str, transaction_id: str, *, commit: bool, timeout_s: float
    ) -> EndAnswer: ...

    def check(
        self,
        address: str,
        client_id: str,
        broker_name: str,
        topics: Sequence[str],
        timeout_s: float,
        under_way: UnderWay,
    ) -> Generator[OpenTransaction, None, None]:
        """Yields the open transactions about which the broker asks.  Ends after `timeout_s` at most, or when another
        thread cancels the call through `under_way`."""
