"""The protocols that replication needs from the store and the broker.  The tests have fakes for these protocols.

All methods are called on the event loop's thread, unless their docstrings say otherwise, and must not wait for the
network.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rocketsim_proto.metadata_pb2 import Metadata

from broker_service.replication.catch_up import Cut
from broker_service.replication.promise import Promise
from broker_service.replication.tracker import SlaveProgress
from broker_service.runtime import cold_reads


class ReplicatedLog(cold_reads.Store, Protocol):
    """The operations on the commit log that replication needs, which `MessageStore` implements."""

    @property
    def min_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    def read_log(self, commit_log_offset: int, max_bytes: int) -> bytes:
        """Reads bytes of the log; the result ends at the end of a file or of the log."""

    def view_log(self, commit_log_offset: int, max_bytes: int) -> memoryview:
        """Reads as `read_log` does, but returns a view, which is valid until the next operation on the log."""

    def append_replicated(self, commit_log_offset: int, data: bytes | memoryview) -> int:
        """Checks and stores the whole records in `data`, keeps an incomplete last record in memory, and returns the
        log's end.

        `commit_log_offset` is the end of the log plus the size of the incomplete record.  If `commit_log_offset` is the
        end of the log itself, the incomplete record in memory is dropped first.
        """

    def tail_crc_at(self, commit_log_offset: int, size: int) -> tuple[int, int]:
        """Returns (size, CRC-32) of the bytes before the offset: at most `size`, or fewer if the log has fewer."""

    def truncate(self, offset: int, keep_in: Path | None) -> int:
        """Cuts the log back to `offset`, so that no crash brings cut bytes back; a copy of the cut bytes goes to
        `keep_in`.
        """

    def queue_floors(self) -> list[tuple[str, int, int]]:
        """Returns (topic, queue id, first queue offset) for every queue that does not begin at 0."""

    def start_over(self, offset: int, floors: Iterable[tuple[str, int, int]]) -> None:
        """Deletes the log and its queues, and begins an empty log at `offset`, with queues that begin at `floors`."""

    def flush(self) -> int:
        """Syncs the log; returns the offset up to which everything is on disk."""


class MasterBroker(Protocol):
    """The operations of the broker that ReplicationMaster needs."""

    def is_master(self) -> bool:
        """Returns True if slaves may follow this broker: it was configured or promoted as master, and is not fenced."""

    def takes_writes(self) -> bool:
        """Returns True once the log may have bytes that no slave has.

        Once the result is True, no slave may send back bytes that the master has lost.
        """

    def metadata(self) -> Metadata:
        """Returns a snapshot of all metadata, marked `complete`, with the current epoch."""

    def accept_offsets(self, slave_id: int, offsets: Metadata) -> None:
        """Merges committed offsets that a slave took while this master was away; the merge never lowers an offset.

        Raises ValueError for impossible offsets.
        """

    def fenced(self, epoch: int, by: str) -> None:
        """Stops writes now and for good, because a newer epoch exists."""

    def slave_joined(self, slave: SlaveProgress) -> None:
        """Called when a slave's stream begins, and the slave has sent back the bytes that the master lost, if any."""

    def offsets_handed_back(self, slave: SlaveProgress) -> None:
        """Called when the offsets that this slave handed back have been merged."""

    def follows(self) -> str:
        """Returns the address of the master whose stream this slave has; empty if it has none."""

    def candidate_epoch(self) -> int:
        """Returns the epoch with which this slave is being promoted; 0 if it is not being promoted."""

    def promise(self, candidate: Promise) -> str:
        """Gives a promise, which is on disk on return; returns the reason if it refuses, otherwise an empty string."""

    def newer_master(self, master: Promise) -> None:
        """Called when another broker reports that it is the master of a newer epoch."""


class CutListener(Protocol):
    """The receiver of a Follower's calls before and after it cuts the log."""

    def log_will_be_cut(self, end_offset: int) -> None:
        """Lowers offsets on the disk that lie beyond the log's new end: committed ones, and those of delayed messages.

        Called before the log is cut, because a start after a crash could not tell that the log was cut.
        """

    def log_cut(self, cut: Cut) -> None:
        """Called after the log was cut back or started over."""


class SlaveBroker(CutListener, Protocol):
    """The operations of the broker that ReplicationSlave needs."""

    def follows_master_that_waits(self, *, for_slave: bool, for_flush: bool) -> None:
        """Records how safe a message is when this master answers OK; called before this slave sends the master an ack.

        `for_slave` is True for a SYNC_MASTER, `for_flush` for a master with SYNC_FLUSH.
        """

    def apply_metadata(self, metadata: Metadata) -> None:
        """Applies a snapshot (marked `complete`) or a change.  Committed offsets only rise, and are in the journal on
        return.

        Raises ValueError for impossible metadata.
        """

    def offsets_to_hand_back(self) -> Metadata | None:
        """Returns the committed offsets that the master lacks: this slave took them while the master was away, or the
        master lost them.

        The slave calls this method at every connect, so the method must go on returning an offset until the master has
        it.
        """

    def replicated(self, visible_offset: int) -> None:
        """Lets consumers see records up to this offset, which are as safe as the master requires.

        Waiting pulls are notified.
        """
