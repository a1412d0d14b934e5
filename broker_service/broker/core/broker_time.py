"""BrokerTime: what time it is for a broker, whatever happens to its wall clock.

The wall clock may be set: by NTP, by hand, after a pause of a virtual machine.  The clock since boot is never set, and
it goes on while a machine is suspended.  A difference between the two is made up slowly if it is small; if it is large,
it is a step, which is believed only after it has lasted.

| time     | who goes by it                            | after a step                                                |
|----------|-------------------------------------------|-------------------------------------------------------------|
| `day`    | delivery times that clients choose        | the old time, until the step is believed                    |
| `now`    | store times, and what lasts for a time:   | never falls: it is `day`, or runs a tenth slower than the   |
|          | deadlines, delay levels, transactions     | clock since boot until `day` has reached it                 |
| `expiry` | retention                                 | believes a step ahead a day after `day`, a step back at once |

Pure: both clocks are arguments.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from broker_service.runtime.clocks import Clocks

logger = logging.getLogger(__name__)

STEP_MS = 60_000  # a difference of more is a step; one of less is made up within BELIEVED_AFTER_MS
SLEW = 0.1  # how much faster or slower than the clock since boot this time runs to make up a difference
BELIEVED_AFTER_MS = 600_000
EXPIRY_BELIEVES_AFTER_MS = 86_400_000
_SAID_EVERY_MS = 60_000
_NO_STORE_TIME_MS = 1 << 42  # in the year 2109: a damaged record's


@dataclass(frozen=True, slots=True)
class _Step:
    at_ms: float  # since boot
    by_ms: float


class StoreTimes(Protocol):
    @property
    def newest_stored_ms(self) -> int:
        """The store time of the last record; 0: there is none."""


class BrokerTime:
    """`now` is never before the store time at the end of the log, also where another broker, or this one before a
    restart, stored it by a clock that was ahead.
    """

    def __init__(self, clocks: Clocks, log: StoreTimes) -> None:
        self.steps = 0  # of the wall clock since the start
        self._clocks = clocks
        self._log = log
        self._read_at = self._started_at = clocks.since_boot() * 1000
        self._offset = clocks.now_ms() - self._read_at  # of the believed time of day from the time since boot
        self._doubted: _Step | None = None
        self._believed: list[_Step] = []  # of the last day
        self._said_at = -_SAID_EVERY_MS + self._read_at
        self._stored_at_start = self._newest_stored_ms()
        self._now = max(self._day, self._stored_at_start)
        if self._now - self._day > STEP_MS:
            logger.warning(
                "the newest message was stored %.0f s ahead of this machine's clock: store times go on from there and "
                "run slower until the clock has reached them; if the clock is wrong, set it",
                (self._now - self._day) / 1000,
            )

    def day_ms(self) -> int:
        """The time of day as far as it is believed."""
        self._read()
        return int(self._day)

    def now_ms(self) -> int:
        """Never falls."""
        self._read()
        return int(self._now)

    def expiry_ms(self) -> int:
        """What retention counts ages back from.  Too early a time keeps messages, too late a one deletes them: after a
        start not even the wall clock is believed at once, which NTP may be about to set."""
        self._read()
        since = self._read_at - EXPIRY_BELIEVES_AFTER_MS
        self._believed = [step for step in self._believed if step.at_ms > since]
        expiry = min(self._clocks.now_ms(), self._day - max(0.0, sum(step.by_ms for step in self._believed)))
        if self._read_at - self._started_at < BELIEVED_AFTER_MS:
            expiry = min(expiry, max(self._newest_stored_ms(), self._stored_at_start) + EXPIRY_BELIEVES_AFTER_MS)
        return int(expiry)

    @property
    def doubted_s(self) -> float:
        """How far the wall clock is ahead of the time of day that is believed; 0 while it is not doubted."""
        self._read()
        return self._doubted.by_ms / 1000 if self._doubted is not None else 0.0

    @property
    def ahead_s(self) -> float:
        """How far store times are ahead of the time of day."""
        self._read()
        return (self._now - self._day) / 1000

    @property
    def _day(self) -> float:
        return self._read_at + self._offset

    def _newest_stored_ms(self) -> int:
        newest = self._log.newest_stored_ms
        return newest if newest < _NO_STORE_TIME_MS else 0

    def _read(self) -> None:
        at = max(self._read_at, self._clocks.since_boot() * 1000)
        passed, self._read_at = at - self._read_at, at
        differs = self._clocks.now_ms() - self._day
        if abs(differs) > STEP_MS:
            self._doubt(differs)
        else:
            self._trust()
            most = passed * SLEW
            self._offset += min(max(differs, -most), most)
        self._now = max(self._day, self._now + passed * (1 - SLEW), self._newest_stored_ms())

    def _doubt(self, by_ms: float) -> None:
        at, known = self._read_at, self._doubted
        if known is not None and abs(by_ms - known.by_ms) <= STEP_MS:
            if at - known.at_ms < BELIEVED_AFTER_MS:
                return
            self._offset += by_ms
            self._believed.append(_Step(at, by_ms))
            self._doubted = None
            logger.warning(
                "the wall clock has stayed where it stepped to, %s: it is believed now, retention waits another day",
                _by(by_ms),
            )
            return
        self.steps += known is None
        self._doubted = _Step(at, by_ms)
        if known is None or at - self._said_at >= _SAID_EVERY_MS:
            self._said_at = at
            logger.warning(
                "the wall clock has stepped %s against the clock since boot: it is not believed before it has stayed "
                "there for %.0f min; check NTP, or restart this broker if the new time is right",
                _by(by_ms),
                BELIEVED_AFTER_MS / 60_000,
            )

    def _trust(self) -> None:
        if self._doubted is not None:
            logger.warning("the wall clock agrees with the clock since boot again, the step is forgotten")
            self._doubted = None


def _by(by_ms: float) -> str:
    return f"{abs(by_ms) / 1000:.0f} s {'ahead' if by_ms > 0 else 'back'}"
