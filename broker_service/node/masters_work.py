"""MastersWork starts the loops that a broker runs once it has begun to take writes."""

import logging

from broker_service.broker.core.broker import Broker
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.errors import ServiceNotAvailable
from broker_service.pop.consumption import Consumption
from broker_service.runtime.tasks import OwnedTasks

logger = logging.getLogger(__name__)


class MastersWork:
    def __init__(self, broker: Broker, schedule: ScheduleService, consumption: Consumption, tasks: OwnedTasks) -> None:
        self._broker = broker
        self._schedule = schedule
        self._consumption = consumption
        self._tasks = tasks

    def begin(self) -> None:
        if self._broker.access is not None:
            self._tasks.own("first-user", self._make_first_user())
        self._schedule.begin()
        self._tasks.own("schedule", self._schedule.run())
        self._consumption.begin()
        self._tasks.own("consumption", self._consumption.run())
        self._tasks.own("transactions", self._consumption.transactions.run())
        self._tasks.own("timers", self._consumption.timer_delivery.run())

    async def _make_first_user(self) -> None:
        """Makes the user of `initAuthenticationUser`, unless a user with this name exists."""
        broker, first = self._broker, self._broker.config.init_user
        if first is None or broker.access is None:
            return
        try:
            made = await broker.access.make_first_user(first.access_key, first.secret_key, broker.now_ms())
        except ServiceNotAvailable as error:
            logger.error(
                "User:%s of initAuthenticationUser was not made, restart to try again: %s", first.access_key, error
            )
            return
        if made:
            broker.changes.publish()
            logger.info("made User:%s of initAuthenticationUser, a super user", first.access_key)
