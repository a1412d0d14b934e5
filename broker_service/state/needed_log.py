"""NeededLog: from where on the log has records that wait for something, and must not expire."""

from typing import Protocol


class Log(Protocol):
    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...


class NeededLog:
    """A record that was settled, or appended again, is needed until that is on disk."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._from = 0
        self._noted: tuple[int, int] | None = None  # an end of the log, and from where on it was needed then

    def begins_at(self, oldest: int | None) -> int:
        """`oldest`: the log offset of the oldest record that waits.

        To be asked from time to time: each answer is true for what was flushed at one of the calls before.
        """
        now = self._log.end_offset if oldest is None else oldest
        if self._noted is not None and self._noted[0] <= self._log.flushed_offset:
            self._from, self._noted = self._noted[1], None
        if self._noted is None:
            self._noted = self._log.end_offset, now
        return min(self._from, now)
