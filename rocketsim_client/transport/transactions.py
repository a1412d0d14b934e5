"""Calls for transactions: half messages, their commit or rollback, and the brokers' questions."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rocketsim_client.message_view import MessageView
from rocketsim_client.model import CommitStatus
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall
from rocketsim_client.transport.under_way import UnderWay


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open, about which a broker asks.  `times`: how often it has asked, this time included."""

    topic: str
    transaction_id: str
    message: MessageView
    times: int


class EndAnswer(NamedTuple):
    """`status`: which brokers have the commit or rollback.  `again`: this broker has it, but its disk or slave did not
    take it in time."""

    again: bool
    status: CommitStatus


class TransactionCalls(Protocol):
    def prepare(
        self, address: str, outgoing: Outgoing, call: SendCall, client_id: str, timeout_s: float
    ) -> Acknowledged:
        """Like `SendCalls.send`, for one message, which is stored as a half message."""

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
        """Yields the broker's questions.  It ends after `timeout_s` at most, or when it is cancelled while it is in
        `under_way`."""
