"""Simulated machines: brokers, which run the real broker `app.broker`, and name servers."""

import asyncio
import errno
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker_service.broker.core.mastership import Standing
from broker_service.config.broker_config import BrokerConfig
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.errors import RocketSimError
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.namesrv.server import run_namesrv
from broker_service.node.app import broker
from broker_service.node.node import BrokerNode
from broker_service.runtime.machine import Machine
from tests.simulation.disk import READS, Damage, Disk
from tests.simulation.network import Network, Wire
from tests.simulation.virtual_loop import Process, VirtualLoop
from tests.support.memory_files import PAGE, SECTOR, MemoryPath, PowerCut

LOG_FILE = 4096
PORT = 10911
MIDNIGHT_MS = 1_795_132_800_000  # the midnight at which every simulation begins


class Clock:
    """A machine's time of day: it differs from the simulation's time by a constant, and it may jump."""

    def __init__(self, loop: VirtualLoop, off_ms: int) -> None:
        self._loop = loop
        self.off_ms = off_ms
        self._passed_ms = 0  # the sum of the idle hours that the simulation has skipped

    def now_ms(self) -> int:
        return MIDNIGHT_MS + int(self.since_boot() * 1000) + self.off_ms

    def since_boot(self) -> float:
        return self._loop.now + self._passed_ms / 1000

    def let_pass(self, ms: int) -> None:
        self._passed_ms += ms


class Broker:
    """A simulated broker, which may run as several processes one after another.  `run` is the number of its processes
    so far.  If the last process ended by itself, `ended` says why.
    """

    def __init__(self, loop: VirtualLoop, wire: Wire, broker_id: int, chance: random.Random, **settings: Any) -> None:
        self.broker_id = broker_id
        self.name = f"broker-{broker_id}"
        self.host = f"10.0.0.{broker_id + 1}"
        self.address = f"{self.host}:{PORT}"
        self.root = MemoryPath("/") / self.name
        self.disk = Disk()
        self.disk.make_directory(self.root)
        self.clock = Clock(loop, 0)
        self.settings = settings
        self.run = 0
        self.started_at = 0.0
        self.is_full = False
        self.lacks_files = False  # true after a power loss or a death in an append, if the disk was full
        self.node: BrokerNode | None = None
        self.process: Process | None = None
        self.was_killed = False  # true from a kill to the next start: nothing that was written is lost
        self.ended = ""
        self.served_until_its_end = False
        self.stopped_cleanly = False
        self.wrong_start = ""  # why its last start should have been refused
        self.is_master = broker_id == 0  # as the configuration file says
        self.on_start: list[Callable[[Broker], None]] = []
        self.on_death: list[Callable[[Broker, bool], None]] = []
        self.master_known = ""  # the master's address in its configuration, if an operator has entered it
        self._powerless = False
        self._loop = loop
        self._wire = wire
        self._chance = chance

    # --- start and end --------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def serves(self) -> bool:
        """Returns True once the broker has started."""
        return self.is_up and self.node is not None

    @property
    def live(self) -> BrokerNode:
        """Returns the broker's node.  Call this method only while the broker serves."""
        assert self.node is not None
        return self.node

    def config(self) -> BrokerConfig:
        values: dict[str, Any] = {
            "broker_name": "broker-a",
            "broker_id": 0 if self.is_master else max(1, self.broker_id) if self.broker_id else 9,
            "listen_port": PORT,
            "grpc_server_port": -1,
            "bind_address": self.host,
            "store_path_root_dir": self.root,
            "mapped_file_size_commit_log": LOG_FILE,
            "mapped_file_size_consume_queue": 160,
            "max_hash_slot_num": 7,
            "max_index_num": 20,
            "physical_memory": 1 << 30,
            "ha_transfer_batch_size": 1024,
            "flush_interval_commit_log": 200,
            "flush_consume_queue_thorough_interval": 3000,
            "flush_consumer_offset_interval": 1000,
            "flush_delay_offset_interval": 1000,
            "sync_metadata_interval": 2000,
            "slave_wait_time_ms": 6000,
            "slave_timeout": 1000,
            "register_name_server_period": 2000,
            "message_delay_level": "1s 3s",
            "default_topic_queue_nums": 2,
        }
        values |= self.settings
        if not self.is_master:
            values["broker_role"] = BrokerRole.SLAVE
            values.setdefault("ha_master_address", self.master_known)
        return BrokerConfig(**values)

    def start(self) -> None:
        assert not self.is_up
        self.run += 1
        self.was_killed = False
        self.started_at = self._loop.now
        self.node, self.ended, self.stopped_cleanly = None, "", False
        self.disk.unread.clear()
        for callback in self.on_start:
            callback(self)
        self._wire.is_back(self.host)
        process = self.process = Process(self._loop, f"{self.name}/{self.run}")
        disk = self.disk
        process.has_failed = lambda: disk.is_off
        process.on_death.append(lambda: self._died(process))
        machine = Machine(
            files=disk,
            network=Network(self._wire, self.host),
            monotonic=self._loop.time,
            now_ms=self.clock.now_ms,
            since_boot=self.clock.since_boot,
            chance=random.Random(self._chance.random()),
        )
        process.spawn(self._live(process, machine))

    async def _live(self, process: Process, machine: Machine) -> None:
        self._stopping = self._loop.create_future()
        expected, readable = self.disk.flushed_offset(self.root, as_written=True), self.disk.flushed_offset(self.root)
        try:
            async with broker(self.config(), machine) as node:
                self.node, self.lacks_files = node, False
                self.wrong_start = what_is_wrong(node.store.end_offset, expected, readable)
                shutdown = _Shutdown(self._stopping)
                await node.tasks.run_until(shutdown)  # type: ignore[arg-type]
            self.stopped_cleanly = True
        except (RocketSimError, OSError) as error:
            self.ended = f"{type(error).__name__}: {error}"
        except PowerCut:
            return
        except Exception as error:
            self.ended = f"FAULT {type(error).__name__}: {error}"
        self.served_until_its_end = self.node is not None and not self._stopping.done()
        process.die()

    def ask_to_stop(self) -> None:
        """Stops the process as SIGTERM does."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    def kill(self) -> None:
        """Kills the process as SIGKILL does: what was written stays written."""
        assert self.process is not None
        self.disk.pull_the_plug()
        self.process.die()

    def lose_power(self) -> None:
        """Lets the machine lose its power.  Data that was not synced may be lost, and no peer is notified."""
        self._powerless = True
        self.kill()

    def doom(self, calls: int, *, powerless: bool) -> None:
        """Makes the broker die in the middle of a call to its disk, which is the call number `calls` from now on."""
        self.disk.stop_at = self.disk.calls + calls
        self._powerless = powerless

    def undoom(self) -> None:
        self.disk.stop_at = None
        self._powerless = False

    def fail(self, call: str, chance: random.Random, error: int = errno.EIO) -> int:
        """Makes one of the next calls of this kind on the broker's disk fail, and returns which one."""
        nth = chance.choice((1, 2, 4, 8))
        self.disk.fail(call, error, nth=nth, part=chance.random())
        return nth

    @property
    def has_failed_disk(self) -> bool:
        """Returns True if a write or sync of the disk has failed since an operator last looked after the disk."""
        return any(fault.nth <= 0 and fault.call not in READS for fault in self.disk.faults)

    def may_refuse_to_start(self, error: str, unread: list[Path], *, lacks_room: bool) -> bool:
        """Returns True if a start may fail with this error.

        The error must name the file that cannot be read, or the place where the log is damaged, or it must say that the
        disk has no room (`lacks_room`).  A start needs room for files that a power loss or a death in the middle of an
        append has left out (docs/when-it-breaks.md).
        """
        is_for_room = lacks_room and f"opening {self.root}: no room on the disk" in error
        if is_for_room or any(str(path) in error for path in unread):
            return True
        return any(self._is_named(damage, error) for damage in self.disk.still_damaged())

    def _is_named(self, damage: Damage, error: str) -> bool:
        if str(damage.path) not in error:
            return False
        begin, end = self.in_log(damage)
        offsets = [int(number) for number in re.findall(r"\b\d{1,9}\b", error)]
        return begin == end or any(offset < end and offset > begin - LOG_FILE for offset in offsets)

    def in_log(self, damage: Damage) -> tuple[int, int]:
        """Returns the range of log offsets that is damaged, or (0, 0) if the file is no log file."""
        if damage.path.parent != self.root / "commitlog":
            return 0, 0
        start = int(damage.path.name)
        return start + damage.begin, start + damage.end

    def has_not_read(self, begin: int, end: int) -> bool:
        """Returns True if a read of these bytes of the log has ever failed."""
        sectors = {
            (self._log_file(offset), offset % LOG_FILE // SECTOR) for offset in (*range(begin, end, SECTOR), end - 1)
        }
        return not sectors.isdisjoint(self.disk.unread_sectors)

    def fill(self, pages_left: int = 0) -> None:
        """Makes another program take all the room of the disk except for a few pages."""
        self.disk.make_room(pages_left * PAGE)
        self.is_full = True

    def make_room(self) -> None:
        if self.lacks_files:
            self.ended = ""
        self.disk.make_room()
        self.is_full = self.lacks_files = False

    def make_slave(self) -> None:
        """Changes the broker's configuration as an operator does who makes it a slave, and tries again if the disk
        refuses once.
        """
        self.is_master = False
        try:
            self._forget_role()
        except OSError:
            self._forget_role()

    def _forget_role(self) -> None:
        for name in ("role.json", "role.json.bak"):
            self.disk.remove(self.root / "rocketsim" / name)
        self.disk.sync_directory(self.root / "rocketsim")

    def empty(self) -> None:
        """Deletes the files of the broker while it is down, as an operator does who wants everything copied from the
        master.
        """
        before, self.disk = self.disk, Disk()
        self.disk.make_directory(self.root)
        self.disk.watch, self.disk.removed = before.watch, before.removed
        self.is_master = False

    def _died(self, process: Process) -> None:
        """After a kill, a power loss or an error, leaves on the disk what the next process finds there."""
        powerless, self._powerless = self._powerless, False
        for callback in self.on_death:
            callback(self, powerless)
        self.was_killed = not powerless and self.node is not None
        self._wire.died(self.host, silently=powerless)
        # NB: a record is written before its queue entries, which may need a new file.
        died_in_an_append = self.disk.died_in is not None and self.disk.died_in[1] in ("commitlog", "consumequeue")
        self.lacks_files |= self.is_full and (powerless or died_in_an_append)
        self.disk.stop_at = None
        if powerless:
            self.disk = self.disk.after_power_loss(self._chance)
        else:
            self.disk = self.disk.after_kill()
        self.node = None

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def standing(self) -> Standing | None:
        return self.live.mastership.standing if self.serves else None

    @property
    def leads(self) -> bool:
        """Returns True if the broker is a master by its configuration or by a promotion, whether or not the broker
        runs.
        """
        return self.is_master or self.role_epoch() > 0

    def role_epoch(self) -> int:
        """Returns the epoch with which an operator promoted the broker, or 0 if nobody did."""
        content = self.disk.as_written(self.root / "rocketsim" / "role.json", durable=False)
        return int(json.loads(content)["epoch"]) if content else 0

    @property
    def is_writable(self) -> bool:
        return self.standing is Standing.WRITABLE

    def log(self, begin: int, end: int, *, durable: bool = False, as_written: bool = False) -> bytes:
        """Returns the log's bytes as the next process finds them after a kill.

        With `durable`, returns only the bytes that no power loss can take.  With `as_written`, returns the bytes
        without the damage that the disk has done.
        """
        content_of = self.disk.as_written if as_written else self.disk.content
        pieces = []
        while begin < end:
            start = begin - begin % LOG_FILE
            stop = min(end, start + LOG_FILE)
            content = content_of(self._log_file(start), durable=durable)
            pieces.append(content[begin - start : stop - start].ljust(stop - begin, b"\0"))
            begin = stop
        return b"".join(pieces)

    def _log_file(self, offset: int) -> Path:
        return self.root / "commitlog" / f"{offset - offset % LOG_FILE:020d}"

    def __str__(self) -> str:
        if not self.is_up:
            return f"{self.name} down{': ' + self.ended if self.ended else ''}"
        if not self.serves:
            return f"{self.name} starting"
        store = self.live.store
        epochs = self.live.epochs.epochs
        return f"{self.name} {self.live.mastership} [{store.min_offset}, {store.end_offset}) epochs {epochs}"


def what_is_wrong(end: int, flushed: int | None, readable: int | None) -> str:
    """Compares the log's end with the offset that the disk has noted as flushed, and returns why a start should have
    been refused.  Returns an empty text if the start was right.
    """
    if flushed is None:
        return ""
    if readable is None and flushed:
        return f"goes on with a log that ends at {end}, and its note that {flushed} is flushed cannot be read"
    if end < (flushed if readable is None else min(flushed, readable)):
        return f"has cut its log at {end}, below the flushed offset {flushed}"
    return ""


class _Shutdown:
    """A shutdown event that waits on the process's own loop."""

    def __init__(self, future: Any) -> None:
        self._future = future

    async def wait(self) -> bool:
        await self._future
        return True


class NameServer:
    def __init__(self, loop: VirtualLoop, wire: Wire, number: int) -> None:
        self.name = f"names-{number}"
        self.host = f"10.0.1.{number + 1}"
        self.address = f"{self.host}:9876"
        self.process: Process | None = None
        self._loop = loop
        self._wire = wire

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        self._wire.is_back(self.host)
        self.process = Process(self._loop, self.name)
        config = NamesrvConfig(
            listen_port=9876, bind_address=self.host, broker_expire_time_ms=20_000, scan_not_active_broker_interval=1000
        )
        self.process.spawn(self._live(config))

    async def _live(self, config: NamesrvConfig) -> None:
        never = _Never()
        machine = Machine(network=Network(self._wire, self.host), monotonic=lambda: self._loop.now)
        await run_namesrv(config, never, machine)  # type: ignore[arg-type]

    def kill(self) -> None:
        assert self.process is not None
        self.process.die()
        self._wire.died(self.host, silently=False)


class _Never:
    """A shutdown event that never comes."""

    def is_set(self) -> bool:
        return False

    async def wait(self) -> None:
        await asyncio.get_running_loop().create_future()


__all__ = ["LOG_FILE", "Broker", "FlushDiskType", "NameServer"]
