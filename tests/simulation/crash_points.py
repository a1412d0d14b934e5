"""Crash points of whole brokers: before every call that changes a broker's disk, the disk is copied as a kill and as a
power loss would leave it, and a broker is opened on each copy.

The broker that is copied runs on, so that one run has thousands of crash points.  Each copy must have all messages,
committed offsets and epochs that the broker has promised by then.  The copy's queues must equal a replay of its log.
"""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import TYPE_CHECKING

from broker_service.errors import RocketSimError
from broker_service.node.node import BrokerNode
from broker_service.runtime.machine import Machine
from tests.simulation.broker import Broker, what_is_wrong
from tests.simulation.disk import flushed_in
from tests.simulation.promises import PromiseBroken
from tests.support import stores

if TYPE_CHECKING:
    from tests.simulation.disk import Disk
    from tests.simulation.world import World

COLLECT_EVERY = 32  # crash points between two garbage collections, which a run otherwise switches off
QUEUES_EVERY = 8  # crash points between two comparisons of the queues, which take as long as all other checks


class CrashPoints:
    """The points at which brokers die.  Each of `points` is (broker, run, number of the call, whether the machine loses
    its power).
    """

    def __init__(self, world: World) -> None:
        self.points: set[tuple[int, int, int, bool]] = set()
        self._world = world
        self._chance = random.Random(world.seed)
        for broker in world.brokers:
            self._watch(broker)

    def _watch(self, broker: Broker) -> None:
        def before(call: str, path: Path) -> None:
            if not broker.disk.is_off:
                for powerless in (False, True):
                    self._dies(broker, powerless, f"{call} {path}")

        broker.disk.watch = before

    def _dies(self, broker: Broker, powerless: bool, where: str) -> None:
        disk = broker.disk
        self.points.add((broker.broker_id, broker.run, disk.calls, powerless))
        try:
            self._open(broker, disk, powerless)
        except PromiseBroken as broken:
            how = "power loss" if powerless else "kill"
            self._world.promises.broken = self._world.promises.broken or PromiseBroken(
                f"after a {how} of {broker.name} before {where}: {broken}"
            )
        if len(self.points) % COLLECT_EVERY == 0:
            gc.collect()
            gc.freeze()  # later collections then look only at brokers that were opened later

    def _open(self, broker: Broker, disk: Disk, powerless: bool) -> None:
        left = disk.as_powerless(self._chance) if powerless else disk.as_killed()
        note = broker.root / "rocketsim" / "flushed"
        readable = flushed_in(left.read(note)) if left.exists(note) else None
        flushed = readable if powerless else disk.flushed_offset(broker.root, as_written=True)
        machine = Machine(
            files=left,
            now_ms=broker.clock.now_ms,
            since_boot=broker.clock.since_boot,
            monotonic=self._world.loop.time,
            chance=random.Random(1),
        )
        try:
            node = BrokerNode.open(broker.config(), machine)
        except (RocketSimError, OSError) as error:
            if broker.may_refuse_to_start(str(error), left.unread, lacks_room=broker.is_full):
                return
            raise PromiseBroken(f"the broker does not start: {type(error).__name__}: {error}") from error
        if wrong := what_is_wrong(node.store.end_offset, flushed, readable):
            raise PromiseBroken(wrong)
        self._world.promises.check_what_is_left(broker, node, powerless=powerless)
        if len(self.points) % QUEUES_EVERY == 0 and not disk.still_damaged():
            try:
                queues = stores.expected_queues(node.store), stores.actual_queues(node.store)
            except (AssertionError, ValueError) as error:
                raise PromiseBroken(f"the log cannot be replayed: {error}") from error
            if not self._world.promises.may_have_read_damage(broker):
                self._world.promises.compare_queues(broker, *queues)
                node.store.tick(broker.clock.now_ms())
                if not node.store.index.behind:  # on a full disk the index has no room to catch up
                    self._world.promises.index_has_every_key(broker, node.store, stores.records_of(node.store))
