"""The command line, the tables and the drivers of the benchmarks."""

import io
import json
import os
import subprocess
import sys

import psutil
import pytest
from rich.console import Console
from rocketsim_proto.records import kernels

from benchmarks import __main__ as command
from benchmarks import registry, tables
from benchmarks.bench import Unavailable, WrongResult
from benchmarks.contest import QUICK
from benchmarks.cpu import Used, kind_of, line
from benchmarks.driver import Driver
from benchmarks.driver_loop import parsed
from benchmarks.figures import Figure, Missing, Series
from benchmarks.memory import slope
from benchmarks.registry import Benchmark
from benchmarks.tables import Report
from benchmarks.targets import at_least
from testbed.processes import Processes

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
    for word in ("spark-read", "growth", "codec", "idle-queries", "all", "P1-P22", "Maven", "GiB", "--quick"):
        assert word in out


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["spark-raed"])
    assert "spark-raed" in capsys.readouterr().err


def run_one(monkeypatch, tmp_path, run):
    monkeypatch.setitem(registry.BY_NAME, "send", Benchmark("send", "P6", "what", "needs", run))
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
    assert f"record codec: {kernels.in_use()}" in out
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
    tables.print_report(console, Report("title", ["head"], [figure], ["missing: no Maven"]))
    shown = console.export_text()
    assert "no reference" in shown
    assert "missing: no Maven" in shown


def test_a_table_fits_a_terminal_of_120_columns():
    terminal = Console(width=120, record=True, file=io.StringIO())
    rates = Series((2_412_345.0, 2_500_000.0, 2_634_567.0))
    name = "64 threads, SYNC_MASTER ÷ ASYNC_MASTER, 1,024 B, 4,096 in flight"
    figure = Figure("send", name, "rows/s", rates, "RocketMQ's Java producer, 64 threads", rates, at_least("P6", 0.95))
    tables.print_report(terminal, Report("title", ["head"], [figure]))
    shown = terminal.export_text()
    assert shown.count("2.41 M / 2.50 M / 2.63 M") == 2, "numbers are whole"
    assert "P6 ≥ 0.95" in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_markdown_has_the_head_and_a_line_a_figure():
    figure = Figure("send", "rate", "msgs/s", Series((1.0, 2.0, 4.0)), "Kafka", Series((1.0,)), at_least("P6", 1))
    report = Report("send: what", ["2 cores"], [figure], ["a note"], ["ours: client 1 µs"])
    lines = tables.markdown([report]).splitlines()
    assert "| rate | 1 / 2 / 4 | msgs/s | Kafka | 1 | 2 | P6 ≥ 1 | met |" in lines
    assert len({one.count("|") for one in lines if one.startswith("|")}) == 1
    assert {"### send: what", "2 cores  ", "- a note", "- ours: client 1 µs"} <= set(lines)


def test_all_goes_on_when_one_breaks(monkeypatch, tmp_path, capsys):
    def breaks(bench):
        bench.report("rate", "msgs/s", Series((1.0,)))
        raise OSError("no space left")

    def runs(bench):
        bench.report("rate", "msgs/s", Series((2.0,)))
        results = bench.contest({"ours": Missing("the client ended")})
        bench.report("other", "msgs/s", results.series("ours"))

    two = tuple(Benchmark(name, "P1", "what", "needs", run) for name, run in (("first", breaks), ("second", runs)))
    monkeypatch.setitem(registry.GROUPS, "all", two)
    out = tmp_path / "figures.json"
    assert command.main(["all", "--quick", "--json", str(out), "--directory", str(tmp_path)]) == 1
    assert [(row["bench"], row["value"]) for row in json.loads(out.read_text())] == [("second", 2)]
    shown = capsys.readouterr().out
    assert "OSError: no space left; nothing that it measured counts" in shown
    assert "FAILED: other: the client ended" in shown


def test_an_error_that_cannot_say_what_it_is_does_not_end_the_rest():
    class Silent(Exception):
        def __str__(self):
            raise AssertionError("the JVM has ended")

    assert command.reason(Silent()) == "Silent"
    assert command.reason(OSError("no space left")) == "OSError: no space left"


def test_a_driver_does_not_outlive_a_harness_that_is_killed(tmp_path):
    harness = """
import pathlib, sys, time
from benchmarks.driver import Driver
command = [sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(600)"]
driver = Driver("test", command, pathlib.Path(sys.argv[1]))
driver.ask("started")
print(driver.pid, flush=True)
time.sleep(600)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", harness, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True, env=environment
    ) as started:
        child = psutil.Process(int(started.stdout.readline()))
        started.kill()
    gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone


def test_the_head_of_a_run_says_whose_cpu_it_used():
    runs = [(Used({"client": 1.0, "master": 0.5, "slave": 0.001}, 1.0), 1e6)] * 3
    assert line(runs).startswith("client 1 µs (1.00 cores), master 0.5 µs (0.50 cores) a message; 1.5 of ")
    assert line([(Used({"master": 2.0}, 4.0), None)]).startswith("master (0.50 cores); 0.5 of ")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("python -m benchmarks.load 127.0.0.1:1", "client"),
        ("java -cp /c/rocketmq/* org.apache.rocketmq.broker.BrokerStartup -c /x/slave.properties", "RocketMQ's slave"),
        ("java -cp /p/pyspark/jars/* SparkSubmit --conf spark.jars=/c/kafka-clients.jar", "Spark's JVM"),
        ("python -m pyspark.daemon pyspark.worker", "Spark's Python"),
        ("sleep 5", "other"),
    ],
)
def test_a_process_is_what_its_command_line_says(words, kind):
    assert kind_of(words.split()) == kind


def test_a_server_is_what_its_command_line_says(tmp_path):
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        servers = [name_server, *processes.start_pair("broker-a", name_server)]
        kinds = [kind_of(psutil.Process(server.pid).cmdline()) for server in servers]
    assert kinds == ["name server", "master", "slave"]


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
