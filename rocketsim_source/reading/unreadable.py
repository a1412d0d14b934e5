"""Handles records that arrive complete but cannot be read, because the body does not decompress or has a wrong
checksum.  Decides which broker to ask for another copy, and which records to leave out.  Pure.

Each broker of a broker name has its own copy, so a record that is damaged on one disk may be intact on the other.  The
task gives a record up only when every broker of the name has sent it damaged, or has no copy of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rocketsim_client.model import MessageQueue


class Place(NamedTuple):
    queue: MessageQueue
    offset: int

    def __str__(self) -> str:
        return f"{self.queue} offset {self.offset}"


class CorruptRecord(RuntimeError):
    """Raised if no broker has the record in readable form, and corrupt=skip is not set."""

    def __init__(self, place: Place, broker_ids: Iterable[int], why: object) -> None:
        ids = ", ".join(map(str, sorted(broker_ids)))
        super().__init__(
            f"{place} cannot be read as broker id {ids} of {place.queue.broker_name} sent it: {why}. Look at the store "
            "with `rocketsim store verify`; option corrupt=skip leaves such records out."
        )
        self.place = place


@dataclass(slots=True)
class Unreadable:
    """The unreadable records of one task."""

    why: dict[Place, object] = field(default_factory=dict)
    sent_by: dict[Place, set[int]] = field(default_factory=dict)
    left_out: dict[MessageQueue, set[int]] = field(default_factory=dict)
    count: int = 0  # the number of records that were left out

    def add(self, places: Iterable[Place], broker_id: int, why: object) -> None:
        for place in places:
            self.sent_by.setdefault(place, set()).add(broker_id)
            self.why.setdefault(place, why)

    def first_of(self, queue: MessageQueue, at: int) -> Place | None:
        """Returns the queue's first record from offset `at` on that is unreadable and not yet given up."""
        return min((place for place in self.sent_by if place.queue == queue and place.offset >= at), default=None)

    def error(self, place: Place) -> CorruptRecord:
        return CorruptRecord(place, self.sent_by[place], self.why[place])

    def ask_instead(self, place: Place, members: Mapping[int, bool]) -> int | None:
        """Returns another broker id that may have the record, reachable brokers first.  Returns None if all brokers
        have been asked.
        """
        others = members.keys() - self.sent_by[place]
        return min(others, key=lambda broker_id: (not members[broker_id], broker_id), default=None)

    def leave_out(self, queue: MessageQueue, members: Iterable[int]) -> list[int]:
        """Gives up the queue's records that every broker of the name has sent damaged or does not have.  Returns the
        offsets of the records that it has given up.
        """
        asked = set(members)
        given_up = sorted(place.offset for place, ids in self.sent_by.items() if place.queue == queue and asked <= ids)
        self.left_out.setdefault(queue, set()).update(given_up)
        self.count += len(given_up)
        for offset in given_up:
            del self.sent_by[Place(queue, offset)]
        return given_up
