"""A run in which brokers die by kills and power losses, also within calls of their disk, and slaves are promoted."""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

STEPS = 150


Act = Callable[["Broker", random.Random], None]


def play(world: World, act: Act, *, bad_disks: bool = False, full_disks: bool = False) -> "Broker":
    """Calls `act` with one master after another while brokers die.  Returns the last master, when all brokers are well.

    With `bad_disks`, calls of the disks fail, some because there is no room, and sectors go bad.  With `full_disks`,
    disks have no room for a while, which suits only a world that deletes no messages meanwhile.
    """
    chance = random.Random(world.seed)

    def die_among_acts(chance: random.Random) -> str | None:
        master = _master(world)
        if master is None:
            return None
        for _ in range(4):
            act(master, chance)
        world.loop.run_for(chance.choice((0.001, 0.003, 0.005, 0.01)))
        if not master.is_up:
            return None
        (master.kill if chance.random() < 0.5 else master.lose_power)()
        return f"{master.name} dies among acts"

    faults = [world.die_in_a_call, world.die_in_a_call, world.kill, world.lose_power, die_among_acts]
    promote = partial(world.promote, may_force=False)
    repairs = [world.start, world.start, world.start, promote, world.demote, world.tell_who_is_master]
    if full_disks:
        faults += [world.fill, world.fill, world.fill]
        repairs += [world.make_room, world.restore]
    if bad_disks:
        faults += [world.fail_read, world.fail_write, world.fail_sync, world.lose_sector]
        repairs += [world.look_after_disk, world.look_after_disk, world.restore]
    for _ in range(STEPS):
        if (master := _master(world)) is not None:
            for _ in range(chance.choice((1, 1, 1, 6))):
                act(master, chance)
        world.pass_time(chance.choice((0.003, 0.03, 0.2, 1.0)))
        said = None
        if chance.random() < 0.2:
            said = chance.choice(faults)(chance)
        elif chance.random() < 0.5:
            said = chance.choice(repairs)(chance)
        if said is not None:
            world.history.append(f"{world.loop.now:.3f} {said}")
    world.heal()
    left = _master(world)
    assert left is not None
    return left


def _master(world: World) -> "Broker | None":
    return next((broker for broker in world.brokers if broker.is_writable), None)


def loses_nothing(world: World) -> bool:
    """Returns True if no fault of this play can take back a final answer in the world's mode."""
    return world.levels.sync_master and world.levels.sync_flush


def has_slave_in_sync(broker: "Broker") -> bool:
    """Returns True if a slave is in sync.  Without a slave in sync, a SYNC_MASTER accepts acks alone, and its answer
    does not say so (docs/consumption.md).
    """
    return broker.node is not None and any(slave.in_sync for slave in broker.node.status.slaves())
