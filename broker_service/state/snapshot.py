"""Snapshot has the state of consumption at a log offset, so that a start reads only the log after that offset.

    | magic 8 | version 4 | log offset 8 | tail size 4 | tail CRC-32 4 | body CRC-32 4 | body: transitions |

The body has transitions that rebuild the state (`transitions.py`).  `tail CRC-32` is the CRC of the last `tail size`
bytes of the log before the log offset.  A snapshot is valid only for a log whose bytes before the snapshot's log offset
have the snapshot's `tail CRC-32`.  Without a valid snapshot a start reads the complete log.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from struct import Struct

from isal import isal_zlib

from broker_service.state import transitions
from broker_service.state.state import UnderWay
from broker_service.state.transitions import (
    Deadline,
    DeliveryId,
    Ordered,
    Place,
    Remember,
    Step,
    Take,
    TakeInOrder,
    Transition,
)

TAIL_BYTES = 64 << 10  # bytes of the log before the snapshot's offset, which identify the log
SHORT_TAIL_BYTES = 4 << 10  # bytes that identify the log if the usual ones have a bad sector

_MAGIC = b"RSIMCONS"
_VERSION = 2  # snapshots of version 1 have no half messages, so the log is read instead
_A_TRANSITION = 10_000
_HEAD = Struct(">8sIQIII")

Groups = Sequence[tuple[str, str, tuple[Ordered, ...]]]  # `Locks.groups`
# place, next, deliveries under way by queue offset, locks
Queues = Iterable[tuple[Place, int, Mapping[int, UnderWay], Groups]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    log_offset: int
    tail: tuple[int, int]  # size and CRC-32
    transitions: list[Transition]


def encode(
    log_offset: int,
    tail: tuple[int, int],
    queues: Queues,
    recent: Iterable[tuple[DeliveryId, bool]] = (),
    more: Iterable[Transition] = (),
) -> bytes:
    """Encodes a snapshot.

    `recent` has settled deliveries to remember, each with True if it is a dead letter.  `more` has the transitions that
    rebuild the state of transactions and timers.
    """
    body = transitions.encode([*rebuilding(queues), *remembering(recent), *more])
    return _HEAD.pack(_MAGIC, _VERSION, log_offset, *tail, isal_zlib.crc32(body)) + body


def decode(data: bytes) -> Snapshot:
    """Decodes a snapshot.  Raises ValueError for damaged bytes, and StoreTooNew for transitions of a newer version."""
    if len(data) < _HEAD.size:
        raise ValueError(f"the file has only {len(data)} bytes")
    magic, version, log_offset, tail_size, tail_crc, body_crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or version != _VERSION or isal_zlib.crc32(body) != body_crc:
        raise ValueError(f"the magic {magic!r}, the version {version} or the CRC does not fit")
    return Snapshot(log_offset, (tail_size, tail_crc), transitions.decode(body))


def rebuilding(queues: Queues) -> Iterator[Transition]:
    """Yields transitions that rebuild these queues from nothing."""
    for place, following, under_way, groups in queues:
        ordered = {message.queue_offset for _, _, messages in groups for message in messages}
        lowest = min([following, *ordered, *under_way])
        for group in groups:
            yield from _lock(place, lowest, under_way, group)
        others = ((offset, one) for offset, one in under_way.items() if offset not in ordered)
        for one, same in groupby(others, key=lambda item: item[1]._replace(attempt=0)):
            while taken := [*islice(same, _A_TRANSITION)]:
                yield from _taken(place, one, taken)
        yield Take(place=place, pop=0, start=following, next=following)


def _taken(place: Place, one: UnderWay, taken: Sequence[tuple[int, UnderWay]]) -> Iterator[Transition]:
    """Yields transitions that rebuild the deliveries of one pop, which differ only in their attempts."""
    offsets = tuple(offset for offset, _ in taken)
    yield Take(
        place=place,
        pop=one.pop,
        start=offsets[0],
        next=offsets[-1] + 1,
        offsets=offsets,
        attempts=tuple(delivery.attempt for _, delivery in taken),
        client_id=one.client_id,
        popped_ms=one.popped_ms,
        deadline_ms=one.deadline_ms,
        renewed_until_ms=one.renewed_until_ms,
    )
    if not one.counted:
        yield Deadline(
            place=place,
            deliveries=tuple(DeliveryId(one.pop, offset) for offset in offsets),
            deadline_ms=one.deadline_ms,
            counted=False,
            renewed=True,
        )


def _lock(
    place: Place, lowest: int, under_way: Mapping[int, UnderWay], group: tuple[str, str, tuple[Ordered, ...]]
) -> Iterator[Transition]:
    """Yields transitions that rebuild a lock.

    The transitions leave the queue's next offset at `lowest`, because messages of other locks lie between those of this
    lock and must not be skipped.
    """
    name, attempt_id, messages = group
    batch = {one.queue_offset: under_way[one.queue_offset] for one in messages if one.step is Step.DELIVERED}
    groups = ((name, messages),)
    taken = TakeInOrder(place=place, pop=0, start=lowest, next=lowest, attempt_id=attempt_id, groups=groups)
    renewed_until_ms = max((delivery.renewed_until_ms for delivery in batch.values()), default=0)
    if batch:
        one = next(iter(batch.values()))
        taken = replace(
            taken,
            pop=one.pop,
            client_id=one.client_id,
            popped_ms=one.popped_ms,
            deadline_ms=one.deadline_ms,
            renewed_until_ms=renewed_until_ms,
        )
    yield taken
    for delivery, same in groupby(batch.items(), key=lambda item: item[1]._replace(attempt=0)):
        yield Deadline(
            place=place,
            deliveries=tuple(DeliveryId(delivery.pop, offset) for offset, _ in same),
            deadline_ms=delivery.deadline_ms,
            counted=delivery.counted,
            renewed=delivery.renewed_until_ms == renewed_until_ms,
        )


def remembering(recent: Iterable[tuple[DeliveryId, bool]]) -> Iterator[Transition]:
    for is_dead_letter, group in groupby(recent, key=itemgetter(1)):
        deliveries = [delivery for delivery, _ in group]
        for first in range(0, len(deliveries), _A_TRANSITION):
            yield Remember(tuple(deliveries[first : first + _A_TRANSITION]), is_dead_letter)
