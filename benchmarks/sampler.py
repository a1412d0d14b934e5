"""Takes samples periodically while a benchmark runs."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class Sampler(ABC):
    """Calls `sample` at once and every `every_s` seconds on its own thread while the context is entered."""

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
