"""Lets objects in a forked child replace the channels and locks of the parent, because Spark's workers are forked."""

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    def forget_parent(self) -> None:
        """Drops everything that belongs to the parent process.

        The method is called in the child right after the fork, before any other code runs.
        """


_live: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def watch(thing: ForkAware) -> None:
    """Registers an object, whose `forget_parent` is then called in each forked child."""
    _live.add(thing)


def _in_child() -> None:
    for thing in list(_live):
        thing.forget_parent()


os.register_at_fork(after_in_child=_in_child)
