"""What replication needs of the store and of the broker, as protocols; they and the tests' fakes implement them.

Everything here is called on the event loop's thread, and nothing may block on the network.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from rocketsim_proto.metadata_pb2 import Metadata

from broker_service.replication.catch_up import Cut
from broker_service.replication.promise import Promise
from broker_service.replication.tracker import SlaveProgress
from broker_service.store.open_files import Failed
from broker_service.store.residency import Place


class ReplicatedLog(Protocol):
    """The commit log, as far as it is copied.  `MessageStore` is one."""

    @property
    def min_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    def read_log(self, commit_log_offset: int, max_bytes: int) -> bytes:
        """Raw bytes from there on, never across a file, never beyond the end."""

    def view_log(self, commit_log_offset: int, max_bytes: int) -> memoryview:
        """The same without a copy; valid until the next operation on the log."""

    def without_waiting(self, failed: Failed) -> AbstractContextManager[None]:
        """In this context `view_log` raises Cold instead of waiting for the disk, and ReadFailed for what `failed`."""

    def warm(self, places: Iterable[Place]) -> None:
        """Callable on any thread: reads the cold bytes into memory."""

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        """Store whole checked records, keep a last part of one aside, and return the end of what is stored.

        `commit_log_offset` is the end, which forgets what was kept aside, or the end plus what is kept aside.
        """

    def tail_crc_at(self, commit_log_offset: int, size: int) -> tuple[int, int]:
        """(size, CRC-32) of the last bytes before the offset; fewer where the log does not reach back so far."""

    def truncate(self, offset: int, keep_in: Path | None) -> int:
        """Cut back, so that nothing cut comes back after a crash at any point; a copy goes to `keep_in`."""

    def queue_floors(self) -> list[tuple[str, int, int]]:
        """(topic, queue id, queue offset) of every queue that does not begin at 0."""

    def start_over(self, offset: int, floors: Iterable[tuple[str, int, int]]) -> None:
        """Throw the log and its queues away and be an empty log that begins at `offset`, with queues at `floors`."""

    def flush(self) -> int:
        """Return only when every byte up to the returned offset is on disk."""


class MasterBroker(Protocol):
    """The broker behind a ReplicationMaster."""

    def is_master(self) -> bool:
        """Whether slaves may follow this broker: configured or promoted as one, and not fenced."""

    def takes_writes(self) -> bool:
        """From then on the log may have bytes that no slave has, so nothing is refilled any more."""

    def metadata(self) -> Metadata:
        """All of it, `complete`, with the current epoch."""

    def accept_offsets(self, slave_id: int, offsets: Metadata) -> None:
        """Merge forward what a slave took while this master was away.  ValueError for what makes no sense."""

    def fenced(self, epoch: int, by: str) -> None:
        """A newer epoch exists: stop taking writes now, and for good."""

    def slave_joined(self, slave: SlaveProgress) -> None:
        """A slave has answered, and what it had beyond this log has been fetched."""

    def offsets_handed_back(self, slave: SlaveProgress) -> None:
        """The offsets of this slave that were ahead of this broker's have been merged."""

    def follows(self) -> str:
        """The address of the master whose stream this slave has; empty: none."""

    def candidate_epoch(self) -> int:
        """With which this slave is being promoted; 0: it is not."""

    def promise(self, candidate: Promise) -> str:
        """Promise it, on disk, or say why not."""

    def hears_of_master(self, master: Promise) -> None:
        """That broker says that it is the master of a newer epoch."""


class HearsOfCuts(Protocol):
    def log_will_be_cut(self, end_offset: int) -> None:
        """Lower committed offsets beyond that end, before the log is cut: a start after a crash could not detect the
        cut."""

    def log_cut(self, cut: Cut) -> None:
        """The log was cut back or started over."""


class SlaveBroker(HearsOfCuts, Protocol):
    """The broker behind a ReplicationSlave."""

    def follows_master_that_waits(self, *, for_slave: bool, for_flush: bool) -> None:
        """What an OK of this master means.  Noted before anything is acknowledged to it."""

    def apply_metadata(self, metadata: Metadata) -> None:
        """A snapshot (`complete`) or a change.  Offsets merge forward, and are in the journal on return.  ValueError
        for what makes no sense."""

    def offsets_to_hand_back(self) -> Metadata | None:
        """Offsets taken while there was no master, or lost by it since.  Asked at every connect: keep them until the
        master has them."""

    def replicated(self, visible_offset: int) -> None:
        """Records up to here are stored as safely as the master asks: show them to consumers, notify waiting pulls."""
