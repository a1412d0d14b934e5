"""Volumes over the last minute, hour and day, and the counters of the last midnights."""

from datetime import date

from broker_service.admin.mornings import Mornings
from broker_service.admin.volumes import TOTAL, Volumes
from broker_service.broker.core.traffic import Traffic
from tests.support.held_memory import held_bytes

START_S = 7_200.0


def sample_all(volumes: Volumes, hour: int) -> None:
    for second in range(3):
        volumes.sample(float(hour + second))


def test_a_minute_an_hour_and_a_day_of_a_message_a_second() -> None:
    traffic = Traffic()
    volumes = Volumes(traffic, START_S)
    passed = 0

    def sums_after(end: int) -> tuple[int, ...]:
        """Returns what each window has counted.  Every window has a rate of one message a second."""
        nonlocal passed
        for second in range(passed + 1, end + 1):
            traffic.add(("t",), 1, 100)
            volumes.sample(START_S + second)
        passed = end
        found = volumes.of(("t",), START_S + end)
        assert found is not None and found == tuple(one._replace(calls=one.messages) for one in found)
        assert all(one.per_second(one.messages) == 1.0 and one.bytes == 100 * one.messages for one in found)
        total = volumes.of(TOTAL, START_S + end)
        assert total == tuple(one._replace(calls=0) for one in found)
        return tuple(one.messages for one in found)

    assert sums_after(1) == (1, 1, 1)
    assert sums_after(59) == (59, 59, 59)
    assert sums_after(60) == (50, 60, 60)
    assert sums_after(69) == (59, 69, 69)
    assert sums_after(4_199) == (59, 3_599, 4_199)
    # One call takes one sample, so the hour's oldest sample was taken a second after the day's.
    assert sums_after(89_999) == (59, 3_598, 86_399)


def test_what_is_idle_has_no_volume_after_a_day_but_is_known() -> None:
    traffic = Traffic()
    volumes = Volumes(traffic, 0.0)
    assert volumes.of(("t", "g"), 0.0) is None
    traffic.add(("t", "g"), 3, 30)
    traffic.add(("t", "g"), 0, 0)  # a pull that found nothing is no call
    expected = {50: (3, 3, 3), 120: (0, 3, 3), 7_200: (0, 0, 3), 90_000: (0, 0, 0)}
    for now in range(0, 90_001, 10):
        volumes.sample(float(now))
        if now in expected:
            found = volumes.of(("t", "g"), float(now))
            assert found is not None and tuple(one.messages for one in found) == expected[now], now
            assert [one.calls for one in found] == [one.messages > 0 for one in found]


def test_a_topic_that_was_deleted_and_created_again_begins_at_0() -> None:
    traffic = Traffic()
    volumes = Volumes(traffic, 0.0)
    traffic.add(("t",), 100, 1_000)
    sample_all(volumes, 3_600)
    traffic.forget(lambda topic: topic == "t")
    assert volumes.of(("t",), 3_603.0) is None
    traffic.add(("t",), 7, 70)
    for now in (3_604.0, 3_700.0):
        volumes.sample(now)
        found = volumes.of(("t",), now)
        assert found is not None and {(one.messages, one.bytes) for one in found} == {(7, 70)}


def test_samples_of_deleted_topics_are_forgotten() -> None:
    traffic = Traffic()
    volumes = Volumes(traffic, 0.0)
    for number in range(1_000):
        traffic.add((f"t{number}",), 1, 1)
    before = held_bytes(volumes)
    sample_all(volumes, 3_600)
    with_samples = held_bytes(volumes)
    assert 500_000 < with_samples - before < 1_500_000
    traffic.forget(lambda topic: True)
    sample_all(volumes, 7_200)
    assert held_bytes(volumes) < before


def test_the_counters_of_the_last_two_midnights() -> None:
    mornings = Mornings(date(2026, 11, 27))
    for day, count in ((27, 5), (27, 9), (28, 10), (28, 20), (29, 21)):
        mornings.sample(date(2026, 11, day), {"put": count})
    assert (mornings.yesterday, mornings.today) == ({"put": 10}, {"put": 21})
