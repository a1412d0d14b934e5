"""Prints the results of commands: as tables for people, or as JSON lines for scripts."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rocketsim_proto.printable import printable, printable_json

if TYPE_CHECKING:  # imported only for type checks, because the import takes a fifth of a command's start-up time
    from rich.console import Console
    from rich.table import Table

# Piped output is not cut at 80 columns, because `grep` and `awk` need whole lines.
PIPED_WIDTH = 400
UNLIMITED = 1 << 16

# Matches where a heading in camelCase may be broken into lines.
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")

Row = Mapping[str, object]
Formats = Mapping[str, Callable[[object], str]]


def console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPED_WIDTH, highlight=False, markup=False)


def table(
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    title: str | None = None,
    formats: Formats | None = None,
    narrow: bool = False,
) -> "Table":
    """Returns a table with these columns, in this order. Numbers are aligned right, and None is shown as a dash.

    A narrow table breaks its headings before capital letters, and shows each item of a list on its own line.
    """
    from rich import box
    from rich.table import Table

    gap = (0, 1, 0, 0) if narrow else (0, 1)
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, show_edge=False, padding=gap)
    for column in columns:
        numeric = bool(rows) and all(isinstance(row.get(column), int | float | None) for row in rows)
        heading = _HUMP.sub("\n", column) if narrow else column
        made.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_shown(row.get(column), (formats or {}).get(column, cell), narrow) for column in columns))
    return made


def _shown(value: object, form: Callable[[object], str], narrow: bool) -> str:
    return "\n".join(map(cell, value)) if narrow and isinstance(value, list | tuple) and value else form(value)


def when(ms: object) -> str:
    """Formats a timestamp in ms, in this machine's time zone. A missing timestamp is shown as a dash."""
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
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value)) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{cell(key)}={cell(part)}" for key, part in value.items()) or "-"
    return printable(str(value))


def show_rows(
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    as_json: bool,
    title: str | None = None,
    formats: Formats | None = None,
    heading: str | None = None,
) -> None:
    """Prints the rows as a table, or with `as_json` as JSON lines, whose keys are the columns. `formats` apply to the
    table only, not to JSON.

    A table that is wider than the terminal becomes a narrow table. If the narrow table is too wide, each value of the
    column `heading` gets a table of its own. If the tables by heading are too wide as well, each row becomes a block of
    `name: value` lines, like psql's automatic expanded display. No word is ever broken, because people copy addresses,
    names and ids.
    """
    if as_json:
        for row in rows:
            show_json({column: row.get(column) for column in columns})
        return
    out = console()
    for tables in _layouts(columns, rows, title, formats, heading):
        if all(fits(shown, out) for shown in tables):
            for number, shown in enumerate(tables):
                if number:
                    print()
                out.print(shown)
            return
    for number, row in enumerate(rows):
        if number:
            print()
        for column in columns:
            print(f"{column}: {(formats or {}).get(column, cell)(row.get(column))}")


def _layouts(
    columns: Sequence[str], rows: Sequence[Row], title: str | None, formats: Formats | None, heading: str | None
) -> "Iterator[list[Table]]":
    """Yields each way to show the rows as tables, the widest first."""
    yield [table(columns, rows, title=title, formats=formats)]
    yield [table(columns, rows, title=title, formats=formats, narrow=True)]
    if heading is not None:
        others = [column for column in columns if column != heading]
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(cell(row.get(heading)), []).append(row)
        yield [
            table(others, group, title=f"{heading} {value}", formats=formats, narrow=True)
            for value, group in groups.items()
        ]


def fits(shown: "Table", out: "Console") -> bool:
    """Returns True if the table can be printed without breaking a cell."""
    from rich.measure import Measurement

    return Measurement.get(out, out.options.update(width=UNLIMITED), shown).maximum <= out.width


def show_values(values: Mapping[str, object], *, as_json: bool, separator: str = ": ") -> None:
    """Prints sorted `key: value` lines, as mqadmin's brokerStatus does."""
    if as_json:
        show_json(dict(values))
        return
    for key in sorted(values):
        print(f"{cell(key)}{separator}{cell(values[key])}")


def show_json(value: Row, *, stderr: bool = False) -> None:
    """Prints one object as one line."""
    line = printable_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    print(line, file=sys.stderr if stderr else sys.stdout, flush=True)


def note(text: str, *, as_json: bool = False) -> None:
    """Prints a note to the user on standard error, because a note is not part of the command's result."""
    if as_json:
        show_json({"kind": "note", "message": text}, stderr=True)
    else:
        print(f"rocketsim: {printable(text)}", file=sys.stderr, flush=True)
