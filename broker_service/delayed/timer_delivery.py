"""TimerDelivery delivers messages at their delivery time, on a master that takes writes.

A message with a delivery time waits in a record of the timer topic; such a record is called a timer.  A batch of timers
is delivered in one step of the event loop, which appends three things to the log:

1. First TimerDelivery appends COPYING, a transition in the state topic, which says that copies may follow.

2. Then TimerDelivery appends copies of the messages in the users' topics.  A property of each copy names the timer
  that the copy settles.

3. Finally TimerDelivery appends COPIED, a transition in the state topic, which names the settled timers.

COPIED repeats the timers that the copies name, because slaves and starting brokers read only the state topic, and not
all users' records.  If a crash comes between COPYING and COPIED, the next master reads the log from COPYING on, finds
the copies, and appends the missing COPIED.  A new master delivers nothing before COPIED is complete, so no message is
delivered twice.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import STATE_TOPIC, TIMER_TOPIC

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker, Queue
from broker_service.broker.core.master_loop import MasterLoop
from broker_service.delayed.schedule import whole_records
from broker_service.errors import NotFound, ReadFailed, ServiceNotAvailable, StoreCorrupt
from broker_service.rocketmq_handover import timer_check
from broker_service.runtime import cold_reads
from broker_service.state import timer_record
from broker_service.state.needed_log import NeededLog
from broker_service.state.timers import Timers, due_ms
from broker_service.state.transitions import Copied, Copying, Timer
from broker_service.state.writer import StateWriter
from broker_service.store.batch import Batch
from broker_service.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_Copy = tuple[str, bytes]  # a topic, and an encoded record for it

BATCH = 100
_BATCH_BYTES = 4 << 20
_SETTLED_AT_ONCE = 1000
_KEPT_WAITING_S = 60.0  # how long all timers wait if the copies of an interrupted batch cannot be read
READ_BYTES = 64 << 10
_KEPT_UNREADABLE_S = 3600.0  # how long an unreadable timer prevents the deletion of its log file


class TimerDelivery:
    """Delivers timers once the event `may_begin` is set, which means that RocketMQ's own checkpoints have been taken
    over.
    """

    def __init__(self, broker: Broker, writer: StateWriter, may_begin: asyncio.Event) -> None:
        self._broker = broker
        self._writer = writer
        self._may_begin = may_begin
        self.loop = MasterLoop(broker, self._work, "messages with a delivery time")
        # Log offset of an unreadable timer -> the time when it is read again, and the time since when it cannot be
        # read.
        self._retry_at: dict[int, float] = {}
        self._unreadable_since: dict[int, float] = {}
        self._copies_unread_since: float | None = None
        self._has_begun = False  # True once the timers that a RocketMQ has delivered are settled
        self._needed = NeededLog(broker.store)
        broker.visibility.arrived.append(self._arrived)

    @property
    def timers(self) -> Timers:
        return self._writer.state.timers

    def _arrived(self, queues: Iterable[Queue]) -> None:
        if any(topic == TIMER_TOPIC for topic, _ in queues):
            self.loop.wake()

    # --- delivering -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Delivers timers until the task is cancelled.  The broker starts this loop when it begins to take writes."""
        self._retry_at.clear()
        self._unreadable_since.clear()
        self._copies_unread_since = None
        self._has_begun = False
        await self._may_begin.wait()
        await self.loop.run()

    async def _work(self) -> float | None:
        if not self._has_begun:
            await self._begin()
            self._has_begun = True
        return await self.deliver_due()

    async def _begin(self) -> None:
        """If a RocketMQ has used this store, settles the timers that the RocketMQ has delivered."""
        self._writer.catch_up()
        await self.complete_batch()
        delivered = timer_check.delivered(self._broker.store, self._check_path)
        if delivered is None:
            return
        second, log_offset = delivered
        for one, log_offsets in self.timers.before(log_offset):
            for first in range(0, len(log_offsets) if one < second else 0, _SETTLED_AT_ONCE):
                self._writer.append(Copied(one, tuple(log_offsets[first : first + _SETTLED_AT_ONCE])))

    async def deliver_due(self) -> float | None:
        """Delivers all timers that are due.  Returns the seconds until the next timer is due, or None if this is not
        known.
        """
        broker = self._broker
        self._writer.catch_up()
        await self.complete_batch()
        await self._read_unread(self._tried_later())
        for second in self.timers.due(broker.day_ms()):
            while log_offsets := self.timers.first(second, BATCH, self._tried_later()):
                batch = await self._read(second, log_offsets)
                # Nothing may be awaited between this line and the appends, or a change of a topic could begin.
                await broker.topics.until_settled(*(timer_record.topic_of(waiting) for waiting in batch))
                self._deliver(second, batch)
                await asyncio.sleep(0)
        following = self.timers.next_second()
        left_s = 0.0 if following is None else (due_ms(following) - broker.day_ms()) / 1000
        return left_s if left_s > 0 else None

    def _tried_later(self) -> Collection[int]:
        now = self._broker.clock()
        self._retry_at = {log_offset: at for log_offset, at in self._retry_at.items() if at > now}
        return self._retry_at.keys()

    async def _read(self, second: int, log_offsets: Iterable[int]) -> list[Record]:
        """Reads the timers at these log offsets.  A timer that cannot be read now is left out, and read again later."""
        found: list[Record] = []
        size = 0
        for log_offset in log_offsets:
            data = await self._read_one(log_offset, partial(self._waiting, second, log_offset))
            if data is None and log_offset < self._broker.store.min_offset:
                self._settle(second, [(log_offset, None)])
            elif data is not None:
                found.append(data)
                size += len(data.body)
            if size >= _BATCH_BYTES:
                break
        return found

    async def _read_unread(self, without: Collection[int] = ()) -> None:
        """Reads the timers whose delivery time is not known, because an earlier read failed."""
        for log_offset in sorted(self.timers.unread.difference(without)):
            waiting = await self._read_one(log_offset, partial(record.decode, check_crc=False))
            if log_offset not in self.timers.unread:
                continue
            if waiting is None:
                if log_offset < self._broker.store.min_offset:
                    self.timers.unread.discard(log_offset)
                continue
            try:
                second = timer_record.second_of(waiting)
            except ValueError as error:
                logger.error(
                    "the record of topic %s at log offset %d is not delivered: %s", TIMER_TOPIC, log_offset, error
                )
                self.timers.unread.discard(log_offset)
            else:
                self.timers.find(
                    Timer(second, log_offset, waiting.properties.get(timer_record.PROPERTY_DELETE_KEY, ""))
                )

    async def _read_one(self, log_offset: int, decode: Callable[[bytes], Record]) -> Record | None:
        """Reads one timer.  If the timer cannot be read or has expired, logs this and returns None."""
        store = self._broker.store
        try:
            found = decode(await cold_reads.read(store, partial(store.log.record_at, log_offset)))
        except (ReadFailed, StoreCorrupt, NotFound) as error:
            if log_offset < store.min_offset:
                logger.error("a message with a delivery time is lost: its log file has expired: %s", error)
                self._unreadable_since.pop(log_offset, None)
                return None
            if log_offset not in self._unreadable_since:
                logger.error("a message with a delivery time waits: %s", error)
            now = self._broker.clock()
            self._retry_at[log_offset] = now + master_loop.AFTER_TROUBLE_S
            self._unreadable_since.setdefault(log_offset, now)
            return None
        self._unreadable_since.pop(log_offset, None)
        return found

    def _waiting(self, second: int, log_offset: int, data: bytes) -> Record:
        """Decodes a timer of `second`.  Raises StoreCorrupt if the delivery time in the timer's properties is in
        another second, because the properties are then damaged.
        """
        waiting = record.decode(data, check_crc=False)
        with suppress(ValueError):
            if timer_record.second_of(waiting) == second:
                return waiting
        raise self._broker.store.log.damaged(log_offset, f"its delivery time was in second {second}")

    def _deliver(self, second: int, batch: list[Record]) -> None:
        """Appends the copies of a batch of timers, and settles the batch.  Recalls, recalled messages, and messages
        whose topic no longer exists get no copy.
        """
        self._settle(second, [(waiting.commit_log_offset, self._delivered(second, waiting)) for waiting in batch])

    def _delivered(self, second: int, waiting: Record) -> _Copy | None:
        if self._is_void(second, waiting):
            return None
        try:
            copy = timer_record.delivered_record(waiting)
            topic = self._broker.topics.get(copy.topic)
            if topic is None:
                raise ValueError(f"topic {copy.topic} does not exist any more")
            copy.queue_id = topic.queue_of(copy.queue_id)
            return self._encoded(copy)
        except ValueError as error:
            logger.warning("message %s with a delivery time is dropped: %s", waiting.message_id, error)
            return None

    def _is_void(self, second: int, waiting: Record) -> bool:
        """Returns True if the timer is not to be delivered, because it is a recall or a recalled message."""
        is_recall = timer_record.PROPERTY_DELETE_KEY in waiting.properties
        return is_recall or self.timers.is_recalled(second, timer_record.key_of(waiting))

    def _encoded(self, copy: Record) -> _Copy:
        copy.store_host = self._broker.store_host
        return copy.topic, record.encode(copy)

    def _settle(self, second: int, batch: Iterable[tuple[int, _Copy | None]]) -> None:
        """Appends COPYING, the copies, and COPIED.  Timers of the batch that no longer wait are left out.

        `batch` has pairs: the log offset of a timer, and its copy.  A timer without a copy is settled and not
        delivered.
        """
        broker, timers = self._broker, self.timers
        batch = [(log_offset, copy) for log_offset, copy in batch if timers.waits(second, log_offset)]
        if not batch:
            return
        if timers.copying is not None:
            raise ServiceNotAvailable("a batch of copies was interrupted, and its copies must be found first")
        broker.check_writable()
        if reason := broker.store.admission.why_not_writable():
            raise ServiceNotAvailable(reason)
        by_topic: dict[str, list[bytes]] = {}
        for _, copy in batch:
            if copy is not None:
                by_topic.setdefault(copy[0], []).append(copy[1])
        if by_topic:
            self._writer.append(Copying(broker.store.end_offset))
        for topic, some in by_topic.items():
            frame = Batch.of_frame(bytearray(b"".join(some)), len(some))
            broker.append(frame, topic)
        self._writer.append(Copied(second, tuple(log_offset for log_offset, _ in batch)))

    async def complete_batch(self) -> None:
        """Appends the COPIED that is missing after an interrupted batch.  No timer is delivered before COPIED is
        appended.

        If the disk cannot read the copies for a minute, they are ignored, and their messages are delivered twice.
        """
        if (begin := self.timers.copying) is None:
            return
        store = self._broker.store
        found: dict[int, list[int]] = {}
        is_end = False
        try:
            while not is_end and (read := await cold_reads.read(store, partial(_next_records, store, begin))):
                begin, data = read
                with store.log.decoding(data, begin - len(data)):
                    sources = list(timer_record.sources(data))
                for topic, source in sources:
                    if source is not None and self.timers.waits(*source):
                        found.setdefault(source[0], []).append(source[1])
                    # The copies of a batch are adjacent, and only transitions of the state come between COPYING and the
                    # first copy.
                    is_end = is_end or (source is None and topic != STATE_TOPIC)
        except (ReadFailed, StoreCorrupt) as error:
            now = self._broker.clock()
            self._copies_unread_since = now if self._copies_unread_since is None else self._copies_unread_since
            if now - self._copies_unread_since < _KEPT_WAITING_S:
                raise
            logger.error("up to %d messages with a delivery time may be delivered twice: %s", BATCH, error)
        self._copies_unread_since = None
        self._writer.append(*(Copied(second, tuple(log_offsets)) for second, log_offsets in found.items()), Copied(0))

    # --- retention --------------------------------------------------------------------------------------------------

    async def move(self, log_offset: int) -> None:
        """Appends the timers before `log_offset` again at the log's end, because the log files before this offset
        expire.
        """
        self._writer.catch_up()
        await self.complete_batch()
        await self._read_unread()
        for second, log_offsets in self.timers.before(log_offset):
            for first in range(0, len(log_offsets), BATCH):
                batch = await self._read(second, log_offsets[first : first + BATCH])
                self._settle(second, [(one.commit_log_offset, self._moved(second, one)) for one in batch])
                await asyncio.sleep(0)

    def _moved(self, second: int, waiting: Record) -> _Copy | None:
        """Makes a copy that waits in place of the timer.  Returns None for a recalled message, and for a recall,
        because the messages that a recall concerns are known already.
        """
        return None if self._is_void(second, waiting) else self._encoded(timer_record.moved_record(waiting))

    def needed_from(self) -> int | None:
        """Returns the log offset from which the log is needed for timers; None if there has never been a timer."""
        if not self._broker.store.queues.end(TIMER_TOPIC, 0):
            return None
        return self._needed.begins_at(self.timers.oldest(self._given_up()))

    def _given_up(self) -> Collection[int]:
        """Returns the timers that have been unreadable for so long that their log file may be deleted.

        An unreadable timer is still delivered if it can be read before the deletion.
        """
        before = self._broker.clock() - _KEPT_UNREADABLE_S
        return {log_offset for log_offset, since in self._unreadable_since.items() if since <= before}

    # --- for a real RocketMQ ----------------------------------------------------------------------------------------

    def write_check(self) -> None:
        """Writes RocketMQ's file `timercheck`, so that a RocketMQ that opens this store continues at the oldest timer.

        A `timercheck` that RocketMQ has written stays as it is until this broker has read it.
        """
        store, path = self._broker.store, self._check_path
        if store.queues.end(TIMER_TOPIC, 0) and (self._has_begun or not timer_check.is_rocketmqs(store, path)):
            timer_check.write(store, path, self.timers.oldest(), self._broker.day_ms())

    @property
    def _check_path(self) -> Path:
        return self._broker.config.store_path_root_dir / "config" / "timercheck"


def _next_records(store: MessageStore, log_offset: int) -> tuple[int, bytes] | None:
    return next(whole_records(store.log, log_offset, READ_BYTES), None)
