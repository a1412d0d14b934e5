"""The simulated world: brokers, their streams, their disks, a clock, clients, and an operator.  No sleeps, no sockets.

Every step is one operation, chosen by the seed; `invariants.py` is asked after each.  What an operator decides (promote
a slave, go on without a broker that is down) may cost what only the broker left behind had; the invariants know when.
"""

import random
from dataclasses import dataclass, field

from broker_service.errors import RocketSimError
from broker_service.model import PutStatus
from broker_service.replication.acknowledgement import AckLevels
from broker_service.replication.pending_puts import PendingPut
from broker_service.store.offset_journal import OffsetEntry
from tests.simulation.invariants import InvariantBroken, Invariants
from tests.simulation.node import Node
from tests.simulation.stream import Stream
from tests.support import stores
from tests.support.memory_files import PowerCut
from tests.support.stores import LOG_FILE

MODES = [AckLevels(sync_master=master, sync_flush=disk) for master in (True, False) for disk in (True, False)]
TOPIC = "T"
GROUPS = ("g", "h")


@dataclass(eq=False)
class Put:
    """One frame that was appended; `ok` once a client was told so.  `holders`: brokers that may not lose it."""

    number: int
    master: Node
    run: int
    epoch: int
    begin: int
    end: int
    data: bytes
    pending: PendingPut
    ok: bool = False
    over: bool = False
    excused: str | None = None
    holders: set[int] = field(default_factory=set)


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.levels = MODES[seed % len(MODES)]
        self.nodes = [Node(broker_id, self.levels, self.chance) for broker_id in range(2 + seed // len(MODES) % 2)]
        self.streams: list[Stream] = []
        self.puts: list[Put] = []
        self.now = 0.0
        self.name_server_epoch = 0
        self.history: list[str] = []
        self.cuts = 0
        self.ended_streams: list[str] = []
        self.invariants = Invariants(self)
        for node in self.nodes:
            node.start()

    def run(self, steps: int) -> None:
        """Raises InvariantBroken with the seed and the last steps in its message."""
        operations, weights = zip(*OPERATIONS, strict=True)
        try:
            while len(self.history) < steps:
                self._step(self.chance.choices(operations, weights)[0])
            self.heal()
        except InvariantBroken as broken:
            raise self._told(str(broken)) from broken
        except (AssertionError, RocketSimError, ValueError) as fault:
            raise self._told(f"{type(fault).__name__}: {fault}") from fault

    def _told(self, what: str) -> InvariantBroken:
        state = "\n  ".join([*map(str, self.nodes), *map(str, self.streams)])
        steps = "\n  ".join(self.history[-25:])
        return InvariantBroken(f"seed {self.seed}, {self.levels}: {what}\n  {state}\nlast steps:\n  {steps}")

    def _step(self, operation) -> None:
        doomed = self._doom()
        said = None
        try:
            said = operation(self)
        except PowerCut:
            assert doomed is not None
            self._die(doomed, "in the middle of " + operation.__name__)
            said = f"{operation.__name__}: {doomed.name} died in it"
        if doomed is not None and doomed.is_up:
            doomed.files.stop_at = None
        if said is None:
            return  # There was nothing to do it to.
        self.history.append(f"{len(self.history)} {said}")
        self._drop_ended_streams()
        self.invariants.check(full=len(self.history) % 10 == 0)

    def _doom(self) -> Node | None:
        """Now and then a broker is to die at one of the next things it does to its disk."""
        if self.chance.random() > 0.04:
            return None
        node = self.chance.choice(self.nodes)
        if not node.is_up:
            return None
        node.files.stop_at = node.files.calls + self.chance.randint(1, 8)
        return node

    def _drop_ended_streams(self) -> None:
        for stream in self.streams:
            alive = stream.master.is_up and stream.slave.is_up
            if alive and stream.runs == (stream.master.starts, stream.slave.starts):
                if stream.over is None and (not stream.master.is_master or stream.master.fenced):
                    stream.close("no master any more")
            elif stream.over is None:
                stream.close("one side died")
        for stream in self.streams:
            if stream.over is not None:
                self.ended_streams.append(stream.over)
        self.streams = [stream for stream in self.streams if stream.over is None]

    # --- clients --------------------------------------------------------------------------------------------------

    def put(self) -> str | None:
        node = self._pick(lambda node: node.writable)
        if node is None:
            return None
        number = len(self.puts)
        bodies = [
            b"%d/%d " % (number, n) + bytes(self.chance.randint(0, 400)) for n in range(self.chance.randint(1, 3))
        ]
        begin = node.store.end_offset
        queues = [self.chance.randint(0, 1) for _ in bodies]
        appended = stores.put(node.store, TOPIC, queues, bodies, now_ms=stores.NOW + number)
        data = node.log(begin, appended.end_offset)
        pending = node.acks.admit(appended.end_offset, self.now, 10.0)
        epoch = node.epochs.epochs.last
        self.puts.append(Put(number, node, node.starts, epoch, begin, appended.end_offset, data, pending))
        return f"put {number} at {node.name} [{begin}, {appended.end_offset})"

    def commit(self) -> str | None:
        """To the master; to a slave while there is none.  Sometimes a lower offset than before."""
        node = self._pick(lambda node: node.writable) or self._pick(lambda node: not node.is_master)
        if node is None:
            return None
        queue, group = self.chance.randint(0, 1), self.chance.choice(GROUPS)
        offset = self.chance.randint(0, node.queue_end(TOPIC, queue))
        before = node.offsets.get(group, TOPIC, queue)
        standing = node.offsets.commit(group, TOPIC, {queue: offset})[queue]
        if standing != max(before.offset, offset):
            raise InvariantBroken(f"{node.name}: commit {offset} over {before} answered {standing}")
        return f"commit {group} {queue}: {offset} at {node.name}, stands at {standing}"

    def reset(self) -> str | None:
        node = self._pick(lambda node: node.writable)
        if node is None or self.chance.random() > 0.3:
            return None
        queue = self.chance.randint(0, 1)
        offset = self.chance.randint(0, node.queue_end(TOPIC, queue))
        node.offsets.reset("g", TOPIC, {queue: offset})
        return f"reset g {queue} to {offset} at {node.name}"

    # --- streams --------------------------------------------------------------------------------------------------

    def connect(self) -> str | None:
        slave = self._pick(lambda node: not node.is_master)
        master = self._pick(lambda node: node.is_master and not node.fenced)
        if slave is None or master is None:
            return None
        for stream in self.streams:
            if stream.slave is slave:
                if self.chance.random() < 0.9:
                    return None
                stream.close("replaced")
        self.streams.append(Stream(master, slave, self.now))
        return f"connect {self.streams[-1]}"

    def disconnect(self) -> str | None:
        if not self.streams:
            return None
        stream = self.chance.choice(self.streams)
        stream.close("disconnected")
        return f"disconnect {stream}"

    def deliver(self) -> str | None:
        if not self.streams:
            return None
        stream = self.chance.choice(self.streams)
        for _ in range(self.chance.randint(1, 20)):
            act = self.chance.choice(
                (stream.slave_hears, stream.master_hears, stream.slave_sends, lambda: stream.master_sends(self.now))
            )
            act()
            self._hear_of_ok()
            if stream.clamped:
                self.cuts += 1
                self.invariants.offsets_clamped(stream.slave)
                stream.clamped = False
                if self.chance.random() < 0.3:  # where a cut goes wrong, it shows at the next start
                    return f"{stream}: cut, and then {self._die(stream.slave, '')}"
            if stream.over is not None:
                return f"stream {stream} over: {stream.over}"
        return f"deliver {stream}: {stream.transfer}"

    def metadata(self) -> str | None:
        streams = [stream for stream in self.streams if stream.in_transfer]
        if not streams:
            return None
        stream = self.chance.choice(streams)
        if self.chance.random() < 0.5:
            stream.slave.offsets.merge_from_master(list(stream.master.offsets.everything()))
            return f"offsets of {stream.master.name} to {stream.slave.name}"
        stream.master.offsets.merge(list(stream.slave.offsets.to_hand_back()))
        return f"offsets of {stream.slave.name} back to {stream.master.name}"

    # --- disks and time -------------------------------------------------------------------------------------------

    def flush(self) -> str | None:
        node = self._pick(lambda node: True)
        if node is None:
            return None
        node.flush()
        for stream in self.streams:
            if stream.slave is node:
                stream.ack_due = True
        self._hear_of_ok()
        return f"flush {node.name}"

    def tick(self) -> str | None:
        node = self._pick(lambda node: True)
        if node is None:
            return None
        node.store.tick(stores.NOW + int(self.now * 1000) + self.chance.choice((0, 120_000)))
        compaction = node.offsets.compaction(stores.NOW) if self.chance.random() < 0.5 else None
        if compaction:
            compaction.run()
        return f"tick {node.name}"

    def pass_time(self) -> str:
        self.now += self.chance.random() * 2
        for node in self.nodes:
            if node.is_up:
                node.acks.expire(self.now)
        self._hear_of_ok()
        return f"now {self.now:.1f}"

    def expire_files(self) -> str | None:
        node = self._pick(lambda node: len(node.store._log.starts) > 6)
        if node is None:
            return None
        store = node.store
        if store._log.delete_before(min(store._log.starts[self.chance.randint(1, 2)], store.flushed_offset)):
            store._queues.trim(store.min_offset)
            store._index.trim(store.min_offset)
            store._next_thorough_ms = 0
        return f"retention: {node.name} starts at {store.min_offset}"

    # --- trouble and the operator ---------------------------------------------------------------------------------

    def die(self) -> str | None:
        node = self._pick(lambda node: True)
        if node is None:
            return None
        return self._die(node, "")

    def _die(self, node: Node, where: str) -> str:
        if self.chance.random() < 0.5:
            self.invariants.power_goes(node)
            node.lose_power()
            return f"power loss {node.name} {where}"
        node.kill()
        return f"kill {node.name} {where}"

    def stop(self) -> str | None:
        node = self._pick(lambda node: True)
        if node is None:
            return None
        node.stop()
        return f"stop {node.name}"

    def start(self) -> str | None:
        down = [node for node in self.nodes if not node.is_up]
        if not down:
            return None
        node = self.chance.choice(down)
        node.start()
        if node.is_master:
            self._tell_newest_epoch(node)
        return f"start {node}, {node.store.recovery}"

    def open(self) -> str | None:
        """A started master takes writes when what a live slave has more than it is here."""
        node = self._pick(lambda node: node.is_master and not node.writable and not node.fenced)
        if node is None:
            return None
        answered = self._tell_newest_epoch(node)
        live = {other for other in self.nodes if other.is_up and not other.is_master}
        joined = {stream.slave for stream in self.streams if stream.master is node and stream.in_transfer}
        if node.fenced or node.is_refilling() or live - joined or (not live and self.chance.random() < 0.9):
            return None
        if not answered and len(joined) < len(self.nodes) - 1:
            return None
        epoch = self._begin(node)
        self.invariants.opened(node, promoted=False)
        return f"epoch {epoch} of {node.name} from {node.store.end_offset} on"

    def promote(self) -> str | None:
        masters = [node for node in self.nodes if node.is_up and node.is_master and not node.fenced]
        node = self._pick(lambda node: not node.is_master and node.epochs.epochs.last)
        if node is None or (masters and self.chance.random() < 0.7):
            return None
        for stream in self.streams:
            if stream.slave is node:
                stream.close("promoted")
        epoch = self._begin(node)
        node.is_master = True  # the epoch is on disk before the role
        self.invariants.opened(node, promoted=True)
        return f"promote {node.name}: epoch {epoch} from {node.store.end_offset} on"

    def demote(self) -> str | None:
        """The operator restarts a fenced master as a slave."""
        node = self._pick(lambda node: node.fenced)
        if node is None:
            return None
        node.kill()
        node.is_master = False
        node.start()
        return f"{node.name} is a slave now"

    def _begin(self, node: Node) -> int:
        epoch = node.begin_epoch()
        self.name_server_epoch = max(self.name_server_epoch, epoch)
        return epoch

    def _tell_newest_epoch(self, node: Node) -> bool:
        """What a name server answers; sometimes it is away, and only the streams tell."""
        if self.chance.random() < 0.3:
            return False
        node.fence(self.name_server_epoch)
        return True

    # --- the end --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing fails any more: the newest master takes writes, and every other broker ends with its log."""
        for node in self.nodes:
            if not node.is_up:
                node.start()
        newest = max(self.nodes, key=lambda node: node.epochs.epochs.last)
        masters = [node for node in self.nodes if node.is_master]
        master = max(masters or [newest], key=lambda node: node.epochs.epochs.last)
        if master.epochs.epochs.last < newest.epochs.epochs.last:
            master = newest
        for node in self.nodes:
            node.is_master = node is master
            if node.fenced or not node.is_master:
                node.kill()
                node.start()
        self._drop_ended_streams()
        self.history.append(f"heal: {master.name} is the master")
        for _ in range(3000):
            connected = {stream.slave for stream in self.streams}
            for node in self.nodes:
                if node is not master and node not in connected:
                    self.streams.append(Stream(master, node, self.now))
            for stream in self.streams:
                for act in (stream.slave_hears, stream.master_hears, stream.slave_sends):
                    act()
                if stream.clamped:
                    self.invariants.offsets_clamped(stream.slave)
                    stream.clamped = False
                stream.master_sends(self.now)
            self._drop_ended_streams()
            for node in self.nodes:
                node.flush()
            for stream in self.streams:
                stream.ack_due = True
            joined = {stream.slave for stream in self.streams if stream.in_transfer}
            if not master.writable and len(joined) == len(self.nodes) - 1 and not master.is_refilling():
                self._begin(master)
                self.invariants.opened(master, promoted=False)
            self._hear_of_ok()
            if master.writable and all(self._is_in_step(node, master) for node in self.nodes):
                break
        else:
            raise InvariantBroken(
                f"the brokers do not come into step again; streams ended by {self.ended_streams[-3:]}"
            )
        for stream in self.streams:
            stream.master.offsets.merge(list(stream.slave.offsets.to_hand_back()))
        for stream in self.streams:
            stream.slave.offsets.merge_from_master(list(stream.master.offsets.everything()))
        self.invariants.check(full=True)
        for node in self.nodes:
            if node.offsets.everything() and dict(self._offsets(node)) != dict(self._offsets(master)):
                raise InvariantBroken(f"offsets of {node.name} and {master.name} do not converge")

    def _is_in_step(self, node: Node, master: Node) -> bool:
        return (
            node.store.end_offset == master.store.end_offset
            and node.epochs.epochs == master.epochs.epochs
            and (node is master or master.acks.confirm_offset == master.store.end_offset or not len(self.streams))
        )

    def _offsets(self, node: Node):
        for group, topic, queues in node.offsets.everything():
            for queue, entry in queues.items():
                if entry > OffsetEntry(0, -1):
                    yield (group, topic, queue), entry

    def _pick(self, wanted) -> Node | None:
        found = [node for node in self.nodes if node.is_up and wanted(node)]
        return self.chance.choice(found) if found else None

    def _hear_of_ok(self) -> None:
        """What clients are told; a put of a broker that died meanwhile is never answered."""
        for put in self.puts[-200:]:
            if put.over:
                continue
            if not put.master.is_up or put.master.starts != put.run:
                put.over = True
            elif put.pending.status is not None:
                put.over = True
                if put.pending.status is PutStatus.PUT_OK:
                    self.invariants.told_ok(put)


OPERATIONS = [
    (World.put, 22),
    (World.commit, 6),
    (World.reset, 1),
    (World.connect, 8),
    (World.disconnect, 1),
    (World.deliver, 50),
    (World.metadata, 5),
    (World.flush, 10),
    (World.tick, 3),
    (World.pass_time, 3),
    (World.expire_files, 1),
    (World.die, 2),
    (World.stop, 0.5),
    (World.start, 6),
    (World.open, 12),
    (World.promote, 3),
    (World.demote, 6),
]

__all__ = ["LOG_FILE", "Put", "World"]
