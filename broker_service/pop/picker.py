"""Picker: selects messages from one queue for a pop, if the group consumes in order.

A message group is locked while one of its messages is delivered, and free otherwise.  The picker first takes messages
that wait in free message groups, and then new messages of the queue, one after another.  A new message is taken if its
message group has no other delivered or waiting message, apart from those that this pop takes.  If its message group has
another delivered or waiting message, the new message waits.
"""

from collections.abc import Container, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_SHARDING_KEY

from broker_service.state.locks import Lock, Locks
from broker_service.state.transitions import Ordered, Step

# Limit in bytes for the name of a message group; RocketMQ 5's clients allow 63, and our client and Spark set no limit.
MAX_GROUP_NAME = 255

Groups = tuple[tuple[str, tuple[Ordered, ...]], ...]


class Message(Protocol):
    """A message that a pop may take.  `attempt` is the number that the next delivery of the message gets."""

    @property
    def record(self) -> bytes: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def attempt(self) -> int: ...


M = TypeVar("M", bound=Message)


class Room(NamedTuple):
    """How many messages and bytes a picker may still take, and how many new messages (`waiting`) it may let wait."""

    messages: int
    size_bytes: int
    waiting: int


class Picker(Generic[M]):
    """Picks messages for one pop.

    `messages` has the messages to deliver, in their order.  `groups` has, for each message group, its messages and
    whether each is delivered, waits or has expired.
    """

    def __init__(self, locks: Locks | None, room: Room) -> None:
        self.messages: list[M] = []
        self._locks = locks
        self._left, self._left_bytes, self._left_waiting = room
        self._chosen: dict[str, list[Ordered]] = {}
        self._skipped: set[str] = set()
        self._emptied: set[str] = set()  # free message groups whose waiting messages have all been taken

    @property
    def is_full(self) -> bool:
        return self._left <= 0 or self._left_bytes <= 0

    @property
    def groups(self) -> Groups:
        return tuple((group, tuple(messages)) for group, messages in self._chosen.items())

    def waiting(self) -> dict[int, int]:
        """Returns the waiting messages that must be delivered first, as {queue offset: attempt of the delivery}."""
        wanted: dict[int, int] = {}
        for _, lock in self._free():
            for offset, counted, _ in islice(lock.waiting, self._left - len(wanted)):
                wanted[offset] = counted + 1
            if len(wanted) >= self._left:
                break
        return wanted

    def skip(self, queue_offset: int) -> None:
        """Skips the whole message group of this waiting message, because the message cannot be read."""
        if self._locks is not None:
            self._skipped.add(self._locks.group_of[queue_offset])

    def take_waiting(self, found: Mapping[int, M], gone: Container[int]) -> None:
        """Takes messages that `waiting` has returned.  `found` has the messages that were read, and `gone` those that
        are no longer in the log.
        """
        for group, lock in self._free():
            for offset, _, _ in lock.waiting:
                if offset in gone:
                    self._chosen.setdefault(group, []).append(Ordered(offset, 0, Step.GONE))
                elif offset in found:
                    self._deliver(group, found[offset])
                else:
                    return
            self._emptied.add(group)

    def take(self, message: M) -> bool:
        """Takes a new message for delivery, or lets it wait.  Returns False if the message can neither be taken nor
        wait, and the scan then ends before this message.
        """
        group = message_group(message.record)
        is_free = self._locks is None or group not in self._locks.by_group or group in self._emptied
        if self.is_full or (not is_free and self._left_waiting <= 0):
            return False
        if is_free:
            self._deliver(group, message)
        else:
            self._left_waiting -= 1
            waits = Ordered(message.queue_offset, message.attempt - 1, Step.WAITS)
            self._chosen.setdefault(group, []).append(waits)
        return True

    def _free(self) -> Iterator[tuple[str, Lock]]:
        """Yields the free message groups that have waiting messages."""
        if self._locks is not None:
            for group in self._locks.ready:
                if group not in self._skipped:
                    yield group, self._locks.by_group[group]

    def _deliver(self, group: str, message: M) -> None:
        self._left -= 1
        self._left_bytes -= len(message.record)
        self.messages.append(message)
        self._chosen.setdefault(group, []).append(Ordered(message.queue_offset, message.attempt, Step.DELIVERED))


def message_group(data: bytes) -> str:
    """Returns the message group of a record.

    A message without a message group belongs to the group "", so that such messages keep their order within the queue.
    """
    properties = record.decode_properties(data[record.locate(data).properties_start :])
    group = properties.get(PROPERTY_SHARDING_KEY, "")
    encoded = group.encode()
    return group if len(encoded) <= MAX_GROUP_NAME else blake2b(encoded, digest_size=32).hexdigest()
