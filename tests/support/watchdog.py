"""Ends a test run with a failure when one of its processes crashes or hangs.

A hanging test is ended by pytest (`faulthandler_timeout`).  The plugin ends the run in cases that pytest does not
notice: a process of pytest-xdist that hangs outside a test or crashes after its last test, and a session that does not
end.  The plugin uses the timer of faulthandler, whose thread does not need the interpreter's lock.
"""

import faulthandler
import os

import pytest


class Watchdog:
    """A plugin that ends the process after `timeout_s` without a report, with status 1 and a
    traceback of every thread.
    """

    def __init__(self, config: pytest.Config, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._stderr = os.dup(2)  # a copy, because pytest captures and closes the original
        self._crashed = False
        # Without worker processes, pytest itself uses faulthandler's timer for each test.
        self._waits_for_others = not hasattr(config, "workerinput") and bool(config.getoption("numprocesses", None))
        self._feed()

    def _feed(self) -> None:
        faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=self._stderr)

    def pytest_runtest_logreport(self) -> None:
        if self._waits_for_others:
            self._feed()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self._crashed |= error is not None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._feed()
        if self._crashed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
