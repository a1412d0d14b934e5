"""Rates: computes rates of counters over the last 10, 60 and 600 seconds, as in RocketMQ's brokerStatus."""

from collections import deque
from collections.abc import Mapping

WINDOWS_S = (10, 60, 600)


class Rates:
    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def sample(self, now: float, counters: Mapping[str, int]) -> None:
        """Notes the counters.  Must be called about once a second."""
        self._samples.append((now, dict(counters)))
        while now - self._samples[0][0] > WINDOWS_S[-1] + 1:
            self._samples.popleft()

    def per_second(self, name: str, window_s: float) -> float:
        """Returns the rate over the window, or since the first sample if that is a shorter time."""
        if len(self._samples) < 2:
            return 0.0
        now, newest = self._samples[-1]
        started, oldest = next(
            ((at, counters) for at, counters in self._samples if now - at <= window_s), self._samples[-1]
        )
        if now <= started:
            return 0.0
        return max(0, newest.get(name, 0) - oldest.get(name, 0)) / (now - started)

    def text(self, name: str) -> str:
        return " ".join(f"{self.per_second(name, window_s):.1f}" for window_s in WINDOWS_S)
