"""Prints the list of benchmarks, and a table of results for each benchmark that ran, on a terminal or as Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.figures import Figure, Missing, text
from benchmarks.registry import Benchmark

DURABILITY = "durability: page cache (ASYNC_FLUSH), one broker or an ASYNC_MASTER pair, unless the figure says more"
SPREAD = "min / median / max of the counted runs; the ratio is that of the medians"
CPU = "CPU of the counted runs, by process:"
_COLORS = {"met": "green", "MISSED": "red", "no reference": "yellow", "no verdict": "yellow"}
_COLUMNS = ("figure", "min / median / max", "unit", "reference", "its min / median / max", "ratio", "target", "verdict")


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one benchmark.  `cpu` has one line for each contestant."""

    title: str
    head: Sequence[str]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()
    cpu: Sequence[str] = ()


def print_list(console: Console, benchmarks: Sequence[Benchmark]) -> None:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for name in ("name", "targets", "what", "needs"):
        table.add_column(name, overflow="fold")
    for one in benchmarks:
        table.add_row(one.name, one.targets, one.what, one.needs)
    table.add_row("all", "P1-P22", "all benchmarks, one after the other", "all of that; about two hours")
    table.add_row("with-spark, without-spark", "", "the benchmarks that start Spark, and the others", "")
    console.print(table)
    console.print(
        "./run bench NAME [--quick] [--json FILE]\n"
        "Jars come from Maven, the Python peers from pip, once, into the user's cache directory (400 MB)."
    )


def print_report(console: Console, report: Report) -> None:
    console.print()
    console.print(report.title, style="bold", highlight=False, markup=False)
    for line in (*report.head, DURABILITY):
        console.print(line, style="dim", highlight=False, markup=False)
    console.print(SPREAD, style="dim", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    # A column of words may wrap, but a column of numbers may not.
    table.add_column("figure (its reference)", overflow="fold", ratio=1)
    for name in ("ours", "the reference", "ratio", "target"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("verdict", no_wrap=True)
    for figure in report.figures:
        name, ours, unit, reference, theirs, ratio, target, verdict = cells(figure)
        what = Text(f"{name}, {unit}" if unit else name)
        if reference:
            what.append(f" ({reference})", style="dim")
        table.add_row(what, ours, theirs, ratio, target, Text(verdict, style=_COLORS.get(verdict, "")))
    console.print(table, highlight=False)
    for note in report.notes:
        console.print(f"* {note}", highlight=False, markup=False)
    if report.cpu:
        console.print(CPU, style="dim", highlight=False)
    for line in report.cpu:
        console.print(f"  {line}", style="dim", highlight=False, markup=False)


def cells(figure: Figure) -> list[str]:
    """Returns the cells of one row of the table as text."""
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


def markdown(reports: Sequence[Report]) -> str:
    """Returns the reports as Markdown, for docs/performance.md."""
    return "\n".join(line for report in reports for line in _section(report))


def _section(report: Report) -> Iterator[str]:
    yield f"### {report.title}\n"
    yield "\n".join(f"{line}  " for line in (*report.head, DURABILITY)) + "\n"
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|" + "---|" * len(_COLUMNS)
    for figure in report.figures:
        yield "| " + " | ".join(cells(figure)) + " |"
    yield ""
    yield from (f"- {note}" for note in report.notes)
    if report.cpu:
        yield f"\n{CPU}\n"
        yield from (f"- {line}" for line in report.cpu)
    yield ""
