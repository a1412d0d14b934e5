"""Epochs record which master wrote which part of the log.  Pure.

An epoch is the time in which one master may append without interruption.  An epoch has a number, a random id and the
log offset of its first byte; it ends where the next epoch starts.  Within an epoch only one master appends and all
slaves copy, so two logs are equal up to the point where their epochs differ.

The number is 10**12 times the number of promotions plus the number of starts since: 2000000000005 is the fifth start
after the second promotion.  A replaced master never reaches the epoch numbers of the promoted broker, however often the
replaced master restarts.  Older versions counted differently: the last two digits were a broker id, and the others
counted promotions and starts together.  A number that an older version made counts as a number of starts without a
promotion, and the next start adds 1.

Two brokers that do not know of each other may begin the same number; their ids differ.  An entry without an id comes
from an older version, and is compared by number and start only.
"""

from dataclasses import dataclass
from itertools import pairwise

NO_EPOCH = 0
NO_ID = 0
ID_BITS = 62
PROMOTION = 10**12  # no broker starts this often; a 64-bit number has room for nine million promotions


@dataclass(frozen=True, slots=True)
class Epoch:
    epoch: int
    start_offset: int
    id: int = NO_ID

    def is_same_as(self, other: "Epoch") -> bool:
        """Returns True if `other` is the same epoch of the same master; an entry without an id matches every id."""
        same_id = self.id == other.id or NO_ID in (self.id, other.id)
        return self.epoch == other.epoch and self.start_offset == other.start_offset and same_id

    def __str__(self) -> str:
        return f"{self.epoch}@{self.start_offset}" + (f"#{self.id:x}" if self.id else "")


@dataclass(frozen=True, slots=True)
class EpochList:
    """The epochs of one log, oldest first.  Numbers increase, and starts never decrease.

    An entry may start beyond the log's end, since a slave knows its master's epochs before it has their bytes.
    """

    epochs: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        for epoch in self.epochs:
            if epoch.epoch < 0 or epoch.start_offset < 0 or epoch.id < 0:
                raise ValueError(f"epoch {epoch} has a negative number, start or id")
        for older, newer in pairwise(self.epochs):
            if newer.epoch <= older.epoch or newer.start_offset < older.start_offset:
                raise ValueError(f"epoch {newer} cannot follow epoch {older}")

    @classmethod
    def of(cls, *epochs: tuple[int, int] | tuple[int, int, int]) -> "EpochList":
        """Makes a list of entries (number, start) or (number, start, id)."""
        return cls(tuple(Epoch(*epoch) for epoch in epochs))

    @property
    def last(self) -> int:
        """The number of the newest epoch in this list; the log may still lack its bytes."""
        return self.epochs[-1].epoch if self.epochs else NO_EPOCH

    @property
    def last_id(self) -> int:
        return self.epochs[-1].id if self.epochs else NO_ID

    def knows(self, epoch: int, epoch_id: int = NO_ID) -> bool:
        """Returns True if the list has this epoch; if either side has NO_ID, only the numbers are compared.

        An older epoch can be missing, since an epoch in which nothing was appended is dropped when the next one begins.
        """
        return any(
            entry.epoch == epoch and (entry.id == epoch_id or NO_ID in (entry.id, epoch_id)) for entry in self.epochs
        )

    def has_passed(self, epoch: int, epoch_id: int, log_offset: int) -> bool:
        """Returns True if, in this history, the log could have ended at `log_offset` during this epoch.

        The result can be True even if the log has not reached `log_offset` yet.  An epoch that is missing from the list
        had no bytes.  A missing epoch counts as part of this history if the next epoch in the list belongs to the same
        promotion, because the same broker then began both.
        """
        for index, entry in enumerate(self.epochs):
            if entry.epoch == epoch:
                return self.knows(epoch, epoch_id) and log_offset <= self.stop_of(index, log_offset)
            if entry.epoch > epoch:
                return entry.epoch // PROMOTION == epoch // PROMOTION and log_offset <= entry.start_offset
        return False

    def end_of(self, epoch: int, epoch_id: int) -> int | None:
        """Returns where this epoch ends in this log, so that a reader can compare its own position with it.

        Returns None if the epoch is the last one, or newer than all in this list.  For an epoch that is not in the
        list, the start of the next epoch is returned.  Kafka's OffsetsForLeaderEpoch (KIP-320) answers in the same way.
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
        """Returns True if this log may lose a tail that `other` does not have.

        This log yields if the last epoch of `other` is newer.  This log also yields if the two last epochs have the
        same number but different ids, because an operator has then decided which broker is the slave.
        """
        is_fork = NO_ID not in (self.last_id, other.last_id) and self.last_id != other.last_id
        return self.last < other.last or (self.last == other.last and is_fork)

    def with_ids_of(self, other: "EpochList") -> "EpochList":
        """Returns this list, completed with ids that only `other` has."""
        ids = {(entry.epoch, entry.start_offset): entry.id for entry in other.epochs}
        return EpochList(
            tuple(
                Epoch(entry.epoch, entry.start_offset, entry.id or ids.get((entry.epoch, entry.start_offset), NO_ID))
                for entry in self.epochs
            )
        )

    def next(self, *, promotion: bool, above: int = NO_EPOCH) -> int:
        """Returns the number of the next epoch.

        A promotion takes the next multiple of 10**12 above all known epochs and above `above`; a start adds 1.
        """
        return (max(self.last, above) // PROMOTION + 1) * PROMOTION if promotion else self.last + 1

    def begin(self, epoch: int, start_offset: int, epoch_id: int = NO_ID) -> "EpochList":
        """Returns a list in which a new epoch begins at the log's end; epochs that have no bytes are dropped.

        The first entry is never dropped, since it identifies the log even while the log is empty.
        """
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} does not follow epoch {self.last}")
        first, others = self.epochs[:1], self.epochs[1:]
        kept = (*first, *(entry for entry in others if entry.start_offset < start_offset))
        return EpochList((*kept, Epoch(epoch, start_offset, epoch_id)))

    def of_last_byte(self, end_offset: int) -> Epoch:
        """Returns the epoch of the last byte of a log that ends at `end_offset`; the first epoch for an empty log."""
        written = (entry for entry in reversed(self.epochs) if entry.start_offset < end_offset)
        return next(written, self.epochs[0] if self.epochs else Epoch(NO_EPOCH, 0))

    def stop_of(self, index: int, end_offset: int) -> int:
        """Returns where the bytes of the entry at `index` end, in a log that ends at `end_offset`."""
        following = self.epochs[index + 1 : index + 2]
        return min(end_offset, following[0].start_offset) if following else end_offset

    def __str__(self) -> str:
        return " ".join(map(str, self.epochs)) or "none"


def common_prefix(ours: EpochList, our_end: int, theirs: EpochList, their_end: int) -> int | None:
    """Returns the offset up to which the same masters wrote both logs; None if their first epochs already differ."""
    prefix = None
    for index, (our, their) in enumerate(zip(ours.epochs, theirs.epochs, strict=False)):
        if not our.is_same_as(their):
            break
        our_stop, their_stop = ours.stop_of(index, our_end), theirs.stop_of(index, their_end)
        prefix = min(our_stop, their_stop)
        if our_stop != their_stop:
            break
    return prefix
