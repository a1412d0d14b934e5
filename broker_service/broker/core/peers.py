"""Who else has this broker's name, as the name servers say, and the slaves that are asked directly.  Pure.

Name servers share nothing, so each one's last answer is kept by itself, as long as its connection holds.  One that is
lost takes away what it alone has said, since it may have died together with those that it knew; only the newest epoch
that anybody has named stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from broker_service.model import MASTER_ID


class LogEnd(NamedTuple):
    """How far a log goes: the newest epoch that it knows, and its end."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Member:
    broker_id: int
    address: str
    epoch: int
    end_offset: int


class Peers:
    """The live brokers of one name; without the asking one, if it says its own address."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[Member, ...]] = {}
        self.newest_epoch = 0

    def answered(self, name_server: str, members: Iterable[Member], newest_epoch: int, own_address: str) -> None:
        self._answers[name_server] = tuple(member for member in members if member.address != own_address)
        self.newest_epoch = max(self.newest_epoch, newest_epoch)

    def forget(self, address: str) -> None:
        """It does not answer, or is asked no more: what it said last is history."""
        self._answers.pop(address, None)

    @property
    def have_answered(self) -> bool:
        return bool(self._answers)

    def slaves(self) -> dict[int, LogEnd]:
        """Every live slave's id and log; the furthest of what different name servers know."""
        slaves: dict[int, LogEnd] = {}
        for member in self._members():
            if member.broker_id != MASTER_ID:
                end = LogEnd(member.epoch, member.end_offset)
                slaves[member.broker_id] = max(end, slaves.get(member.broker_id, end))
        return slaves

    def master(self) -> Member | None:
        """The master of the newest epoch."""
        masters = [member for member in self._members() if member.broker_id == MASTER_ID]
        return max(masters, key=lambda member: member.epoch, default=None)

    def addresses(self) -> dict[str, int]:
        """Everybody's, and their broker ids."""
        return {member.address: member.broker_id for member in self._members()}

    def _members(self) -> Iterable[Member]:
        return (member for members in self._answers.values() for member in members)
