"""Counts what happened to a producer's messages."""

import threading

from rocketsim_client.model import ProducerStats


class SendCounts:
    """The counters that `Producer.stats` shows.  Thread-safe."""

    def __init__(self) -> None:
        self.stats = ProducerStats()
        self.start_anew()

    def start_anew(self) -> None:
        """Makes a new lock, in a forked child too, because a thread of the parent may have held the lock during the
        fork."""
        self._lock = threading.Lock()

    def add(self, *, sent: int = 0, acknowledged: int = 0, failed: int = 0, sent_again: int = 0) -> None:
        with self._lock:
            self.stats.sent += sent
            self.stats.acknowledged += acknowledged
            self.stats.failed += failed
            self.stats.sent_again += sent_again

    def spooled(self, messages: int, *, had_failed: bool) -> None:
        """Counts spooled messages.  With `had_failed` the messages are already counted as sent and failed."""
        with self._lock:
            self.stats.spooled += messages
            if had_failed:
                self.stats.failed -= messages
            else:
                self.stats.sent += messages
