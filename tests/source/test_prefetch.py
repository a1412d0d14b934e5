"""Prefetch: how many frames a task fetches in advance, and how a late or abandoned stream ends."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from rocketsim_source.reading.prefetch import FrameLate, prefetched
from testbed.polling import wait_until


class Stream:
    """Counts the items that are taken, and sets `closed` when it is closed."""

    def __init__(self, count: int) -> None:
        self.taken = 0
        self.closed = threading.Event()
        self._count = count

    def has_given(self, count: int) -> bool:
        return self.taken == count

    def items(self) -> Iterator[int]:
        try:
            while self.taken < self._count:
                self.taken += 1
                yield self.taken
        finally:
            self.closed.set()


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_prefetch_takes_one_item_more_than_its_number_in_advance(ahead: int) -> None:
    stream = Stream(100)
    with prefetched(stream.items(), ahead, 5) as items:
        for number in range(1, 20):
            assert next(items) == number
            wait_until(partial(stream.has_given, number + (ahead + 1 if ahead else 0)), "what is taken in advance")
        assert not stream.closed.is_set()
    assert stream.closed.wait(60)
    assert stream.taken < 30


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_all_items_come_in_order(ahead: int) -> None:
    with prefetched(Stream(50).items(), ahead, 5) as items:
        assert list(items) == list(range(1, 51))


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_after_the_items_before_it(ahead: int) -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise ZeroDivisionError

    seen = []
    with pytest.raises(ZeroDivisionError), prefetched(broken(), ahead, 5) as items:
        for item in items:
            seen.append(item)
    assert seen == [1, 2]


def test_a_silent_stream_raises_after_the_timeout() -> None:
    released = threading.Event()

    def silent() -> Iterator[int]:
        yield 1
        released.wait(60)

    with prefetched(silent(), 1, 0.5) as items:
        assert next(items) == 1
        with pytest.raises(FrameLate, match=r"no frame within 0\.5 s"):
            next(items)
    released.set()
