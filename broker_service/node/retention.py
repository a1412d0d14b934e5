"""Retention deletes expired log files, after appending the timers and half messages in them to the log again."""

import asyncio
import logging
from contextlib import suppress

from broker_service.broker.core.broker import Broker
from broker_service.delayed.timer_delivery import TimerDelivery
from broker_service.errors import RocketSimError
from broker_service.pop.consumption import Consumption
from broker_service.replication.slave import ReplicationSlave
from broker_service.transactions.transactions import Transactions

logger = logging.getLogger(__name__)

EXPIRE_EVERY_S = 10.0  # RocketMQ's cleanResourceInterval


class Retention:
    def __init__(self, broker: Broker, consumption: Consumption, slave: ReplicationSlave) -> None:
        self._broker = broker
        self._consumption = consumption
        self._slave = slave

    async def run(self) -> None:
        while True:
            try:
                await self.delete_expired()
            except (RocketSimError, OSError) as error:
                logger.error("expired files cannot be deleted yet: %s", error)
            await asyncio.sleep(EXPIRE_EVERY_S)

    async def delete_expired(self) -> None:
        """Deletes expired log files.

        A master first appends the timers and half messages of the expired files again.  A broker keeps a file with a
        message that is still being delivered, and a slave keeps a file that its master has.
        """
        waiting: list[TimerDelivery | Transactions] = [self._consumption.timer_delivery, self._consumption.transactions]
        broker, store, needed_from = self._broker, self._broker.store, None
        now_ms, kept_by_master = broker.time.expiry_ms(), self._slave.master_min_offset if broker.is_slave else None
        begins_at = store.min_offset
        with suppress(OSError):  # the error is raised again by `delete_expired` below
            begins_at = store.retention.expires_before(now_ms, kept_by_master)
        if begins_at > store.min_offset:
            for part in waiting:
                try:
                    if broker.may_append:
                        await part.move(begins_at)
                except (RocketSimError, OSError) as error:
                    logger.error("log files stay because the messages that wait in them cannot be moved: %s", error)
            needed = [part.needed_from() for part in (self._consumption, *waiting)]
            needed_from = min((log_offset for log_offset in needed if log_offset is not None), default=None)
        for line in store.retention.delete_expired(now_ms, needed_from, kept_by_master):
            logger.info("%s", line)
