"""Saving writes consumer offsets, delay offsets and the state of consumption to their files from time to time."""

import asyncio
import logging
from collections.abc import Callable

from broker_service.broker.core.broker import Broker
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.errors import RocketSimError
from broker_service.pop.consumption import Consumption
from broker_service.runtime.tasks import OwnedTasks

logger = logging.getLogger(__name__)

SNAPSHOT_EVERY_S = 60.0
SNAPSHOT_LOOK_S = 5.0  # the shortest time between two snapshots, however much is written


class Saving:
    def __init__(self, broker: Broker, schedule: ScheduleService, consumption: Consumption) -> None:
        self._broker = broker
        self._schedule = schedule
        self._consumption = consumption
        self._writing: list[asyncio.Future[None]] = []

    def start(self, tasks: OwnedTasks) -> None:
        tasks.own("offsets", self._compact_offsets())
        tasks.own("delays", self._save_delays())
        tasks.own("consumption snapshots", self._save_consumption())

    async def finish(self) -> None:
        """Waits until the writes that a cancelled loop had begun in a thread have ended."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _in_a_thread(self, write: Callable[[], None]) -> None:
        """Writes a file off the event loop.  The write continues to its end even if its loop is cancelled."""
        writing = asyncio.ensure_future(asyncio.to_thread(write))
        self._writing = [*(other for other in self._writing if not other.done()), writing]
        await asyncio.shield(writing)

    async def _compact_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._broker.config.flush_consumer_offset_interval / 1000)
            self.complete_deletions()
            try:
                compaction = self._broker.offsets.compaction(self._broker.now_ms())
                if compaction is not None:
                    await self._in_a_thread(compaction.run)
            except OSError as error:
                logger.error("consumer offsets stay in the journal, their file cannot be written: %s", error)

    def complete_deletions(self) -> None:
        """Deletes offsets of deleted topics that could not be deleted earlier, because of a full disk or a crash."""
        broker = self._broker
        if broker.may_append and broker.offsets_wait_for() is None:
            try:
                broker.offsets.delete_topics(broker.topics.tombstones.keys() - broker.topics.entries.keys())
            except RocketSimError as error:
                logger.warning("offsets of deleted topics cannot be deleted yet: %s", error)

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
