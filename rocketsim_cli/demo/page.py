"""Makes the demo's report as one HTML file, which loads no other file.  All texts in the HTML are escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rocketsim_cli.demo import history
from rocketsim_cli.demo.history import Event, Moment
from rocketsim_cli.demo.report import DemoReport

WIDTH, HEIGHT = 760, 190
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 26, 22
COLORS = 6
POINTS = 400  # the most points that a chart draws of one line

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --line: #e3e6ea; --text: #1b2430; --dim: #5c6875;
  --good: #16794a; --bad: #b3261e;
  --c0: #2457d6; --c1: #d9730d; --c2: #16865c; --c3: #a3379c; --c4: #0f7fa8; --c5: #6b6f1d; }
@media (prefers-color-scheme: dark) { :root { --page: #101418; --card: #181d23; --line: #2a323b; --text: #e4e8ed;
  --dim: #98a4b1; --good: #5fd39a; --bad: #ff8a80;
  --c0: #7ea6ff; --c1: #ffa657; --c2: #5fd39a; --c3: #e08bd9; --c4: #62c7e8; --c5: #cbd06a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 56rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0 0 .6rem; } p { margin: .2rem 0 1rem; }
table + p { margin-top: 1rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1rem;
  margin-top: 1rem; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.dim { color: var(--dim); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .8rem; }
.tiles b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; } .tiles span { color: var(--dim); }
table { border-collapse: collapse; width: 100%; } .scroll { overflow-x: auto; }
th { text-align: left; font-weight: 500; color: var(--dim); }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
tr:last-child > * { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
i.mark { display: inline-block; min-width: 1.35rem; border-radius: 1rem; background: var(--text); color: var(--card);
  text-align: center; font: 600 .78rem/1.35rem inherit; font-style: normal; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; } .axis { fill: var(--dim); font-size: 12px; }
.grid { stroke: var(--line); } .line { fill: none; stroke-linejoin: round; }
.event { stroke: var(--dim); stroke-dasharray: 3 3; } .dot { fill: var(--text); }
.digit { fill: var(--card); font-size: 11px; font-weight: 600; text-anchor: middle; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin-top: .5rem; color: var(--dim); font-size: .88rem; }
.legend i { display: inline-block; width: .9rem; height: .25rem; border-radius: 2px; margin-right: .4rem;
  vertical-align: middle; }
""" + "".join(f".s{n} {{ stroke: var(--c{n}); background: var(--c{n}); }}\n" for n in range(COLORS))


def page(
    report: DemoReport,
    moments: Sequence[Moment],
    events: Sequence[Event],
    facts: Mapping[str, str],
) -> str:
    """Returns the report as HTML.  `facts` has versions and configuration, in the order in which they are shown."""
    events = sorted(events, key=lambda event: event.at_s)
    marks = [event.at_s for event in events if event.is_marked]
    times = [*(moment.at_s for moment in moments), *marks]
    begin_s = min(times, default=0.0)  # the charts leave out the start of the servers and of Spark
    span = (begin_s, max([begin_s + 1, *times]))
    verdict = (
        '<p class="good">Nothing acknowledged was lost, nothing was counted twice, and the group has no lag.</p>'
        if report.ok
        else "".join(f'<p class="bad">Not as promised: {escape(problem)}</p>' for problem in report.problems)
    )
    window = f"mean of the last {history.WINDOW_S:.0f} seconds"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>RocketSim demo</title>
<style>{STYLE}</style>
</head>
<body>
<h1>RocketSim demo</h1>
{verdict}
{_counts(report)}
<section><h2>What happened</h2>{_time_line(events)}</section>
{_chart("Messages stored per second, by broker name", window, history.stored_per_second(moments), marks, span)}
{_chart("Messages read per second, by broker", window, history.read_per_second(moments), marks, span)}
{_chart("Lag of the group in messages, by broker name", "", history.lag(moments), marks, span)}
<section><h2>Result</h2>{_result(report)}</section>
<section><h2>Versions and configuration</h2>{_rows(facts.items())}</section>
</body>
</html>
"""


def _counts(report: DemoReport) -> str:
    counts = {
        "sent": report.sent,
        "acknowledged": report.acknowledged,
        "rows read": report.read,
        "lost": report.lost,
        "counted twice": report.duplicates,
    }
    tiles = "".join(f"<div><b>{count:,}</b><span>{name}</span></div>" for name, count in counts.items())
    return f'<section class="tiles">{tiles}</section>'


def _time_line(events: Sequence[Event]) -> str:
    rows, number = [], 0
    for event in events:
        number += event.is_marked
        mark = f'<i class="mark">{number}</i>' if event.is_marked else ""
        time = f'<td class="number">{event.at_s:.1f} s</td>'
        rows.append(f"<tr>{time}<td>{mark}</td><td>{escape(event.text)}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _result(report: DemoReport) -> str:
    rows = {
        "statuses of the sends": ", ".join(f"{name} {count}" for name, count in report.statuses.items()),
        "sent again": str(report.sent_again),
        "duplicates that the query dropped": str(report.duplicates_dropped),
        "committed offsets": str(report.committed),
        "lag at the end": str(report.lag),
        f"committed to the slave of {report.killed_broker}": str(report.committed_to_slave),
        **{
            f"read from {name} {'slave' if broker_id else 'master'}": str(count)
            for (name, broker_id), count in sorted(report.served.items())
        },
    }
    if report.last_error:
        rows["last failed send"] = report.last_error
    sums = "".join(f'<p class="dim">{escape(line)}</p>' for line in report.sums())
    return _rows(rows.items()) + sums


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows) + "</table>"


def _chart(
    title: str,
    note: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    marks: Sequence[float],
    span: tuple[float, float],
) -> str:
    begin_s, end_s = span
    top = ceiling(max((value for points in series.values() for _, value in points), default=0.0))

    def x(at_s: float) -> float:
        return LEFT + (at_s - begin_s) / (end_s - begin_s) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in (0.0, top / 2, top):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text class="axis" x="{LEFT - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,g}</text>')
    for part, anchor in ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1, "end")):
        at_s = begin_s + part * (end_s - begin_s)
        at = f'x="{x(at_s):.1f}" y="{HEIGHT - 5}" text-anchor="{anchor}"'
        parts.append(f'<text class="axis" {at}>{at_s:.0f} s</text>')
    for color, points in enumerate(series.values()):
        text = "L".join(f"{x(at_s):.1f} {y(value):.1f}" for at_s, value in thinned(points))
        if text:
            # Earlier lines are thicker, so that they are visible behind lines with the same values.
            width = 2 + 1.5 * (len(series) - 1 - color)
            parts.append(f'<path class="line s{color % COLORS}" stroke-width="{width}" d="M{text}"/>')
    place = 0.0
    for number, at_s in enumerate(marks, 1):
        place = max(x(at_s), place + 19)  # moves a number to the right if it would cover the number before
        parts.append(
            f'<line class="event" x1="{x(at_s):.1f}" x2="{x(at_s):.1f}" y1="{TOP - 8}" y2="{HEIGHT - BOTTOM}"/>'
        )
        parts.append(f'<circle class="dot" cx="{place:.1f}" cy="10" r="8.5"/>')
        parts.append(f'<text class="digit" x="{place:.1f}" y="14">{number}</text>')
    legend = "".join(f'<span><i class="s{n % COLORS}"></i>{escape(name)}</span>' for n, name in enumerate(series))
    told = f' <span class="dim">({escape(note)})</span>' if note else ""
    return (
        f"<section><h2>{escape(title)}{told}</h2>"
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></div>"
        f'<div class="legend">{legend}</div></section>'
    )


def ceiling(most: float) -> float:
    """Returns a round number that is at least `most`, for the top of a chart."""
    power = 1.0
    while power * 10 <= most:
        power *= 10
    return next((step * power for step in (1, 2, 4, 5, 10) if step * power >= most), most)


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return points[:: max(1, -(-len(points) // POINTS))]
