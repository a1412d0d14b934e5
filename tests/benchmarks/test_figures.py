"""Statistics, verdicts and the rows of --json."""

import json

import pytest

from benchmarks.figures import Figure, Missing, Series, is_settled, percentile, text
from benchmarks.targets import at_least, at_most


def figure(series, reference=None, target=None):
    words = "" if reference is None else "the peer"
    return Figure("send", "rate", "msgs/s", Series.of(series), words, reference, target)


def test_a_series_has_a_middle_that_one_bad_run_does_not_move():
    series = Series.of([10, 1000, 12, 11, 9])
    assert (series.low, series.middle, series.high) == (9, 11, 1000)


def test_a_series_without_a_run_is_refused():
    with pytest.raises(ValueError, match="without a run"):
        Series.of([])


def test_the_ratio_of_two_series_is_taken_run_by_run():
    assert Series.of([10, 30]).over(Series.of([20, 40])).values == (0.5, 0.75)


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "met"),
    [
        pytest.param([20, 21, 19], [10, 10, 10], at_least("P1", 2), True, id="reached exactly"),
        pytest.param([19, 19, 19], [10, 10, 10], at_least("P1", 2), False, id="missed"),
        pytest.param([9, 9, 9], [10, 10, 10], at_most("P12", 1), True, id="lower is better"),
        pytest.param([11, 11, 11], [10, 10, 10], at_most("P12", 1), False, id="too slow"),
        pytest.param([0.96], [0.5], at_least("P7", 0.95, of_value=True), True, id="the value itself is judged"),
        pytest.param([0.9], [0.5], at_least("P7", 0.95, of_value=True), False, id="whatever the ratio is"),
        pytest.param([5], [10], None, None, id="no target"),
    ],
)
def test_a_verdict_is_about_the_medians_of_one_run(ours, theirs, target, met):
    assert figure(ours, Series.of(theirs), target).met is met


def test_a_missing_peer_is_never_a_result():
    missing = figure([100], Missing("Kafka: Maven (mvn) is not installed"), at_least("P1", 2))
    assert missing.met is None
    assert missing.verdict == "no reference"
    row = missing.row()
    assert (row["reference_value"], row["ratio"], row["met"]) == (None, None, None)
    assert "mvn" in row["reference"]


def test_a_target_of_the_value_is_judged_without_the_peer():
    assert figure([0.99], Missing("RocketMQ: no Java"), at_least("P7", 0.95, of_value=True)).met is True


def test_json_has_the_keys_that_were_promised():
    row = figure([123456.789, 2, 300000], Series.of([1000]), at_least("P4", 2)).row()
    assert list(row) == [
        "bench", "figure", "unit", "value", "reference", "reference_value", "ratio", "target", "met",
    ]  # fmt: skip
    assert json.loads(json.dumps(row)) == row
    assert row["value"] == 123500
    assert row["target"] == "P4 ≥ 2"
    assert row["met"] is True


def test_figures_are_written_for_people():
    values: dict[float | None, str]
    values = {1234567.8: "1.23 M", 999_600: "1.00 M", 12_345_678: "12.3 M", 123_456: "123 k", 12_345: "12.3 k"}
    values |= {9_876: "9,876", 12.345: "12.3", 0.01234: "0.0123", 0: "0", None: ""}
    assert {value: text(value) for value in values} == values


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)],
)
def test_a_percentile_is_a_value_that_was_measured(share, value):
    assert percentile(list(range(100, 0, -1)), share) == value


def test_percentiles_of_nothing_are_refused():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


PEER = Series.of([10, 10, 10])


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "settled"),
    [
        pytest.param([24, 25, 26], PEER, at_least("P1", 2), True, id="met, and 25 % away"),
        pytest.param([22, 22, 22], PEER, at_least("P1", 2), False, id="met, but only 10 % away"),
        pytest.param([18, 18, 18], PEER, at_least("P1", 2), False, id="missed, but only 10 % away"),
        pytest.param([16, 17, 16], PEER, at_least("P1", 2), True, id="missed by 20 %"),
        pytest.param([19, 30, 31], PEER, at_least("P1", 2), False, id="a round missed it"),
        pytest.param([7, 8, 8], PEER, at_most("P10", 1), True, id="lower is better"),
        pytest.param([9, 9, 9], PEER, at_most("P10", 1), False, id="lower is better, and it is close"),
        pytest.param([30, 10, 60], Series.of([15, 5, 30]), at_least("P1", 1.5), True, id="both drifted alike"),
        pytest.param([0.97, 0.97, 0.97], PEER, at_least("P7", 0.95, of_value=True), False, id="a value that is close"),
        pytest.param([40, 40, 40], PEER, at_least("P8", 16, of_value=True), True, id="a value that is not"),
        pytest.param([40, 40, 40], Missing("no Maven"), at_least("P1", 2), True, id="nothing is judged"),
    ],
)
def test_a_few_rounds_settle_what_the_full_run_would_judge_alike(ours, theirs, target, settled):
    assert is_settled(Series.of(ours), theirs, target) is settled


@pytest.mark.parametrize(
    ("full", "settled"), [([30, 30, 30], True), ([21, 21, 21], False), ([10, 10, 10], False), (Missing("gone"), True)]
)
def test_what_more_data_would_be_judged_otherwise_is_not_settled(full, settled):
    series = full if isinstance(full, Missing) else Series.of(full)
    assert is_settled(Series.of([40, 40, 40]), PEER, at_least("P1", 2), (series, PEER)) is settled


def test_what_is_not_settled_has_no_verdict():
    found = Figure("send", "rate", "msgs/s", Series((30.0,)), "the peer", Series((10.0,)), at_least("P4", 2), False)
    assert (found.met, found.verdict, found.row()["met"], found.ratio) == (None, "no verdict", None, 3)
    without = Figure("send", "rate", "msgs/s", Series((30.0,)), settled=False)
    assert without.verdict == ""
