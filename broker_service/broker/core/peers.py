"""Peers knows the live brokers of this broker's name from the answers of name servers and slaves.

Name servers do not share their knowledge, so the last answer of each name server is kept separately, while the
connection to it lasts.  When a name server is lost, its answer is dropped, because the brokers in the answer may have
died together with it.  The newest epoch of all answers is kept, even if the name server that named it is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rocketsim_proto.reserved import MASTER_ID


class LogEnd(NamedTuple):
    """How far a log goes: its newest epoch and its end."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Member:
    broker_id: int
    address: str
    epoch: int
    end_offset: int


class Peers:
    """Keeps the live brokers of one broker name, without this broker itself."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[Member, ...]] = {}
        self.newest_epoch = 0

    def answered(self, name_server: str, members: Iterable[Member], newest_epoch: int, own_address: str) -> None:
        self._answers[name_server] = tuple(member for member in members if member.address != own_address)
        self.newest_epoch = max(self.newest_epoch, newest_epoch)

    def forget(self, address: str) -> None:
        """Drops the last answer of a name server or broker that no longer answers or is no longer asked."""
        self._answers.pop(address, None)

    def slaves(self) -> dict[int, LogEnd]:
        """Returns the log end of each live slave by broker id.  If answers differ, the furthest end counts."""
        slaves: dict[int, LogEnd] = {}
        for member in self._members():
            if member.broker_id != MASTER_ID:
                end = LogEnd(member.epoch, member.end_offset)
                slaves[member.broker_id] = max(end, slaves.get(member.broker_id, end))
        return slaves

    def master(self) -> Member | None:
        """Returns the live master with the newest epoch, or None if no master is known."""
        masters = [member for member in self._members() if member.broker_id == MASTER_ID]
        return max(masters, key=lambda member: member.epoch, default=None)

    def addresses(self) -> dict[str, int]:
        """Returns the addresses of all live brokers, with their broker ids."""
        return {member.address: member.broker_id for member in self._members()}

    def _members(self) -> Iterable[Member]:
        return (member for members in self._answers.values() for member in members)
