"""Mornings: keeps the counters of the last two midnights, as RocketMQ's counts of today and yesterday need them."""

from collections.abc import Mapping
from datetime import date


class Mornings:
    """The counters are kept only in memory.  Before the broker's start they were 0."""

    def __init__(self, today: date) -> None:
        self._date = today
        self.today: Mapping[str, int] = {}
        self.yesterday: Mapping[str, int] = {}

    def sample(self, today: date, counters: Mapping[str, int]) -> None:
        """Notes the counters if a new day has begun.  Must be called about once a second."""
        if today != self._date:
            self._date, self.yesterday, self.today = today, self.today, dict(counters)
