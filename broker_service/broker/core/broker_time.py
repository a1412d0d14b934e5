"""BrokerTime gives a broker the time, even if its wall clock is set wrongly or steps.  The clocks are arguments.

The wall clock may be set by NTP, by hand, or after a pause of a virtual machine.  The clock since boot is never set,
and it also runs while the machine is suspended.  BrokerTime compares the two clocks, and corrects a small difference
slowly. A large difference is a step of the wall clock.  A step is not believed until it has lasted for ten minutes.
Until then the time continues as if the step had not happened.

There are three times:

| time     | used for                                  | after a step                                                |
|----------|-------------------------------------------|-------------------------------------------------------------|
| `day`    | delivery times that clients choose        | continues as before until the step is believed, then jumps  |
| `now`    | store times, and durations: deadlines,    | never falls; while it is ahead of `day` it runs a tenth     |
|          | delay levels, transactions                | slower than the clock since boot                            |
| `expiry` | retention                                 | follows a step ahead a day after `day`, a step back at once |

`now` is also never before the store time of the last record.  Another broker, or this one before a restart, may have
stored that record by a clock that was ahead.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from broker_service.runtime.clocks import Clocks

logger = logging.getLogger(__name__)

STEP_MS = 60_000  # a larger difference is a step; a smaller one is corrected within BELIEVED_AFTER_MS
SLEW = 0.1  # while the time corrects a difference, it runs this much faster or slower than the clock since boot
BELIEVED_AFTER_MS = 600_000
EXPIRY_BELIEVES_AFTER_MS = 86_400_000
_LOGGED_EVERY_MS = 60_000
_NO_STORE_TIME_MS = 1 << 42  # in the year 2109; a record that was stored later than this is damaged


@dataclass(frozen=True, slots=True)
class _Step:
    at_ms: float  # time since boot
    by_ms: float


class StoreTimes(Protocol):
    @property
    def newest_stored_ms(self) -> int:
        """Returns the store time of the last record; 0 if there are no records."""


class BrokerTime:
    def __init__(self, clocks: Clocks, log: StoreTimes) -> None:
        self.steps = 0  # the number of steps of the wall clock since the start
        self._clocks = clocks
        self._log = log
        self._read_at = self._started_at = clocks.since_boot() * 1000
        self._offset = clocks.now_ms() - self._read_at  # the time of day minus the time since boot
        self._doubted: _Step | None = None  # a step that is not believed yet
        self._believed: list[_Step] = []  # steps that were believed within the last day
        self._logged_at = -_LOGGED_EVERY_MS + self._read_at
        self._stored_at_start = self._newest_stored_ms()
        self._now = max(self._day, self._stored_at_start)
        if self._now - self._day > STEP_MS:
            logger.warning(
                "the newest message was stored %.0f s ahead of this machine's clock: store times continue from there, "
                "and run slower until the clock has reached them; if the clock is wrong, set it",
                (self._now - self._day) / 1000,
            )

    def day_ms(self) -> int:
        """Returns the time of day."""
        self._read()
        return int(self._day)

    def now_ms(self) -> int:
        """Returns the time for store times and durations, which never falls."""
        self._read()
        return int(self._now)

    def expiry_ms(self) -> int:
        """Returns the time from which retention counts the ages of messages.

        If this time is too early, messages are kept longer.  If it is too late, messages are deleted too soon.  In the
        first ten minutes after a start, NTP may not have set the clock yet.  Until then the time is therefore at most a
        day after the newest message.
        """
        self._read()
        since = self._read_at - EXPIRY_BELIEVES_AFTER_MS
        self._believed = [step for step in self._believed if step.at_ms > since]
        expiry = min(self._clocks.now_ms(), self._day - max(0.0, sum(step.by_ms for step in self._believed)))
        if self._read_at - self._started_at < BELIEVED_AFTER_MS:
            expiry = min(expiry, max(self._newest_stored_ms(), self._stored_at_start) + EXPIRY_BELIEVES_AFTER_MS)
        return int(expiry)

    @property
    def doubted_s(self) -> float:
        """Returns by how many seconds the wall clock is ahead during a step that is not believed, else 0."""
        self._read()
        return self._doubted.by_ms / 1000 if self._doubted is not None else 0.0

    @property
    def ahead_s(self) -> float:
        """Returns by how many seconds store times are ahead of the time of day."""
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
            self._end_doubt()
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
                "the wall clock has stayed where it stepped to, %s, so it is believed now; retention waits another day",
                _by(by_ms),
            )
            return
        self.steps += known is None
        self._doubted = _Step(at, by_ms)
        if known is None or at - self._logged_at >= _LOGGED_EVERY_MS:
            self._logged_at = at
            logger.warning(
                "the wall clock has stepped %s against the clock since boot: it is not believed until it has stayed "
                "there for %.0f min; check NTP, or restart this broker if the new time is right",
                _by(by_ms),
                BELIEVED_AFTER_MS / 60_000,
            )

    def _end_doubt(self) -> None:
        if self._doubted is not None:
            logger.warning("the wall clock agrees with the clock since boot again, so its step is ignored")
            self._doubted = None


def _by(by_ms: float) -> str:
    return f"{abs(by_ms) / 1000:.0f} s {'ahead' if by_ms > 0 else 'back'}"
