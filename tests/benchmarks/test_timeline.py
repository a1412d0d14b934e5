"""The waits of a put are computed from traces of both brokers."""

import os
import subprocess
import sys

import pytest

from benchmarks.timeline import Point, puts, steps_ns, summary, trace_events

MASTER = [
    Point("appended", 100, 1_000),
    Point("appended", 200, 2_000),
    Point("sent", 200, 4_000),
    Point("appended", 300, 5_000),
    Point("flushed", 100, 9_500),
    Point("confirmed", 150, 9_000),
    Point("confirmed", 200, 10_000),
    Point("answered", 100, 9_600),
    Point("answered", 200, 13_000),
    Point("flushed", 200, 12_000),
]
SLAVE = [
    Point("received", 200, 6_000),
    Point("stored", 200, 7_000),
    Point("acknowledged", 200, 8_000),
]


def test_a_put_passes_a_point_when_something_first_covers_its_end():
    first, second = puts(MASTER, SLAVE, flush=False)
    assert (first.end_offset, first.at_ns["sent"], first.at_ns["confirmed"]) == (100, 4_000, 9_000)
    assert (second.end_offset, second.at_ns["confirmed"]) == (200, 10_000)
    assert "flushed" not in second.at_ns


def test_a_put_that_was_not_answered_is_left_out():
    assert [put.end_offset for put in puts(MASTER, SLAVE, flush=True)] == [100, 200]


def test_the_steps_of_a_put_add_up_to_its_time():
    _, put = puts(MASTER, SLAVE, flush=True)
    took = steps_ns(put)
    assert took == {
        "sent": 2_000, "received": 2_000, "stored": 1_000, "acknowledged": 1_000, "confirmed": 2_000, "flushed": 2_000,
        "answered": 1_000,
    }  # fmt: skip
    assert sum(took.values()) == 13_000 - 2_000


def test_a_flush_that_the_slave_outlasts_costs_nothing():
    early = [point for point in MASTER if point.name != "flushed"] + [Point("flushed", 300, 3_000)]
    _, put = puts(early, SLAVE, flush=True)
    assert steps_ns(put)["flushed"] == 0


def test_the_summary_has_shares_and_percentiles():
    found = puts(MASTER, SLAVE, flush=False)
    lines = {name: (share, middle) for name, share, middle, _ in summary(found)}
    assert sum(share for share, _ in lines.values()) == pytest.approx(1)
    assert lines["stored"] == (pytest.approx(2_000 / (8_600 + 11_000)), 0.001)
    assert list(lines) == ["sent", "received", "stored", "acknowledged", "confirmed", "answered"]


def test_the_trace_has_a_row_for_each_put():
    events = trace_events(puts(MASTER, SLAVE, flush=False))
    assert {event["tid"] for event in events} == {0, 1}
    assert events[0] == {"ph": "X", "pid": 1, "tid": 0, "name": "sent", "ts": 0.0, "dur": 3.0}


def test_a_broker_that_is_traced_notes_what_its_log_and_stream_did():
    """The traced broker runs in a process of its own, because the traced functions stay wrapped."""
    code = """
import asyncio, sys
from types import SimpleNamespace
from benchmarks.tracing_broker import trace
from broker_service.replication.acknowledgement import AckLevels, Acknowledgements
from broker_service.replication.tracker import Tracker

found = []
trace(found.append)
levels = AckLevels(sync_master=False, sync_flush=True)
ignored = SimpleNamespace(request=lambda _: None, changed=lambda _: None)
log = SimpleNamespace(end_offset=200, flushed_offset=0)
acks = Acknowledgements(levels, Tracker(1 << 28), log, ignored, ignored)

async def put():
    waiting = asyncio.create_task(acks.wait(200, 5.0))
    await asyncio.sleep(0)
    acks.on_flushed(200)
    return await waiting

print(asyncio.run(put()).name, [(name, offset) for name, offset, _ in found])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ended.stdout.strip() == "PUT_OK [('appended', 200), ('flushed', 200), ('answered', 200)]", ended.stderr
