"""Figures: the values that the parts of a broker give to the metrics, without any code of Prometheus."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

Sample = tuple[tuple[str, ...], float]  # the values of the labels, and the value


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric with its values.

    Operators see `help_text` beside the metric.  The value of a counter only rises.  `samples` can be iterated only
    once.
    """

    name: str
    help_text: str
    samples: Iterable[Sample]
    labels: tuple[str, ...] = ()
    is_counter: bool = False


class HasFigures(Protocol):
    def figures(self) -> Iterator[Figure]:
        """Returns the current figures; must be called once a second on the event loop."""


def gauge(name: str, help_text: str, value: float) -> Figure:
    return Figure(name, help_text, (((), value),))


def counter(name: str, help_text: str, value: float) -> Figure:
    return Figure(name, help_text, (((), value),), is_counter=True)


def by_labels(
    name: str, help_text: str, labels: tuple[str, ...], samples: Iterable[Sample], *, is_counter: bool = False
) -> Figure:
    return Figure(name, help_text, tuple(samples), labels, is_counter)
