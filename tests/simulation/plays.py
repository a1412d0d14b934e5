"""Plays, which are runs of the simulation with one kind of consumers and producers.  The seed of a play decides
everything else, including the mode of the pair.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from tests.simulation import deliveries, late_messages, operator_changes
from tests.simulation.world import World


class Counted(Protocol):
    """The result of a play: counts of what happened."""

    @property
    def counts(self) -> dict[str, int]: ...


PLAYS: dict[str, Callable[[World], Counted]] = {
    "deliveries": deliveries.play,
    "deliveries-on-bad-disks": deliveries.play_on_bad_disks,
    "deliveries-on-full-disks": deliveries.play_on_full_disks,
    "late-messages": late_messages.play,
    "late-messages-half-copied": late_messages.play_with_deaths_while_copying,
    "late-messages-on-bad-disks": late_messages.play_on_bad_disks,
    "late-messages-on-full-disks": late_messages.play_on_full_disks,
    "operator-changes": operator_changes.play,
}


def played(name: str, world: World) -> Counter[str]:
    """Plays the named play, and returns counts of what happened, deaths of brokers and faults included."""
    counts = Counter[str]()
    for broker in world.brokers:
        broker.settings["disk_space_clean_forcibly_ratio"] = 100  # a broker with a full disk deletes no messages
    world.play(lambda world: counts.update(PLAYS[name](world).counts), again=f"{name} {world.seed}")
    counts["deaths"] = len(world.crash_points)
    counts["failed disk calls"] = sum(broker.disk.failed.total() for broker in world.brokers)
    return counts + world.faults


def totals(name: str, seeds: Iterable[int]) -> Counter[str]:
    return sum((played(name, World(seed)) for seed in seeds), Counter[str]())
