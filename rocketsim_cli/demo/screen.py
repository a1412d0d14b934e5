"""Shows the demo's progress: as a live screen in a terminal, else as plain lines."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rocketsim_cli.demo.producer import Sent
from rocketsim_cli.demo.query import KindSummary
from rocketsim_cli.demo.report import DemoReport, QueueProgress
from rocketsim_cli.tables import table

PLAIN_EVERY_S = 5.0
WINDOWS_SHOWN = 3
EVENTS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class DemoState:
    """The state of the demo at one moment, for the screen."""

    elapsed_s: float
    phase: str
    servers: list[tuple[str, str, bool]]
    producer: Sent
    read: int
    summaries: list[KindSummary]
    served: Counter[tuple[str, int]]
    progress: list[QueueProgress]


class Screen(Protocol):
    def event(self, line: str) -> None: ...

    def show(self, state: DemoState) -> None: ...

    def close(self) -> None: ...


def open_screen(console: Console) -> Screen:
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """Prints events, and a line of figures every few seconds, if the output is no terminal (a pipe or CI)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._shown = -PLAIN_EVERY_S

    def event(self, line: str) -> None:
        self._console.print(f"[{time.monotonic() - self._started:5.1f} s] {line}", markup=False)

    def show(self, state: DemoState) -> None:
        if state.elapsed_s - self._shown < PLAIN_EVERY_S:
            return
        self._shown = state.elapsed_s
        served = ", ".join(f"{name}:{broker_id} {count}" for (name, broker_id), count in sorted(state.served.items()))
        lag = sum(queue.max_offset - max(queue.on_master or 0, queue.on_slave or 0) for queue in state.progress)
        newest = next(iter(state.summaries), None)
        sample = f"; {newest.kind} {newest.mean:.1f} {newest.unit} at {newest.start:%H:%M:%S}" if newest else ""
        self.event(
            f"sent {state.producer.sent}, read {state.read}, group behind by {lag}; served by {served or '-'}{sample}"
        )

    def close(self) -> None:
        pass


@dataclass
class LiveScreen:
    """Redraws the whole screen in place after each event and each new state."""

    console: Console
    _events: list[str] = field(default_factory=list)
    _state: DemoState | None = None
    _live: Live = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._live.start()

    def event(self, line: str) -> None:
        self._events.append(f"{time.monotonic() - self._started:5.1f} s  {line}")
        self._redraw()

    def show(self, state: DemoState) -> None:
        self._state = state
        self._redraw()

    def close(self) -> None:
        self._live.stop()
        # Prints the events once more, so that they stay on the terminal above the final table.
        for line in self._events:
            self.console.print(line, markup=False)

    def _redraw(self) -> None:
        self._live.update(Group(*self._parts()), refresh=True)

    def _parts(self) -> list[RenderableType]:
        parts: list[RenderableType] = []
        if self._state is not None:
            parts = [
                Rule(f"RocketSim · {self._state.phase} · {self._state.elapsed_s:.0f} s"),
                servers_table(self._state),
                producer_line(self._state),
                windows_table(self._state.summaries),
            ]
        parts.append(Panel(Text("\n".join(self._events[-EVENTS_SHOWN:])), title="what happened", title_align="left"))
        return parts


def servers_table(state: DemoState) -> Table:
    made = Table(box=None, pad_edge=False)
    for column in ("server", "address", "state"):
        made.add_column(column)
    for column in ("served to Spark", "committed", "behind"):
        made.add_column(column, justify="right")
    for name, address, running in state.servers:
        broker_name, broker_id = (name[:-2], 1) if name.endswith("-s") else (name, 0)
        queues = [queue for queue in state.progress if queue.broker_name == broker_name]
        offsets = [queue.on_slave if broker_id else queue.on_master for queue in queues]
        known = [offset for offset in offsets if offset is not None]
        committed = str(sum(known)) if known and running else "-"
        behind = str(sum(queue.max_offset for queue in queues) - sum(known)) if known and running else "-"
        status = Text("running", "green") if running else Text("KILLED", "bold red")
        served = str(state.served[broker_name, broker_id]) if queues else "-"
        made.add_row(name, address, status, served, committed, behind)
    return made


def producer_line(state: DemoState) -> Text:
    producer = state.producer
    counts = ", ".join(f"{name} {count}" for name, count in {**producer.statuses, **producer.brokers}.items())
    again = f"sent again {producer.sent_again}, read by the query {state.read}"
    return Text(f"\nsent {producer.sent} ({counts}), {again}\n")


def windows_table(summaries: list[KindSummary]) -> Table:
    made = Table(box=None, pad_edge=False)
    starts = sorted({summary.start for summary in summaries}, reverse=True)[:WINDOWS_SHOWN]
    for column in ("window", "kind"):
        made.add_column(column)
    for column in ("messages", "mean", "peak"):
        made.add_column(column, justify="right")
    made.add_column("")
    for summary in summaries:
        if summary.start in starts:
            values = (str(summary.count), f"{summary.mean:.2f}", f"{summary.peak:.2f}")
            made.add_row(f"{summary.start:%H:%M:%S}", summary.kind, *values, summary.unit)
    return made


def show_report(console: Console, report: DemoReport) -> None:
    statuses = ", ".join(f"{name} {count}" for name, count in report.statuses.items())
    rows: list[dict[str, object]] = [
        {"what": "sent", "result": report.sent},
        {"what": "acknowledged", "result": f"{report.acknowledged} ({statuses})"},
        {"what": "sent again", "result": report.sent_again},
        {"what": "read", "result": report.read},
        {"what": "duplicates dropped", "result": report.duplicates_dropped},
        {"what": "lost", "result": report.lost},
        {"what": "duplicates after that", "result": report.duplicates},
        {"what": "committed offsets", "result": report.committed},
        {"what": "lag", "result": report.lag},
        {"what": f"committed to the slave of {report.killed_broker}", "result": report.committed_to_slave},
        *(
            {"what": f"served by {name} {'master' if broker_id == 0 else 'slave'}", "result": count}
            for (name, broker_id), count in sorted(report.served.items())
        ),
    ]
    if report.last_error:
        rows.insert(2, {"what": "last failed send", "result": report.last_error})
    console.print(table(("what", "result"), rows))
    offsets: list[dict[str, object]] = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "end": queue.max_offset,
            "committed on master": queue.on_master,
            "on slave": queue.on_slave,
        }
        for queue in report.progress
    ]
    console.print(table(("broker", "queue", "end", "committed on master", "on slave"), offsets))
    for line in report.sums():
        console.print(line, markup=False)
    for problem in report.problems:
        console.print(f"NOT AS PROMISED: {problem}", style="bold red", markup=False)
    if report.ok:
        console.print(
            "Nothing acknowledged was lost, nothing was counted twice, and the group has no lag.", style="green"
        )
