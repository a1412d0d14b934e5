"""One broker of the simulation: real store, real replication parts, real offset table, on a disk in memory.

What the broker's shells do around them (answer a handshake, wait for a flush, begin an epoch) plain calls do here.
"""

import random
from pathlib import Path

from broker_service.broker.consumer_offsets import ConsumerOffsetTable
from broker_service.errors import StaleEpoch
from broker_service.replication.acknowledgement import AckLevels, Acknowledgements
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.follower import Follower
from broker_service.replication.handshake import Identity
from broker_service.replication.tracker import Tracker
from broker_service.replication.transfer import State, Transfer, TransferSettings
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import Line
from tests.support.memory_files import MemoryFiles
from tests.support.stores import LOG_FILE, NOW, config

SETTINGS = TransferSettings(
    frame_bytes=700, in_flight_bytes=6 * LOG_FILE, heartbeat_s=5.0, housekeeping_s=20.0, gather_s=0.0
)
FALL_BEHIND_MAX = 8 * LOG_FILE


class MemoryJournal:
    """An OffsetJournal whose lines are with the operating system: a kill keeps them, a power loss does not."""

    def __init__(self) -> None:
        self.lines = []

    def replay(self):
        return list(self.lines)

    def append(self, group, topic, entries, *, replaces=False):
        self.lines.append(Line(group, topic, dict(entries), replaces))

    @property
    def is_empty(self):
        return not self.lines

    def rotate(self):
        return len(self.lines)

    def drop(self, number):
        del self.lines[:number]

    def close(self):
        pass


class Node:
    """`is_master` is what its configuration says; `writable` is whether it takes writes in this run of the process."""

    def __init__(self, broker_id: int, levels: AckLevels, chance: random.Random) -> None:
        self.broker_id = broker_id
        self.name = f"broker-{broker_id}"
        self.root = Path("/") / self.name
        self.levels = levels
        self.is_master = broker_id == 0
        self.files = MemoryFiles()
        self.journal = MemoryJournal()
        self.store: MessageStore | None = None
        self.starts = 0
        self._chance = chance

    @property
    def is_up(self) -> bool:
        return self.store is not None

    # --- starting and dying ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self.starts += 1
        self.writable = False
        self.fenced = False
        self.visible = None
        self.lowest_visible = 0
        self.transfers: list[Transfer] = []
        store = MessageStore.open(config(self.root), NOW, self.files)
        self.epochs = EpochFile(self.root / "rocketsim" / "epochs.json", store.end_offset, self.files)
        self.offsets = ConsumerOffsetTable(
            JsonFile(self.root / "config" / "consumerOffset.json", self.files),
            JsonFile(self.root / "rocketsim" / "offset_generations.json", self.files),
            self.journal,
        )
        self.acks = Acknowledgements(
            self.levels,
            Tracker(FALL_BEHIND_MAX),
            end_offset=lambda: store.end_offset,
            flushed_offset=lambda: store.flushed_offset,
            request_flush=lambda offset: None,
            visible_changed=self._visible_changed,
        )
        self.store = store

    def stop(self) -> None:
        self.store.close()
        self._down(self.files.kill())

    def kill(self) -> None:
        self._down(self.files.kill())

    def lose_power(self) -> None:
        del self.journal.lines[self._chance.randint(0, len(self.journal.lines)) :]
        self._down(self.files.power_loss(self._chance))

    def _down(self, files: MemoryFiles) -> None:
        self.files = files
        self.store = None
        self.writable = False

    # --- what the broker does -------------------------------------------------------------------------------------

    def begin_epoch(self) -> int:
        """As ReplicationMaster.begin_epoch, then Leadership: clamp, take writes."""
        self.flush()
        epoch = self.epochs.epochs.next(promotion=not self.epochs.begun_here)
        self.epochs.save(
            self.epochs.epochs.begin(epoch, self.store.end_offset, self._chance.getrandbits(60)), begun_here=True
        )
        self.acks.begin()
        self.offsets.clamp(self.queue_end, new_generation=True)
        self.writable = True
        return epoch

    def flush(self) -> None:
        self.store.flush()
        self.acks.on_flushed(self.store.flushed_offset)

    def queue_end(self, topic: str, queue_id: int) -> int:
        return self.store.queue_bounds(topic, queue_id)[1]

    def fence(self, epoch: int) -> None:
        if epoch > self.epochs.epochs.last:
            self.fenced = True
            self.writable = False

    def identity(self) -> Identity:
        return Identity(
            cluster_name="simulated",
            broker_name="broker",
            broker_id=self.broker_id,
            address=self.name,
            mapped_file_size_commit_log=LOG_FILE,
            mapped_file_size_consume_queue=160,
        )

    def transfer(self, now: float) -> Transfer:
        return Transfer(
            self.store,
            self.epochs,
            self.identity(),
            self.acks,
            SETTINGS,
            sync_master=self.levels.sync_master,
            sync_flush=self.levels.sync_flush,
            now=now,
        )

    def follower(self) -> Follower:
        return Follower(self.store, self.epochs, self.identity(), self.root / "rocketsim" / "diverged")

    def is_refilling(self) -> bool:
        return any(transfer.state is State.REFILL for transfer in self.transfers)

    def _visible_changed(self, visible: int | None) -> None:
        self.visible = visible

    # --- what is where --------------------------------------------------------------------------------------------

    def log(self, begin: int, end: int) -> bytes:
        """Log bytes as the next process would find them after a kill."""
        return self._log_bytes(begin, end, lambda path: self.files._names.get(path), lambda inode: inode.data)

    def durable_log(self, begin: int, end: int) -> bytes:
        """Log bytes that no power loss takes."""
        return self._log_bytes(
            begin, end, lambda path: self.files._durable_names.get(path), lambda inode: inode.durable
        )

    def _log_bytes(self, begin, end, inode_of, content_of) -> bytes:
        pieces = []
        while begin < end:
            start = begin - begin % LOG_FILE
            stop = min(end, start + LOG_FILE)
            inode = inode_of(self.root / "commitlog" / f"{start:020d}")
            content = content_of(inode) if inode is not None else b""
            pieces.append(bytes(content[begin - start : stop - start]).ljust(stop - begin, b"\0"))
            begin = stop
        return b"".join(pieces)

    def __str__(self) -> str:
        if not self.is_up:
            return f"{self.name} down"
        role = "master" if self.is_master else "slave"
        state = "fenced" if self.fenced else "writable" if self.writable else "waiting" if self.is_master else ""
        return f"{self.name} {role} {state} [{self.store.min_offset}, {self.store.end_offset}) {self.epochs.epochs}"


__all__ = ["FALL_BEHIND_MAX", "SETTINGS", "Node", "StaleEpoch"]
