"""Calls of transactions: half messages, their ends, and the brokers' questions."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rocketsim_client.message_view import MessageView
from rocketsim_client.model import CommitStatus
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall
from rocketsim_client.transport.under_way import UnderWay


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that nobody has ended.  `times`: how often a broker has asked, this time included."""

    topic: str
    transaction_id: str
    message: MessageView
    times: int


class EndAnswer(NamedTuple):
    """`status`: who has the end.  `again`: it holds on this broker, but disk or slave did not take it in time."""

    again: bool
    status: CommitStatus


class TransactionCalls(Protocol):
    def prepare(
        self, address: str, outgoing: Outgoing, call: SendCall, client_id: str, timeout_s: float
    ) -> Acknowledged:
        """As `SendCalls.send`, for one message, which is stored as a half message."""

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
        """The broker's questions.  Ends before `timeout_s`, or when it is cancelled while it is in `under_way`."""
