"""Rates over the last 10, 60 and 600 seconds."""

from broker_service.admin.rates import Rates


def test_a_rate_is_over_its_window_or_what_there_is_of_it() -> None:
    rates = Rates()
    assert rates.text("x") == "0.0 0.0 0.0"
    for second in range(101):
        rates.sample(float(second), {"x": second * 2 if second <= 90 else 180})
    assert rates.per_second("x", 10) == 0.0
    assert rates.per_second("x", 60) == (180 - 80) / 60
    assert rates.per_second("x", 600) == 180 / 100
    assert rates.per_second("unknown", 10) == 0.0


def test_what_is_older_than_the_longest_window_is_forgotten() -> None:
    rates = Rates()
    for second in range(2000):
        rates.sample(float(second), {"x": max(0, second - 1398)})
    assert rates.per_second("x", 2000) == 1.0


def test_a_counter_that_starts_again_is_no_negative_rate() -> None:
    rates = Rates()
    rates.sample(0.0, {"x": 100})
    rates.sample(1.0, {"x": 0})
    assert rates.per_second("x", 10) == 0.0
