"""Contestants take turns, warm up, and may drop out."""

from contextlib import ExitStack, contextmanager

import pytest

from benchmarks import consumption
from benchmarks.bench import Bench, Unavailable, WrongResult, must_be
from benchmarks.contest import FULL, QUICK, SMOKE, Plan, schedule, warmed_up, with_full_rate
from benchmarks.figures import Missing, Series
from benchmarks.targets import at_least

ALONE = "not started, because --alone leaves out all peers"


@pytest.fixture
def bench(tmp_path):
    with ExitStack() as stack:
        yield Bench("test", Plan("quick", rounds=3), tmp_path, stack, lambda done, total, what: None)


def test_full_and_quick_runs_count_as_often_as_promised():
    assert FULL.rounds >= 5
    assert QUICK.rounds >= 3
    assert min(FULL.warm_up, QUICK.warm_up) >= 1


def test_only_the_full_plan_warms_up_contestants_that_are_warm_already():
    assert FULL.again() == FULL
    assert QUICK.again() == Plan("quick", QUICK.rounds, warm_up=0)


def test_everybody_runs_once_a_round_and_the_order_turns():
    order = list(schedule(["a", "b"], Plan("quick", rounds=2)))
    assert order == [(-1, "b"), (-1, "a"), (0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_warm_up_does_not_count(bench):
    rates = iter([1000.0, 1.0, 2.0, 3.0])
    results = bench.contest({"ours": lambda: {"rate": next(rates)}})
    assert results.series("ours") == Series((1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("rates", "seconds", "used"),
    [
        ((100.0, 50.0, 200.0, 201.0), 4, 4),  # a single slow run does not end the warm-up
        ((100.0, 200.0, 300.0, 310.0, 900.0), 1, 4),  # the elapsed time does not end the warm-up while the rate rises
        ((100.0, 90.0, 900.0), 0, 2),  # two runs are enough for a peer that was warm already
    ],
)
def test_a_peer_is_warm_once_it_had_its_time_and_gets_no_faster(rates, seconds, used):
    runs = iter(rates)
    assert warmed_up(lambda: {"rate": next(runs), "seconds": 1.0}, seconds) == max(rates[:used])
    assert tuple(runs) == rates[used:]


class Sleeper:
    def __init__(self):
        self.asleep = False

    def sleep(self):
        self.asleep = True

    def wake(self):
        self.asleep = False


@contextmanager
def running(sleeper):
    yield sleeper
    assert not sleeper.asleep, "it could not end"


def test_a_peer_sleeps_beside_the_others_and_is_awake_after_the_runs(bench):
    seen = []
    with bench.section():
        peer = bench.enter(running(Sleeper()))
        bench.contest({"ours": lambda: seen.append(peer.asleep) or {"rate": 1.0}})
        assert set(seen) == {True}
        assert not peer.asleep

        def wrong():
            raise WrongResult("a message is missing")

        with pytest.raises(WrongResult):
            bench.contest({"ours": wrong})
        assert not peer.asleep
    bench.contest({"ours": lambda: seen.append(peer.asleep) or {"rate": 1.0}})
    assert not seen[-1], "it has ended"


def test_a_peer_that_is_missing_does_not_stop_the_others(bench):
    results = bench.contest({"ours": lambda: {"rate": 1.0}, "peer": Missing("not installed")})
    assert results.series("peer") == Missing("not installed")
    assert results.series("ours") == Series((1.0, 1.0, 1.0))


def test_a_peer_that_breaks_in_the_middle_has_no_result_at_all(bench):
    runs = iter(range(100))

    def breaks():
        if next(runs) == 2:
            raise Unavailable("the process ended")
        return {"rate": 5.0}

    results = bench.contest({"ours": lambda: {"rate": 1.0}, "peer": breaks})
    assert results.series("peer") == Missing("the process ended")
    assert next(runs) == 3, "it is not asked again"
    assert bench.notes == ["missing: peer: the process ended"]


def test_a_wrong_count_ends_the_benchmark(bench):
    def loses_one():
        must_be("rows", 99, 100)
        return {"rate": 1.0}

    with pytest.raises(WrongResult, match="rows: 99, not 100"):
        bench.contest({"ours": loses_one})


def test_a_peer_that_cannot_be_had_is_noted(bench):
    def fetch():
        raise Unavailable("Maven (mvn) is not installed")

    assert bench.peer("Kafka", fetch) == Missing("Kafka: Maven (mvn) is not installed")
    bench.report("rows", "rows/s", Series((1.0,)), "Kafka source", Missing("Kafka: …"))
    assert bench.figures[0].verdict == "no reference"
    assert bench.notes == ["missing: Kafka: Maven (mvn) is not installed"]


def test_alone_no_peer_is_asked_for(tmp_path):
    bench = Bench("test", SMOKE, tmp_path, ExitStack(), lambda *_: None, alone=True)
    asked = []
    assert bench.peer("Kafka", lambda: asked.append(1)) == Missing(f"Kafka: {ALONE}")
    assert asked == []
    assert bench.notes == [f"missing: Kafka: {ALONE}"]


def test_a_figure_without_a_value_of_ours_is_no_line_but_a_failure(bench):
    bench.report("rows", "rows/s", Missing("the client ended"), "Kafka source", Series((1.0,)))
    assert bench.figures == []
    assert bench.broken == ["rows: the client ended"]


@pytest.mark.parametrize(
    ("plan", "rates", "by_amount", "verdict"),
    [
        (FULL, 2.1, False, "met"),
        (FULL, 2.1, True, "met"),
        (QUICK, 3.0, False, "met"),
        (QUICK, 1.0, False, "MISSED"),
        (QUICK, 2.1, False, "no verdict"),
        (QUICK, 3.0, True, "no verdict"),
        (SMOKE, 3.0, False, "no verdict"),
    ],
)
def test_a_quick_run_judges_only_what_the_full_run_would_judge_alike(tmp_path, plan, rates, by_amount, verdict):
    bench = Bench("test", plan, tmp_path, ExitStack(), lambda *_: None)
    results = bench.contest({"ours": lambda: {"rate": rates}, "peer": lambda: {"rate": 1.0}})
    mine, theirs = results.series("ours"), results.series("peer")
    bench.report("rate", "msgs/s", mine, "peer", theirs, at_least("P4", 2), by_amount=by_amount)
    assert [figure.verdict for figure in bench.figures] == [verdict]


def test_a_quick_run_with_less_pending_work_has_no_verdict(tmp_path):
    bench = Bench("test", QUICK, tmp_path, ExitStack(), lambda *_: None)
    consumption.rates(bench, "pops", {"with": lambda: {"rate": 9.0}, "without": lambda: {"rate": 1.0}})
    assert [figure.verdict for figure in bench.figures] == ["no verdict"]


def test_a_quick_run_whose_start_weighs_more_than_the_full_one_s_has_no_verdict(tmp_path):
    """Of 4 M rows, the quick run takes 1.6 s, half of it the start; the peer takes 6.1 s, two thirds of it
    the start.
    """
    bench = Bench("test", QUICK, tmp_path, ExitStack(), lambda *_: None)
    ours, peer = {"rate": 4e6 / 1.6, "seconds": 1.6}, {"rate": 4e6 / 6.1, "seconds": 6.1}
    results = bench.contest(
        {"ours": lambda: with_full_rate(ours, 0.8, 10), "peer": lambda: with_full_rate(peer, 4.1, 10)}
    )
    mine, theirs = results.series("ours"), results.series("peer")
    in_full = results.series("ours", "full_rate"), results.series("peer", "full_rate")
    for given in (None, in_full):
        bench.report("rate", "rows/s", mine, "peer", theirs, at_least("P1", 3), in_full=given)
    assert [figure.verdict for figure in bench.figures] == ["met", "no verdict"]
    assert in_full[1].middle == pytest.approx(4e7 / 24.1)


def test_more_data_of_a_run_without_a_start_has_the_same_rate():
    assert with_full_rate({"rate": 5.0, "seconds": 2.0}, 0.0, 3)["full_rate"] == 5
    assert with_full_rate({"rate": 5.0, "seconds": 2.0}, 9.0, 3)["full_rate"] == 15  # nothing but a start


class Part:
    """A part of a benchmark, which enters itself in `ended` when it ends."""

    def __init__(self, ended):
        self._ended = ended

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.append(self)


def test_parts_end_with_the_benchmark(tmp_path):
    ended = []
    with ExitStack() as stack:
        bench = Bench("test", FULL, tmp_path, stack, lambda *_: None)

        part = bench.enter(Part(ended))
        assert not ended
    assert ended == [part]


def test_parts_of_a_section_end_with_it(bench):
    ended = []

    outer = bench.enter(Part(ended))
    with bench.section():
        inner = bench.enter(Part(ended))
        assert ended == []
    assert ended == [inner]
    assert bench.enter(outer) is outer, "what comes after lives as long as the benchmark again"
    assert ended == [inner]
