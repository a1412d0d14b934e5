"""What people see: the list of benchmarks, and a table for each that ran."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.figures import Figure, Missing, text
from benchmarks.registry import Benchmark

DURABILITY = "durability: page cache (ASYNC_FLUSH), one broker or an ASYNC_MASTER pair, unless the figure says more"
_COLORS = {"met": "green", "MISSED": "red", "reference missing": "yellow"}


def print_list(console: Console, benchmarks: Sequence[Benchmark]) -> None:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for name in ("name", "targets", "what", "needs"):
        table.add_column(name, overflow="fold")
    for one in benchmarks:
        table.add_row(one.name, one.targets, one.what, one.needs)
    table.add_row("all", "P1-P14", "each of them, one after the other", "all of that, at most 3 hours")
    console.print(table)
    console.print(
        "./run bench NAME [--quick] [--json FILE]\n"
        "Jars come from Maven, the Python peers from pip, once, into the user's cache directory (400 MB)."
    )


def print_figures(
    console: Console, title: str, head: Sequence[str], figures: Sequence[Figure], notes: Sequence[str]
) -> None:
    console.print()
    console.print(title, style="bold", highlight=False, markup=False)
    for line in (*head, DURABILITY):
        console.print(line, style="dim", highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("figure", overflow="fold")
    table.add_column("min / median / max", justify="right")
    table.add_column("unit")
    table.add_column("reference", overflow="fold")
    table.add_column("its min / median / max", justify="right")
    for name in ("ratio", "target"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for figure in figures:
        table.add_row(*cells(figure)[:-1], Text(figure.verdict, style=_COLORS.get(figure.verdict, "")))
    console.print(table, highlight=False)
    for note in notes:
        console.print(f"* {note}", highlight=False, markup=False)


def cells(figure: Figure) -> list[str]:
    """A line of the table, as text."""
    other = figure.reference_series
    theirs = "missing" if isinstance(other, Missing) else "" if other is None else spread(other.values)
    target = "" if figure.target is None else f"{figure.target.number} {figure.target}"
    return [
        figure.name,
        spread(figure.series.values),
        figure.unit,
        figure.reference,
        theirs,
        text(figure.ratio),
        target,
        figure.verdict,
    ]


def spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return text(values[0])
    return " / ".join(map(text, (min(values), median(values), max(values))))


def markdown(figures: Sequence[Figure]) -> str:
    """The same for docs/performance.md."""
    names = (
        "figure",
        "min / median / max",
        "unit",
        "reference",
        "its min / median / max",
        "ratio",
        "target",
        "verdict",
    )
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cells(figure)) + " |" for figure in figures]
    return "\n".join(lines) + "\n"
