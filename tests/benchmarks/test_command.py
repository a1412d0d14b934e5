"""The command line, tables and drivers."""

import io
import json
import sys

import pytest
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import tables
from benchmarks.bench import Unavailable, WrongResult
from benchmarks.contest import QUICK
from benchmarks.driver import Driver
from benchmarks.driver_loop import parsed
from benchmarks.figures import Figure, Missing, Series
from benchmarks.memory import slope
from benchmarks.registry import Benchmark
from benchmarks.targets import at_least

DRIVER = """
from benchmarks.driver_loop import serve

def double(number):
    print("a library says something")
    return {"twice": 2 * number}

serve({"double": double})
"""


@pytest.fixture
def console():
    return Console(width=200, record=True, file=io.StringIO())


@pytest.fixture
def driver(tmp_path):
    with Driver("test", [sys.executable, "-c", DRIVER], tmp_path / "log") as made:
        yield made


def test_without_a_name_it_lists_what_there_is_and_what_it_needs(capsys):
    assert command.main([]) == 0
    out = capsys.readouterr().out
    for word in ("spark-read", "growth", "all", "Maven", "GiB", "--quick"):
        assert word in out


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["spark-raed"])
    assert "spark-raed" in capsys.readouterr().err


def run_one(monkeypatch, tmp_path, run):
    monkeypatch.setitem(command.BY_NAME, "send", Benchmark("send", "P6", "what", "needs", run))
    out = tmp_path / "figures.json"
    status = command.main(["send", "--quick", "--json", str(out), "--directory", str(tmp_path / "stores")])
    return status, json.loads(out.read_text())


def test_a_run_prints_its_table_and_writes_the_same_as_json(monkeypatch, tmp_path, capsys):
    def run(bench):
        assert bench.plan is QUICK
        (bench.folder / "store").mkdir()
        results = bench.contest({"ours": lambda: {"rate": 30.0}, "peer": lambda: {"rate": 10.0}})
        target = at_least("P6", 0.3)
        bench.report("rate", "msgs/s", results.series("ours"), "the peer", results.series("peer"), target)

    status, rows = run_one(monkeypatch, tmp_path, run)
    assert status == 0
    (row,) = rows
    assert (row["bench"], row["value"], row["reference_value"], row["ratio"], row["met"]) == ("send", 30, 10, 3, True)
    out = capsys.readouterr().out
    for word in ("30 / 30 / 30", "the peer", "P6 ≥ 0.3", "met", "quick", "pyspark", "durability", "cores"):
        assert word in out
    assert list((tmp_path / "stores").iterdir()) == [], "stores are removed"


def test_what_was_measured_does_not_count_when_what_was_moved_is_wrong(monkeypatch, tmp_path, capsys):
    def run(bench):
        bench.report("rate", "msgs/s", Series((1.0,)))
        raise WrongResult("100 messages acknowledged, 99 stored")

    status, rows = run_one(monkeypatch, tmp_path, run)
    assert (status, rows) == (1, [])
    assert "99 stored" in capsys.readouterr().out


def test_a_table_shows_a_missing_peer_as_missing(console):
    figure = Figure("send", "rate", "msgs/s", Series((1.0,)), "Kafka", Missing("no Maven"), at_least("P6", 1))
    tables.print_figures(console, "title", ["head"], [figure], ["missing: no Maven"])
    shown = console.export_text()
    assert "reference missing" in shown
    assert "missing: no Maven" in shown


def test_markdown_has_a_line_a_figure():
    figure = Figure("send", "rate", "msgs/s", Series((1.0, 2.0, 4.0)), "Kafka", Series((1.0,)), at_least("P6", 1))
    lines = tables.markdown([figure]).splitlines()
    assert lines[2] == "| rate | 1 / 2 / 4 | msgs/s | Kafka | 1 | 2 | P6 ≥ 1 | met |"
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")


def test_a_command_is_a_word_and_its_options():
    assert parsed("pull topic=a count=5 rate=-1") == ("pull", {"topic": "a", "count": 5, "rate": -1})


def test_a_driver_answers_between_what_libraries_print(driver):
    assert driver.ask("double", number=4) == {"twice": 8}
    assert driver.ask("double", number=5) == {"twice": 10}


def test_a_command_that_fails_is_unavailable_and_the_driver_lives(driver):
    with pytest.raises(Unavailable, match="KeyError"):
        driver.ask("triple", number=4)
    assert driver.ask("double", number=1) == {"twice": 2}


def test_a_driver_that_ended_is_unavailable(tmp_path):
    with Driver("test", [sys.executable, "-c", "raise SystemExit('no such library')"], tmp_path / "log") as driver:
        with pytest.raises(Unavailable, match="no such library"):
            driver.ask("double", number=1)


def test_the_slope_of_memory_is_that_of_a_line():
    assert slope([10, 12, 14, 16]) == pytest.approx(2)
    assert slope([10, 10, 10]) == 0
