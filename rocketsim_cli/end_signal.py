"""Handles Ctrl-C, SIGTERM and a closed terminal for commands that have started processes and stop them in order."""

import signal
import time
from types import FrameType

STEP_S = 0.1
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndSignal:
    """Notes the signals that come after `listen`.  As soon as one has come, `sleep` and `check` raise
    KeyboardInterrupt.

    Python's own handler raises KeyboardInterrupt wherever the program is.  In a destructor or a callback Python drops
    the exception, and in the middle of a stop it would leave the other processes running.  Here, further signals are
    ignored while the command stops its processes.
    """

    def __init__(self) -> None:
        # A threading.Event could deadlock: the handler runs in the main thread, perhaps while that holds the event's
        # lock.
        self._came = False

    def listen(self) -> None:
        """Sets the signal handler.  Only the main thread may call this, and must call it again after a library has set
        a handler of its own.
        """
        for number in NUMBERS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        for further in NUMBERS:  # ignored by the system, because Python removes its handlers before it ends
            signal.signal(further, signal.SIG_IGN)

    def check(self) -> None:
        if self._came:
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Sleeps, and raises KeyboardInterrupt soon after a signal.  Any thread may call this method."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, STEP_S))
            self.check()
