"""Reads the store without blocking the event loop while the disk works.

The function that reads the store is called on the event loop.  If the function needs a part of a file that is not in
memory, the store raises `Cold`.  A thread then reads this part into memory, and the function is called again from its
beginning.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from broker_service.errors import ReadFailed
from broker_service.store.open_files import Failed
from broker_service.store.residency import Cold, Place

T = TypeVar("T")


class Store(Protocol):
    """The methods of MessageStore that `read` uses."""

    def without_waiting(self, failed: Failed) -> AbstractContextManager[None]:
        """A context in which a read raises Cold instead of waiting, and ReadFailed for places in `failed`."""

    def warm(self, places: Iterable[Place]) -> None:
        """Reads the bytes of a Cold into memory; any thread may call it."""


def read_at_once(store: Store, read_store: Callable[[], T]) -> T | None:
    """Returns the result of `read_store`, or None if some of what it reads is not in memory."""
    try:
        with store.without_waiting({}):
            return read_store()
    except Cold:
        return None


async def read(store: Store, read_store: Callable[[], T], after_cold: Callable[[], T] | None = None) -> T:
    """Returns the result of `read_store`, which is called again each time a thread has read missing places into memory.

    If the caller passes `after_cold`, all calls after the first one call `after_cold` instead.  It may read less, so
    that the event loop is blocked for a shorter time.  No other code runs on the event loop between the last call and
    the return.

    If a thread has read all missing places before, memory is short: `read_store` is called a last time, and waits for
    the disk.

    If the thread cannot read a place, the next call of `read_store` raises ReadFailed where it reads the place.
    `read_store` may catch ReadFailed, and leave out what is stored at the place.
    """
    read_already: set[tuple[Path, int]] = set()
    failed: dict[tuple[Path, int], ReadFailed] = {}
    while True:
        try:
            with store.without_waiting(failed):
                return read_store()
        except Cold as cold:
            places = cold.places
        read_store = after_cold or read_store
        if all((path, at) in read_already for path, at, _ in places):
            return read_store()
        count, failure = await asyncio.to_thread(_warm, store, places)
        read_already.update((path, at) for path, at, _ in places[:count])
        if failure is not None:
            failed[places[count][:2]] = failure


def _warm(store: Store, places: Sequence[Place]) -> tuple[int, ReadFailed | None]:
    """Reads the places up to the first failure, because a failing disk may take long for each attempt.

    Returns the number of places that were read, and the failure.
    """
    for count, place in enumerate(places):
        try:
            store.warm([place])
        except ReadFailed as failure:
            return count, failure
    return len(places), None
