"""The demo's verdict: each broken promise is reported."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from rocketsim_cli.demo.report import DemoReport, QueueProgress
from rocketsim_cli.demo.screen import show_report


def report(**changes: object) -> DemoReport:
    facts: dict = {
        "sent": 3,
        "statuses": {"SEND_OK": 3},
        "sent_again": 1,
        "read": 4,
        "acknowledged_ids": ["1", "2", "3"],
        "counted_ids": ["1", "2", "3"],
        "progress": [QueueProgress("broker-a", 0, 4, 4, 4)],
        "served": {("broker-a", 0): 2, ("broker-a", 1): 1},
        "killed_broker": "broker-a",
        "committed_to_slave": 1,
    }
    return DemoReport.make(**{**facts, **changes})


def test_everything_as_promised_is_ok():
    made = report()
    assert made.ok
    assert (made.lost, made.duplicates, made.duplicates_dropped, made.lag, made.committed) == (0, 0, 1, 0, 4)


QUEUE = QueueProgress("broker-a", 0, 4, 4, 4)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"counted_ids": ["1", "2"]}, "1 acknowledged messages were never read", id="lost"),
        pytest.param({"counted_ids": ["1", "2", "3", "3"]}, "counted more than once", id="counted twice"),
        pytest.param({"acknowledged_ids": []}, "no message was acknowledged", id="nothing acknowledged"),
        pytest.param({"progress": []}, "no committed offsets", id="nothing committed"),
        pytest.param({"progress": [replace(QUEUE, on_master=3, on_slave=3)]}, "1 messages behind", id="behind"),
        pytest.param({"progress": [replace(QUEUE, on_slave=3)]}, "different offsets", id="slave apart"),
        pytest.param({"served": {("broker-a", 0): 3}}, "slave of broker-a served nothing", id="slave never read"),
        pytest.param({"committed_to_slave": 0}, "took no offsets", id="nothing committed to the slave"),
        pytest.param({"trouble": ["too slow"]}, "too slow", id="trouble on the way"),
    ],
)
def test_each_broken_promise_is_named(changes, problem):
    made = report(**changes)
    assert not made.ok
    assert any(problem in line for line in made.problems)


def test_one_lost_and_one_counted_twice_do_not_cancel_out():
    made = report(counted_ids=["1", "2", "2"])
    assert (made.lost, made.duplicates) == (1, 1)


def test_a_send_that_failed_says_why():
    console = Console(width=100, record=True, file=io.StringIO())
    show_report(console, report(statuses={"SEND_OK": 3, "FAILED": 1}, last_error="no broker answered in 3 s"))
    assert "no broker answered in 3 s" in console.export_text()


def test_sums_that_agree_need_no_words():
    assert report(read=3, sent_again=0).sums() == []


def test_sums_that_differ_say_why():
    told = "\n".join(report(sent=5, counted_ids=["1", "2", "3", "4"], read=6).sums())
    assert "2 of 5 sent messages were not acknowledged; 1 of them were stored all the same" in told
    assert "read 6 = 4 in the result + 2 duplicates" in told
    printed = io.StringIO()
    show_report(Console(file=printed, width=200), report())
    assert "read 4 = 3 in the result + 1 duplicates" in printed.getvalue()
