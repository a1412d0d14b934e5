"""Protocols of the clocks of a machine.  `Machine` implements all of these protocols, and the module `time` implements
`Monotonic`.
"""

from typing import Protocol


class Monotonic(Protocol):
    def monotonic(self) -> float:
        """Returns seconds; this clock never goes back."""


class WallClock(Protocol):
    def now_ms(self) -> int:
        """Returns milliseconds since 1970; an operator may set this clock."""


class Clocks(Monotonic, WallClock, Protocol):
    def since_boot(self) -> float:
        """Returns seconds since boot; this clock also runs while the machine is suspended."""
