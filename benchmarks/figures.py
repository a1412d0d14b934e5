"""Figure: the results of several runs, those of the reference, and the verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.targets import Target

QUICK_MARGIN = 0.15  # the median of a few rounds may differ by this share from the median of the full run


@dataclass(frozen=True, slots=True)
class Series:
    """A contestant's values in the counted rounds."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a series cannot be made without a run")

    @classmethod
    def of(cls, values: Iterable[float]) -> "Series":
        return cls(tuple(float(value) for value in values))

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def middle(self) -> float:
        return median(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def over(self, other: "Series") -> "Series":
        """Returns the ratio to `other` in each round, which is not affected by slow changes of the machine."""
        return Series.of(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True) if theirs)


@dataclass(frozen=True, slots=True)
class Missing:
    """Stands for a peer that is not available, with the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table.  `reference` is the name of what `reference_series` has measured.

    If `settled` is False, the figure has no verdict, because the full run could give another one.
    """

    bench: str
    name: str
    unit: str
    series: Series
    reference: str = ""
    reference_series: Series | Missing | None = None
    target: Target | None = None
    settled: bool = True

    @property
    def reference_value(self) -> float | None:
        return self.reference_series.middle if isinstance(self.reference_series, Series) else None

    @property
    def ratio(self) -> float | None:
        """Our median divided by the reference's median."""
        other = self.reference_value
        return self.series.middle / other if other else None

    @property
    def met(self) -> bool | None:
        if self.target is None or not self.settled:
            return None
        return self.target.is_met(self.series.middle, self.ratio)

    @property
    def verdict(self) -> str:
        if isinstance(self.reference_series, Missing):
            return "no reference"
        if self.target is not None and not self.settled:
            return "no verdict"
        return {True: "met", False: "MISSED", None: ""}[self.met]

    def row(self) -> dict[str, Any]:
        """Returns the figure as a row for `--json`, with medians as values."""
        return {
            "bench": self.bench,
            "figure": self.name,
            "unit": self.unit,
            "value": rounded(self.series.middle),
            "reference": f"{self.reference} (missing: {self.reference_series.why})"
            if isinstance(self.reference_series, Missing)
            else self.reference,
            "reference_value": rounded(self.reference_value),
            "ratio": rounded(self.ratio),
            "target": None if self.target is None else f"{self.target.number} {self.target}",
            "met": self.met,
        }


def is_settled(
    series: Series,
    reference: Series | Missing | None,
    target: Target,
    in_full: tuple[Series | Missing, Series | Missing | None] | None = None,
) -> bool:
    """Returns True if the full run would get the same verdict, provided that its median is within QUICK_MARGIN of this
    run's median.

    The verdict is settled if it is the same for each single round, for the median plus the margin, and for the median
    minus the margin.  `in_full` has the two series that are predicted for the full run's amount of data; they must give
    this verdict, too.
    """
    found = _verdicts(series, reference, target)
    if in_full is not None and not isinstance(in_full[0], Missing):
        found |= _verdicts(in_full[0], in_full[1], target)
    return len(found) == 1


def _verdicts(series: Series, reference: Series | Missing | None, target: Target) -> set[bool | None]:
    if target.of_value:
        rounds, middle = series, series.middle
    elif isinstance(reference, Series) and reference.middle:
        rounds, middle = series.over(reference), series.middle / reference.middle
    else:
        return {None}
    possible = (*rounds.values, middle * (1 + QUICK_MARGIN), middle / (1 + QUICK_MARGIN))
    return {target.is_met(value, value) for value in possible}


def rounded(value: float | None) -> float | None:
    """Rounds to four significant digits, because the measurements are not more precise."""
    return None if value is None else float(f"{value:.4g}")


def text(value: float | None) -> str:
    """Formats a value with three significant digits, so that a line fits a terminal: 1.23 M, 123 k, 12.3, 0.0123."""
    if value is None:
        return ""
    if abs(value) >= 999_500:
        return f"{value / 1e6:.{2 if abs(value) < 9_995_000 else 1}f} M"
    if abs(value) >= 10_000:
        return f"{value / 1e3:.{1 if abs(value) < 99_950 else 0}f} k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the percentile for `share`, by the nearest-rank method."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
