"""A run in which brokers die by kills and power losses, also within calls of their disk, and slaves are promoted."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

STEPS = 150


def play(world: World, act: Callable[["Broker", random.Random], None], *, disks: bool = False) -> "Broker":
    """Acts at whoever is master, and returns the master that is left in the end, when all brokers are well.

    `disks`: their calls fail, some for want of room, and sectors go bad, too.  None fills up for long: that deletes the
    oldest messages, acknowledged or not.
    """
    chance = random.Random(world.seed)
    faults = [world.die_in_a_call, world.die_in_a_call, world.kill, world.lose_power]
    promote = partial(world.promote, may_force=False)
    repairs = [world.start, world.start, world.start, promote, world.demote, world.tell_who_is_master]
    if disks:
        faults += [world.fail_read, world.fail_write, world.fail_sync, world.lose_sector]
        repairs += [world.look_after_disk, world.look_after_disk, world.restore]
    for _ in range(STEPS):
        master = next((broker for broker in world.brokers if broker.is_writable), None)
        if master is not None:
            for _ in range(chance.choice((1, 1, 1, 6))):
                act(master, chance)
        world.pass_time(chance.choice((0.003, 0.03, 0.2, 1.0)))
        if chance.random() < 0.2:
            chance.choice(faults)(chance)
        elif chance.random() < 0.5:
            chance.choice(repairs)(chance)
    world.heal()
    return next(broker for broker in world.brokers if broker.is_writable)


def has_slave_in_sync(broker: "Broker") -> bool:
    """Without one a SYNC_MASTER settles alone, which its answer does not say (docs/consumption.md)."""
    return broker.node is not None and any(slave.in_sync for slave in broker.node.status.slaves())


class Counted(Protocol):
    @property
    def counts(self) -> tuple[int, int]: ...


def totals(seeds: Iterable[int], script: Callable[[World], Counted]) -> tuple[int, int, int]:
    """Plays it with each seed: the sums of both counts, and how often a broker died."""
    counts = [_counts(World(seed), script) for seed in seeds]
    first, second, deaths = map(sum, zip(*counts, strict=True))
    return first, second, deaths


def _counts(world: World, script: Callable[[World], Counted]) -> tuple[int, int, int]:
    played: list[Counted] = []
    world.play(lambda world: played.append(script(world)))
    return *played[0].counts, len(world.crash_points)
