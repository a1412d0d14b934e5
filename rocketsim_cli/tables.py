"""Answers for two readers: tables for people, JSON lines for scripts.  Decides nothing else."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a fifth of a command's start: most commands print no table
    from rich.console import Console
    from rich.table import Table

# Piped output is not cut at 80 columns: `grep` and `awk` want whole lines.
PIPED_WIDTH = 400

Row = Mapping[str, object]
Formats = Mapping[str, Callable[[object], str]]


def console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPED_WIDTH, highlight=False)


def table(
    columns: Sequence[str], rows: Sequence[Row], *, title: str | None = None, formats: Formats | None = None
) -> "Table":
    """Numbers to the right, None as a dash; columns come in the order given, whatever the rows hold."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, show_edge=False)
    for column in columns:
        numeric = bool(rows) and all(isinstance(row.get(column), int | float | None) for row in rows)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*((formats or {}).get(column, cell)(row.get(column)) for column in columns))
    return made


def when(ms: object) -> str:
    """A timestamp in ms, in this machine's time zone; none at all as a dash."""
    if not isinstance(ms, int) or ms <= 0:
        return "-"
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]


def cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={cell(part)}" for key, part in value.items()) or "-"
    return str(value)


def show_rows(
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    as_json: bool,
    title: str | None = None,
    formats: Formats | None = None,
) -> None:
    """A table, or a JSON line a row with the same names; `formats` are for people only."""
    if as_json:
        for row in rows:
            show_json({column: row.get(column) for column in columns})
    else:
        console().print(table(columns, rows, title=title, formats=formats))


def show_values(values: Mapping[str, object], *, as_json: bool, separator: str = ": ") -> None:
    """Sorted `key: value` lines, as mqadmin's brokerStatus prints them."""
    if as_json:
        show_json(dict(values))
        return
    for key in sorted(values):
        print(f"{key}{separator}{cell(values[key])}")


def show_json(value: Row, *, stderr: bool = False) -> None:
    """One object in one line."""
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    print(line, file=sys.stderr if stderr else sys.stdout, flush=True)


def note(text: str, *, as_json: bool = False) -> None:
    """Something beside the answer: on standard error, in a line."""
    if as_json:
        show_json({"kind": "note", "message": text}, stderr=True)
    else:
        print(f"rocketsim: {text}", file=sys.stderr, flush=True)
