"""The demo's report as an HTML file has the figures and events, and loads nothing."""

from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from rocketsim_cli.demo import history, page
from rocketsim_cli.demo.history import Event, History, Moment, first_reads, rates
from rocketsim_cli.demo.producer import Sent
from rocketsim_cli.demo.report import DemoReport, QueueProgress
from rocketsim_cli.demo.screen import DemoState

EVIL = "<script src=//evil>&\"'"


def report(**changes: object) -> DemoReport:
    facts: dict = {
        "sent": 6001,
        "statuses": {"SEND_OK": 6000, "FAILED": 1},
        "sent_again": 1,
        "read": 6002,
        "acknowledged_ids": map(str, range(6000)),
        "counted_ids": map(str, range(6000)),
        "progress": [QueueProgress("broker-a", 0, 4, 4, 4)],
        "served": {("broker-a", 0): 4000, ("broker-a", 1): 1500, ("broker-b", 0): 500},
        "killed_broker": "broker-a",
        "committed_to_slave": 7,
        "last_error": EVIL,
    }
    return DemoReport.make(**{**facts, **changes})


def moments() -> list[Moment]:
    """Returns the moments of a minute: broker-a's master is away from 20 s to 40 s, and its slave serves the reads."""
    return [
        Moment(
            float(at_s),
            {"broker-a": 100 * (min(at_s, 20) + max(at_s - 40, 0)), "broker-b": 200 * at_s},
            {
                ("broker-a", 0): 100 * (min(at_s, 20) + max(at_s - 41, 0)),
                ("broker-a", 1): 60 * min(max(at_s - 22, 0), 18),
            },
            {"broker-a": 3, EVIL: at_s},
        )
        for at_s in range(61)
    ]


EVENTS = [
    Event(40.0, "broker-a is back", is_marked=True),
    Event(1.0, EVIL),
    Event(20.0, "SIGKILL: broker-a", is_marked=True),
]


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}


def loads_nothing(text: str) -> bool:
    elements = Elements(text)
    loading = {"script", "link", "img", "iframe", "object", "embed", "use", "image", "base", "form", "a"}
    words = ("http://", "https://", "url(", "@import")
    return not (
        loading & elements.tags.keys()
        or {"src", "href", "xlink:href", "style", "onload"} & elements.attributes
        or any(word in text for word in words)
    )


def test_the_page_says_what_happened_and_loads_nothing() -> None:
    text = page.page(report(), moments(), EVENTS, {"RocketSim": "1.2.3", "rate": EVIL})
    assert loads_nothing(text)
    assert "Nothing acknowledged was lost" in text
    for name, count in {"sent": "6,001", "acknowledged": "6,000", "rows read": "6,002", "lost": "0"}.items():
        assert f"<b>{count}</b><span>{name}</span>" in text
    assert text.index("SIGKILL: broker-a") < text.index("broker-a is back")
    for part in ("broker-a master", "broker-a slave", "1.2.3", "FAILED 1", "duplicates that the query dropped"):
        assert part in text
    elements = Elements(text)
    assert elements.tags["svg"] == 3 and elements.tags["path"] == 6
    assert elements.tags["circle"] == 3 * 2  # two marked events on each chart
    assert "<script" not in text and text.count("&lt;script src=//evil&gt;&amp;&quot;&#x27;") == 4


def test_the_charts_leave_out_the_time_before_the_first_figures() -> None:
    late = [replace(moment, at_s=moment.at_s + 100) for moment in moments()]
    events = [Event(0.0, "starting"), Event(120.0, "SIGKILL: broker-a", is_marked=True)]
    text = page.page(report(), late, events, {})
    assert text.count(">100 s</text>") == text.count(">160 s</text>") == 3
    assert ">0 s</text>" not in text


def test_a_broken_promise_stands_first() -> None:
    text = page.page(report(counted_ids=["1"]), [], [], {})
    assert "Not as promised: 5999 acknowledged messages were never read" in text
    assert "Nothing acknowledged was lost" not in text and loads_nothing(text)


def test_reads_move_to_the_slave_and_back() -> None:
    assert first_reads(moments(), ("broker-a", 1), 20.0) == 23.0
    assert first_reads(moments(), ("broker-a", 0), 40.0) == 42.0
    assert first_reads(moments(), ("broker-b", 1), 0.0) is None


def test_a_rate_is_the_mean_of_a_window() -> None:
    assert rates([(0.0, 0), (1.0, 100), (2.0, 100), (4.0, 100)], window_s=2) == [(1.0, 100), (2.0, 50), (4.0, 0)]
    assert rates([]) == rates([(1.0, 5)]) == []
    at_kill = history.stored_per_second(moments())["broker-a"]
    assert dict(at_kill)[20.0] == 100 and dict(at_kill)[30.0] == 0 and dict(at_kill)[50.0] == 100


@pytest.mark.parametrize(("most", "top"), [(0, 1), (1, 1), (3, 4), (150, 200), (999, 1000), (1000, 1000)])
def test_the_top_of_a_chart_is_a_round_number(most: float, top: float) -> None:
    assert page.ceiling(most) == top


def test_a_history_is_bounded_and_keeps_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOMENTS", 8)
    now = [0.0]
    kept = History(clock=lambda: now[0])
    progress = [QueueProgress("broker-a", 0, 10, 4, 6), QueueProgress("broker-a", 1, 10, None, None)]
    state = DemoState(0.0, "", [], Sent(brokers={"broker-a": 5}), 0, [], Counter({("broker-a", 1): 2}), progress)
    for tenth in range(1000):
        now[0] = tenth / 10
        kept.record(state)
    assert len(kept.moments) <= 8 and kept.moments[0].at_s == 0 and kept.moments[-1].at_s > 80
    assert kept.moments[-1].lag == {"broker-a": 14} and kept.moments[-1].served == {("broker-a", 1): 2}
    kept.note("the end", is_marked=True)
    assert kept.events == [Event(99.9, "the end", is_marked=True)]
