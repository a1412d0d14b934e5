"""Ctrl-C, SIGTERM and a closed terminal, for commands that have started other processes and end them in order."""

import signal
import time
from types import FrameType

STEP_S = 0.1
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndSignal:
    """Notes the signals, from `listen` on.  `sleep` and `check` raise KeyboardInterrupt after the first one.

    Python's own handler raises KeyboardInterrupt wherever the program is.  In a destructor or a callback Python drops
    it, and in the middle of an orderly end it leaves the rest undone.  Signals during the end change nothing here.
    """

    def __init__(self) -> None:
        # A threading.Event would lock itself out: the handler runs in the main thread, also while that is inside the
        # event's lock.
        self._came = False

    def listen(self) -> None:
        """Sets the handler.  Only the main thread may do so, and must again after a library has set its own handler."""
        for number in NUMBERS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        for further in NUMBERS:  # ignored until the process has ended, which takes Python's handlers away before
            signal.signal(further, signal.SIG_IGN)

    def check(self) -> None:
        if self._came:
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Any thread may call it."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, STEP_S))
            self.check()
