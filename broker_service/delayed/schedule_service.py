"""ScheduleService delivers messages with a delay level when they are due, on a master that takes writes.

On a slave, ScheduleService only keeps the master's position, for the case that the slave is promoted.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable

import numpy as np
from rocketsim_proto.model import GetMessageStatus
from rocketsim_proto.records import record
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker, Queue
from broker_service.broker.core.master_loop import LONGEST_SLEEP_S, MasterLoop
from broker_service.broker.metadata.config_table import DataVersion, JsonStore
from broker_service.delayed.schedule import DelayPosition, delivered_record, due_in_ms, replayed_positions
from broker_service.errors import ReadFailed, ServiceNotAvailable, StoreCorrupt
from broker_service.runtime import cold_reads
from broker_service.store.pull import GetMessageResult

logger = logging.getLogger(__name__)

BATCH = 32


class ScheduleService:
    """Keeps two files.  `delay_file` is RocketMQ's `delayOffset.json`, which has the offset of each level.
    `position_file` is the broker's own file, which has the offset of each level and the end of the log at the same
    moment.
    """

    def __init__(self, broker: Broker, delay_file: JsonStore, position_file: JsonStore) -> None:
        self._broker = broker
        self._delay_file = delay_file
        self._position_file = position_file
        # The master's newest position, which replaces `_position` once this log reaches the position's log offset.
        self._masters_position: DelayPosition | None = None
        self._version = DataVersion()
        self._saved: DelayPosition | None = None
        self._in_delay_file = _table((delay_file.load() or {}).get("offsetTable"))
        self._files = threading.Lock()  # held while the files are written
        self._cuts = 0  # cuts of the log that have emptied the files
        self._position = self._load()
        self._offsets: dict[int, int] = {}
        # Delay level -> time of the broker's clock at which the level's queue is read again.
        self._retry_at: dict[int, float] = {}
        self._running = False
        self.loop = MasterLoop(broker, self.deliver_due, "delayed messages")
        broker.visibility.arrived.append(self._arrived)

    def position(self) -> DelayPosition:
        """Returns how far each delay level is delivered, and the end of the log at that moment."""
        if self._running:
            return DelayPosition(self._broker.store.end_offset, dict(self._offsets))
        self._adopt()
        return self._position

    def take_masters_position(self, position: DelayPosition) -> None:
        """Takes over the master's position: how far each level was delivered when the master's log ended at
        `log_offset`.
        """
        self._adopt()
        self._masters_position = position

    def log_will_be_cut(self, end_offset: int) -> None:
        """Empties the files if they have a position beyond the log's new end.  A start after a crash could not tell
        that the log was cut, and would skip the messages that the former log had delivered.
        """
        if self._position.log_offset <= end_offset:
            return
        self._cuts += 1  # ends a save that waits for the lock
        with self._files:
            self._write(DelayPosition(), self._version.next(self._broker.now_ms()))
        self._position = DelayPosition()

    def log_cut(self, end_offset: int) -> None:
        """Drops a position that is beyond the log's new end after a cut.  Without a position, deliveries are found by
        reading the log from its beginning.
        """
        self._masters_position = None
        if self._position.log_offset > end_offset:
            self._position = DelayPosition()

    def _adopt(self) -> None:
        position = self._masters_position
        if position is not None and position.log_offset <= self._broker.store.end_offset:
            self._position, self._masters_position = position, None

    # --- delivering -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ends the time as a slave.  Must be called in the turn of the event loop in which the broker begins to take
        writes: its own records make the log longer, so that a position of the former master's log, of which this log
        has only a part, could be taken for one of this log.
        """
        self._adopt()
        self._masters_position = None

    async def run(self) -> None:
        """Delivers messages until the task is cancelled.  The broker starts this loop after `begin`."""
        await self._catch_up()
        self._offsets = dict(self._position.offsets)
        self._running = True
        try:
            await self.loop.run()
        finally:
            self._position = self.position()
            self._running = False

    async def _catch_up(self) -> None:
        """Reads the deliveries up to the end of the log.

        Waits as long as the disk cannot read the log, because a message whose delivery is not known would be delivered
        twice.
        """
        store = self._broker.store
        while self._has_queues():
            try:
                further = await cold_reads.read(
                    store, lambda: next(replayed_positions(self._position, store.log), None)
                )
            except (ReadFailed, StoreCorrupt) as error:
                logger.warning("delayed messages wait, because it is not known which were delivered: %s", error)
                await asyncio.sleep(master_loop.AFTER_TROUBLE_S)
                continue
            if further is None:
                return
            self._position = further
            await asyncio.sleep(0)

    async def deliver_due(self) -> float:
        """Delivers the due messages of all levels.  Returns the seconds until the next call of `deliver_due`."""
        sleep_s = LONGEST_SLEEP_S
        now = self._broker.clock()
        for level, delay_ms in enumerate(self._broker.config.delay_levels_ms, start=1):
            if self._retry_at.get(level, now) > now:
                continue
            try:
                sleep_s = min(sleep_s, await self._deliver_level(level, delay_ms))
            except (ReadFailed, StoreCorrupt) as error:
                logger.warning("delay level %d waits: %s", level, error)
                self._retry_at[level] = now + master_loop.AFTER_TROUBLE_S
        return sleep_s

    async def _deliver_level(self, level: int, delay_ms: int) -> float:
        """Delivers all due messages of a level.  Returns the seconds until the next message of the level is due."""
        while True:
            delivered, next_s = await self._deliver_batch(level, delay_ms)
            if not delivered:
                return next_s
            await asyncio.sleep(0)

    async def _deliver_batch(self, level: int, delay_ms: int) -> tuple[int, float]:
        """Reads a batch from a level's queue, and delivers the messages of it that are due.  Returns how many messages
        it has delivered, and the seconds until the next one is due.
        """
        broker = self._broker
        found = await cold_reads.read(broker.store, lambda: self._next_of(level))
        if found is None or found.status is not GetMessageStatus.FOUND:
            if found is not None and found.next_begin_offset > self._offsets[level]:
                self._offsets[level] = found.next_begin_offset  # the messages before this offset have expired
            return 0, LONGEST_SLEEP_S
        delivered = 0
        at = 0
        for size in np.frombuffer(found.sizes, "<u4").tolist():
            with broker.store.log.decoding(found.records):
                # Decoding verifies the checksum, because the copy gets a new checksum, which would hide damage.
                delayed = record.decode(found.records, at)
            at += size
            wait_ms = due_in_ms(delayed.store_timestamp, delay_ms, broker.now_ms())
            if wait_ms > 0:
                return delivered, wait_ms / 1000
            await broker.topics.until_settled(delayed.properties.get(record.PROPERTY_REAL_TOPIC, ""))
            self._deliver(delayed, level, self._offsets[level])
            delivered += 1
        return delivered, 0.0

    def _next_of(self, level: int) -> GetMessageResult | None:
        """Reads the next messages of a level.  Returns None if the level has never had a message."""
        store = self._broker.store
        min_offset, max_offset = store.queues.bounds(SCHEDULE_TOPIC, level - 1)
        if max_offset == 0:
            return None
        # As in RocketMQ, an offset outside the queue is moved to its nearest end.
        offset = self._offsets[level] = min(max(self._offsets.get(level, 0), min_offset), max_offset)
        return store.queues.get_message(SCHEDULE_TOPIC, level - 1, offset, BATCH, 1 << 20, None)

    def _deliver(self, delayed: record.Record, level: int, schedule_offset: int) -> None:
        """Appends the delivery and moves the level's offset in one step of the event loop, so that the offsets always
        agree with the log.
        """
        broker = self._broker
        broker.check_writable()  # while this task waited, the broker may have been fenced or stopped
        if reason := broker.store.admission.why_not_writable():
            raise ServiceNotAvailable(reason)
        try:
            message = delivered_record(delayed, level, schedule_offset)
            topic = broker.topics.get(message.topic)
            if topic is None:
                raise ValueError(f"topic {message.topic} does not exist any more")
            message.queue_id = topic.queue_of(message.queue_id)
            broker.append_one(message)
        except ValueError as error:
            logger.warning("delayed message %d of level %d is dropped: %s", schedule_offset, level, error)
        self._offsets[level] = schedule_offset + 1

    def _has_queues(self) -> bool:
        """Returns True if there may be delayed messages."""
        return any(topic == SCHEDULE_TOPIC for topic, _ in self._broker.store.queues.keys())

    def _arrived(self, queues: Iterable[Queue]) -> None:
        if any(topic == SCHEDULE_TOPIC for topic, _ in queues):
            self.loop.wake()

    # --- the files --------------------------------------------------------------------------------------------------

    def save(self) -> None:
        if saving := self.saving():
            saving()

    def saving(self) -> Callable[[], None] | None:
        """Returns a function that writes both files and may run on any thread.  Returns None if nothing has changed
        since the last write.
        """
        position, cuts = self.position(), self._cuts
        if position == self._saved or not (position.offsets or self._has_queues()):
            return None
        version = self._version.next(self._broker.now_ms())

        def run() -> None:
            with self._files:
                if cuts == self._cuts:
                    self._write(position, version)

        return run

    def _write(self, position: DelayPosition, version: DataVersion) -> None:
        table = {str(level): offset for level, offset in sorted(position.offsets.items())}
        if any(offset > position.offsets.get(level, 0) for level, offset in self._in_delay_file.items()):
            # A start takes the higher one of the two offsets of a level, so one that goes back leaves this file first.
            self._delay_file.save({"dataVersion": version.to_json(), "offsetTable": {}})
            self._in_delay_file = {}
        self._position_file.save({"commitLogOffset": position.log_offset, "offsets": table})
        if position.offsets != self._in_delay_file:
            self._delay_file.save({"dataVersion": version.to_json(), "offsetTable": table})
            self._in_delay_file = dict(position.offsets)
        self._version = version
        self._saved = position

    def _load(self) -> DelayPosition:
        rocketmqs = self._in_delay_file
        ours = self._position_file.load()
        if ours is None:
            return DelayPosition(0, rocketmqs)
        log_offset = int(ours["commitLogOffset"])
        if log_offset > self._broker.store.end_offset:
            return DelayPosition()  # the log has lost bytes on which the saved position depends
        offsets = _table(ours["offsets"])
        # A RocketMQ may have used this store since the file was written, and RocketMQ's offsets are then higher.
        return DelayPosition(
            log_offset,
            {level: max(offset, offsets.get(level, 0)) for level, offset in {**offsets, **rocketmqs}.items()},
        )


def _table(value: object) -> dict[int, int]:
    return {int(level): int(offset) for level, offset in value.items()} if isinstance(value, dict) else {}
