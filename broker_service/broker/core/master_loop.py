"""MasterLoop repeats a piece of work as long as this broker is a master that takes writes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.errors import RocketSimError

logger = logging.getLogger(__name__)

# Sleeps are kept short, because the broker's time may jump when a step of the wall clock is believed.
LONGEST_SLEEP_S = 1.0
AFTER_TROUBLE_S = 10.0  # pause after a failed call of `work`, as in RocketMQ


class MasterLoop:
    """Calls `work` repeatedly.  `work` returns the seconds until its next call, or None if it does not know when the
    next call is due.

    If `work` fails, it is called again after AFTER_TROUBLE_S.  The failure is logged together with `what_waits`, which
    names what is delayed by the failure.
    """

    def __init__(self, broker: Broker, work: Callable[[], Awaitable[float | None]], what_waits: str) -> None:
        self._broker = broker
        self._work = work
        self._what_waits = what_waits
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Calls `work` now.  If `work` is running now, it is called once more afterwards."""
        self._woken.set()

    async def run(self) -> None:
        """Runs until this broker takes no more writes, or until the task is cancelled."""
        while self._broker.mastership.standing is Standing.WRITABLE:
            self._woken.clear()
            try:
                sleep_s = await self._work()
            except (RocketSimError, OSError) as error:
                logger.warning("%s wait: %s", self._what_waits, error)
                await asyncio.sleep(AFTER_TROUBLE_S)
                continue
            try:
                async with asyncio.timeout(LONGEST_SLEEP_S if sleep_s is None else _within_limits(sleep_s)):
                    await self._woken.wait()
            except TimeoutError:
                pass


def _within_limits(sleep_s: float) -> float:
    return max(0.001, min(sleep_s, LONGEST_SLEEP_S))
