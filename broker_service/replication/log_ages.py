"""LogAges: since when the log has been longer than some offset, which is how long a slave is behind.  Pure."""

from bisect import bisect_right

MOST = 4096  # samples; then older ones are thinned out, all but the oldest


class LogAges:
    """Knows the ends that the log had at the times of its samples: an age is exact to the time between two samples."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[float] = []

    def sample(self, now: float, end_offset: int, acked: int | None = None) -> None:
        """To be called about once a second.  `acked`: up to where all slaves have the log; None if there is none."""
        if acked is not None:
            passed = bisect_right(self._ends, acked)
            del self._ends[:passed], self._times[:passed]
        if self._ends and end_offset < self._ends[-1]:  # the log was cut
            kept = bisect_right(self._ends, end_offset)
            del self._ends[kept:], self._times[kept:]
        if self._ends and end_offset == self._ends[-1]:
            return
        self._ends.append(end_offset)
        self._times.append(now)
        if len(self._ends) > MOST:
            self._ends = self._ends[: MOST // 2 : 2] + self._ends[MOST // 2 :]
            self._times = self._times[: MOST // 2 : 2] + self._times[MOST // 2 :]

    def behind_s(self, now: float, offset: int) -> float:
        """Returns for how many seconds the log has had bytes behind `offset`; 0 if it ends there."""
        at = bisect_right(self._ends, offset)
        return now - self._times[at] if at < len(self._ends) else 0.0
