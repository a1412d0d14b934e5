"""Handles Ctrl-C, SIGTERM and a closed terminal for commands that start processes and must stop them in order."""

import signal
import time
from types import FrameType

STEP_S = 0.1
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndSignal:
    """Remembers that a signal has come after `listen`.  As soon as a signal has come, `sleep` and `check` raise
    KeyboardInterrupt.

    Python's own handler raises KeyboardInterrupt between any two instructions of the main thread, and Python drops the
    exception if this happens in a destructor or a callback.  While the command stops its processes, a KeyboardInterrupt
    would leave the other processes running, so EndSignal ignores all signals after the first one.
    """

    def __init__(self) -> None:
        # A bool and no threading.Event: the signal handler can interrupt the main thread while that thread holds the
        # event's lock, and would then wait for the lock forever.
        self._came = False

    def listen(self) -> None:
        """Sets the signal handlers.  Call this method in the main thread, and call it again after a library has set its
        own handler.
        """
        for number in NUMBERS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        for further in NUMBERS:  # unlike a Python handler, SIG_IGN also works while the interpreter shuts down
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
