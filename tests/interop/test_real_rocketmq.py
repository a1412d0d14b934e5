"""The stores that this project writes, served by a real Apache RocketMQ: `python -m tests.interop.check` as a test."""

import shutil
from pathlib import Path

import pytest

from tests.interop.check import check
from tests.interop.stores import make_stores

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("mvn"), reason="fetching RocketMQ needs Maven (mvn), which is not installed"),
]


def test_rocketmq_reads_every_field_of_every_message_as_our_dump_says(tmp_path: Path) -> None:
    outcomes = [check(name, store, tmp_path / name) for name, store in make_stores(tmp_path / "stores").items()]
    assert {outcome.name: outcome.differences for outcome in outcomes} == {one.name: [] for one in outcomes}
    assert sum(outcome.messages for outcome in outcomes) > 5_000
    assert {outcome.name for outcome in outcomes} == {"master", "slave", "trimmed", "golden"}
