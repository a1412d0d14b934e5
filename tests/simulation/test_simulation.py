"""Runs the real brokers under random faults.  A failure names its seed, which repeats the run exactly."""

from itertools import takewhile

import pytest

from tests.simulation import stories
from tests.simulation.crash_points import CrashPoints
from tests.simulation.promises import PromiseBroken
from tests.simulation.shrinking import shrunk
from tests.simulation.world import World, plan

STEPS = 150
ASYNC_MASTER_ASYNC_FLUSH, WITH_RETENTION = 3, 7
CRASH_SEEDS, CRASH_POINTS = 9, 1_112  # 10^4 in all


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_no_promise_is_broken_whatever_happens(first):
    for seed in range(first, first + 4):
        World(seed).run(plan(seed, STEPS))


@pytest.mark.parametrize("seed", range(CRASH_SEEDS))
def test_a_broker_may_die_before_any_call_of_its_disk(seed):
    """A broker dies by a kill or by a power loss before each call to its disk."""
    world = World(seed)
    crash_points = CrashPoints(world)
    world.run(takewhile(lambda _: len(crash_points.points) < CRASH_POINTS, plan(seed, STEPS)))
    assert len(crash_points.points) >= CRASH_POINTS


def test_a_seed_runs_the_same_again():
    worlds = [World(5), World(5)]
    for world in worlds:
        world.run(plan(5, STEPS))
    assert worlds[0].fingerprint == worlds[1].fingerprint
    assert len(worlds[0].crash_points) > 5


def test_a_failing_run_is_shrunk_to_what_it_takes():
    decisions = plan(3, 40)
    needed = {decisions[7], decisions[21], decisions[22]}

    def run(fewer):
        return "seed 3, mode: broker-1 lost 17" if needed <= set(fewer) else "seed 3, mode: something else"

    kept, message = shrunk(decisions, "seed 3, mode: broker-0 lost 4", run)
    assert set(kept) == needed
    assert message == "seed 3, mode: broker-1 lost 17"


def test_a_slave_that_was_away_may_show_what_its_master_has_lost(monkeypatch):
    """Only a slave that was away may show records that its master has lost, because a returning master asks all other
    slaves before it continues.
    """
    story = stories.a_slave_that_was_away_shows_what_its_master_has_lost
    World(ASYNC_MASTER_ASYNC_FLUSH).play(story)
    monkeypatch.setattr(World, "could_meet", lambda *_: True)
    with pytest.raises(PromiseBroken, match=r"is gone from broker-1 \(a consumer has it\)"):
        World(ASYNC_MASTER_ASYNC_FLUSH).play(story)


def test_an_operator_promotes_the_slave_of_a_master_that_has_lost_what_was_deleted_there():
    World(WITH_RETENTION).play(stories.a_master_has_lost_what_its_slave_has_deleted)


def test_retention_deletes_nothing_by_a_clock_that_is_ahead_for_a_while():
    World(WITH_RETENTION).play(stories.the_clock_of_a_master_is_ahead_for_a_while)
    World(WITH_RETENTION).play(stories.the_clocks_of_slaves_are_ahead_for_a_while)


def test_store_times_go_on_behind_a_clock_that_was_ahead():
    World(ASYNC_MASTER_ASYNC_FLUSH).play(stories.a_clock_that_was_ahead_is_right_after_a_restart)


def test_a_broker_holds_no_longer_what_has_expired_there():
    World(WITH_RETENTION).play(stories.a_replaced_master_copies_again_what_has_expired_there)


def test_a_broker_holds_no_longer_what_a_full_disk_has_deleted():
    World(WITH_RETENTION).play(stories.a_replaced_master_on_a_full_disk_copies_again_what_it_has_just_deleted)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1400, 10))
def test_no_promise_is_broken_whatever_happens_for_long(first):
    for seed in range(first, first + 10):
        World(seed).run(plan(seed, 2 * STEPS))
