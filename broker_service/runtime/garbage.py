"""Garbage: when Python searches for reference cycles.

It goes through all objects again and again while many are made, though those that a start makes stay.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def collect_what_follows() -> None:
    """Garbage is collected from now on, without a look at what is there already."""
    gc.freeze()
    gc.enable()


@contextmanager
def not_collected() -> Iterator[None]:
    """For what makes many objects that stay: garbage is collected again afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
