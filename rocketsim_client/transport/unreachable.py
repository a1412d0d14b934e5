"""Remembers the addresses that recently did not answer, so that they are asked last.  Pure: the caller passes the time.

Slow brokers are not remembered here, because producers avoid them by `sending/latency_fault.py`.
"""

UNREACHABLE_FOR_S = 1.0
SILENT_FOR_S = 10.0


class UnreachableAddresses(dict[str, float]):
    """Maps each address that did not answer to the time until which the address is asked last.  `current` removes
    addresses whose time is over, so until the next `current` they stay in the dict.

    An address that refused the connection is asked last for 1 s.  An address that did not answer in time is asked last
    for 10 s, because each try takes a complete timeout.
    """

    def failed(self, address: str, now: float, *, silent: bool) -> bool:
        """Adds an address that did not answer.  Returns True if the address was not in the dict before."""
        is_news = address not in self
        self[address] = now + (SILENT_FOR_S if silent else UNREACHABLE_FOR_S)
        return is_news

    def answered(self, address: str) -> bool:
        """Removes an address that has answered.  Returns True if the address was in the dict."""
        return self.pop(address, None) is not None

    def current(self, now: float) -> frozenset[str]:
        """Returns the addresses that are to be asked last at the time `now`."""
        if not self:
            return frozenset()
        for address, until in self.copy().items():
            if until <= now:
                self.pop(address, None)
        return frozenset(self)
