"""The clocks of a machine, as protocols.  `Machine` has all of them, and the module `time` has `monotonic`."""

from typing import Protocol


class Monotonic(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back."""


class WallClock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970; this clock may be set."""


class Clocks(Monotonic, WallClock, Protocol):
    def since_boot(self) -> float:
        """Seconds, also those of a suspended machine."""
