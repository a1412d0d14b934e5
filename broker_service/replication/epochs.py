"""Epochs: who wrote which part of the log.  Pure.

An epoch is one master's unbroken right to append.  It has a number and the offset of its first byte; it ends where the
next one starts.  Two logs are equal as far as their epochs are, because within an epoch only one master appends and
every slave copies.  Two brokers never begin the same number: its last two digits are the broker id of who began it, the
rest counts up.
"""

from dataclasses import dataclass
from itertools import pairwise

NO_EPOCH = 0
BROKER_IDS = 100


@dataclass(frozen=True, slots=True)
class Epoch:
    epoch: int
    start_offset: int

    def __str__(self) -> str:
        return f"{self.epoch}@{self.start_offset}"


@dataclass(frozen=True, slots=True)
class EpochList:
    """The epochs of one log, oldest first.  Numbers rise, starts do not fall.

    An entry may start beyond the log's end: a slave knows its master's epochs before it has their bytes.
    """

    epochs: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        for epoch in self.epochs:
            if epoch.epoch < 0 or epoch.start_offset < 0:
                raise ValueError(f"epoch {epoch}: negative")
        for older, newer in pairwise(self.epochs):
            if newer.epoch <= older.epoch or newer.start_offset < older.start_offset:
                raise ValueError(f"epoch {newer} after epoch {older}")

    @classmethod
    def of(cls, *epochs: tuple[int, int]) -> "EpochList":
        return cls(tuple(Epoch(epoch, start_offset) for epoch, start_offset in epochs))

    @property
    def last(self) -> int:
        """The newest epoch that this broker has promised to honour."""
        return self.epochs[-1].epoch if self.epochs else NO_EPOCH

    def next(self, broker_id: int) -> int:
        """The number of an epoch that `broker_id` begins now."""
        return (self.last // BROKER_IDS + 1) * BROKER_IDS + broker_id % BROKER_IDS

    def begin(self, epoch: int, start_offset: int) -> "EpochList":
        """With an epoch begun at the log's end.  Entries that have no byte before it say nothing any more and go.

        Only the first stays: it says whose log this is, also while the log is empty.
        """
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} does not follow epoch {self.last}")
        first, others = self.epochs[:1], self.epochs[1:]
        kept = (*first, *(entry for entry in others if entry.start_offset < start_offset))
        return EpochList((*kept, Epoch(epoch, start_offset)))

    def stop_of(self, index: int, end_offset: int) -> int:
        """Where the bytes of one entry stop, in a log that ends at `end_offset`."""
        following = self.epochs[index + 1 : index + 2]
        return min(end_offset, following[0].start_offset) if following else end_offset

    def __str__(self) -> str:
        return " ".join(map(str, self.epochs)) or "none"


def common_prefix(ours: EpochList, our_end: int, theirs: EpochList, their_end: int) -> int | None:
    """Up to which offset both logs were written by the same masters; None if not even their first epoch is the same."""
    prefix = None
    for index, (our, their) in enumerate(zip(ours.epochs, theirs.epochs, strict=False)):
        if our != their:
            break
        our_stop, their_stop = ours.stop_of(index, our_end), theirs.stop_of(index, their_end)
        prefix = min(our_stop, their_stop)
        if our_stop != their_stop:
            break
    return prefix
