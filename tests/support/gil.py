"""Tells whether a call lets other threads run, which it does only if it releases the interpreter's lock, the GIL.

Python usually takes the GIL from a thread that holds it for 5 ms.  Here this interval is longer than any test, so a
thread keeps the GIL until it blocks or releases the GIL itself.  If a call holds the GIL, no other thread runs during
the call, however long it takes and however busy the machine is.  If the call releases the GIL, the other thread runs
as soon as the machine has a processor for it, which may be too late for a short call.  Tests therefore repeat a call
until the other thread has run, and give up after ATTEMPTS calls.
"""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NEVER_S = 100_000.0
ATTEMPTS = 1000


@contextmanager
def kept() -> Iterator[None]:
    """Within the context, a thread keeps the GIL until it blocks or releases the GIL.

    No garbage is collected there, because a finalizer could release the GIL.
    """
    before = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(NEVER_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        gc.enable()


def beside(call: Callable[[], Any], turn: Callable[[], bool]) -> tuple[bool, Any]:
    """Calls `call`, and calls `turn` in another thread again and again while `call` runs, until `turn` returns True.

    Returns whether `turn` has returned True, and the result of `call`.  The caller is in the context `kept`.
    """
    gate, is_running, is_seen = threading.Lock(), False, False

    def other() -> None:
        nonlocal is_seen
        with gate:
            while is_running and not is_seen:
                is_seen = turn()
                time.sleep(0)  # lets the call have the GIL again

    gate.acquire()
    thread = threading.Thread(target=other, name="beside")
    thread.start()
    is_running = True
    gate.release()
    try:
        result = call()
    finally:
        is_running = False
    thread.join()
    return is_seen, result


def is_released(call: Callable[[], object], attempts: int = ATTEMPTS) -> bool:
    """Returns True if another thread has run during one of the calls."""
    with kept():
        return any(beside(call, lambda: True)[0] for _ in range(attempts))
