"""Keeps the calls that are under way, so that another thread can cancel them."""

from typing import Protocol


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class UnderWay:
    """A set of calls.  A transport adds a call when the call begins, and discards it when the call has ended.
    Thread-safe."""

    def __init__(self) -> None:
        self._calls: set[Cancellable] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Cancellable) -> None:
        self._calls.add(call)

    def discard(self, call: Cancellable) -> None:
        self._calls.discard(call)

    def cancel(self) -> None:
        """Cancels the calls that are under way now."""
        for call in list(self._calls):
            call.cancel()
