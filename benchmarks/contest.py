"""Orders the runs: each round runs every contestant once, so that slow changes of the machine affect all contestants
equally.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from benchmarks.figures import Missing, Series

T = TypeVar("T")
Sample = Mapping[str, float]
Contestant = Callable[[], Sample]

STILL_WARMING = 1.05  # if a warm-up run is faster by this factor than the best run before it, another run follows


@dataclass(frozen=True, slots=True)
class Plan:
    """How much data a benchmark moves, and how many rounds it runs.  A `quick` plan gives a verdict only if the `full`
    plan would give the same one.
    """

    name: str
    rounds: int
    warm_up: int = 1
    sizes: tuple[int, ...] = (100, 1024)  # of bodies

    def pick(self, full: T, quick: T, smoke: T) -> T:
        return {"full": full, "quick": quick, "smoke": smoke}[self.name]

    def again(self) -> "Plan":
        """Returns the plan for contestants that need no warm-up, because they are warm already or start anew in each
        run.  Only a `full` plan keeps its warm-up.
        """
        return replace(self, warm_up=self.pick(self.warm_up, 0, 0))


FULL = Plan("full", rounds=5)
QUICK = Plan("quick", rounds=3)
SMOKE = Plan("smoke", rounds=1, warm_up=0, sizes=(100,))


def schedule(names: list[str], plan: Plan) -> Iterator[tuple[int, str]]:
    """Yields pairs (round, contestant) in the order of the runs.  Rounds with a negative number are warm-ups.

    Every second round runs in reverse order, so that no contestant always runs after the same other one.
    """
    for number in range(-plan.warm_up, plan.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            yield number, name


def warmed_up(run: Contestant, seconds: float) -> float:
    """Repeats `run` for at least `seconds`, and then until a run is hardly faster than the best run before it.  Returns
    the best rate.

    The minimum time is needed because a JVM compiles several times, and is slower for a second or two each time.
    """
    best = spent = 0.0
    while True:
        sample = run()
        spent += sample["seconds"]
        if spent >= seconds and sample["rate"] < best * STILL_WARMING:
            return max(sample["rate"], best)
        best = max(sample["rate"], best)


def with_full_rate(sample: Sample, start_s: float, times: float) -> Sample:
    """Adds `full_rate` to a sample: the rate that is predicted for `times` times as much data.

    The first `start_s` seconds of a run are its start, which does not grow with the amount of data.
    """
    start_s = min(start_s, sample["seconds"])
    in_full = start_s + (sample["seconds"] - start_s) * times
    return {**sample, "full_rate": sample["rate"] * sample["seconds"] * times / in_full}


class Results:
    """The samples of each contestant from counted rounds, and the reasons why some contestants have none."""

    def __init__(self, missing: Mapping[str, Missing]) -> None:
        self._samples: dict[str, list[Sample]] = {}
        self._missing = dict(missing)

    def add(self, name: str, sample: Sample) -> None:
        self._samples.setdefault(name, []).append(sample)

    def fail(self, name: str, why: str) -> None:
        """Removes all results of a contestant that has failed, even those of earlier rounds."""
        self._samples.pop(name, None)
        self._missing[name] = Missing(why)

    def has(self, name: str) -> bool:
        return name not in self._missing

    def series(self, name: str, key: str = "rate") -> Series | Missing:
        if name in self._missing:
            return self._missing[name]
        return Series.of(sample[key] for sample in self._samples[name])
