"""Reads of the store that do not hold the event loop while the disk reads."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from broker_service.store.residency import Cold, Place

T = TypeVar("T")


class Waiting(Protocol):
    """What of a MessageStore it takes."""

    def without_waiting(self) -> AbstractContextManager[None]: ...

    def warm(self, places: Iterable[Place]) -> None: ...


async def read(store: Waiting, look: Callable[[], T]) -> T:
    """What `look` finds in the store.  It is called again, from the beginning, when a thread has read what was not in
    memory; nothing else happens between its last call and the answer.
    """
    read_already: list[Place] = []
    while True:
        try:
            with store.without_waiting():
                return look()
        except Cold as cold:
            if cold.places == read_already:
                return look()  # Memory is so short that what was read is gone again.
            read_already = cold.places
        await asyncio.to_thread(store.warm, read_already)
