"""BrokerTime gives a broker the time, and protects it from a wall clock that is wrong or steps.  The clocks are passed
as arguments.

The wall clock can be set by NTP, by hand, or after a pause of a virtual machine.  The clock since boot cannot be set,
and it also runs while the machine is suspended.  BrokerTime compares the two clocks, and corrects a small difference
between them slowly.  A large difference is called a step of the wall clock.  A step is not believed until it has lasted
for ten minutes, during which the time continues as if there were no step.

BrokerTime has three times:

| time     | used for                                  | after a step                                                |
|----------|-------------------------------------------|-------------------------------------------------------------|
| `day`    | delivery times that clients choose        | continues as before until the step is believed, then jumps  |
| `now`    | store times, and durations: deadlines,    | never falls; while it is ahead of `day` it runs a tenth     |
|          | delay levels, transactions                | slower than the clock since boot                            |
| `expiry` | retention                                 | follows a step ahead a day after `day`, a step back at once |

The time `now` is also never before the store time of the log's last record.  Another broker, or this broker before a
restart, may have stored the last record with a clock that was ahead.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from broker_service.runtime.clocks import Clocks

logger = logging.getLogger(__name__)

# A larger difference between the clocks is a step; a smaller one is corrected within BELIEVED_AFTER_MS.
STEP_MS = 60_000
SLEW = 0.1  # by this share a correction makes the time run faster or slower
BELIEVED_AFTER_MS = 600_000
EXPIRY_BELIEVES_AFTER_MS = 86_400_000
_LOGGED_EVERY_MS = 60_000
_NO_STORE_TIME_MS = 1 << 42  # a time in the year 2109; a record with a later store time is damaged


@dataclass(frozen=True, slots=True)
class _Step:
    at_ms: float  # time since boot
    by_ms: float


class StoreTimes(Protocol):
    @property
    def newest_stored_ms(self) -> int:
        """Returns the store time of the last record, or 0 if there is none."""


class BrokerTime:
    def __init__(self, clocks: Clocks, log: StoreTimes) -> None:
        self.steps = 0  # number of steps of the wall clock since the start
        self._clocks = clocks
        self._log = log
        self._read_at = self._started_at = clocks.since_boot() * 1000
        self._offset = clocks.now_ms() - self._read_at  # the time of day minus the time since boot
        self._doubted: _Step | None = None  # a step that has not lasted for ten minutes yet
        self._believed: list[_Step] = []  # steps that were accepted as right within the last day
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
        """Returns the time of day, which ignores a step of the wall clock until it is believed."""
        self._read()
        return int(self._day)

    def now_ms(self) -> int:
        """Returns a time that never decreases, for store times and durations."""
        self._read()
        return int(self._now)

    def expiry_ms(self) -> int:
        """Returns the time that retention uses to compute the ages of messages.

        A time that is too early keeps messages longer than configured.  A time that is too late deletes messages too
        soon.  In the first ten minutes after a start, the returned time is at most a day after the newest message,
        because NTP may not have set the wall clock yet.
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
        """Returns by how many seconds a step that is not believed has moved the wall clock ahead; 0 if there is no such
        step.
        """
        self._read()
        return self._doubted.by_ms / 1000 if self._doubted is not None else 0.0

    @property
    def ahead_s(self) -> float:
        """Returns how many seconds store times are ahead of the time of day."""
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
                "the wall clock's step, %s, has lasted, so it is believed now; retention follows up to a day later",
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
