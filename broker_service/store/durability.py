"""Durability: the syncs, and the flushed offset and checkpoint that they move.

The flush thread calls `flush`; the event loop calls everything else, and `flush` where it must know at once that all is
on disk.  A flush holds the lock; else the loop takes it only to cut the log and to sync what it has taken back, which
must not happen during a sync.  A cut lowers `flushed` under the lock, so the loop reads `flushed` to see how far a
flush got.
"""

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from broker_service.store.checkpoint import Checkpoint
from broker_service.store.commit_log import CommitLog
from broker_service.store.disk import Attempt, Disk
from broker_service.store.flushed_offset import Flushed, FlushedOffset
from broker_service.store.queue_table import QueueSync

logger = logging.getLogger(__name__)

_QUEUE_FILES_A_FLUSH = 64


@dataclass(frozen=True, slots=True)
class ThoroughFlush:
    """A flush of queues and index, too; after it recovery starts at `log_offset`."""

    queues: QueueSync
    index_directory: Path
    index_paths: list[Path]
    index_timestamp: int
    log_offset: int
    timestamp: int
    is_void: bool = False


class Durability:
    def __init__(self, disk: Disk, root: Path, log: CommitLog) -> None:
        self.flushed = 0
        self.queues_on_disk = 0  # every queue entry of a record before this is, noted or not
        self.last_timestamp = 0  # store time of the newest record
        self.trouble: str | None = None  # why the last flush left something out; it is tried again
        self.note_is_due = False  # set by the loop: the next flush syncs the note of the flushed offset
        self.lock = threading.Lock()
        self._is_noted = True
        self._disk = disk
        self._log = log
        self._flushed_file = FlushedOffset(disk, root / "rocketsim" / "flushed")
        self._checkpoint_path = root / "checkpoint"
        self.checkpoint = Checkpoint()
        self._requests: deque[ThoroughFlush] = deque()

    def load(self) -> Flushed | None:
        """What the last process noted; None if there is no note.  StoreCorrupt if the note is damaged."""
        self.checkpoint = Checkpoint.load(self._disk, self._checkpoint_path)
        self.last_timestamp = self.checkpoint.log_timestamp
        self.queues_on_disk = self.checkpoint.queues_log_offset
        return self._flushed_file.load(log_is_empty=self._log.has_no_records())

    def set_flushed(self, flushed: Flushed) -> None:
        """Notes the flushed offset and syncs the note: after a recovery, before a cut, at a clean stop."""
        self.flushed = flushed.offset
        self.queues_on_disk = min(self.queues_on_disk, self.flushed)
        self._flushed_file.save(flushed)
        self._flushed_file.sync()

    def request(self, thorough: ThoroughFlush) -> None:
        """Queues the thorough flush in chunks, one per flush, so that a put does not wait for thousands of queue files.

        Only the last chunk notes that everything is on disk.
        """
        paths = thorough.queues.paths
        while len(paths) > _QUEUE_FILES_A_FLUSH:
            chunk, paths = paths[:_QUEUE_FILES_A_FLUSH], paths[_QUEUE_FILES_A_FLUSH:]
            queues = replace(thorough.queues, paths=chunk)
            self._requests.append(replace(thorough, queues=queues, index_paths=[], is_void=True))
        self._requests.append(replace(thorough, queues=replace(thorough.queues, paths=paths)))

    def void_requests(self) -> None:
        """After a cut: files that wait for a flush are still synced, but nothing is noted about them."""
        self._requests = deque(replace(request, is_void=True) for request in self._requests)

    @property
    def is_requested(self) -> bool:
        return bool(self._requests)

    def flush(self) -> int:
        """On return everything appended before the call is on disk; returns the flushed offset.

        FlushFailed after a failed sync, then for every later call, too.  The offset may be lower if the sync was not
        tried or noted (no handle, no room): `trouble` says why, and the next flush tries again.
        """
        with self.lock:
            self._disk.check()
            thorough = self._requests.popleft() if self._requests else None
            timestamp = self.last_timestamp
            end = self._log.end_offset  # read behind the other two: all they speak of lies before it
            with Attempt() as flush:
                if end > self.flushed:
                    self._log.sync(self.flushed, end)
                    self._flushed_file.save(Flushed(end))
                    self.flushed = end
                    self.checkpoint.log_timestamp = timestamp
                if self.note_is_due or thorough is not None:
                    self.note_is_due = False
                    self._flushed_file.sync()
                if thorough is not None:
                    self._sync_thoroughly(thorough)
                self.trouble = None
            if flush.refused:
                if thorough is not None:
                    self._requests.appendleft(thorough)
                self.trouble = f"flushing failed, nothing is in doubt, it is tried again: {flush.refused}"
                logger.warning("%s", self.trouble)
            elif thorough is not None and not thorough.is_void:
                self.queues_on_disk = thorough.log_offset
                self._note(thorough)
            return self.flushed

    def _sync_thoroughly(self, thorough: ThoroughFlush) -> None:
        thorough.queues.sync()
        for path in thorough.index_paths:
            self._sync(path)
        self._disk.sync_directory(thorough.index_directory)

    def _note(self, thorough: ThoroughFlush) -> None:
        """Writes summary and checkpoint.  Without room for them the old ones stay, which only makes recovery longer."""
        checkpoint = self.checkpoint
        checkpoint.queues_log_offset = thorough.log_offset
        checkpoint.queues_timestamp = thorough.timestamp
        checkpoint.index_timestamp = thorough.index_timestamp
        with Attempt() as saving:
            thorough.queues.save_summary()
            checkpoint.save(self._disk, self._checkpoint_path)
        if saving.refused and self._is_noted:  # said once, not every minute
            logger.warning(
                "%s: how far all is on disk could not be noted, a recovery would take longer", saving.refused
            )
        self._is_noted = saving.refused is None

    def _sync(self, path: Path) -> None:
        try:
            handle = self._disk.open(path, read_only=True)
        except FileNotFoundError:
            return  # Expired meanwhile.
        try:
            self._disk.fdatasync(handle)
        finally:
            self._disk.close(handle)

    def close(self) -> None:
        self._flushed_file.close()
