"""`python -m benchmarks.timeline [--flush] [--trace FILE]` makes a traced run, and shows from it what the puts of a
pair wait for.

The run sends with `send_async`, 4,096 messages in flight, to a SYNC_MASTER pair (with --flush also SYNC_FLUSH), and
shows how long each step of a put took.  --trace writes the puts for chrome://tracing or https://ui.perfetto.dev.
"""

import argparse
import json
import tempfile
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import cluster
from benchmarks.bench import Bench
from benchmarks.contest import SMOKE
from benchmarks.figures import percentile

# A step is named after the point at which it ends, and the text says what a put waits for in this step.
STEPS = {
    "sent": "the stream to the slave: the frame before it, the event loop",
    "received": "gRPC, and the slave's event loop",
    "stored": "the slave's checks and append",
    "acknowledged": "the slave's event loop, or its disk",
    "confirmed": "gRPC, and the master's event loop",
    "flushed": "the master's disk",
    "answered": "the put's task, woken",
}
SHOWN_PUTS = 2_000


class Point(NamedTuple):
    name: str
    offset: int
    at_ns: int


class Put(NamedTuple):
    """A put.  `at_ns` has the time at which the put passed each point, without the points that it did not wait for."""

    end_offset: int
    appended_ns: int
    at_ns: Mapping[str, int]


def read(path: Path) -> list[Point]:
    """Reads a file that tracing_broker.py has written."""
    lines = (line.split("\t") for line in path.read_text().splitlines())
    return [Point(name, int(offset), int(at)) for name, offset, at in lines]


def puts(master: Sequence[Point], slave: Sequence[Point], *, flush: bool) -> list[Put]:
    """Returns every put that was answered, with the time at which each point was first passed up to the put's end
    offset.
    """
    first = {name: _First([one for one in (*master, *slave) if one.name == name]) for name in STEPS}
    answered: dict[int, int] = {one.offset: one.at_ns for one in master if one.name == "answered"}
    found = []
    for one in master:
        if one.name != "appended" or one.offset not in answered:
            continue
        at = {name: first[name].covering(one.offset) for name in STEPS if name not in ("answered", "flushed")}
        if flush:
            at["flushed"] = first["flushed"].covering(one.offset)
        passed = {name: when for name, when in at.items() if when is not None}
        if len(passed) == len(at):
            found.append(Put(one.offset, one.at_ns, passed | {"answered": answered[one.offset]}))
    return found


class _First:
    """Finds the time at which a point was first passed up to a given log offset.  In one epoch log offsets never
    decrease.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        ordered = sorted(points, key=lambda one: one.at_ns)
        self._offsets: list[int] = []
        self._at: list[int] = []
        for point in ordered:
            if not self._offsets or point.offset > self._offsets[-1]:
                self._offsets.append(point.offset)
                self._at.append(point.at_ns)

    def covering(self, offset: int) -> int | None:
        number = bisect_left(self._offsets, offset)
        return self._at[number] if number < len(self._at) else None


def steps_ns(put: Put) -> dict[str, int]:
    """Returns how long each step of the put took.  The flush runs at the same time as the slave's steps, so `flushed`
    is only the time by which the flush ends after these steps.
    """
    took, before = {}, put.appended_ns
    for name in STEPS:
        if name in put.at_ns:
            took[name] = max(0, put.at_ns[name] - before)
            before = max(before, put.at_ns[name])
    return took


def summary(found: Sequence[Put]) -> list[tuple[str, float, float, float]]:
    """Returns for each step, in the order of STEPS: its name, its share of the total time, and its p50 and p99 in
    ms.
    """
    every = [steps_ns(put) for put in found]
    total = sum(sum(one.values()) for one in every) or 1
    lines = []
    for name in STEPS:
        took = [one[name] for one in every if name in one]
        if took:
            share = sum(took) / total
            lines.append((name, share, percentile(took, 0.5) / 1e6, percentile(took, 0.99) / 1e6))
    return lines


def trace_events(found: Sequence[Put]) -> list[dict[str, object]]:
    """Returns the puts in Chrome's trace format, with microseconds, one row for each put and one bar for each step."""
    begun = min((put.appended_ns for put in found), default=0)
    events: list[dict[str, object]] = []
    for row, put in enumerate(found):
        at = put.appended_ns
        for name, took in steps_ns(put).items():
            events.append(
                {"ph": "X", "pid": 1, "tid": row, "name": name, "ts": (at - begun) / 1000, "dur": took / 1000}
            )
            at += took
    return events


def main(argv: list[str] | None = None) -> None:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.timeline", description="Shows what the puts of a pair wait for."
    )
    made.add_argument("--flush", action="store_true", help="SYNC_FLUSH on both sides")
    made.add_argument("--size", type=int, default=100, metavar="BYTES")
    made.add_argument("--seconds", type=int, default=2)
    made.add_argument("--in-flight", type=int, default=4096, metavar="N")
    made.add_argument("--trace", type=Path, metavar="FILE", help="write the puts in Chrome's trace format")
    given = made.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rocketsim-timeline-") as folder:
        answer, found = run(Path(folder), given)
    console = Console()
    console.print(
        f"{answer['rate']:,.0f} msgs/s of {given.size} B, {given.in_flight:,} in flight, in {len(found):,} frames; "
        f"a frame took {percentile([sum(steps_ns(put).values()) for put in found], 0.5) / 1e6:.2f} ms (p50)"
    )
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("until it is", "share", "p50, ms", "p99, ms", "it waits for"):
        table.add_column(name, justify="left" if name in ("until it is", "it waits for") else "right")
    for name, share, middle, high in summary(found):
        table.add_row(name, f"{share * 100:.0f} %", f"{middle:.2f}", f"{high:.2f}", STEPS[name])
    console.print(table)
    if given.trace:
        given.trace.write_text(json.dumps(trace_events(found[-SHOWN_PUTS:])))


def run(folder: Path, given: argparse.Namespace) -> tuple[Mapping[str, float], list[Put]]:
    with ExitStack() as parts:
        bench = Bench("timeline", SMOKE, folder, parts, lambda *_: None, keep=True)
        keys = cluster.modes(sync=True, flush=given.flush)
        pair = cluster.running(bench, "pair", pair=True, module="benchmarks.tracing_broker", keys=keys)
        one = bench.enter(pair)
        assert one.slave is not None
        topic = one.topic("timeline")
        options = {"topic": topic, "size": given.size, "window": given.in_flight}
        one.load.ask("send_async", seconds=1, **options)
        warm_until = one.admin.ha_status(broker_addr=one.master.address)[0].commit_log_max_offset
        answer = one.load.ask("send_async", seconds=given.seconds, **options)
    master, slave = (read(server.folder / "trace") for server in (one.master, one.slave))
    return answer, [put for put in puts(master, slave, flush=given.flush) if put.end_offset > warm_until]


if __name__ == "__main__":
    main()
