"""Decides when Python's garbage collector searches for reference cycles.

The collector searches all objects again and again while a program makes many of them.  A start makes many objects that
are never garbage, so that searches during a start only cost time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def collect_what_follows() -> None:
    """Turns the collector on, and excludes all objects that exist now from its searches."""
    gc.freeze()
    gc.enable()


@contextmanager
def not_collected() -> Iterator[None]:
    """Turns the collector off during a block that makes many permanent objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
