"""Picker: selects the messages of a queue for a pop of a group that consumes in order.  Pure.

It takes the messages that wait in free message groups first, then new messages.  A new message is taken if its message
group is free, or if this pop has taken all messages of that group that waited.  The others that it passes over wait.
"""

from collections.abc import Container, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_SHARDING_KEY

from broker_service.state.locks import Lock, Locks
from broker_service.state.transitions import Ordered, Step

MAX_GROUP_NAME = 255  # bytes; RocketMQ 5's clients may have 63, our own and Spark have no limit

Groups = tuple[tuple[str, tuple[Ordered, ...]], ...]


class Message(Protocol):
    """`attempt`: of its delivery if it is delivered now."""

    @property
    def record(self) -> bytes: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def attempt(self) -> int: ...


M = TypeVar("M", bound=Message)


class Room(NamedTuple):
    """`waiting`: how many new messages may be made to wait."""

    messages: int
    size_bytes: int
    waiting: int


class Picker(Generic[M]):
    """`messages` are delivered, in this order; `groups` is what becomes of these and of those passed over."""

    def __init__(self, locks: Locks | None, room: Room) -> None:
        self.messages: list[M] = []
        self._locks = locks
        self._left, self._left_bytes, self._left_waiting = room
        self._chosen: dict[str, list[Ordered]] = {}
        self._skipped: set[str] = set()
        self._emptied: set[str] = set()  # groups that were free, of which nothing waits any more

    @property
    def is_full(self) -> bool:
        return self._left <= 0 or self._left_bytes <= 0

    @property
    def groups(self) -> Groups:
        return tuple((group, tuple(messages)) for group, messages in self._chosen.items())

    def waiting(self) -> dict[int, int]:
        """The messages that come first: queue offset -> attempt of the delivery."""
        wanted: dict[int, int] = {}
        for _, lock in self._free():
            for offset, counted, _ in islice(lock.waiting, self._left - len(wanted)):
                wanted[offset] = counted + 1
            if len(wanted) >= self._left:
                break
        return wanted

    def skip(self, queue_offset: int) -> None:
        """Nothing is taken of the message group of this message, which waits but cannot be read."""
        if self._locks is not None:
            self._skipped.add(self._locks.group_of[queue_offset])

    def take_waiting(self, found: Mapping[int, M], gone: Container[int]) -> None:
        """`found`: as many of the messages of `waiting` as were read; `gone`: those that have expired with the log."""
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
        """A new message.  False: there is no room, the look ends before it."""
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
        """The message groups that wait for a pop only."""
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
    """The message group of a record; "" for one without, which keeps its place among those of its queue."""
    properties = record.decode_properties(data[record.locate(data).properties_start :])
    group = properties.get(PROPERTY_SHARDING_KEY, "")
    encoded = group.encode()
    return group if len(encoded) <= MAX_GROUP_NAME else blake2b(encoded, digest_size=32).hexdigest()
