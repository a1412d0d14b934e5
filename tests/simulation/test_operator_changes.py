"""An operator's changes on real brokers that die and are replaced, while clients use what is changed."""

import random
from typing import Any

import pytest

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.config_table import ConfigTable
from broker_service.put_result import PutStatus
from broker_service.replication.acknowledgement import Acknowledgements
from tests.simulation import plays, stories
from tests.simulation.broker import Broker as SimulatedBroker
from tests.simulation.operator_changes import TOPIC, OperatorChanges
from tests.simulation.promises import PromiseBroken
from tests.simulation.world import World

SYNC_MASTER_SYNC_FLUSH_OF_THREE, SYNC_MASTER_SYNC_FLUSH_OF_TWO = 0, 4
EACH_MODE = SYNC_MASTER_SYNC_FLUSH_OF_TWO, 1, 2, 3


def test_a_new_topic_has_nothing_of_the_deleted_one_and_a_promotion_keeps_what_was_changed() -> None:
    counts = plays.totals("operator-changes", EACH_MODE)
    assert min(counts["stored"], counts["deletions"], counts["settings"], counts["deaths"]) > 20
    assert counts["committed"] > 5


def test_records_that_meet_a_deletion_on_its_thread_break_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfigTable, "is_changing", lambda self, name: False)
    with pytest.raises(PromiseBroken, match="the next topic of that name gets what is behind"):
        plays.totals("operator-changes", EACH_MODE)


def test_readers_find_records_that_meet_a_deletion_in_the_next_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation finds the planted bug by what consumers read, even without its check of the deleted topic's noted
    end offsets.
    """
    monkeypatch.setattr(ConfigTable, "is_changing", lambda self, name: False)
    monkeypatch.setattr(OperatorChanges, "watch", lambda self, broker: None)
    with pytest.raises(PromiseBroken, match="is in the next topic of its name"):
        World(SYNC_MASTER_SYNC_FLUSH_OF_TWO).play(commits_meet_a_deletion)


def commits_meet_a_deletion(world: World) -> None:
    master, _ = stories.pair(world, 1)
    changes = OperatorChanges(world)
    chance = random.Random(1)
    for _ in range(6):
        changes.prepare(master, chance)
    world.pass_time(1.0)
    changes.delete(master)
    while changes.prepared:
        world.loop.run_for(0.001)
        changes.commit(master, chance)
    world.pass_time(2.0)
    changes.send(master, chance)
    world.pass_time(1.0)
    assert TOPIC in master.live.topics.entries
    changes.check(master)


def test_a_table_takes_its_time_to_be_written() -> None:
    """If the write took no virtual time, no other call could come while the table is being written."""
    found: list[float] = []

    def story(world: World) -> None:
        master, _ = stories.pair(world, 1)
        changes = OperatorChanges(world)
        changes.send(master, random.Random(1))
        world.pass_time(1.0)
        changes.delete(master)
        assert world.loop.run_until(lambda: master.live.topics.is_changing(TOPIC), 5.0, 0.0005)
        began = world.loop.now
        assert world.loop.run_until(lambda: not master.live.topics.is_changing(TOPIC), 5.0, 0.0005)
        found.append(world.loop.now - began)

    World(SYNC_MASTER_SYNC_FLUSH_OF_TWO).play(story)
    assert found[0] > 0.004, found


# --- right before a promotion ---------------------------------------------------------------------------------------


def promote(world: World, master: SimulatedBroker, slave: SimulatedBroker) -> bool:
    """The master dies, and an operator promotes the slave without force."""
    master.kill()
    world.pass_time(25.0)
    world.clients.promote(slave, force=False)
    return world.loop.run_until(lambda: slave.is_writable, 25.0)


def the_master_dies_behind_a_change(world: World) -> None:
    """The slave does not have the change, because its connection was cut just before."""
    master, slave = stories.pair(world, 3)
    changes = OperatorChanges(world)
    changes.set_group(master)
    world.pass_time(1.0)
    stories.cut(world, master.host, slave.host)
    changes.set_group(master)
    world.pass_time(3.0)
    assert promote(world, master, slave)
    changes.check_settings(slave)
    assert changes.counts["settings"]


def a_change_is_on_one_slave_and_the_other_is_to_be_promoted(world: World) -> None:
    """The logs of both slaves are equal, except that only one has the record that follows the change."""
    master, has_it, lacks_it = world.brokers
    stories.follow(world, has_it, lacks_it)
    stories.send(world, master, 3)
    changes = OperatorChanges(world)
    changes.set_group(master)
    world.pass_time(2.0)
    assert changes.counts["settings"] == 1
    stories.cut(world, master.host, lacks_it.host)
    changes.set_group(master)
    world.pass_time(3.0)
    assert changes.counts["settings"] == 2
    if promote(world, master, lacks_it):
        changes.check_settings(lacks_it)
        return
    world.clients.promote(has_it, force=False)
    assert world.loop.run_until(lambda: has_it.is_writable, 10.0)
    changes.check_settings(has_it)


def answer_changes_early(plant: Any) -> None:
    """An operator's change is answered before a slave has it."""

    async def wait_for_change(*_: Any, **__: Any) -> PutStatus:
        return PutStatus.PUT_OK

    plant(Acknowledgements, "wait_for_change", wait_for_change)


def leave_the_log_as_it_is(plant: Any) -> None:
    """The slave with the longest log may be a slave that has not heard of the change."""
    plant(Broker, "_mark_change", lambda self: True)


@pytest.mark.parametrize(
    ("bug", "seed", "story"),
    [
        (answer_changes_early, SYNC_MASTER_SYNC_FLUSH_OF_TWO, the_master_dies_behind_a_change),
        (
            leave_the_log_as_it_is,
            SYNC_MASTER_SYNC_FLUSH_OF_THREE,
            a_change_is_on_one_slave_and_the_other_is_to_be_promoted,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_setting_made_right_before_a_promotion_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, bug: Any, seed: int, story: Any
) -> None:
    World(seed).play(story)
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken, match="was COMMIT_OK"):
        World(seed).play(story)
