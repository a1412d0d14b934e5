"""Allows at most `maxPullsPerSecond` pulls in a second, because some cloud instances refuse more."""

import threading
import time


class Pace:
    """The pull limit of this process, in pulls per second.  A limit of 0 means no limit.  Thread-safe."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, pulls: int) -> float:
        """Waits until `pulls` more pulls may be sent.  Returns for how many seconds it has waited."""
        if not self._per_second:
            return 0.0
        with self._lock:
            now = time.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + pulls / self._per_second
        if begins > now:
            time.sleep(begins - now)
        return begins - now
