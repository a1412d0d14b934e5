"""Calls a function periodically while a benchmark runs."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class Sampler(ABC):
    """While the context is open, calls `sample` on a thread of its own, first at once and then every `every_s`
    seconds.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        self.sample()
        while not self._done.wait(self._every_s):
            self.sample()

    @abstractmethod
    def sample(self) -> None: ...
