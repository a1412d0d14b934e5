"""Addresses that did not answer a moment ago: they are asked last.  Pure: `now` is an argument.

Brokers that a producer avoids because they are slow are another matter: `sending/latency_fault.py`.
"""

from dataclasses import dataclass, field

UNREACHABLE_FOR_S = 1.0
SILENT_FOR_S = 10.0


@dataclass(slots=True)
class UnreachableAddresses:
    """A refused connection is tried again soon; a silent one costs a whole timeout each time."""

    _until: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._until)

    def failed(self, address: str, now: float, *, silent: bool) -> bool:
        """Whether that is news."""
        is_news = address not in self._until
        self._until[address] = now + (SILENT_FOR_S if silent else UNREACHABLE_FOR_S)
        return is_news

    def answered(self, address: str) -> bool:
        """Whether that is news."""
        return self._until.pop(address, None) is not None

    def current(self, now: float) -> frozenset[str]:
        if not self._until:
            return frozenset()
        for address, until in self._until.copy().items():
            if until <= now:
                self._until.pop(address, None)
        return frozenset(self._until)
