"""A run of the tests ends by itself, and with a failure, whatever crashes or hangs in it.

A test that hangs is pytest's own matter (`faulthandler_timeout`): its process says where and ends. The rest is here: a
process of pytest-xdist that hangs outside a test, one that crashes after its last test, an end that does not end. The
clock is faulthandler's, a thread that needs no Python and so no lock of the interpreter.
"""

import faulthandler
import os

import pytest


class Watchdog:
    """A plugin: `timeout_s` without a report end the process, with status 1 and a traceback of every thread."""

    def __init__(self, config: pytest.Config, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._stderr = os.dup(2)  # its own: pytest captures and closes the other
        self._crashed = False
        # Where tests run in other processes this one only waits; elsewhere pytest uses the timer, for each test.
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
