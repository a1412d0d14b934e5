"""Volumes: computes what a Traffic has counted in the last minute, hour and day, as RocketMQ's statistics have it."""

from array import array
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from broker_service.broker.core.traffic import Counts, Labels, Traffic

TOTAL: Labels = ()  # the labels of the sum over all topics
COLUMNS = 3  # messages, bytes and calls

Row = tuple[Labels, Counts]


class Volume(NamedTuple):
    """What was counted in a time of `seconds`.  `calls` is 0 for TOTAL, as in RocketMQ."""

    messages: int
    bytes: int
    calls: int
    seconds: float

    def per_second(self, amount: int) -> float:
        return amount / self.seconds if self.seconds > 0 else 0.0


class Window:
    """Keeps samples of all counts for a limited time.

    The window begins at its oldest sample, so while the broker runs for a long time, the window is at most one interval
    shorter than `seconds`.  Its memory is about 24 bytes for each sample of each label set that exists.
    """

    def __init__(self, now: float, seconds: int, every_s: int) -> None:
        self._every_s = every_s
        self._most = seconds // every_s
        self._times = deque([now], maxlen=self._most)
        self._nothing = array("q", bytes(8 * COLUMNS * self._most))
        # The counts of all samples, the newest ones last.  Before the label set existed, its counts were 0.
        self._samples: dict[Labels, array[int]] = {}

    def is_due(self, now: float) -> bool:
        return now // self._every_s > self._times[-1] // self._every_s

    def sample(self, now: float, rows: Iterable[Row]) -> None:
        """Replaces the oldest sample.  Forgets the label sets that are not among the rows."""
        self._times.append(now)
        self._samples = {labels: self._before(labels, counts)[COLUMNS:] + array("q", counts) for labels, counts in rows}

    def volume(self, now: float, labels: Labels, counts: Counts) -> Volume:
        oldest = COLUMNS * (self._most - len(self._times))
        before = self._before(labels, counts)[oldest : oldest + COLUMNS]
        messages, size, calls = (count - was for count, was in zip(counts, before, strict=True))
        return Volume(messages, size, calls, now - self._times[0])

    def _before(self, labels: Labels, counts: Counts) -> "array[int]":
        """Returns the samples, or zeros if the counts began again: the topic was deleted and created again."""
        samples = self._samples.get(labels, self._nothing)
        is_same = samples[-COLUMNS] <= counts[0] and samples[1 - COLUMNS] <= counts[1]
        return samples if is_same else self._nothing


class Volumes:
    def __init__(self, traffic: Traffic, now: float) -> None:
        self._traffic = traffic
        self._minute, self._hour, self._day = Window(now, 60, 10), Window(now, 3600, 600), Window(now, 86400, 3600)

    def sample(self, now: float) -> None:
        """Takes a sample if one is due, and further ones at the next calls, because one of 10,000 label sets takes some
        milliseconds.  Must be called about once a second.
        """
        for window in (self._day, self._hour, self._minute):
            if window.is_due(now):
                window.sample(now, [*self._traffic.rows(), (TOTAL, self._total())])
                return

    def of(self, labels: Labels, now: float) -> tuple[Volume, Volume, Volume] | None:
        """Returns what was counted in the last minute, hour and day; None if there is no count with these labels."""
        counts = self._total() if labels == TOTAL else self._traffic.counts(labels)
        if counts is None:
            return None
        minute, hour, day = (one.volume(now, labels, counts) for one in (self._minute, self._hour, self._day))
        return minute, hour, day

    def _total(self) -> Counts:
        return [self._traffic.messages, self._traffic.bytes, 0]
