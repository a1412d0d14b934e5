"""The simulated world: brokers, name servers, clients and an operator, and the faults that they meet.

A run is a list of decisions, which the seed makes beforehand.  Each decision has a random generator of its own, so that
it can be left out without changing the others.  After each decision some time passes, and `promises.py` checks the
promises.
"""

import errno
import gc
import hashlib
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from grpc_reflection.v1alpha import reflection as grpc_reflection
from rocketsim_proto.replication_pb2 import SlaveMessage
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.broker.core.mastership import Standing
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.node import storage
from broker_service.node.node import BrokerNode
from broker_service.replication import flusher
from broker_service.replication.acknowledgement import AckLevels
from broker_service.replication.epochs import Epoch
from broker_service.store import durability, recovery
from broker_service.store.offset_journal import NEVER, OffsetEntry, OffsetJournal
from tests.simulation.broker import Broker, NameServer
from tests.simulation.clients import GROUPS, HOST, Clients
from tests.simulation.disk import Damage, kind_of
from tests.simulation.network import ServerCall, Wire
from tests.simulation.promises import PromiseBroken, Promises
from tests.simulation.threads import Threading
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.memory_files import SECTOR

MODES = [AckLevels(sync_master=master, sync_flush=disk) for master in (True, False) for disk in (True, False)]
JOURNAL_RESERVE = 1 << 16  # smaller than a real broker's 4 MiB, which each check would read and copy
WRITES = ("pwrite", "pwrite", "pwrite", "create", "preallocate", "rename", "resize", "remove", "make_directory")
DERIVED = ("consumequeue", "index")  # built from the log
OURS, CHECKPOINT = "rocketsim", "checkpoint"
TABLES = ("config", OURS, CHECKPOINT)
QUEUE_ENTRY, TAGS_CODE = 20, 12  # the size of a queue entry, and the place of its tags code, which no check covers
# The bytes that a broker writes at once, by kind of file.  Other files are written as a whole.
UNITS = {"commitlog": 1, "consumequeue": QUEUE_ENTRY, "index": 20}
DAMAGES = 3  # the most damages of one disk in a run
QUIET_S = 6.0  # after a disturbance of the network, all hosts are connected again within this time


class Decision(NamedTuple):
    number: int
    name: str
    seed: int


def plan(seed: int, steps: int) -> list[Decision]:
    """Returns the decisions of a seed.  Each seed has its own mixture, because many faults of a few kinds find more
    bugs than a few faults of every kind.
    """
    chance = random.Random(seed)
    weights = [
        weight if name in ALWAYS else weight * chance.choice((0.0, 0.5, 1.0, 3.0)) for name, weight in WEIGHTS.items()
    ]
    names = list(WEIGHTS)
    return [Decision(number, chance.choices(names, weights)[0], chance.getrandbits(32)) for number in range(steps)]


class World:
    """A cluster under simulation.  `levels` is the mode of the pair.  The seed also decides how many brokers and name
    servers there are.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.levels = MODES[seed % len(MODES)]
        chance = random.Random(seed * 7919 + 1)
        self.loop = VirtualLoop()
        self.threading = Threading(self.loop, random.Random(chance.random()))
        self.wire = Wire(self.loop, random.Random(chance.random()))
        count = chance.choice((1, 1, 2)) if seed // len(MODES) % 4 < 3 else 0
        self.names = [NameServer(self.loop, self.wire, number) for number in range(count)]
        self.retention_h = 1 if seed % 3 == 1 else 10**6
        settings: dict[str, Any] = {
            "file_reserved_time": self.retention_h,
            "delete_when": ";".join(f"{hour:02}" for hour in range(24)),
            "broker_role": BrokerRole.SYNC_MASTER if self.levels.sync_master else BrokerRole.ASYNC_MASTER,
            "flush_disk_type": FlushDiskType.SYNC_FLUSH if self.levels.sync_flush else FlushDiskType.ASYNC_FLUSH,
            "namesrv_addr": ";".join(name.address for name in self.names),
        }
        self.brokers = [
            Broker(self.loop, self.wire, number, random.Random(chance.random()), **settings)
            for number in range(chance.choice((2, 3, 3)))
        ]
        if not self.names:
            for broker in self.brokers:  # a slave uses `ha_slave_addresses` once it is promoted
                others = (other.address for other in self.brokers if other is not broker)
                broker.settings["ha_slave_addresses"] = ";".join(others)
                broker.master_known = self.brokers[0].address
        self.hosts = [broker.host for broker in self.brokers]
        # (epoch, broker) of each promotion, and whether the operator forced it
        self.promoted: dict[tuple[Epoch, int], bool] = {}
        self.promoted_at: dict[tuple[Epoch, int], float] = {}
        # (broker, epoch of its role) of the promotions that are noted in `promoted`.
        self._noted: set[tuple[int, int]] = set()
        self.deleted_topics: set[str] = set()
        self.disturbed_at = 0.0
        self.history: list[str] = []
        self.deaths: Counter[tuple[str, ...]] = Counter()
        self.crash_points: set[tuple[object, ...]] = set()
        self.faults: Counter[str] = Counter()  # of disks, by kind
        # How often a failed disk was repaired, which loses unsynced data like a power loss.
        self.evictions = 0
        self.promises = Promises(self)
        self.clients = Clients(self)
        self.wire.answered = self._answered
        self.wire.told = self._told_by_a_slave
        for broker in self.brokers:
            broker.on_start.append(self.promises.starts)
            broker.on_death.append(self._died)
            broker.disk.removed = partial(self.promises.removed, broker)

    @property
    def mode(self) -> str:
        master = "SYNC_MASTER" if self.levels.sync_master else "ASYNC_MASTER"
        return f"{master} {'SYNC_FLUSH' if self.levels.sync_flush else 'ASYNC_FLUSH'}"

    @property
    def _size(self) -> str:
        return f"{len(self.brokers)} brokers {len(self.names)} name servers"

    # --- a run ----------------------------------------------------------------------------------------------------

    def run(self, decisions: Iterable[Decision]) -> None:
        """Takes the decisions one by one.  Raises PromiseBroken, whose message has the seed and the last steps."""
        with self._simulated():
            try:
                self._run(decisions)
            except Exception as fault:
                raise PromiseBroken(
                    self._told(_what(fault), f"{self.seed}", "again, and as few steps as show it")
                ) from fault

    def play(self, script: "Callable[[World], None]", again: str = "") -> None:
        """Plays a story instead of the seed's decisions, and checks everything at the end.

        `again` is the command that repeats the story.  The message of a PromiseBroken contains `again` and the last
        steps.
        """
        with self._simulated():
            try:
                self._begin()
                script(self)
                self.check(full=True)
            except Exception as fault:
                if not again:
                    raise
                raise PromiseBroken(self._told(_what(fault), again)) from fault

    def pass_time(self, seconds: float) -> None:
        """Lets time pass in a story, and makes only the cheap checks meanwhile."""
        until = self.loop.now + seconds
        while self.loop.now < until:
            self.loop.run_for(min(0.2, until - self.loop.now))
            self.check(full=False)

    def _begin(self) -> None:
        for name in self.names:
            name.start()
        for broker in self.brokers:
            broker.start()
        self.loop.run_until(lambda: self.brokers[0].is_writable, 20.0)

    def _run(self, decisions: Iterable[Decision]) -> None:
        self._begin()
        for decision in decisions:
            chance = random.Random(decision.seed)
            said = getattr(self, decision.name)(chance)
            if said is None:
                continue  # At this moment no broker or file fits the decision.
            self.history.append(f"{self.loop.now - 1000:.3f} {said}")
            self.loop.run_for(chance.choice((0.003, 0.03, 0.2, 1.0)))
            self.check(full=False)
        self.heal()

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Simulates the brokers' threads in a `with` block.  In this block, reflection and logging are off, because
        they cost time.
        """
        reflection = grpc_reflection.enable_server_reflection
        hook, level = sys.unraisablehook, logging.root.manager.disable
        grpc_reflection.enable_server_reflection = lambda *_: None
        sys.unraisablehook = lambda _: None  # the threads of dead processes stop anywhere, even in a finalizer
        logging.disable(logging.CRITICAL)
        was_enabled = gc.isenabled()
        gc.collect()
        gc.disable()  # the time of a collection must not depend on earlier runs
        try:
            journal = partial(OffsetJournal, reserve=JOURNAL_RESERVE)
            with (
                self.threading.installed(flusher, durability, recovery),
                patch.object(storage, "OffsetJournal", journal),
            ):
                yield
        finally:
            for broker in self.brokers:
                if broker.is_up:
                    broker.kill()
            self.loop.abandon()
            gc.unfreeze()
            if was_enabled:
                gc.enable()
            grpc_reflection.enable_server_reflection = reflection
            sys.unraisablehook = hook
            logging.disable(level)

    def _told(self, what: str, arguments: str, again: str = "again") -> str:
        state = "\n  ".join(map(str, self.brokers))
        steps = "\n  ".join(self.history[-25:])
        return (
            f"seed {self.seed}, {self.mode} {self._size}: {what}\n  {state}\nlast steps:\n  {steps}\n"
            f"{again}: python -m tests.simulation {arguments}"
        )

    def check(self, *, full: bool) -> None:
        if self.loop.faults:
            raise PromiseBroken(f"something failed that nobody waits for: {self.loop.faults[0]}")
        if self.wire.surprises:
            raise PromiseBroken(f"a servicer failed: {self.wire.surprises[0]}")
        for broker in self.brokers:
            lacks_room = broker.is_full and broker.lacks_files
            may_end = not broker.served_until_its_end and (
                broker.has_failed_disk
                or broker.may_refuse_to_start(broker.ended, broker.disk.unread, lacks_room=lacks_room)
            )
            if broker.ended and not may_end:
                raise PromiseBroken(f"{broker.name} ended by itself: {broker.ended}")
        self.promises.check(full=full or self._is_due())

    def _is_due(self) -> bool:
        """Returns True after each death and each start, when everything must be checked."""
        runs = [(broker.run, broker.is_up, broker.serves) for broker in self.brokers]
        due = runs != getattr(self, "_runs", None)
        self._runs = runs
        return due

    @property
    def fingerprint(self) -> str:
        """Returns a text that is equal for equal runs."""
        digest = hashlib.sha256("\n".join(self.history).encode())
        for broker in self.brokers:
            digest.update(str(broker).encode())
        return digest.hexdigest()[:16]

    # --- for the promises -----------------------------------------------------------------------------------------

    def serving(self) -> list[Broker]:
        return [broker for broker in self.brokers if broker.serves]

    @property
    def is_quiet(self) -> bool:
        """True if no connection has been cut or slow for a while."""
        return not self.wire.cuts and self.wire.delay_s < 0.01 and self.loop.now - self.disturbed_at > QUIET_S

    def could_meet(self, broker: Broker, other: Broker) -> bool:
        """Returns True if a starting master could learn of the other broker before the master began to take writes
        without it.
        """
        early = other.is_up and other.started_at <= broker.started_at + 1.0
        return early and self.disturbed_at < broker.started_at - QUIET_S

    def could_hear_of(self, broker: Broker, other: Broker) -> bool:
        """Returns True if both brokers could meet and no cut separates them from the name servers.  Without name
        servers, no cut may separate the two brokers.
        """
        ways = [(name.host, host) for name in self.names for host in (broker.host, other.host)]
        ways = ways or [(broker.host, other.host)]
        are_open = not any(self.wire.is_cut(*way) or self.wire.is_cut(*reversed(way)) for way in ways)
        are_up = all(name.is_up for name in self.names)
        return are_up and are_open and self.wire.delay_s < 0.01 and self.could_meet(broker, other)

    def could_ask(self, broker: Broker, other: Broker) -> bool:
        now = self.loop.now
        return other.is_up and now - other.started_at > QUIET_S and now - self.disturbed_at > QUIET_S

    def _answered(self, host: str, path: str, request: object, response: object) -> None:
        for broker in self.brokers:
            if broker.host == host:
                self.promises.answered(broker, path, request, response)

    def _told_by_a_slave(self, host: str, call: ServerCall, message: Any) -> None:
        for broker in self.brokers:
            if broker.host == host and isinstance(message, SlaveMessage):
                self.promises.visible_ends.told(broker, call, message)

    def _died(self, broker: Broker, powerless: bool) -> None:
        where = broker.disk.died_in or ("outside",)
        self.deaths["power" if powerless else "kill", *where] += 1
        self.crash_points.add((self.seed, broker.broker_id, broker.run, broker.disk.calls, powerless))
        if powerless:
            self.promises.power_goes(broker)

    def _disturb(self) -> None:
        self.disturbed_at = self.loop.now

    # --- clients --------------------------------------------------------------------------------------------------

    def send(self, chance: random.Random) -> str | None:
        broker = self._target(chance)
        return None if broker is None else self.clients.send(broker, chance)

    def burst(self, chance: random.Random) -> str | None:
        broker = self._target(chance)
        if broker is None:
            return None
        return "; ".join(self.clients.send(broker, chance) for _ in range(chance.randint(2, 6)))

    def send_delayed(self, chance: random.Random) -> str | None:
        broker = self._target(chance)
        return None if broker is None else self.clients.send(broker, chance, delay=chance.choice((1, 2)))

    def send_to_passing_topic(self, chance: random.Random) -> str | None:
        broker = self._target(chance)
        return None if broker is None else self.clients.send(broker, chance, topic="V")

    def pull(self, chance: random.Random) -> str | None:
        return self._at(chance, _is_up, lambda broker: self.clients.pull(broker, chance))

    def pull_range(self, chance: random.Random) -> str | None:
        def ask(broker: Broker) -> str:
            return f"{self.clients.look(broker, chance)}; {self.clients.pull_range(broker, chance)}"

        return self._at(chance, _is_up, ask)

    def commit(self, chance: random.Random) -> str | None:
        """Commits at the master, or at a slave while there is no master."""
        broker = self._pick(chance, _is_writable) or self._pick(chance, _is_up)
        return None if broker is None else self.clients.commit(broker, chance)

    def query(self, chance: random.Random) -> str | None:
        def ask(broker: Broker) -> str:
            group = chance.choice(GROUPS)
            return self.clients.query_name(group) if chance.random() < 0.5 else self.clients.query(broker, group)

        return self._at(chance, _is_up, ask)

    def reset(self, chance: random.Random) -> str | None:
        return self._at(chance, _is_writable, lambda broker: self.clients.reset(broker, chance))

    def delete_topic(self, chance: random.Random) -> str | None:
        return self._at(chance, _is_writable, lambda broker: self.clients.delete_topic(broker, chance))

    def wait(self, chance: random.Random) -> str:
        seconds = chance.choice((0.5, 2.0, 8.0))
        self.loop.run_for(seconds)
        return f"wait {seconds} s"

    # --- crashes --------------------------------------------------------------------------------------------------

    def die_in_a_call(self, chance: random.Random) -> str | None:
        """Makes a broker die in one of its next disk calls."""
        broker = self._pick(chance, _is_up)
        if broker is None or broker.disk.stop_at is not None:
            return None
        calls = chance.choice((1, 2, 3, 5, 8, 13, 21))
        broker.doom(calls, powerless=chance.random() < 0.5)
        return f"{broker.name} will die in its disk call {calls} from now"

    def start_and_die(self, chance: random.Random) -> str | None:
        """Starts a broker, which dies during its recovery."""
        broker = self._pick(chance, _is_down)
        if broker is None:
            return None
        broker.doom(chance.randint(1, 40), powerless=chance.random() < 0.5)
        broker.start()
        return f"start {broker.name}, which dies in it"

    def kill(self, chance: random.Random) -> str | None:
        return self._do(chance, _is_up, Broker.kill, "kill")

    def lose_power(self, chance: random.Random) -> str | None:
        return self._do(chance, _is_up, Broker.lose_power, "power loss of")

    def lose_all_power(self, chance: random.Random) -> str | None:
        victims = [broker for broker in self.brokers if broker.is_up]
        for broker in victims:
            broker.lose_power()
        return f"power loss of {len(victims)} brokers" if victims else None

    def stop(self, chance: random.Random) -> str | None:
        return self._do(chance, _is_up, Broker.ask_to_stop, "stop")

    def start(self, chance: random.Random) -> str | None:
        return self._do(chance, _is_down, Broker.start, "start")

    def restart_name_server(self, chance: random.Random) -> str | None:
        if not self.names:
            return None
        server = chance.choice(self.names)
        self._disturb()
        if server.is_up:
            server.kill()
            return f"kill {server.name}"
        server.start()
        return f"start {server.name}"

    # --- disks that fail and fill up ------------------------------------------------------------------------------

    def fail_sync(self, chance: random.Random) -> str | None:
        """Makes one of the next syncs fail after a part of the data has reached the disk."""
        broker = self._pick(chance, lambda broker: broker.serves and not broker.disk.faults)
        if broker is None:
            return None
        call = chance.choice(("fdatasync", "fdatasync", "sync_directory"))
        error = chance.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        nth = broker.fail(call, chance, error)
        return f"{call} {nth} of {broker.name} will fail with {errno.errorcode[error]}"

    def fail_write(self, chance: random.Random) -> str | None:
        """Makes one of the next writes fail in the middle.  If the write failed because the disk was full, the disk has
        room again afterwards.
        """
        broker = self._pick(chance, lambda broker: broker.serves and not broker.disk.faults)
        if broker is None:
            return None
        call = chance.choice(WRITES)
        error = chance.choice((errno.EIO, errno.ENOSPC))
        nth = broker.fail(call, chance, error)
        return f"{call} {nth} of {broker.name} will fail with {errno.errorcode[error]}"

    def fail_read(self, chance: random.Random) -> str | None:
        """Makes one of the next reads fail once."""
        broker = self._pick(chance, lambda broker: not broker.disk.faults)
        if broker is None:
            return None
        call = chance.choice(("pread", "pread", "pread", "read", "size", "names", "open"))
        nth = broker.fail(call, chance)
        return f"{call} {nth} of {broker.name} will fail"

    def lose_sector(self, chance: random.Random) -> str | None:
        """Makes a sector unreadable until a broker writes it again or an operator replaces it."""
        broker, path = self._some_file(chance, "commitlog", "commitlog", *DERIVED, *TABLES)
        if broker is None:
            return None
        sector = chance.randrange(max(1, len(broker.disk.content(path, durable=False)) // SECTOR))
        broker.disk.lose_sector(path, sector)
        self.faults["bad sector"] += 1
        return f"{broker.name} cannot read sector {sector} of {path}"

    def flip_a_bit(self, chance: random.Random) -> str | None:
        broker, path = self._some_file(chance, *3 * ("commitlog",), *DERIVED, *3 * (OURS,), CHECKPOINT)
        used = [] if broker is None else _used(broker.disk.content(path, durable=False))
        if kind_of(path) == "consumequeue":
            used = [at for at in used if at % QUEUE_ENTRY < TAGS_CODE]
        if broker is None or not used:
            return None
        at = chance.choice(used)
        return self.flip(broker, path, at, chance.randrange(8))

    def flip(self, broker: Broker, path: Path, at: int, bit: int) -> str:
        content = broker.disk.content(path, durable=False)
        unit = UNITS.get(kind_of(path), len(content))
        begin = at - at % unit
        became = bytearray(content[begin : begin + unit])
        became[at - begin] ^= 1 << bit
        self._damaged(broker, broker.disk.damage(path, begin, bytes(became)), f"bit flip in {_folder(path)}")
        return f"{broker.name} has a flipped bit at {at} of {path}"

    def misdirect(self, chance: random.Random) -> str | None:
        """Writes a sector to the place of another one, or writes it nowhere.  After some misdirected writes, the
        sector's own place has zeros.
        """
        broker, path = self._some_file(chance, *2 * ("commitlog",), *DERIVED, *2 * (OURS,), CHECKPOINT)
        used = 0 if broker is None else len(_used(broker.disk.content(path, durable=False)))
        if broker is not None and kind_of(path) != "commitlog" and used:
            unit = UNITS.get(kind_of(path), used)
            begin = chance.randrange(0, used, unit)
            lost = broker.disk.damage(path, begin, bytes(min(SECTOR // unit * unit or used, used - begin)))
            self._damaged(broker, lost, f"lost write in {_folder(path)}")
            return f"{broker.name} has not written what is at {begin} of {path}"
        used //= SECTOR
        if broker is None or not used:
            return None
        source, target = (chance.randrange(used) * SECTOR for _ in range(2))
        content = broker.disk.content(path, durable=False)
        self._damaged(broker, broker.disk.damage(path, target, content[source : source + SECTOR]), "misdirected")
        if source != target and chance.random() < 0.5:
            self._damaged(broker, broker.disk.damage(path, source, bytes(SECTOR)), "lost write")
        return f"{broker.name} has written sector {source} to {target} of {path}"

    def lose_flushed(self, chance: random.Random) -> str | None:
        """Damages both slots of the flushed offset."""
        broker = self._pick(chance, lambda broker: bool(broker.disk.flushed_offset(broker.root)))
        return None if broker is None or self._is_spent(broker) else self.damage_flushed(broker, chance.randrange(8))

    def damage_flushed(self, broker: Broker, bit: int) -> str:
        path = broker.root / "rocketsim" / "flushed"
        for slot in (0, SECTOR):
            self._damaged(broker, broker.disk.flip_a_bit(path, slot + 11, bit), "flushed offset")
        return f"{path} is damaged"

    def _some_file(self, chance: random.Random, *kinds: str) -> tuple[Broker, Path] | tuple[None, Path]:
        """Returns a file of a broker whose disk may have more damage in this run."""
        broker, kind = chance.choice(self.brokers), chance.choice(kinds)
        paths = [path for path in broker.disk.files_below(broker.root) if _folder(path) == kind]
        if kind == "consumequeue":
            paths = [path for path in paths if SCHEDULE_TOPIC not in path.parts]
        if kind == OURS:
            paths = [path for path in paths if path.suffix == ".json" and path.name != "offset_generations.json"]
        return (broker, chance.choice(paths)) if paths and not self._is_spent(broker) else (None, Path())

    def _is_spent(self, broker: Broker) -> bool:
        return len(broker.disk.damages) + broker.disk.bad_sectors >= DAMAGES

    def _damaged(self, broker: Broker, damage: Damage | None, kind: str) -> None:
        if damage is not None:
            self.faults[kind] += 1
            self.promises.damaged(broker, damage)

    def restore(self, chance: random.Random) -> str | None:
        """Restores, as an operator does, the files without which a broker could not start."""
        broker = self._pick(chance, lambda broker: bool(broker.ended) and not broker.is_up)
        return None if broker is None else self._restore(broker)

    def _restore(self, broker: Broker) -> str:
        broker.disk.repair()
        self.promises.repaired(broker)
        broker.ended = ""
        return f"the files of {broker.name} are brought back"

    def look_after_disk(self, chance: random.Random) -> str | None:
        """Restarts a broker whose disk has failed, as an operator does, after the kernel has dropped some pages."""
        broker = self._pick(chance, lambda broker: broker.has_failed_disk)
        return None if broker is None else self._restart_on_a_sound_disk(broker, chance)

    def _restart_on_a_sound_disk(self, broker: Broker, chance: random.Random) -> str:
        if broker.is_up:
            broker.kill()
        self.evictions += 1
        self.promises.power_goes(broker)
        broker.disk.evict_some(chance)
        broker.disk.heal()
        broker.start()
        return f"{broker.name} is restarted, its disk has failed"

    def fill(self, chance: random.Random) -> str | None:
        """Lets another program fill a disk to its last page, or almost, so that a write ends in the middle."""
        broker = self._pick(chance, lambda broker: broker.serves)
        if broker is None:
            return None
        left = chance.choice((0, 0, 1, 2, 3, 6))
        broker.fill(left)
        self.faults["full disk"] += 1
        return f"the disk of {broker.name} has {left} pages left"

    def make_room(self, chance: random.Random) -> str | None:
        broker = self._pick(chance, lambda broker: broker.is_full)
        if broker is None:
            return None
        broker.make_room()
        return f"{broker.name} has room again"

    # --- the network ----------------------------------------------------------------------------------------------

    def cut(self, chance: random.Random) -> str:
        """Cuts one or both directions of the network between two brokers, a broker and a name server, or a broker and
        the clients.
        """
        hosts = [*self.hosts, *(name.host for name in self.names), HOST]
        one, other = chance.sample(hosts, 2)
        self._disturb()
        self.wire.cut(one, other)
        if chance.random() < 0.6:
            self.wire.cut(other, one)
            return f"cut {one} and {other}"
        return f"cut {one} to {other}"

    def mend(self, chance: random.Random) -> str | None:
        if not self.wire.cuts and self.wire.delay_s < 0.01:
            return None
        self.wire.heal()
        self._disturb()
        return "mend the network"

    def slow(self, chance: random.Random) -> str:
        self.wire.delay_s = chance.choice((0.05, 0.3, 1.5))
        self._disturb()
        return f"messages take {self.wire.delay_s} s"

    def corrupt(self, chance: random.Random) -> str:
        self.wire.corruptions += 1
        self._disturb()
        return "a message loses a bit"

    def hours_pass(self, chance: random.Random) -> str | None:
        """Lets hours pass without any event, so that retention deletes."""
        if self.retention_h > 1:
            return None
        minutes = chance.choice((20, 40, 70))
        for broker in self.brokers:
            broker.clock.let_pass(minutes * 60_000)
        self.loop.run_for(10.5)
        return f"{minutes} minutes pass"

    def jump(self, chance: random.Random) -> str:
        broker = chance.choice(self.brokers)
        self.move_clock(broker, chance.choice((-3_600_000, -60_000, -500, 500, 60_000, 3_600_000)))
        return f"the clock of {broker.name} is off by {broker.clock.off_ms} ms"

    def move_clock(self, broker: Broker, by_ms: int) -> None:
        broker.clock.off_ms += by_ms

    # --- the operator ---------------------------------------------------------------------------------------------

    def promote(self, chance: random.Random, *, may_force: bool = True) -> str | None:
        """Promotes a slave when the master is down, and sometimes by force, as docs/when-it-breaks.md says."""
        if any(broker.is_up and broker.standing is not Standing.FENCED for broker in self.brokers if broker.leads):
            return None
        broker = self._pick(chance, _may_be_promoted)
        if broker is None or self.clients.promoting:
            return None
        self._force = chance.random() < 0.3 and may_force
        return self.clients.promote(broker, force=self._force)

    _force = False

    def promote_by_force(self, broker: Broker) -> str:
        self._force = True
        return self.clients.promote(broker, force=True)

    def note_promotions(self) -> None:
        for broker in self.brokers:
            role = broker.broker_id, broker.role_epoch()
            if not (broker.serves and broker.is_writable and role[1]) or role in self._noted:
                continue
            self._noted.add(role)
            # If the broker dies before its log gets a byte in this epoch, the epoch of the next start replaces this
            # one.
            epoch = next(epoch for epoch in broker.live.epochs.epochs.epochs if epoch.epoch >= role[1])
            self.promoted[epoch, broker.broker_id] = self._force
            self.promoted_at[epoch, broker.broker_id] = self.loop.now

    def fail_over(self, chance: random.Random) -> str | None:
        """Kills the master while producers send, and promotes a slave at once."""
        master = self._pick(chance, _is_writable)
        slave = self._pick(chance, _may_be_promoted)
        if master is None or slave is None:
            return None
        for _ in range(chance.randint(1, 6)):
            self.clients.send(master, chance)
        self.loop.run_for(chance.choice((0.0005, 0.002, 0.004, 0.05)))
        if not master.is_up:
            return "fail over, from who is gone already"
        (master.lose_power if chance.random() < 0.5 else master.kill)()
        self.loop.run_for(chance.choice((0.1, 1.0, 4.0)))
        said = self.promote(chance)
        self.loop.run_for(1.0)
        for _ in range(chance.randint(0, 3)):
            self.send(chance)
        if not master.is_up and chance.random() < 0.7:
            master.start()
        return f"{master.name} dies among sends: {said}"

    def return_of_the_past(self, chance: random.Random) -> str | None:
        """Kills the promoted master, restarts the name servers, and starts the master that was replaced."""
        master = self._pick(chance, lambda broker: broker.is_writable and broker.role_epoch() > 0)
        past = self._pick(chance, lambda broker: not broker.is_up and broker.leads)
        if master is None or past is None:
            return None
        self._disturb()
        master.kill()
        for server in self.names:
            if server.is_up:
                server.kill()
            server.start()
        past.start()
        self.loop.run_for(8.0)
        return f"{master.name} dies, {past.name} comes back to name servers that know nothing"

    def tell_who_is_master(self, chance: random.Random) -> str | None:
        """Restarts a slave with the address of the promoted master, as an operator does without name servers."""
        broker = self._pick(chance, self._follows_the_wrong_one)
        return None if broker is None else self._restart_as_slave_of_the_master(broker)

    def _follows_the_wrong_one(self, broker: Broker) -> bool:
        if self.names or not self.promoted or broker.leads or not broker.is_up:
            return False
        return broker.live.config.ha_master_address != self._promoted_address if broker.serves else False

    @property
    def _promoted_address(self) -> str:
        """Returns the address of the master that takes writes.  If no master takes writes, returns the address of the
        broker that was promoted last.
        """
        masters = [broker for broker in self.brokers if broker.is_writable]
        if not masters:
            # A master may still wait for its slaves, and the broker that was promoted last may be a slave by now.
            leading = [broker for broker in self.brokers if broker.leads and broker.standing is not Standing.FENCED]
            if leading:
                return max(leading, key=lambda broker: broker.role_epoch()).address
        _, number = list(self.promoted)[-1]
        best = max(masters, key=lambda master: master.live.epochs.epochs.last, default=self.brokers[number])
        return best.address

    def _restart_as_slave_of_the_master(self, broker: Broker) -> str:
        broker.kill()
        broker.master_known = self._promoted_address
        broker.start()
        return f"{broker.name} is restarted as slave of {broker.master_known}"

    def demote(self, chance: random.Random) -> str | None:
        """Starts a replaced master as a slave.  Sometimes the slave dies soon afterwards and starts again, because this
        start would show records that the slave should have cut from its log.
        """
        broker = self._pick(chance, lambda broker: broker.standing is Standing.FENCED)
        if broker is None:
            return None
        broker.kill()
        broker.make_slave()
        if not self.names and self.promoted:
            broker.master_known = self._promoted_address
        broker.start()
        if chance.random() < 0.5:
            self.loop.run_for(chance.choice((0.1, 0.5, 2.0)))
            if broker.is_up:
                (broker.lose_power if chance.random() < 0.3 else broker.kill)()
                broker.start()
        return f"{broker.name} is a slave now"

    # --- the end --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Ends all faults, so that one master takes writes and every other broker gets its log."""
        self.history.append("heal")
        self.wire.heal()
        self._disturb()
        for name in self.names:
            if not name.is_up:
                name.start()
        for broker in self.brokers:
            broker.undoom()
            broker.make_room()
            if broker.has_failed_disk:
                self.history.append(str(self._restart_on_a_sound_disk(broker, random.Random(broker.broker_id))))
            broker.disk.heal()
            self._restore(broker)
            if not broker.is_up:
                broker.start()
        step = 0
        while missing := self._what_is_not_whole():
            step += 1
            if step > 240:
                raise PromiseBroken(f"the brokers do not come into step again: {missing}")
            self.loop.run_for(0.5)
            self.check(full=False)
            for broker in self.brokers:
                if not broker.is_up:
                    broker.start()
                elif broker.standing is Standing.FENCED:
                    self.demote(random.Random(step))
                elif self._follows_the_wrong_one(broker):
                    self.history.append(self._restart_as_slave_of_the_master(broker))
            if step == 100 and self.promises.tainted and any(broker.is_writable for broker in self.brokers):
                self._rebuild_who_took_over_damage()
            if step > 40 and not any(broker.leads for broker in self.brokers):
                self._promote_anybody()
            if step > 40 and step % 20 == 1:
                self._promote_who_begins_behind_the_master()
        for broker in self.brokers:
            for group in GROUPS:
                self.clients.query(broker, group)
            if not self.promises.may_have_read_damage(broker) and not broker.disk.unread:
                self.promises.index_has_every_key(broker, broker.live.store, self.promises.records(broker))
        self.loop.run_for(1.0)
        self.check(full=True)
        self.promises.offsets.everybody_has_all()

    def _rebuild_who_took_over_damage(self) -> None:
        """Empties slaves that have copied damage, so that they copy everything again.

        Where there is no checksum, a slave may copy damage of its master's disk.  If the copied damage makes the two
        logs differ for good, both brokers say so, and an operator has to act.
        """
        for broker in self.brokers:
            if broker.serves and not broker.is_writable and not broker.live.replication.slave.is_following():
                self.history.append(f"{broker.name} begins anew")
                broker.kill()
                broker.empty()
                self.promises.begins_anew(broker)
                broker.start()

    def _promote_anybody(self) -> None:
        slaves = [broker for broker in self.brokers if _may_be_promoted(broker)]
        if slaves and not self.clients.promoting:
            best = max(slaves, key=_newest)
            self.history.append(self.promote_by_force(best))

    def _promote_who_begins_behind_the_master(self) -> None:
        """Stops a master that cannot continue, and promotes its slave without force.

        A master cannot continue if it has lost the end of its log, and retention at its slaves has deleted the first
        records of that end.  The master cannot fetch the deleted records, and both brokers say that the slave must be
        promoted.
        """
        for master in self.brokers:
            if master.standing is not Standing.WAITING:
                continue
            end = master.live.store.end_offset
            ahead = [one for one in self.brokers if _may_be_promoted(one) and one.live.store.min_offset > end]
            if ahead:
                self._promote_instead(master, max(ahead, key=_newest))

    def _promote_instead(self, master: Broker, slave: Broker) -> None:
        master.kill()
        self.loop.run_for(1.0)
        self._force = False
        self.history.append(self.clients.promote(slave, force=False))
        self.loop.run_until(lambda: slave.leads, 5.0)

    def _what_is_not_whole(self) -> str:
        down = [broker.name for broker in self.brokers if not broker.serves]
        if down:
            return f"{down} do not serve"
        for broker in self.brokers:
            if not self.promises.are_trimmed(broker):
                return f"the queues of {broker} have what has expired"
        masters = [broker for broker in self.brokers if broker.is_writable]
        if len(masters) != 1:
            return f"{len(masters)} masters take writes"
        master = masters[0].live
        records = [] if self.promises.tainted else self.promises.records(masters[0])
        if waiting := self.promises.queues.overdue(masters[0], records):
            return f"delayed messages are not delivered by {masters[0]}: {waiting}"
        for broker in self.brokers:
            node = broker.live
            if node.store.index.behind:
                return f"{broker} has {node.store.index.behind} bytes that are not indexed"
            if broker is masters[0]:
                continue
            if node.store.end_offset != master.store.end_offset or node.epochs.epochs != master.epochs.epochs:
                return f"{broker} has not the log of {masters[0]}"
            if not node.replication.slave.is_following():
                return f"{broker} does not follow"
            for mine, other in ((node.topics, master.topics), (node.groups, master.groups)):
                if mine.entries != other.entries:
                    return f"{broker} has {mine.entries}, and {masters[0]} {other.entries}"
            ours, theirs = _offsets(node), _offsets(master)
            # A slave keeps its offsets of deleted topics, and its master does not take these offsets from it.
            alive = {key for key in {*ours, *theirs} if key[1] not in master.topics.deleted()}
            different = {key for key in alive if ours.get(key) != theirs.get(key)}
            if different:
                return f"{broker} and the master have other offsets: " + ", ".join(
                    f"{key}: {ours.get(key)} and {theirs.get(key)}" for key in sorted(different)
                )
        return ""

    def _target(self, chance: random.Random) -> Broker | None:
        """Returns the broker to which a producer sends: the master that the producer knows, and sometimes a replaced
        one.
        """
        if chance.random() < 0.9:
            return self._pick(chance, _is_writable)
        return self._pick(chance, _is_up)

    def _at(
        self, chance: random.Random, wanted: Callable[[Broker], bool], act: Callable[[Broker], str | None]
    ) -> str | None:
        """Calls `act` with one of the brokers that are `wanted`.  Returns None if no broker is wanted."""
        broker = self._pick(chance, wanted)
        return None if broker is None else act(broker)

    def _do(
        self, chance: random.Random, wanted: Callable[[Broker], bool], act: Callable[[Broker], None], name: str
    ) -> str | None:
        def do(broker: Broker) -> str:
            act(broker)
            return f"{name} {broker.name}"

        return self._at(chance, wanted, do)

    def _pick(self, chance: random.Random, wanted: Callable[[Broker], bool]) -> Broker | None:
        found = [broker for broker in self.brokers if wanted(broker)]
        return chance.choice(found) if found else None


def _what(fault: Exception) -> str:
    return str(fault) if isinstance(fault, PromiseBroken) else f"{type(fault).__name__}: {fault}"


def _is_up(broker: Broker) -> bool:
    return broker.is_up


def _is_down(broker: Broker) -> bool:
    return not broker.is_up


def _is_writable(broker: Broker) -> bool:
    return broker.is_writable


def _may_be_promoted(broker: Broker) -> bool:
    """Returns True if the broker is a slave that has followed a master.  A slave that has never followed a master would
    begin a new history.
    """
    return broker.standing is Standing.SLAVE and broker.node is not None and broker.live.epochs.epochs.last > 0


def _newest(broker: Broker) -> tuple[int, int]:
    return broker.live.epochs.epochs.last, broker.live.store.end_offset


def _folder(path: Path) -> str:
    return kind_of(path).partition("/")[0]


def _used(content: bytes) -> range:
    """Returns the range of a log file that may have records, which ends after the last byte that is not zero."""
    return range(len(content.rstrip(b"\0")))


def _offsets(node: BrokerNode) -> dict[tuple[str, str, int], OffsetEntry]:
    return {
        (group, topic, queue): entry
        for group, topic, queues in node.offsets.everything()
        for queue, entry in queues.items()
        if entry > NEVER  # NEVER means the same as no entry
    }


WEIGHTS = {
    "send": 20,
    "burst": 6,
    "send_delayed": 3,
    "send_to_passing_topic": 2,
    "pull": 8,
    "pull_range": 1,
    "commit": 5,
    "query": 4,
    "reset": 1,
    "delete_topic": 1,
    "wait": 4,
    "die_in_a_call": 14,
    "start_and_die": 3,
    "kill": 3,
    "lose_power": 3,
    "lose_all_power": 1,
    "stop": 1,
    "start": 26,
    "fail_sync": 1.5,
    "fail_write": 1.5,
    "fail_read": 1.5,
    "lose_sector": 0.7,
    "flip_a_bit": 0.7,
    "misdirect": 0.7,
    "lose_flushed": 0.3,
    "restore": 8,
    "look_after_disk": 8,
    "fill": 1,
    "make_room": 5,
    "restart_name_server": 2,
    "cut": 3,
    "mend": 8,
    "slow": 1,
    "corrupt": 1,
    "jump": 1,
    "hours_pass": 1.5,
    "promote": 4,
    "fail_over": 4,
    "return_of_the_past": 4,
    "demote": 10,
    "tell_who_is_master": 5,
}
ALWAYS = {"tell_who_is_master", "send", "start", "demote", "mend", "look_after_disk", "make_room", "restore"}
