"""A running benchmark, with its plan, its folder, its peers, and its figures."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from benchmarks import cpu, scheduling
from benchmarks.contest import Contestant, Plan, Results, Sample, schedule
from benchmarks.figures import Figure, Missing, Series, is_settled, rounded
from benchmarks.targets import Target

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Unavailable(Exception):
    """A peer cannot be fetched or does not start; the error's text says why."""


class WrongResult(Exception):
    """No figure of the run counts, because wrong data were moved, or the CPU was shared unevenly."""


@runtime_checkable
class Sleeper(Protocol):
    """A peer whose processes are stopped while others run, because they use CPU even when idle.  A request wakes it."""

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


class Bench:
    """One benchmark.  The function `progress(done, all, what)` is called before every run.  `broken` lists the failures
    of RocketSim itself.

    With `alone` no peer is started, and each peer is `Missing`.  `fill_memory` fills the free memory with page cache.
    It is called before each run of a contest, and its time does not count.  A run that frees memory itself calls it
    again.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        folder: Path,
        stack: ExitStack,
        progress: Callable[[int, int, str], None],
        *,
        keep: bool = False,
        alone: bool = False,
        fill_memory: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.keep = keep
        self._alone = alone
        self.fill_memory = fill_memory
        self.plan = plan
        self.folder = folder
        self.figures: list[Figure] = []
        self.notes: list[str] = []
        self.cpu: list[str] = []
        self.broken: list[str] = []
        self._stack = stack
        self._progress = progress
        self._sleepers: list[Sleeper] = []

    def enter(self, part: AbstractContextManager[T]) -> T:
        """Enters a context, which ends with the current `section` or, outside of a section, with the benchmark."""
        entered = self._stack.enter_context(part)
        if isinstance(entered, Sleeper):
            self._sleepers.append(entered)
            self._stack.callback(self._sleepers.remove, entered)
        return entered

    @contextmanager
    def section(self) -> Iterator[None]:
        """Ends all contexts that were entered in this block, so that idle processes do not disturb what follows."""
        with ExitStack() as parts:
            outer, self._stack = self._stack, parts
            try:
                yield
            finally:
                self._stack = outer

    def peer(self, name: str, make: Callable[[], T]) -> T | Missing:
        """Makes a peer.  If the peer is not available, returns the reason, and the benchmark continues without the
        peer.
        """
        self.doing(f"starting {name}")
        try:
            if self._alone:
                raise Unavailable("not started, because --alone leaves out all peers")
            return make()
        except Unavailable as error:
            why = f"{name}: {error}"
            self.notes.append(f"missing: {why}")
            return Missing(why)

    def doing(self, what: str) -> None:
        logger.info("%s: %s", self.name, what)
        self._progress(0, 1, what)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def contest(
        self, contestants: Mapping[str, Contestant | Missing], what: str = "", plan: Plan | None = None
    ) -> Results:
        """Runs the contestants in turns, and stops each peer while others run.

        A contestant that raises `Unavailable` gets no result.
        """
        with self._asleep():
            return self._contest(contestants, what, plan or self.plan)

    @contextmanager
    def _asleep(self) -> Iterator[None]:
        with ExitStack() as awake:
            for one in self._sleepers:
                awake.callback(one.wake)
                one.sleep()
            yield

    def _contest(self, contestants: Mapping[str, Contestant | Missing], what: str, plan: Plan) -> Results:
        same_scheduler()
        results = Results({name: one for name, one in contestants.items() if isinstance(one, Missing)})
        running = {name: one for name, one in contestants.items() if not isinstance(one, Missing)}
        order = list(schedule(list(running), plan))
        used: dict[str, list[tuple[cpu.Used, float | None]]] = {}
        begun = time.monotonic()
        for done, (number, name) in enumerate(order):
            if not results.has(name):
                continue
            counted = f"run {number + 1} of {plan.rounds}" if number >= 0 else "warm-up"
            self._progress(done, len(order), f"{what} {name}, {counted}".strip())
            self.fill_memory()
            meter = cpu.Meter()
            try:
                sample = running[name]()
            except Unavailable as error:
                results.fail(name, str(error))
                self.notes.append(f"missing: {name}: {error}")
                continue
            spent = meter()
            logger.info(
                "%s: %s %s, %s: %s; %s", self.name, what, name, counted, brief(sample), cpu.line([(spent, None)])
            )
            if number >= 0:
                results.add(name, sample)
                used.setdefault(name, []).append((spent, messages_of(sample)))
        same_scheduler()  # a second time, because Spark's workers start only with the first run
        self._progress(len(order), len(order), what)
        self.cpu += [f"{what} {name}: {cpu.line(runs)}".strip() for name, runs in used.items() if results.has(name)]
        logger.info("%s: %s took %.0f s", self.name, what or "the runs", time.monotonic() - begun)
        return results

    def report(
        self,
        name: str,
        unit: str,
        series: Series | Missing,
        reference: str = "",
        reference_series: Series | Missing | None = None,
        target: Target | None = None,
        *,
        by_amount: bool = False,
        in_full: tuple[Series | Missing, Series | Missing | None] | None = None,
    ) -> None:
        """Adds a line to the table.  If RocketSim itself has failed, no line is added, and the exit status is 1.

        With `by_amount` the figure depends on the amount of data, so a plan with less data than the full plan gives no
        verdict. `in_full` has the two series as they are predicted for the full plan's amount of data
        (`with_full_rate`).  If the predicted series would get another verdict, the figure has no verdict.
        """
        if isinstance(series, Missing):
            self.broken.append(f"{name}: {series.why}")
            return
        predicts = not by_amount and (target is None or is_settled(series, reference_series, target, in_full))
        settled = self.plan.pick(True, predicts, False)
        self.figures.append(Figure(self.name, name, unit, series, reference, reference_series, target, settled))


def brief(sample: Sample) -> str:
    return ", ".join(f"{key} {rounded(value) if isinstance(value, float) else value}" for key, value in sample.items())


def messages_of(sample: Sample) -> float | None:
    """Returns how many messages a run moved, or None if the run's sample does not have this number."""
    if "messages" in sample:
        return sample["messages"]
    return sample["rate"] * sample["seconds"] if "rate" in sample and "seconds" in sample else None


def same_scheduler() -> None:
    """Raises `WrongResult` unless all processes of the benchmark are in the harness's scheduling group."""
    if found := scheduling.outsiders():
        raise WrongResult(f"not all processes share the CPU in the same way: {'; '.join(found)}")


def must_be(what: str, found: object, wanted: object) -> None:
    """Raises `WrongResult` unless what was found, such as a count or a checksum, is what was expected."""
    if found != wanted:
        raise WrongResult(f"{what}: {found}, not {wanted}")
