"""Computes the rates of counters between two calls."""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Rates(Generic[Key]):
    """Computes rates from the counters of each call and of the call before."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._counters: dict[Key, int] = {}

    def per_second(self, now_s: float, counters: Mapping[Key, int]) -> dict[Key, float | None]:
        """Returns by key how much each counter has risen per second since the last call.  The rate of a new counter is
        None.

        A counter that has fallen belongs to a process that has restarted, so the counter began again at 0 and has risen
        by its present value.
        """
        before, since, elapsed_s = self._counters, self._at_s, 0.0
        if since is not None:
            elapsed_s = now_s - since
        self._at_s, self._counters = now_s, dict(counters)
        return {
            key: _rise(before[key], value) / elapsed_s if key in before and elapsed_s > 0 else None
            for key, value in counters.items()
        }


def _rise(before: int, now: int) -> int:
    return now - before if now >= before else now
