"""Records the figures of the demo once a second, and its events, for the report."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rocketsim_cli.demo.screen import DemoState

MOMENTS = 3600  # the most moments kept: a longer demo keeps every second one, then every fourth, and so on
WINDOW_S = 5.0  # rates are averaged over this time, because the query reads a batch only every few seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """The demo's figures at one moment.

    `stored` counts the acknowledged messages by broker name.  `served` counts the query's rows by broker name and
    broker id.  `lag` counts the messages that the group has not committed, by broker name.
    """

    at_s: float
    stored: Mapping[str, int]
    served: Mapping[tuple[str, int], int]
    lag: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in the demo, for the report.  If `is_marked`, the charts show the event, too."""

    at_s: float
    text: str
    is_marked: bool = False


@dataclass
class History:
    clock: Callable[[], float] = time.monotonic
    moments: list[Moment] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _every_s: float = 1.0

    def __post_init__(self) -> None:
        self._started = self.clock()

    def now_s(self) -> float:
        return self.clock() - self._started

    def note(self, text: str, *, is_marked: bool = False) -> None:
        self.events.append(Event(self.now_s(), text, is_marked))

    def record(self, state: DemoState) -> None:
        at_s = self.now_s()
        if self.moments and at_s - self.moments[-1].at_s < self._every_s:
            return
        lag: dict[str, int] = {}
        for queue in state.progress:
            behind = queue.max_offset - max(queue.on_master or 0, queue.on_slave or 0)
            lag[queue.broker_name] = lag.get(queue.broker_name, 0) + behind
        self.moments.append(Moment(at_s, dict(state.producer.brokers), dict(state.served), lag))
        if len(self.moments) > MOMENTS:
            del self.moments[1::2]
            self._every_s *= 2


def first_reads(moments: Sequence[Moment], broker: tuple[str, int], since_s: float) -> float | None:
    """Returns the time at which the query first read from this broker after `since_s`, or None if it has not read from
    the broker since.
    """
    before = max((moment.served.get(broker, 0) for moment in moments if moment.at_s <= since_s), default=0)
    later = (moment for moment in moments if moment.at_s > since_s and moment.served.get(broker, 0) > before)
    return next((moment.at_s for moment in later), None)


def rates(counts: Sequence[tuple[float, int]], window_s: float = WINDOW_S) -> list[tuple[float, float]]:
    """Turns the values of a counter into increases per second, averaged over `window_s`."""
    made: list[tuple[float, float]] = []
    start = 0
    for index, (at_s, count) in enumerate(counts):
        while start + 1 < index and at_s - counts[start + 1][0] >= window_s:
            start += 1
        since_s, before = counts[start]
        if at_s > since_s:
            made.append((at_s, max(count - before, 0) / (at_s - since_s)))
    return made


def stored_per_second(moments: Sequence[Moment]) -> dict[str, list[tuple[float, float]]]:
    names = sorted(set(itertools.chain.from_iterable(moment.stored for moment in moments)))
    return {name: rates([(moment.at_s, moment.stored.get(name, 0)) for moment in moments]) for name in names}


def read_per_second(moments: Sequence[Moment]) -> dict[str, list[tuple[float, float]]]:
    brokers = sorted(set(itertools.chain.from_iterable(moment.served for moment in moments)))
    return {
        f"{name} {'slave' if broker_id else 'master'}": rates(
            [(moment.at_s, moment.served.get((name, broker_id), 0)) for moment in moments]
        )
        for name, broker_id in brokers
    }


def lag(moments: Sequence[Moment]) -> dict[str, list[tuple[float, float]]]:
    names = sorted(set(itertools.chain.from_iterable(moment.lag for moment in moments)))
    return {
        name: [(moment.at_s, float(moment.lag[name])) for moment in moments if name in moment.lag] for name in names
    }
