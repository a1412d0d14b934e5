"""Every transport of pulls has a raw stream of bytes, which moves as many bytes as it was asked for."""

import pytest

from benchmarks.driver import python_driver
from benchmarks.pull import RAW
from benchmarks.raw import FRAME


def test_both_streams_have_all_their_frames(tmp_path):
    with python_driver("raw", "benchmarks.raw", tmp_path / "raw.log") as raw:
        for name in ("socket_stream", "stream"):
            sample = raw.ask(name, frames=3)
            assert sample["bytes"] == 3 * FRAME
            assert sample["bytes_rate"] == pytest.approx(sample["bytes"] / sample["seconds"])
        assert raw.ask("socket_stream", frames=0)["bytes"] == 0


def test_a_pull_stands_beside_a_raw_stream_of_its_own_transport():
    assert ["socket" in pull for pull in RAW] == ["socket" in raw for raw in RAW.values()] == [True, False]
    assert ["gRPC" in pull for pull in RAW] == ["gRPC" in raw for raw in RAW.values()] == [False, True]
