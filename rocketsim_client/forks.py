"""What must not survive a fork: channels and locks of the parent.  Spark's workers are forked, so this is the normal
case there."""

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    def forget_parent(self) -> None:
        """Called in the child right after the fork, before any other code."""


_live: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def watch(thing: ForkAware) -> None:
    _live.add(thing)


def _in_child() -> None:
    for thing in list(_live):
        thing.forget_parent()


os.register_at_fork(after_in_child=_in_child)
