"""Epochs: who wrote which part of the log.  Pure.

An epoch is one master's unbroken right to append.  It has a number, a random id and the offset of its first byte; it
ends where the next one starts.  Two logs are equal as far as their epochs are, because within an epoch only one master
appends and every slave copies.

The number counts promotions first, then starts: 2000000000005 is the fifth start after the second promotion.  However
often a master that was replaced starts again, the promoted one stays above it.  Older numbers (their last two digits
were a broker id, the rest counted both) have no promotions, and go on from where they were.  Two brokers may begin the
same number, each without knowing of the other; then the ids differ.  An entry without an id (an older one, or from
a peer that knows no ids) is told by number and start alone.
"""

from dataclasses import dataclass
from itertools import pairwise

NO_EPOCH = 0
NO_ID = 0
ID_BITS = 62
PROMOTION = 10**12  # no broker starts as often; a 64-bit number has room for nine million promotions


@dataclass(frozen=True, slots=True)
class Epoch:
    epoch: int
    start_offset: int
    id: int = NO_ID

    def is_same_as(self, other: "Epoch") -> bool:
        """Whether both are the same master's; an entry without an id matches every id."""
        same_id = self.id == other.id or NO_ID in (self.id, other.id)
        return self.epoch == other.epoch and self.start_offset == other.start_offset and same_id

    def __str__(self) -> str:
        return f"{self.epoch}@{self.start_offset}" + (f"#{self.id:x}" if self.id else "")


@dataclass(frozen=True, slots=True)
class EpochList:
    """The epochs of one log, oldest first.  Numbers rise, starts do not fall.

    An entry may start beyond the log's end: a slave knows its master's epochs before it has their bytes.
    """

    epochs: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        for epoch in self.epochs:
            if epoch.epoch < 0 or epoch.start_offset < 0 or epoch.id < 0:
                raise ValueError(f"epoch {epoch}: negative")
        for older, newer in pairwise(self.epochs):
            if newer.epoch <= older.epoch or newer.start_offset < older.start_offset:
                raise ValueError(f"epoch {newer} after epoch {older}")

    @classmethod
    def of(cls, *epochs: tuple[int, int] | tuple[int, int, int]) -> "EpochList":
        """Of (number, start) or (number, start, id)."""
        return cls(tuple(Epoch(*epoch) for epoch in epochs))

    @property
    def last(self) -> int:
        """The newest epoch in this list; its log may not have bytes of it yet."""
        return self.epochs[-1].epoch if self.epochs else NO_EPOCH

    @property
    def last_id(self) -> int:
        return self.epochs[-1].id if self.epochs else NO_ID

    def knows(self, epoch: int, epoch_id: int = NO_ID) -> bool:
        """Whether the list has that epoch; with NO_ID on either side only the numbers are compared.

        NB: an epoch in which nothing was appended is forgotten when the next one begins.
        """
        return any(
            entry.epoch == epoch and (entry.id == epoch_id or NO_ID in (entry.id, epoch_id)) for entry in self.epochs
        )

    def has_passed(self, epoch: int, epoch_id: int, log_offset: int) -> bool:
        """Whether a log with this history has been at that offset in that epoch, or is still to come there.

        Of an epoch that is not known any more nothing was appended; who began the next one tells whether it was ours:
        within one promotion that is the same broker.
        """
        for index, entry in enumerate(self.epochs):
            if entry.epoch == epoch:
                return self.knows(epoch, epoch_id) and log_offset <= self.stop_of(index, log_offset)
            if entry.epoch > epoch:
                return entry.epoch // PROMOTION == epoch // PROMOTION and log_offset <= entry.start_offset
        return False

    def end_of(self, epoch: int, epoch_id: int) -> int | None:
        """Up to where this log has what any log had that had come to that epoch; None where it goes on, or this log has
        not heard of it.  (Kafka's OffsetsForLeaderEpoch, KIP-320.)
        """
        for index, entry in enumerate(self.epochs):
            if entry.epoch == epoch and self.knows(epoch, epoch_id):
                following = self.epochs[index + 1 : index + 2]
                return following[0].start_offset if following else None
            if entry.epoch >= epoch:
                return entry.start_offset
        return None

    def is_same_as(self, other: "EpochList") -> bool:
        return len(self.epochs) == len(other.epochs) and all(map(Epoch.is_same_as, self.epochs, other.epochs))

    def yields_to(self, other: "EpochList") -> bool:
        """Whether a tail that only this log has may be cut for the other's sake: the other's last epoch is newer, or it
        has the same number, was begun by somebody else, and an operator has made this log's broker follow that one.
        """
        is_fork = NO_ID not in (self.last_id, other.last_id) and self.last_id != other.last_id
        return self.last < other.last or (self.last == other.last and is_fork)

    def with_ids_of(self, other: "EpochList") -> "EpochList":
        """This list, with the ids that it lacks and `other` has."""
        ids = {(entry.epoch, entry.start_offset): entry.id for entry in other.epochs}
        return EpochList(
            tuple(
                Epoch(entry.epoch, entry.start_offset, entry.id or ids.get((entry.epoch, entry.start_offset), NO_ID))
                for entry in self.epochs
            )
        )

    def next(self, *, promotion: bool, above: int = NO_EPOCH) -> int:
        """The number of an epoch that begins now, by a promotion or by a start; a promotion's is above `above`, too."""
        return (max(self.last, above) // PROMOTION + 1) * PROMOTION if promotion else self.last + 1

    def begin(self, epoch: int, start_offset: int, epoch_id: int = NO_ID) -> "EpochList":
        """With an epoch begun at the log's end.  Entries without bytes before it are dropped.

        The first entry always stays: it identifies the log even while the log is empty.
        """
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} does not follow epoch {self.last}")
        first, others = self.epochs[:1], self.epochs[1:]
        kept = (*first, *(entry for entry in others if entry.start_offset < start_offset))
        return EpochList((*kept, Epoch(epoch, start_offset, epoch_id)))

    def of_last_byte(self, end_offset: int) -> Epoch:
        """The epoch of the last byte of a log that ends there; of an empty log, the first one."""
        written = (entry for entry in reversed(self.epochs) if entry.start_offset < end_offset)
        return next(written, self.epochs[0] if self.epochs else Epoch(NO_EPOCH, 0))

    def stop_of(self, index: int, end_offset: int) -> int:
        """Where the bytes of one entry end, in a log that ends at `end_offset`."""
        following = self.epochs[index + 1 : index + 2]
        return min(end_offset, following[0].start_offset) if following else end_offset

    def __str__(self) -> str:
        return " ".join(map(str, self.epochs)) or "none"


def common_prefix(ours: EpochList, our_end: int, theirs: EpochList, their_end: int) -> int | None:
    """Up to which offset both logs were written by the same masters; None if not even their first epoch is the same."""
    prefix = None
    for index, (our, their) in enumerate(zip(ours.epochs, theirs.epochs, strict=False)):
        if not our.is_same_as(their):
            break
        our_stop, their_stop = ours.stop_of(index, our_end), theirs.stop_of(index, their_end)
        prefix = min(our_stop, their_stop)
        if our_stop != their_stop:
            break
    return prefix
