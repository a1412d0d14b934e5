"""The demo's readings of this machine."""

import json
from itertools import islice

from rocketsim_cli.demo.telemetry import Reading, Telemetry


def test_readings_of_every_kind_come_in_turn():
    kinds = [reading.kind for reading in islice(Telemetry().readings(), 10)]
    assert kinds == ["cpu", "memory", "disk", "network", "process"] * 2


def test_a_rate_is_what_was_counted_since_the_last_reading():
    telemetry = Telemetry()
    assert telemetry._rate("disk", "all disks", 5e9).value == 0
    assert telemetry._rate("disk", "all disks", 6e9).value > 0


def test_the_body_is_json_that_the_query_understands():
    body = json.loads(Reading("cpu", "cpu0", "%", 12.34567).body())
    assert body == {"source": "cpu0", "unit": "%", "value": 12.346}
