"""Addresses that did not answer a moment ago: they are asked last.  Pure: `now` is an argument.

Brokers that a producer avoids because they are slow are another matter: `sending/latency_fault.py`.
"""

UNREACHABLE_FOR_S = 1.0
SILENT_FOR_S = 10.0


class UnreachableAddresses(dict[str, float]):
    """Until when each is asked last; it may have some whose time is over.  A refused connection is tried again soon; a
    silent one costs a whole timeout each time."""

    def failed(self, address: str, now: float, *, silent: bool) -> bool:
        """Whether that is news."""
        is_news = address not in self
        self[address] = now + (SILENT_FOR_S if silent else UNREACHABLE_FOR_S)
        return is_news

    def answered(self, address: str) -> bool:
        """Whether that is news."""
        return self.pop(address, None) is not None

    def current(self, now: float) -> frozenset[str]:
        if not self:
            return frozenset()
        for address, until in self.copy().items():
            if until <= now:
                self.pop(address, None)
        return frozenset(self)
