"""Runs a call that might never return, so that the test fails in place of hanging."""

import threading
from collections.abc import Callable

from testbed.polling import PATIENCE_S


def result_in_a_thread(call: Callable[[], object]) -> object:
    """Returns what the call returns or raises.  Fails if the call does not end.  A thread of its own makes the call,
    and does not keep the process of the tests from ending."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert results, "the call has not ended"
    return results[0]
