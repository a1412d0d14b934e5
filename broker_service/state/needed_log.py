"""NeededLog knows the lowest log offset that waiting records still need, so that retention keeps the log after this
offset.
"""

from broker_service.store.message_store import MessageStore


class NeededLog:
    """Finds the log offset from which the log is still needed.  A waiting record is needed until its settlement, or its
    new copy, is on disk.
    """

    def __init__(self, log: MessageStore) -> None:
        self._log = log
        self._from = 0
        # the log's end at an earlier call, and the offset that was found then
        self._noted: tuple[int, int] | None = None

    def begins_at(self, oldest: int | None) -> int:
        """Returns the log offset from which the log is needed.  `oldest` is the log offset of the oldest waiting
        record.

        This method must be called repeatedly.  An offset that one call finds is returned by a later call, once
        everything that the log had at the first call is on disk.
        """
        now = self._log.end_offset if oldest is None else oldest
        if self._noted is not None and self._noted[0] <= self._log.flushed_offset:
            self._from, self._noted = self._noted[1], None
        if self._noted is None:
            self._noted = self._log.end_offset, now
        return min(self._from, now)
