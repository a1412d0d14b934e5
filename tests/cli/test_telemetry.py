"""The demo's readings of this machine."""

import json
from itertools import islice
from types import SimpleNamespace

import psutil

from rocketsim_cli.demo.telemetry import Reading, Telemetry


def test_readings_of_every_kind_come_in_turn():
    kinds = [reading.kind for reading in islice(Telemetry().readings(), 10)]
    assert kinds == ["cpu", "memory", "disk", "network", "process"] * 2


def test_a_rate_is_what_was_counted_since_the_last_reading(monkeypatch):
    counted = iter([5e9, 6e9, 6e9])
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: SimpleNamespace(read_bytes=next(counted), write_bytes=1e9))
    of_disk = [one.value for one in islice(Telemetry().readings(), 15) if one.kind == "disk"]
    assert of_disk[0] == of_disk[2] == 0 < of_disk[1]


def test_the_body_is_json_that_the_query_understands():
    body = json.loads(Reading("cpu", "cpu0", "%", 12.34567).body())
    assert body == {"source": "cpu0", "unit": "%", "value": 12.346}
