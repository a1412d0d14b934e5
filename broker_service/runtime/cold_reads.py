"""Reads of the store that do not hold the event loop while the disk reads."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from broker_service.errors import ReadFailed
from broker_service.store.open_files import Failed
from broker_service.store.residency import Cold, Place

T = TypeVar("T")


class Waiting(Protocol):
    """What of a MessageStore it takes."""

    def without_waiting(self, failed: Failed) -> AbstractContextManager[None]: ...

    def warm(self, places: Iterable[Place]) -> None: ...


async def read(store: Waiting, read_store: Callable[[], T]) -> T:
    """What `read_store` returns.  It is called again, from the beginning, when a thread has read what was not in
    memory; nothing else happens between its last call and the answer.  Every round has to read something new: where all
    that is cold was read before, the last call waits for the disk.

    What the thread cannot read is a ReadFailed in the next call, at that place: `read_store` may go on without it.
    """
    read_already: set[tuple[Path, int]] = set()
    failed: dict[tuple[Path, int], ReadFailed] = {}
    while True:
        try:
            with store.without_waiting(failed):
                return read_store()
        except Cold as cold:
            places = cold.places
        if all((path, at) in read_already for path, at, _ in places):
            return read_store()  # Memory is so short that what was read is gone again.
        count, failure = await asyncio.to_thread(_warm, store, places)
        read_already.update((path, at) for path, at, _ in places[:count])
        if failure is not None:
            failed[places[count][:2]] = failure


def _warm(store: Waiting, places: Sequence[Place]) -> tuple[int, ReadFailed | None]:
    """How many of them were read before one failed: a disk in trouble may take long for each."""
    for count, place in enumerate(places):
        try:
            store.warm([place])
        except ReadFailed as failure:
            return count, failure
    return len(places), None
