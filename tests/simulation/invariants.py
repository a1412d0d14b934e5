"""What must hold after every step of the simulation, whatever has happened."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from broker_service.replication.epochs import common_prefix
from tests.simulation.node import Node
from tests.support import stores

if TYPE_CHECKING:
    from tests.simulation.world import Put, World


class InvariantBroken(AssertionError):
    """A promise was broken; the message says which, and how to see it again."""


class Invariants:
    def __init__(self, world: World) -> None:
        self._world = world
        self._epoch_starts: dict[tuple[int, int], int] = {}  # by number and id
        self._promised: dict[int, int] = {}
        self._offsets: dict[int, dict[tuple[str, str, int], object]] = {}
        self._visible: dict[tuple[int, int], int] = {}
        self._runs: dict[int, int] = {}

    def check(self, *, full: bool) -> None:
        up = [node for node in self._world.nodes if node.is_up]
        for node in up:
            self._epochs_only_rise(node)
            self._offsets_only_rise(node)
            self._visible_only_rises(node)
            if full or self._runs.get(node.broker_id) != node.starts:
                self._runs[node.broker_id] = node.starts
                self._queues_are_a_replay(node)
        for one, other in combinations(up, 2):
            self._equal_as_far_as_the_epochs_say(one, other)
        for stream in self._world.streams:
            if stream.in_transfer:
                self._slave_is_not_ahead(stream)
        self._what_was_ok_is_there()

    # --- acknowledged puts ----------------------------------------------------------------------------------------

    def told_ok(self, put: Put) -> None:
        """A client hears OK now: the put has to be where the mode says, now."""
        put.ok = True
        levels = self._world.levels
        if not self._has(put.master, put, durable=levels.sync_flush):
            raise InvariantBroken(f"put {put.number} is OK, but not on the master's {_where(levels.sync_flush)}")
        slaves = [node for node in self._world.nodes if node is not put.master]
        if levels.sync_master and not any(self._has(node, put, durable=levels.sync_flush) for node in slaves):
            raise InvariantBroken(f"put {put.number} is OK, but in no slave's {_where(levels.sync_flush)}")
        # A log that begins behind a put that was just acknowledged is of another history, and has not seen it expire.
        joined = [node for node in self._world.nodes if node.is_up and node.store.min_offset <= put.begin]
        put.holders = {node.broker_id for node in joined if self._has(node, put)}
        newest = max((number for number, _ in self._epoch_starts), default=0)
        if put.epoch < newest or sum(number == newest for number, _ in self._epoch_starts) > 1:
            put.excused = "acknowledged by a master that was replaced already"

    def power_goes(self, node: Node) -> None:
        """What was not synced there may be gone."""
        for put in self._world.puts:
            if node.broker_id in put.holders and not self._has(node, put, durable=True):
                put.holders.discard(node.broker_id)
        self._offsets.pop(node.broker_id, None)

    def opened(self, node: Node, *, promoted: bool) -> None:
        """A time as master begins; what this log does not have is history, if somebody decided so."""
        for put in self._world.puts:
            if not put.ok or put.excused:
                continue
            if self._has(node, put):
                put.holders.add(node.broker_id)
                continue
            if node.broker_id in put.holders:
                raise InvariantBroken(f"{node.name} becomes master without put {put.number}, which it had")
            alive = [other for other in self._world.nodes if other.is_up and other.broker_id in put.holders]
            if alive and not promoted:
                raise InvariantBroken(
                    f"{node.name} takes writes without put {put.number}, which {alive[0].name} still has"
                )
            put.excused = f"{node.name} became master without it"

    def _what_was_ok_is_there(self) -> None:
        for put in self._world.puts:
            if not put.ok or put.excused:
                continue
            for node in self._world.nodes:
                if node.is_up and put.begin < node.store.min_offset:
                    put.holders.discard(node.broker_id)  # expired there
                if node.is_up and node.broker_id in put.holders and not self._has(node, put):
                    raise InvariantBroken(
                        f"put {put.number} [{put.begin}, {put.end}) was OK and is gone from {node.name}"
                    )

    def _has(self, node: Node, put: Put, *, durable: bool = False) -> bool:
        if node.is_up:
            if put.begin < node.store.min_offset:
                return node.store.end_offset >= put.end  # expired there
            if node.store.end_offset < put.end:
                return False
        read = node.durable_log if durable else node.log
        if put.begin < self._first(node):
            return True
        return read(put.begin, put.end) == put.data

    def _first(self, node: Node) -> int:
        names = [int(name) for name in node.files.names(node.root / "commitlog")]
        return min(names, default=0)

    # --- logs -----------------------------------------------------------------------------------------------------

    def _equal_as_far_as_the_epochs_say(self, one: Node, other: Node) -> None:
        ours, theirs = one.store, other.store
        until = common_prefix(one.epochs.epochs, ours.end_offset, other.epochs.epochs, theirs.end_offset)
        begin = max(ours.min_offset, theirs.min_offset)
        if until is not None and begin < until and one.log(begin, until) != other.log(begin, until):
            raise InvariantBroken(f"{one} and {other} differ below {until}")

    def _slave_is_not_ahead(self, stream) -> None:
        master, slave = stream.master, stream.slave
        if slave.epochs.epochs.last > master.epochs.epochs.last:
            raise InvariantBroken(f"{slave} follows {master}, which is of an older epoch")
        if slave.store.end_offset > master.store.end_offset and master.writable:
            raise InvariantBroken(f"{slave} is ahead of {master}, which takes writes")
        begin, end = max(master.store.min_offset, slave.store.min_offset), slave.store.end_offset
        if begin < end <= master.store.end_offset and master.log(begin, end) != slave.log(begin, end):
            raise InvariantBroken(f"{slave} is no prefix of its master {master}")

    def _queues_are_a_replay(self, node: Node) -> None:
        try:
            expected, actual = stores.expected_queues(node.store), stores.actual_queues(node.store)
        except (AssertionError, ValueError) as error:
            raise InvariantBroken(f"{node}: the log cannot be replayed: {error}") from error
        if expected != actual:
            raise InvariantBroken(f"{node}: the queues are not what the log says: {actual} instead of {expected}")

    # --- what only rises ------------------------------------------------------------------------------------------

    def _epochs_only_rise(self, node: Node) -> None:
        epochs = node.epochs.epochs
        if epochs.last < self._promised.get(node.broker_id, 0):
            raise InvariantBroken(f"{node.name} went back from epoch {self._promised[node.broker_id]} to {epochs.last}")
        self._promised[node.broker_id] = epochs.last
        for epoch in epochs.epochs:
            key = epoch.epoch, epoch.id
            if self._epoch_starts.setdefault(key, epoch.start_offset) != epoch.start_offset:
                raise InvariantBroken(f"epoch {epoch} began at {self._epoch_starts[key]} elsewhere")

    def _offsets_only_rise(self, node: Node) -> None:
        before = self._offsets.get(node.broker_id, {})
        now = {
            (group, topic, queue): entry
            for group, topic, queues in node.offsets.everything()
            for queue, entry in queues.items()
        }
        for key, entry in before.items():
            if now.get(key) is None or now[key] < entry:
                raise InvariantBroken(f"{node.name}: offset {key} went back from {entry} to {now.get(key)}")
        self._offsets[node.broker_id] = now

    def offsets_clamped(self, node: Node) -> None:
        self._offsets.pop(node.broker_id, None)

    def _visible_only_rises(self, node: Node) -> None:
        if not node.writable:
            return
        key = node.broker_id, node.starts
        visible = node.store.end_offset if node.visible is None else node.visible
        if visible < self._visible.get(key, 0):
            raise InvariantBroken(
                f"{node.name}: consumers saw up to {self._visible[key]}, and now up to {visible} only"
            )
        self._visible[key] = visible


def _where(durable: bool) -> str:
    return "disk" if durable else "page cache"
