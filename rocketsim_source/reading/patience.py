"""Limits how long a task goes on without progress while it retries failed calls or waits for records."""

import logging
import time
from collections.abc import Callable, Iterable

from rocketsim_client.retry import Backoff
from rocketsim_source.options.source_options import SourceOptions

logger = logging.getLogger(__name__)

RETRY_MAX_S = 2.0


class Patience:
    """Limits the failures and waits of one task."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._retries = options.pull_retries
        self._backoff = Backoff(options.pull_retry_backoff_ms / 1000, RETRY_MAX_S)
        self._clock = clock
        self._sleep = sleep
        self.failures = 0
        self._waiting_since: dict[int, float] = {}  # index of a range -> the time when it began to wait

    def failed(self, error: Exception) -> None:
        """Pauses after a failure, longer after each failure in a row.  Raises the error when all retries are used up
        without any progress.
        """
        self.failures += 1
        if self.failures > self._retries:
            raise error
        logger.warning("pull failed (%d of %d retries): %s", self.failures, self._retries, error)
        self._sleep(self._backoff.pause_s(self.failures))

    def progressed(self, indices: Iterable[int]) -> None:
        """Notes that these ranges made progress, so that failures and waits are counted anew."""
        for index in indices:
            self.failures = 0
            self._waiting_since.pop(index, None)

    def wait(self, index: int, at_most_s: float) -> bool:
        """Pauses briefly and returns True, so that the caller asks again.  Returns False once the range has waited for
        `at_most_s` in all.
        """
        since = self._waiting_since.setdefault(index, self._clock())
        if self._clock() - since >= at_most_s:
            return False
        self._sleep(self._backoff.pause_s(1))
        return True

    def end_wait(self, index: int) -> None:
        self._waiting_since.pop(index, None)
