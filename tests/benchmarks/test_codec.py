"""The benchmark of the record codec compares both codecs, and says why one of them is missing."""

from contextlib import ExitStack

import pytest
from rocketsim_proto.records import kernels

from benchmarks import codec
from benchmarks.bench import Bench
from benchmarks.contest import SMOKE
from benchmarks.figures import Missing, Series
from tests.support.record_codec import needs_compiled_codec

FIGURES = [
    "check, 100 B, 32 at once",
    "encode, 100 B, 32 at once",
    "check, 100 B, 4,096 at once",
    "encode, 100 B, 4,096 at once",
    "scan of a log, bodies of 20 to 2,000 B",
    "scan of a log, bodies of 1,010 B",
]


@pytest.fixture
def bench(tmp_path):
    return Bench("codec", SMOKE, tmp_path, ExitStack(), lambda *_: None)


@needs_compiled_codec
def test_each_figure_of_the_compiled_codec_stands_beside_that_in_python(bench):
    before = kernels.compiled
    codec.run(bench)
    assert kernels.compiled is before
    assert [figure.name for figure in bench.figures] == [f"{name}, compiled" for name in FIGURES]
    assert {figure.reference for figure in bench.figures} == {"in Python"}
    assert all(isinstance(figure.reference_series, Series) for figure in bench.figures)
    with_target = [figure.name for figure in bench.figures if figure.target]
    assert with_target == [f"{name}, compiled" for name in FIGURES[2:4]]
    assert bench.notes == bench.broken == []


@pytest.mark.parametrize(
    ("forced", "reason"),
    [
        ("python", "ROCKETSIM_KERNELS=python forces the codec in Python; unset it to measure both"),
        ("", "it is not installed; `rocketsim doctor` says how to install it"),
    ],
)
def test_without_the_compiled_codec_its_figures_are_missing_with_the_reason(bench, monkeypatch, forced, reason):
    monkeypatch.setattr(kernels, "compiled", None)
    monkeypatch.setenv("ROCKETSIM_KERNELS", forced)
    codec.run(bench)
    assert [figure.name for figure in bench.figures] == [f"{name}, in Python" for name in FIGURES]
    assert {figure.reference_series for figure in bench.figures} == {Missing(f"compiled codec: {reason}")}
    assert {figure.verdict for figure in bench.figures} == {"no reference"}
    assert bench.notes == [f"missing: compiled codec: {reason}"]
    assert bench.broken == []


def test_a_frame_of_any_size_has_the_step_that_a_name_asks_for():
    assert [name for name, _ in codec.steps_named({"check", "walk"}, 100, 1)] == ["check", "walk"]


def test_the_log_that_is_scanned_has_a_record_for_each_size(tmp_path):
    with codec.log_of(tmp_path / "log", [20, 2000, 500]) as log:
        assert codec.scanned(log) == 3
