"""PeriodicTasks: a broker's periodic work (tick, samples, retention, saving of offsets), each in a loop of its own."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

from broker_service.admin.metrics import Metrics
from broker_service.admin.progress import Progress
from broker_service.admin.status import Status
from broker_service.broker.core.broker import Broker
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.delayed.timer_delivery import TimerDelivery
from broker_service.errors import RocketSimError
from broker_service.pop.consumption import Consumption
from broker_service.replication.slave import ReplicationSlave
from broker_service.transactions.transactions import Transactions

logger = logging.getLogger(__name__)

TICK_S = 0.1  # a change of metadata reaches the slaves within this
SAMPLE_EVERY_S = 1.0
LAGS_EVERY_S = 15.0  # as often as Prometheus asks; 10,000 groups take it a second of the event loop, in turns
SNAPSHOT_EVERY_S = 60.0
SNAPSHOT_LOOK_S = 5.0  # no more often, however much is written
EXPIRE_EVERY_S = 10.0  # RocketMQ's cleanResourceInterval


class PeriodicTasks:
    def __init__(
        self,
        broker: Broker,
        *,
        schedule: ScheduleService,
        consumption: Consumption,
        slave: ReplicationSlave,
        status: Status,
        metrics: Metrics,
        progress: Progress,
    ) -> None:
        self._broker = broker
        self._schedule = schedule
        self._consumption = consumption
        self._slave = slave
        self._status = status
        self._metrics = metrics
        self._progress = progress
        self._writing: list[asyncio.Future[None]] = []

    def loops(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """A name and the loop of each; every one runs until it is cancelled."""
        yield "tick", self._tick()
        yield "sample", self._sample()
        yield "lags", self._look_at_lags()
        yield "expire", self._expire()
        yield "offsets", self._compact_offsets()
        yield "delays", self._save_delays()
        yield "consumption snapshots", self._save_consumption()

    async def finish(self) -> None:
        """What a cancelled loop had begun in a thread has ended."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _in_a_thread(self, write: Callable[[], None]) -> None:
        """A file is synced off the event loop; a write goes on to its end also if its loop is cancelled."""
        writing = asyncio.ensure_future(asyncio.to_thread(write))
        self._writing = [*(other for other in self._writing if not other.done()), writing]
        await asyncio.shield(writing)

    async def _tick(self) -> None:
        broker = self._broker
        writable = broker.takes_clients_writes
        while True:
            broker.store.tick(broker.now_ms())
            if broker.is_slave:
                broker.changes.forget()
                if broker.offsets.take_news():
                    self._slave.hand_back()
            else:
                broker.changes.publish()
            if writable != broker.takes_clients_writes:
                writable = not writable
                self._broker.description_changed.notify()
            await asyncio.sleep(TICK_S)

    async def _sample(self) -> None:
        while True:
            self._status.sample()
            if self._broker.config.metrics_port:
                self._metrics.picture()
            if self._broker.is_slave and not self._slave.is_following():
                self._broker.description_changed.notify()  # the master may have come back at another address
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _look_at_lags(self) -> None:
        while True:
            if self._broker.config.metrics_port:
                self._metrics.lags = await self._progress.lags()
            await asyncio.sleep(LAGS_EVERY_S)

    async def _expire(self) -> None:
        while True:
            try:
                await self._delete_expired()
            except (RocketSimError, OSError) as error:
                logger.error("expired files stay for now: %s", error)
            await asyncio.sleep(EXPIRE_EVERY_S)

    async def _delete_expired(self) -> None:
        """A master first appends again what waits in the files that expire; no broker deletes it before, and no slave
        what its master has."""
        waiting: list[TimerDelivery | Transactions] = [self._consumption.timer_delivery, self._consumption.transactions]
        broker, store, needed_from = self._broker, self._broker.store, None
        now_ms, kept_by_master = broker.time.expiry_ms(), self._slave.master_min_offset if broker.is_slave else None
        begins_at = store.min_offset
        with suppress(OSError):  # raised again below
            begins_at = store.expires_before(now_ms, kept_by_master)
        if begins_at > store.min_offset:
            for part in waiting:
                try:
                    if broker.may_append:
                        await part.move(begins_at)
                except (RocketSimError, OSError) as error:
                    logger.error("messages that wait keep their log files: %s", error)
            needed = [part.needed_from() for part in (self._consumption, *waiting)]
            needed_from = min((log_offset for log_offset in needed if log_offset is not None), default=None)
        for line in store.delete_expired(now_ms, needed_from, kept_by_master):
            logger.info("%s", line)

    async def _compact_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._broker.config.flush_consumer_offset_interval / 1000)
            self._complete_deletions()
            try:
                compaction = self._broker.offsets.compaction(self._broker.now_ms())
                if compaction is not None:
                    await self._in_a_thread(compaction.run)
            except OSError as error:
                logger.error("consumer offsets stay in the journal: %s", error)

    def _complete_deletions(self) -> None:
        """Deletes the offsets of deleted topics that a full disk, or a crash after the tombstone, has left."""
        broker = self._broker
        if broker.may_append and broker.offsets_wait_for() is None:
            try:
                broker.offsets.delete_topics(broker.topics.tombstones.keys() - broker.topics.entries.keys())
            except RocketSimError as error:
                logger.warning("offsets of deleted topics stay for now: %s", error)

    async def _save_delays(self) -> None:
        while True:
            await asyncio.sleep(self._broker.config.flush_delay_offset_interval / 1000)
            try:
                saving = self._schedule.saving()
                if saving is not None:
                    await self._in_a_thread(saving)
            except OSError as error:
                logger.error("delay offsets could not be saved: %s", error)

    async def _save_consumption(self) -> None:
        saved_s = self._broker.clock()
        while True:
            await asyncio.sleep(min(SNAPSHOT_LOOK_S, SNAPSHOT_EVERY_S))
            now_s = self._broker.clock()
            if now_s - saved_s < SNAPSHOT_EVERY_S and not self._consumption.is_snapshot_due:
                continue
            saved_s = now_s
            try:
                saving = self._consumption.saving()
                if saving is not None:
                    await self._in_a_thread(saving)
            except (RocketSimError, OSError) as error:
                logger.error("the snapshot of consumption could not be written: %s", error)
