"""Sampling: periodically takes the samples that the status and the metrics show."""

import asyncio

from broker_service.admin.lags import Lags
from broker_service.admin.metrics import Metrics
from broker_service.admin.status import Status
from broker_service.broker.core.broker import Broker
from broker_service.leadership.following import Following
from broker_service.runtime.tasks import OwnedTasks

SAMPLE_EVERY_S = 1.0
# Prometheus' usual interval; measuring 10,000 groups takes a second of the event loop's time, with pauses
LAGS_EVERY_S = 15.0


class Sampling:
    def __init__(
        self,
        broker: Broker,
        following: Following,
        status: Status,
        metrics: Metrics,
        lags: Lags,
    ) -> None:
        self._broker = broker
        self._following = following
        self._status = status
        self._metrics = metrics
        self._lags = lags

    def start(self, tasks: OwnedTasks) -> None:
        tasks.own("sample", self._sample())
        tasks.own("lags", self._take_lags())

    async def _sample(self) -> None:
        while True:
            self._status.sample()
            if self._broker.config.metrics_port:
                self._metrics.take_snapshot()
            if self._broker.is_slave and not self._following.is_following():
                self._broker.description_changed.notify()  # the master may have come back at another address
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _take_lags(self) -> None:
        broker, groups = self._broker, self._metrics.groups
        while True:
            groups.passed.forget(lambda topic: broker.topics.get(topic) is None)
            groups.consumers = broker.consumers.counts(broker.clock())
            if broker.config.metrics_port:
                groups.lags = await self._lags.take()
            else:
                self._lags.skip()
            await asyncio.sleep(LAGS_EVERY_S)
