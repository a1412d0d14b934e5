"""A broker's time while its wall clock is set.  The test controls both clocks."""

import random
from itertools import pairwise

import pytest

from broker_service.broker.core.broker_time import (
    BELIEVED_AFTER_MS,
    EXPIRY_BELIEVES_AFTER_MS,
    SLEW,
    STEP_MS,
    BrokerTime,
)

NOON = 1_795_176_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


class Machine:
    """`off_ms`: how far its wall clock is off.  Time passes as it does for a broker, which reads its clocks ten times a
    second.
    """

    def __init__(self, off_ms: int = 0, newest_stored_ms: int = NOON) -> None:
        self.passed_ms = 0
        self.off_ms = off_ms
        self.newest_stored_ms = newest_stored_ms
        self.start()

    def start(self) -> None:
        self.time = BrokerTime(self, self)

    def monotonic(self) -> float:
        return self.passed_ms / 1000

    def since_boot(self) -> float:
        return self.passed_ms / 1000

    def now_ms(self) -> int:
        return self.real_ms + self.off_ms

    @property
    def real_ms(self) -> int:
        return NOON + self.passed_ms

    def let_pass(self, ms: int, every_ms: int = 1000) -> None:
        for _ in range(ms // every_ms):
            self.passed_ms += every_ms
            self.time.now_ms()

    def errors(self) -> tuple[int, int]:
        """Returns how far the time of day and store times are ahead of the real time."""
        return self.time.day_ms() - self.real_ms, self.time.now_ms() - self.real_ms


@pytest.mark.parametrize("by_ms", [80 * HOUR, -80 * HOUR, STEP_MS + 1, -STEP_MS - 1])
def test_a_step_that_does_not_last_moves_no_time(by_ms):
    machine = Machine()
    machine.let_pass(5000)
    machine.off_ms = by_ms
    machine.let_pass(BELIEVED_AFTER_MS - 1000)
    assert machine.errors() == (0, 0)
    assert machine.time.doubted_s == by_ms / 1000
    assert machine.time.expiry_ms() == machine.real_ms + min(0, by_ms)
    machine.off_ms = 0
    machine.let_pass(BELIEVED_AFTER_MS)
    assert machine.errors() == (0, 0)
    assert (machine.time.doubted_s, machine.time.steps) == (0, 1)
    assert machine.time.expiry_ms() == machine.real_ms


def test_a_step_ahead_that_lasts_is_believed_but_not_by_retention():
    """A virtual machine that was paused shows a step ahead that lasts, because its clock since boot stood
    still, too.
    """
    machine = Machine()
    machine.off_ms = 8 * HOUR
    machine.let_pass(BELIEVED_AFTER_MS + 1000)
    assert machine.errors() == (8 * HOUR, 8 * HOUR)
    assert machine.time.doubted_s == 0
    machine.let_pass(EXPIRY_BELIEVES_AFTER_MS - 60_000, 60_000)
    assert machine.time.expiry_ms() == machine.real_ms
    machine.let_pass(60_000)
    assert machine.time.expiry_ms() == machine.now_ms()


def test_a_step_back_that_lasts_is_believed_but_store_times_never_fall():
    """Store times run slower until the time of day has reached them."""
    machine = Machine()
    machine.off_ms = -HOUR
    machine.let_pass(BELIEVED_AFTER_MS + 1000)
    day, store = machine.errors()
    assert (day, machine.time.expiry_ms()) == (-HOUR, machine.now_ms())
    assert -1000 <= store <= 0
    machine.let_pass(HOUR)
    assert machine.errors()[1] - store == pytest.approx(-SLEW * HOUR, abs=1000)
    machine.let_pass(int(HOUR / SLEW))
    assert machine.errors() == (-HOUR, -HOUR)
    assert machine.time.ahead_s == 0


def test_a_step_that_was_believed_and_was_wrong_expires_nothing_once_it_is_taken_back():
    machine = Machine()
    machine.off_ms = 100 * DAY
    machine.let_pass(2 * HOUR)
    assert machine.time.expiry_ms() == machine.real_ms
    machine.off_ms = 0
    machine.let_pass(2 * DAY, 60_000)
    assert machine.errors()[0] == 0
    assert machine.time.expiry_ms() == machine.real_ms


@pytest.mark.parametrize("by_ms", [5000, -5000, STEP_MS, -STEP_MS])
def test_a_small_difference_is_made_up_slowly(by_ms):
    machine = Machine()
    machine.off_ms = by_ms
    times = []
    for _ in range(BELIEVED_AFTER_MS // 1000):
        machine.let_pass(1000)
        times.append(machine.time.day_ms())
    steps = [after - before for before, after in pairwise(times)]
    assert set(steps) <= {*range(899, 1102)}
    assert machine.errors() == (by_ms, by_ms)
    assert machine.time.steps == 0


def test_a_clock_that_runs_twice_as_fast_is_followed_no_faster_than_a_difference_is_made_up():
    machine = Machine()
    for _ in range(20_000):
        machine.off_ms += 1000
        machine.let_pass(1000)
    assert machine.time.day_ms() - machine.real_ms < STEP_MS
    assert machine.time.doubted_s > 0
    assert machine.time.steps == 1


def test_a_suspended_machine_has_its_time_at_once():
    """The clock since boot goes on while the machine sleeps, so the whole step is believed at once."""
    machine = Machine()
    machine.passed_ms += 8 * HOUR
    assert machine.errors() == (0, 0)
    assert machine.time.expiry_ms() == machine.real_ms


@pytest.mark.parametrize("off_ms", [-HOUR, -50 * 365 * DAY])
def test_a_start_with_a_clock_behind_the_log_goes_on_behind_the_log(off_ms, caplog):
    machine = Machine(off_ms)
    assert "ahead of this machine's clock" in caplog.text
    assert machine.errors() == (off_ms, 0)
    assert machine.time.expiry_ms() == machine.now_ms()
    machine.let_pass(10_000)
    assert machine.errors() == (off_ms, -1000)
    machine.off_ms = 0
    machine.let_pass(BELIEVED_AFTER_MS + 1000)
    assert machine.errors() == (0, 0)


def test_after_a_start_retention_waits_for_the_clock_to_be_set():
    """At a start, a clock that is ahead looks the same as a long time in which the broker was down."""
    machine = Machine(off_ms=100 * DAY, newest_stored_ms=NOON)
    assert machine.time.expiry_ms() == NOON + DAY
    machine.off_ms = 0
    machine.let_pass(BELIEVED_AFTER_MS + 1000)
    assert machine.time.expiry_ms() == machine.real_ms

    machine = Machine(newest_stored_ms=NOON - 100 * DAY)
    assert machine.time.expiry_ms() == NOON - 99 * DAY
    machine.let_pass(BELIEVED_AFTER_MS)
    assert machine.time.expiry_ms() == machine.real_ms


def test_a_slave_goes_on_from_the_store_times_of_its_master():
    """Store times follow a master whose clock is ahead, while the slave's own time of day does not change."""
    machine = Machine()
    for _ in range(10):
        machine.let_pass(1000)
        machine.newest_stored_ms = machine.real_ms + HOUR
        assert machine.errors() == (0, HOUR)
    machine.let_pass(1000)
    assert machine.errors() == (0, HOUR - 100)


def test_a_store_time_that_no_clock_can_have_is_not_followed():
    machine = Machine(newest_stored_ms=NOON | 1 << 60)
    assert machine.errors() == (0, 0)
    machine.newest_stored_ms = 1 << 63
    assert machine.errors() == (0, 0)


@pytest.mark.parametrize("seed", range(30))
def test_store_times_never_fall_and_no_delay_is_much_longer_than_it_is(seed):
    """The wall clock may step in any way, and the log may contain later store times at a restart."""
    chance = random.Random(seed)
    machine = Machine(chance.choice((0, -HOUR, DAY)))
    before, began = machine.time.now_ms(), 0
    for _ in range(300):
        if chance.random() < 0.1:
            machine.off_ms += chance.choice((-1, 1)) * chance.choice((500, 20_000, HOUR, 10 * DAY))
        if chance.random() < 0.03:
            machine.newest_stored_ms = before
            machine.start()
        began, passed = machine.time.now_ms(), chance.choice((0, 100, 10_000, 700_000))
        assert began >= before
        machine.let_pass(passed, max(passed // 100, 1))
        before = machine.time.now_ms()
        machine.newest_stored_ms = max(machine.newest_stored_ms, chance.choice((0, before)))
        assert before - began >= passed * (1 - SLEW) - 1
