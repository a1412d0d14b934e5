"""Addresses that recently did not answer, and are therefore asked last.  Pure: `now` is an argument.

`sending/latency_fault.py` has the brokers that a producer avoids because they are slow.
"""

UNREACHABLE_FOR_S = 1.0
SILENT_FOR_S = 10.0


class UnreachableAddresses(dict[str, float]):
    """The addresses that did not answer, each with the time until which it is asked last.  Addresses whose time is over
    may still be in it.

    A refused connection is tried again soon.  An address that does not answer is asked later, because each try takes a
    complete timeout.
    """

    def failed(self, address: str, now: float, *, silent: bool) -> bool:
        """True if the address was not among them."""
        is_news = address not in self
        self[address] = now + (SILENT_FOR_S if silent else UNREACHABLE_FOR_S)
        return is_news

    def answered(self, address: str) -> bool:
        """True if the address was among them."""
        return self.pop(address, None) is not None

    def current(self, now: float) -> frozenset[str]:
        if not self:
            return frozenset()
        for address, until in self.copy().items():
            if until <= now:
                self.pop(address, None)
        return frozenset(self)
