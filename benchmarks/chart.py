"""Draws the chart of docs/performance.md from the rows that `--json` has written: our figure, the peer's, and the
ceiling.

The figures are shown as multiples of the peer's on a logarithmic axis, so that half and twice are equally far from 1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.figures import text

Row = Mapping[str, Any]


class Line(NamedTuple):
    """Describes one line of the chart.

    The ceiling comes from a row of `ceiling_figure` (if empty: of `figure`) whose reference is named in `ceiling`.
    """

    label: str
    figure: str
    peer: str
    ceiling: tuple[str, ...] = ()
    ceiling_figure: str = ""
    less_is_better: bool = False


_KAFKA, _TUNED, _NULL = "Kafka source", "Kafka source, tuned", ("null Arrow source",)
_JAVA = "RocketMQ's Java producer, 64 threads"
# The second name is in result files that are older than pulls over sockets.
_RAW = ("raw Unix socket, frames of 1 MiB", "raw gRPC stream of 1 MiB")
_BATCH = "RocketMQ's Java batch of 500, 16 threads"
_CONFLUENT = "confluent-kafka consume(10000), tuned"
_WITH_SLAVE = "ASYNC_MASTER pair, 100 B"
LINES = (
    Line("Spark batch, all columns, 100 B", "batch, 100 B, all columns", _KAFKA, _NULL),
    Line("Spark batch, Kafka's columns, 100 B", "batch, 100 B, Kafka's columns", _TUNED),
    Line("Spark batch, Kafka's columns, 1 KiB", "batch, 1024 B, Kafka's columns", _TUNED),
    Line("Spark stream, all columns, 100 B", "stream, 100 B, all columns", _KAFKA, _NULL),
    Line("Spark stream, Kafka's columns, 100 B", "stream, 100 B, Kafka's columns", _TUNED),
    Line("Spark stream, Kafka's columns, 1 KiB", "stream, 1024 B, Kafka's columns", _TUNED),
    Line("Spark sink, 100 B", "100 B, one broker", "Kafka sink"),
    Line("Spark sink, 1 KiB", "1024 B, one broker", "Kafka sink"),
    Line("a message a call, async, 100 B", f"send_async, {_WITH_SLAVE}", _JAVA),
    Line("64 blocking threads, 100 B", f"send, 64 threads, {_WITH_SLAVE}: rate", _JAVA),
    Line("lists of 500, 100 B", f"list of 500, 4 threads, {_WITH_SLAVE}", _BATCH),
    Line("Arrow columns sent, 100 B", f"columns with tags and keys, {_WITH_SLAVE}", _BATCH),
    Line("columnar pull, 100 B", "columnar pull, 100 B", _CONFLUENT, _RAW, "columnar pull, 100 B, record bytes"),
    Line("columnar pull, 1 KiB", "columnar pull, 1024 B", _CONFLUENT, _RAW, "columnar pull, 1024 B, record bytes"),
    Line("an empty slave catches up", "catch-up of an empty slave", "RocketMQ's slave that has the log's beginning"),
    Line("producer to commit, p99", "producer to commit at 1,000 msgs/s: p99", _KAFKA, less_is_better=True),
    Line(
        "restart after SIGKILL", "restart with 1.9 GiB, after SIGKILL: until it serves", "RocketMQ", less_is_better=True
    ),
)

WIDTH, LABEL, VALUES = 940, 250, 220
TOP, STEP, BAR = 64, 24, 13
LEAST, MOST = 0.25, 16.0
BETTER, WORSE, INK, PALE = "#2f7d4f", "#b4552d", "#555", "#bbb"


class Bar(NamedTuple):
    """Our figure and the ceiling as multiples of the peer's figure, so that more is better."""

    label: str
    ours: float
    ceiling: float | None
    words: str


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Returns a bar for each of LINES that was measured.

    A line matches each measured figure whose name begins with the line's text; the rest of the name may be a size.
    """
    found = []
    for line in LINES:
        row = _row(rows, line.figure, (line.peer,))
        if row is None or not row["ratio"]:
            continue
        ours = 1 / row["ratio"] if line.less_is_better else row["ratio"]
        above = _row(rows, line.ceiling_figure or line.figure, line.ceiling) if line.ceiling else None
        ceiling = ours / above["ratio"] if above is not None and above["ratio"] else None
        words = f"{text(row['value'])} : {text(row['reference_value'])} {row['unit']}"
        found.append(Bar(line.label, ours, ceiling, words))
    return found


def _row(rows: Sequence[Row], figure: str, references: tuple[str, ...]) -> Row | None:
    fitting = (row for row in rows if row["figure"].startswith(figure) and row["reference"] in references)
    return min(fitting, key=lambda row: len(row["figure"]), default=None)


def svg(rows: Sequence[Row], title: str = "RocketSim beside what you would take instead") -> str:
    """Draws the chart.  Raises ValueError if no figure in LINES was measured."""
    drawn = bars(rows)
    if not drawn:
        raise ValueError("the chart shows none of these figures")
    height = TOP + STEP * len(drawn) + 34
    return "\n".join(_svg(drawn, title, height)) + "\n"


def _svg(drawn: Sequence[Bar], title: str, height: int) -> Iterator[str]:
    bottom = TOP + STEP * len(drawn)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" role="img">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    yield f'<text x="10" y="20" font-size="15" fill="#111">{escape(title)}</text>'
    legend = f"times the peer (1 = level with it); to the right is better; {CEILING} is the ceiling; ours : the peer's"
    yield f'<text x="10" y="38" fill="{INK}">{escape(legend)}</text>'
    for times in (0.25, 0.5, 1, 2, 4, 8, 16):
        ink = INK if times == 1 else PALE
        x = _x(times)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{ink}" stroke-width="1"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="{INK}">{times:g}</text>'
    for number, bar in enumerate(drawn):
        yield from _bar(bar, TOP + STEP * number)
    yield "</svg>"


CEILING = "\N{BLACK DIAMOND}"


def _bar(bar: Bar, top: float) -> Iterator[str]:
    left, right = sorted((_x(1), _x(bar.ours)))
    base = top + BAR - 2
    color = BETTER if bar.ours >= 1 else WORSE
    yield f'<text x="{LABEL - 10}" y="{base}" text-anchor="end" fill="#111">{escape(bar.label)}</text>'
    width = max(right - left, 1)
    yield f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{color}"/>'
    if bar.ceiling is not None:
        yield f'<text x="{_x(bar.ceiling):.1f}" y="{base + 1}" text-anchor="middle" fill="#111">{CEILING}</text>'
    x = WIDTH - VALUES
    yield f'<text x="{x + 45}" y="{base}" text-anchor="end" fill="{color}" font-weight="bold">{text(bar.ours)}</text>'
    yield f'<text x="{x + 58}" y="{base}" fill="{INK}">{escape(bar.words)}</text>'


def _x(times: float) -> float:
    """Returns the x coordinate of a multiple; a multiple beyond an end of the axis is drawn at that end."""
    share = math.log(min(max(times, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LABEL + share * (WIDTH - LABEL - VALUES)
