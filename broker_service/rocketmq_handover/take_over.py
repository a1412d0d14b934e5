"""TakeOver takes over, on a master that takes writes and before the first pop, the deliveries that a RocketMQ had under
way in this store.

If RocketMQ has used this store, the log may have RocketMQ's checkpoints that this broker has not taken over yet.  For
each group and queue, TakeOver appends transitions that turn RocketMQ's open deliveries into deliveries of this broker.
TakeOver leaves out a queue that the group has already popped at this broker, because the group continues at its
position there, and gets RocketMQ's messages again.

The state also keeps how far RocketMQ's checkpoint queues were read, as progress of RocketMQ's own group
`CID_RMQ_SYS_REVIVE_GROUP`.  The progress is appended after the deliveries, so that a crash in between only repeats the
work, and slaves learn the progress from the log.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_REAL_TOPIC, Record
from rocketsim_proto.reserved import RETRY_PREFIX, TIMER_TOPIC

from broker_service.broker.core.broker import Broker
from broker_service.errors import NotFound, ReadFailed, ServiceNotAvailable, StoreCorrupt
from broker_service.rocketmq_handover import rocketmq_pops, timer_check
from broker_service.rocketmq_handover.rocketmq_pops import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, Checkpoints, Held
from broker_service.runtime import cold_reads
from broker_service.state.state import State
from broker_service.state.transitions import Copied, Place, Take, Transition
from broker_service.state.writer import StateWriter
from broker_service.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_TIMERS = Place(REVIVE_GROUP, TIMER_TOPIC, 0)
AT_ONCE = 100  # number of records that are read at a time; they may lie anywhere in the log
_READ_BYTES = 64 << 10
_SETTLED_AT_ONCE = 1000
_TRANSITIONS_AT_ONCE = 10  # each transition has up to 1,000 deliveries

_Found = dict[int, list[int]]  # second -> log offsets of the timers that were taken over


class TakeOver:
    """Takes over RocketMQ's deliveries, and then sets the event `done`.  Pops are refused until `done` is set."""

    def __init__(self, broker: Broker, writer: StateWriter, chance: random.Random) -> None:
        self.done = asyncio.Event()
        self._broker = broker
        self._writer = writer
        self._chance = chance

    def is_needed(self) -> bool:
        """Returns True if RocketMQ 5 has used this store."""
        broker = self._broker
        return any(topic.startswith(REVIVE_TOPIC_PREFIX) for topic in broker.topics.entries) or bool(
            _queues(broker.store)
        )

    def check_done(self) -> None:
        if not self.done.is_set() and self.is_needed():
            raise ServiceNotAvailable("the deliveries of a RocketMQ that has used this store are being read; pop again")

    async def run(self) -> None:
        """Takes over RocketMQ's deliveries and then sets `done`, on a master that takes writes.  The caller must first
        complete a batch of timers that was interrupted.
        """
        if self.is_needed():
            changes = await transitions(self._broker, self._writer.state, self._chance)
            for first in range(0, len(changes), _TRANSITIONS_AT_ONCE):
                self._writer.append(*changes[first : first + _TRANSITIONS_AT_ONCE])
                await asyncio.sleep(0)
        self.done.set()


async def transitions(broker: Broker, state: State, chance: random.Random) -> list[Transition]:
    """Returns the transitions that take over RocketMQ's deliveries, in the order in which they must be appended.

    While this function runs, no timer may be delivered.  Records that cannot be read are logged and left out.
    """
    found = Checkpoints()
    timers_end = broker.store.queues.end(TIMER_TOPIC, 0)
    timers = await _read_timers(broker, state, found)
    ends = {}
    for topic, queue_id in _queues(broker.store):
        ends[topic, queue_id] = await _read_queue(broker, state, topic, queue_id, found)
    held = _unacknowledged(broker, found)
    attempts = {place: await _attempts(broker.store, place, [*of_place]) for place, of_place in held.items()}

    changes: list[Transition] = []
    taken: Counter[str] = Counter()
    for place, of_place in held.items():
        if place in state.queues:
            continue
        next_offset = min(broker.offsets.get(*place).offset, broker.store.queues.end(place.topic, place.queue_id))
        changes += rocketmq_pops.takes(place, of_place, next_offset, attempts[place], chance.getrandbits(64))
        taken[place.group] += len(of_place)
    for group, count in sorted(taken.items()):
        logger.info("%d deliveries that RocketMQ made to group %s are taken over", count, group)
    for second, log_offsets in timers.items():
        for first in range(0, len(log_offsets), _SETTLED_AT_ONCE):
            changes.append(Copied(second, tuple(log_offsets[first : first + _SETTLED_AT_ONCE])))
    read_to = {_TIMERS: timers_end} if timers_end else {}
    # RocketMQ commits the offset of the last finished checkpoint, and not the offset after it.
    read_to |= {Place(REVIVE_GROUP, *queue): end - 1 for queue, end in ends.items() if end}
    for place, offset in read_to.items():
        known = state.queues.get(place)
        if known is None or known.next < offset:
            changes.append(Take(place=place, pop=0, start=offset, next=offset))
    return changes


def _queues(store: MessageStore) -> list[tuple[str, int]]:
    return [(topic, queue_id) for topic, queue_id in store.queues.keys() if topic.startswith(REVIVE_TOPIC_PREFIX)]


async def _read_timers(broker: Broker, state: State, found: Checkpoints) -> _Found:
    """Adds the checkpoints that still wait in the timer topic to `found`.  Returns the timers in which checkpoints
    wait, so that the caller can settle these timers.
    """
    store = broker.store
    known = state.queues.get(_TIMERS)
    first, end = store.queues.bounds(TIMER_TOPIC, 0)
    at = max(first, known.next if known is not None else 0)
    if at >= end:
        return {}
    delivered = timer_check.delivered(store, broker.config.store_path_root_dir / "config" / "timercheck")
    begin = await cold_reads.read(store, partial(_log_offset, store, at)) if at > first else 0
    taken: _Found = {}
    for second, log_offsets in state.timers.since(begin):
        if delivered is not None and second < delivered[0]:
            log_offsets = [one for one in log_offsets if one >= delivered[1]]
        for number in range(0, len(log_offsets), AT_ONCE):
            some = log_offsets[number : number + AT_ONCE]
            for waiting in await cold_reads.read(store, partial(_records, store, some)):
                if waiting.properties.get(PROPERTY_REAL_TOPIC, "").startswith(REVIVE_TOPIC_PREFIX):
                    taken.setdefault(second, []).append(waiting.commit_log_offset)
                    _add(found, waiting)
            await asyncio.sleep(0)  # lets other tasks run, because a read of records in memory does not pause
    return taken


def _log_offset(store: MessageStore, queue_offset: int) -> int:
    """Returns the log offset of the timer at this queue offset.  If the timer cannot be read, returns 0, which comes
    before all log offsets.
    """
    try:
        return _read(store, TIMER_TOPIC, 0, queue_offset, queue_offset + 1)[0].commit_log_offset
    except (ReadFailed, StoreCorrupt, IndexError):
        return 0


def _records(store: MessageStore, log_offsets: Sequence[int]) -> list[Record]:
    found = []
    for log_offset in log_offsets:
        try:
            found.append(record.decode(store.log.record_at(log_offset), check_crc=False))
        except (ReadFailed, StoreCorrupt, NotFound, ValueError) as error:
            _unreadable(f"the record of topic {TIMER_TOPIC} at log offset {log_offset}", error)
    return found


async def _read_queue(broker: Broker, state: State, topic: str, queue_id: int, found: Checkpoints) -> int:
    """Adds the checkpoints of one of RocketMQ's queues to `found`.  Returns the end of the queue, up to which it was
    read.
    """
    store = broker.store
    first, end = store.queues.bounds(topic, queue_id)
    known = state.queues.get(Place(REVIVE_GROUP, topic, queue_id))
    done = max(known.next if known is not None else -1, broker.offsets.get(REVIVE_GROUP, topic, queue_id).offset)
    at, alone = max(first, done + 1), 1
    while at < end:
        try:
            some = await cold_reads.read(store, partial(_read, store, topic, queue_id, at, end))
            at, alone = at + max(1, len(some)), 1
        except (ReadFailed, StoreCorrupt):
            behind = min(at + alone, end)
            some = [message for one in range(at, behind) for message in await _read_one(store, topic, queue_id, one)]
            at, alone = behind, 2 * alone
        for number, message in enumerate(some):
            _add(found, message)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)  # lets other tasks run, because a read of records in memory does not pause
    return end


async def _read_one(store: MessageStore, topic: str, queue_id: int, at: int) -> list[Record]:
    """Reads a single record.  Returns an empty list if the record cannot be read.

    If a bad sector fails the read of several records, each of them is read by itself, so that only the damaged one is
    left out.
    """
    try:
        return await cold_reads.read(store, partial(_read_alone, store, topic, queue_id, at))
    except (NotFound, ReadFailed, StoreCorrupt) as error:
        _unreadable(f"message {at} of queue {queue_id} of topic {topic}", error)
        return []


def _read(store: MessageStore, topic: str, queue_id: int, first: int, end: int) -> list[Record]:
    """Reads records from the offset `first` on, as many as fit into one read."""
    read = store.queues.read_ranges([(topic, queue_id, first, end)], _READ_BYTES)
    if read.answers[0].next_offset <= first:
        raise StoreCorrupt(f"queue {queue_id} of topic {topic} cannot be read at {first}: run `rocketsim store verify`")
    data, at, found = b"".join(read.records), 0, []
    for size in np.frombuffer(read.sizes, "<u4").tolist():
        with store.log.decoding(data):
            found.append(record.decode(data[at : at + size]))
        at += size
    return found


def _read_alone(store: MessageStore, topic: str, queue_id: int, at: int) -> list[Record]:
    entry = store.queues.entry(topic, queue_id, at)
    if entry is None:
        return []
    data = store.log.record_at(entry[0])
    return [record.decode(data, check_crc=False)]


def _add(found: Checkpoints, message: Record) -> None:
    try:
        found.add(message)
    except ValueError as error:
        _unreadable(f"the record of topic {message.topic} at log offset {message.commit_log_offset}", error)


def _unreadable(where: str, error: Exception) -> None:
    logger.error(
        "%s cannot be taken over: %s; if it has deliveries by RocketMQ, this broker does not deliver their messages "
        "again",
        where,
        error,
    )


def _unacknowledged(broker: Broker, found: Checkpoints) -> dict[Place, dict[int, Held]]:
    """Returns the unacknowledged deliveries before each group's committed offset.  Messages after the committed offset
    are left out, because the group's next pops deliver them anyway.
    """
    left: dict[Place, dict[int, Held]] = {}
    for place, held in found.unacknowledged().items():
        if place.topic not in broker.topics.entries:
            continue
        first, end = broker.store.queues.bounds(place.topic, place.queue_id)
        end = min(end, broker.offsets.get(*place).offset)
        if some := {offset: one for offset, one in held.items() if first <= offset < end}:
            left[place] = some
    return left


async def _attempts(store: MessageStore, place: Place, offsets: Sequence[int]) -> dict[int, int]:
    """Returns the attempt number of messages in retry topics, by offset.  Messages in other topics are at their first
    attempt, and are left out.
    """
    attempts: dict[int, int] = {}
    for offset in offsets if place.topic.startswith(RETRY_PREFIX) else ():
        for message in await _read_one(store, place.topic, place.queue_id, offset):
            attempts[offset] = max(0, message.reconsume_times) + 1
    return attempts
