"""Figures: what parts of a broker tell of themselves for the metrics, without knowing Prometheus."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

Sample = tuple[tuple[str, ...], float]  # the values of the labels, and the figure


@dataclass(frozen=True, slots=True)
class Figure:
    """`help_text` is what an operator reads beside it.  A counter only rises.  `samples` are read once."""

    name: str
    help_text: str
    samples: Iterable[Sample]
    labels: tuple[str, ...] = ()
    is_counter: bool = False


class HasFigures(Protocol):
    def figures(self) -> Iterator[Figure]:
        """Called once a second, on the event loop."""


def gauge(name: str, help_text: str, value: float) -> Figure:
    return Figure(name, help_text, (((), value),))


def counter(name: str, help_text: str, value: float) -> Figure:
    return Figure(name, help_text, (((), value),), is_counter=True)


def by_labels(
    name: str, help_text: str, labels: tuple[str, ...], samples: Iterable[Sample], *, is_counter: bool = False
) -> Figure:
    return Figure(name, help_text, tuple(samples), labels, is_counter)
