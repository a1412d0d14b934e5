"""Tells which log has which bytes, for modes in which a master may lack the end of another master's log."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker_service.replication.epochs import Epoch

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

NEVER = math.inf


class Position(NamedTuple):
    """A position in the log: an offset, and the epoch in which the byte before it was written."""

    epoch: int
    epoch_id: int
    log_offset: int

    @classmethod
    def now(cls, broker: "Broker") -> "Position":
        """Returns the position at the end of a master's log."""
        epoch = broker.live.epochs.epochs.epochs[-1]
        return cls(epoch.epoch, epoch.id, broker.live.store.end_offset)


class History(NamedTuple):
    """The epochs in a master's log.  The last epoch is the master's own, which still grows."""

    epochs: tuple[Epoch, ...]

    @classmethod
    def of(cls, broker: "Broker") -> "History":
        return cls(broker.live.epochs.epochs.epochs)

    def position(self, log_offset: int) -> Position:
        """Returns the position at that log offset, with the epoch in which the byte before that offset was written."""
        epoch = [one for one in self.epochs if one.start_offset < log_offset or one is self.epochs[0]][-1]
        return Position(epoch.epoch, epoch.id, log_offset)

    def has(self, position: Position) -> bool:
        """Returns True if the history has everything up to that position."""
        of = [number for number, one in enumerate(self.epochs) if (one.epoch, one.id) == position[:2]]
        following = self.epochs[of[0] + 1 :][:1] if of else ()
        return bool(of) and all(one.start_offset >= position.log_offset for one in following)

    def has_some_after(self, position: Position) -> bool:
        """Returns True if the history may contain bytes that were appended after that position in the same epoch."""
        return self.has(position._replace(log_offset=position.log_offset + 1))


@dataclass(eq=False)
class Change:
    """A change that a client has asked a master for, and that the master has not refused.

    `ends_at` is the end of the log when the answer came, so the change is in the log before it.  If no answer came,
    `ends_at` is None.  If `is_safe` is true, no fault of a play takes the change back.
    """

    begins_at: Position
    ends_at: Position | None = None
    answered_at: float = NEVER
    is_safe: bool = False

    @classmethod
    def asked(cls, broker: "Broker") -> "Change":
        return cls(Position.now(broker))

    def answered(self, world: "World", broker: "Broker", *, is_safe: bool) -> None:
        """Notes where the log ends.  Call this method when the answer comes.  If the broker has died meanwhile,
        `ends_at` stays None.
        """
        if broker.is_writable and History.of(broker).epochs[-1].id == self.begins_at.epoch_id:
            self.ends_at, self.answered_at, self.is_safe = Position.now(broker), world.loop.now, is_safe

    def may_be_in(self, history: History) -> bool:
        return self.is_safe or history.has_some_after(self.begins_at)

    def is_in(self, history: History) -> bool:
        return self.is_safe or (self.ends_at is not None and history.has(self.ends_at))
