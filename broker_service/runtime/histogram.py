"""Histogram counts durations in buckets, without any code of Prometheus."""

from bisect import bisect_left
from itertools import accumulate

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Histogram:
    """Only one thread may call `observe`; any thread may call `buckets`."""

    def __init__(self, name: str, help_text: str) -> None:
        self.name = name
        self.help_text = help_text
        self.total_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Returns (upper bound in seconds, number of durations up to it) for each bucket; the last bound is +Inf."""
        names = [*map(str, BOUNDS_S), "+Inf"]
        return list(zip(names, accumulate(list(self._counts)), strict=True))
