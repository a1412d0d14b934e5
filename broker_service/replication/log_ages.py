"""LogAges computes for how many seconds a slave has been behind, from samples of the log's end.  Pure."""

from bisect import bisect_right

MOST = 4096  # samples; with more, every second one of the older half is dropped


class LogAges:
    """The log's ends at the times of the samples.  An age may be wrong by the time between two samples."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[float] = []

    def sample(self, now: float, end_offset: int, acked: int | None = None) -> None:
        """Adds a sample; must be called about once a second.

        `acked` is the log offset up to which all slaves have the log, or None if no slave is connected.  Samples before
        `acked` are dropped.
        """
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
        """Returns for how many seconds the log has had bytes after `offset`; 0 if it ends there."""
        at = bisect_right(self._ends, offset)
        return now - self._times[at] if at < len(self._ends) else 0.0
