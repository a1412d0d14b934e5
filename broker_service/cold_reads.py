"""Reads of the store that do not hold the event loop while the disk reads."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from broker_service.store.residency import Cold, Place

T = TypeVar("T")


class Waiting(Protocol):
    """What of a MessageStore it takes."""

    def without_waiting(self) -> AbstractContextManager[None]: ...

    def warm(self, places: Iterable[Place]) -> None: ...


async def read(store: Waiting, read_store: Callable[[], T]) -> T:
    """What `read_store` returns.  It is called again, from the beginning, when a thread has read what was not in
    memory; nothing else happens between its last call and the answer.  Every round has to read something new: where all
    that is cold was read before, the last call waits for the disk.
    """
    read_already: set[tuple[Path, int]] = set()
    while True:
        try:
            with store.without_waiting():
                return read_store()
        except Cold as cold:
            places = cold.places
        if all((path, at) in read_already for path, at, _ in places):
            return read_store()  # Memory is so short that what was read is gone again.
        read_already.update((path, at) for path, at, _ in places)
        await asyncio.to_thread(store.warm, places)
