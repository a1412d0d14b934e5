"""The chart shows our figure, the peer's and the ceiling, and the chart in docs/ is drawn from the
figures beside it.
"""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as command
from benchmarks import chart
from benchmarks.figures import Figure, Missing, Series

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def row(name, ours, reference, theirs, unit="rows/s"):
    other = theirs if isinstance(theirs, Missing) else Series.of([theirs])
    return Figure("spark-read", name, unit, Series.of([ours]), reference, other).row()


def test_the_ceiling_is_shown_in_the_peer_s_measure():
    all_columns = "batch, 100 B, all columns"
    rows = [row(all_columns, 30, "Kafka source", 20), row(all_columns, 30, "null Arrow source", 60)]
    rows += [row("columnar pull, 100 B", 40, "confluent-kafka consume(10000), tuned", 20)]
    rows += [row("columnar pull, 100 B, record bytes", 900, "raw Unix socket, frames of 1 MiB", 1800)]
    rows += [row("columnar pull over gRPC, 100 B, record bytes", 300, "raw gRPC stream of 1 MiB", 400)]
    first, second = chart.bars(rows)
    assert (first.label, first.ours, first.ceiling) == ("Spark batch, all columns, 100 B", 1.5, 3)
    assert (second.label, second.ours, second.ceiling) == ("columnar pull, 100 B", 2, 4)


def test_to_the_right_is_better_whatever_is_measured():
    name = "producer to commit at 1,000 msgs/s: p99"
    (bar,) = chart.bars([row(name, 400, "Kafka source", 1200, "ms")])
    assert math.isclose(bar.ours, 3, rel_tol=1e-3)


def test_what_has_no_peer_is_not_drawn():
    rows = [row("100 B, one broker", 400, "Kafka sink", Missing("no Maven"))]
    assert chart.bars(rows) == []
    with pytest.raises(ValueError, match="none of these figures"):
        chart.svg(rows)


def test_every_bar_begins_at_the_peer_and_stays_on_the_chart():
    names = {"100 B, one broker": 0.1, "1024 B, one broker": 100.0, "stream, 100 B, Kafka's columns": 1.0}
    references = ["Kafka sink", "Kafka sink", "Kafka source, tuned"]
    rows = [row(name, ours, reference, 1) for (name, ours), reference in zip(names.items(), references, strict=True)]
    drawn = ElementTree.fromstring(chart.svg(rows))
    level = next(one for one in drawn.iter(f"{SVG}line") if one.get("stroke") == chart.INK).get("x1")
    found = [(float(one.get("x")), float(one.get("width"))) for one in drawn.iter(f"{SVG}rect") if one.get("x")]
    assert len(found) == 3
    for left, width in found:
        assert level in {f"{left:.1f}", f"{left + width:.1f}"} or width == 1
        assert chart.LABEL <= left <= left + width <= chart.WIDTH - chart.VALUES


def test_the_command_draws_what_json_has(tmp_path):
    figures, drawing = tmp_path / "figures.json", tmp_path / "chart.svg"
    figures.write_text(json.dumps([row("1024 B, one broker", 90, "Kafka sink", 60)]))
    assert command.main(["chart", "--json", str(figures), "--svg", str(drawing)]) == 0
    assert re.search(r">1\.5<", drawing.read_text())


@pytest.mark.parametrize(
    "words", [["chart"], ["chart", "--json", "f"], ["chart", "--svg", "f"], ["send", "--svg", "f"]]
)
def test_the_command_says_what_it_needs_to_draw(words, capsys):
    with pytest.raises(SystemExit):
        command.main(words)
    assert "chart draws --svg FILE from --json FILE" in capsys.readouterr().err


def test_the_chart_in_docs_is_drawn_from_the_figures_beside_it():
    drawn = chart.svg(json.loads((DOCS / "performance.json").read_text()))
    assert drawn == (DOCS / "performance.svg").read_text(), (
        "./run bench chart --json docs/performance.json --svg docs/performance.svg"
    )
