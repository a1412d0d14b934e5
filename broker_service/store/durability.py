"""Durability syncs the store's files, and keeps the flushed offset and the checkpoint, which record what is on disk.

The flush thread calls `flush`.  The event loop calls everything else; it also calls `flush` where it must know at once
that everything is on disk.

`flush` holds `lock`.  The event loop also holds `lock` while it cuts the log and while it zeroes the bytes of a failed
write, because neither may happen during a sync.  A cut lowers `flushed` under the lock.  After a flush the event loop
reads `flushed` and not the value that the flush returned, because a cut may have made that value too high.
"""

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from broker_service.errors import ServiceNotAvailable
from broker_service.store.checkpoint import Checkpoint
from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.disk import Attempt, Disk
from broker_service.store.flushed_offset import Flushed, FlushedOffset
from broker_service.store.index import Index
from broker_service.store.queue_table import QueueSync, QueueTable

logger = logging.getLogger(__name__)

_NOTE_INTERVAL_MS = 1000
_QUEUE_FILES_A_FLUSH = 64


@dataclass(frozen=True, slots=True)
class ThoroughFlush:
    """A flush of the log, the queues and the index.  After this flush, a recovery starts at `log_offset`."""

    queues: QueueSync
    index_directory: Path
    index_paths: list[Path]
    index_timestamp: int
    log_offset: int
    timestamp: int
    is_void: bool = False  # True: the flush only syncs files, and writes neither summary nor checkpoint


class Durability:
    def __init__(self, disk: Disk, log: CommitLog, queues: QueueTable, index: Index, config: StoreConfig) -> None:
        root = config.root
        self.config = config
        self.flushed = 0
        # log offset before which all records have their queue entries on disk, even if no file says so yet
        self.queues_on_disk = 0
        self.last_timestamp = 0  # store time of the newest record
        self.trouble: str | None = None  # why the last flush was incomplete; None if it was complete
        self.next_thorough_ms = 0  # when `work` requests the next thorough flush
        self.lock = threading.Lock()
        self._next_note_ms = 0
        self._note_is_due = False  # set by the loop: the next flush also syncs the file of the flushed offset
        self._is_noted = True
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._flushed_file = FlushedOffset(disk, root / "rocketsim" / "flushed")
        self._checkpoint_path = root / "checkpoint"
        self.checkpoint = Checkpoint()
        self._requests: deque[ThoroughFlush] = deque()

    def load(self) -> Flushed | None:
        """Reads the checkpoint, and returns the flushed offset that the last process wrote; None if it wrote none.

        Raises StoreCorrupt if the file of the flushed offset is damaged.
        """
        self.checkpoint = Checkpoint.load(self._disk, self._checkpoint_path)
        self.last_timestamp = self.checkpoint.log_timestamp
        self.queues_on_disk = self.checkpoint.queues_log_offset
        return self._flushed_file.load(log_is_empty=self._log.has_no_records())

    def set_flushed(self, flushed: Flushed) -> None:
        """Writes and syncs the flushed offset; called after a recovery, before a cut, and at a clean stop."""
        self.flushed = flushed.offset
        self.queues_on_disk = min(self.queues_on_disk, self.flushed)
        self._flushed_file.save(flushed)
        self._flushed_file.sync()

    def start(self, now_ms: int) -> None:
        """Sets when `work` is to request its first flushes."""
        self.next_thorough_ms = now_ms + self.config.flush_consume_queue_thorough_interval_ms
        self._next_note_ms = now_ms + _NOTE_INTERVAL_MS

    def work(self, now_ms: int) -> None:
        """Asks the flush thread for the flushes that are due."""
        if now_ms >= self._next_note_ms:
            self._next_note_ms = now_ms + _NOTE_INTERVAL_MS
            self._note_is_due = True
        if now_ms >= self.next_thorough_ms and not self._requests:
            self.next_thorough_ms = now_ms + self.config.flush_consume_queue_thorough_interval_ms
            self._queues.save_floors()
            self._request()

    def flush_thoroughly(self) -> None:
        """Syncs log, queues and index at once; raises ServiceNotAvailable if the disk did not take everything."""
        self._request()
        while self._requests:
            self.flush()
            if self.trouble is not None:
                raise ServiceNotAvailable(self.trouble)

    def _request(self) -> None:
        """Makes the next flushes sync queues and index, too, so that recovery starts at the current end of the log.

        The files are spread over several flushes, so that no put waits for thousands of queue files.  Only the last
        flush writes the summary and the checkpoint, which say that everything is on disk.
        """
        end = self._log.end_offset
        index_paths, index_timestamp, index_offset = self._index.take_unsynced()
        thorough = ThoroughFlush(
            self._queues.take_unsynced(end, index_offset),
            self._index.directory,
            index_paths,
            index_timestamp,
            end,
            self.last_timestamp,
        )
        paths = thorough.queues.paths
        while len(paths) > _QUEUE_FILES_A_FLUSH:
            chunk, paths = paths[:_QUEUE_FILES_A_FLUSH], paths[_QUEUE_FILES_A_FLUSH:]
            queues = replace(thorough.queues, paths=chunk)
            self._requests.append(replace(thorough, queues=queues, index_paths=[], is_void=True))
        self._requests.append(replace(thorough, queues=replace(thorough.queues, paths=paths)))

    def void_requests(self) -> None:
        """Makes waiting requests only sync their files, because their log offsets are wrong after a cut."""
        self._requests = deque(replace(request, is_void=True) for request in self._requests)

    def flush(self) -> int:
        """Syncs everything that was appended before the call; returns the flushed offset.

        Raises FlushFailed after a failed sync, and at every later call.  If no file handle is free or the disk has no
        room, no error is raised: the flushed offset stays behind, `trouble` has the reason, and the next flush tries
        again.
        """
        with self.lock:
            self._disk.check()
            thorough = self._requests.popleft() if self._requests else None
            timestamp = self.last_timestamp
            end = self._log.end_offset  # read last, so that request and timestamp cover only records before `end`
            with Attempt() as flush:
                if end > self.flushed:
                    self._log.sync(self.flushed, end)
                    self._flushed_file.save(Flushed(end))
                    self.flushed = end
                    self.checkpoint.log_timestamp = timestamp
                if self._note_is_due or thorough is not None:
                    self._note_is_due = False
                    self._flushed_file.sync()
                if thorough is not None:
                    self._sync_thoroughly(thorough)
                self.trouble = None
            if flush.refused:
                if thorough is not None:
                    self._requests.appendleft(thorough)
                self.trouble = f"a flush failed and is tried again, no message is in doubt: {flush.refused}"
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
        """Writes the summary and the checkpoint.  On a full disk, both old files stay, and recovery takes longer."""
        checkpoint = self.checkpoint
        checkpoint.log_timestamp = max(checkpoint.log_timestamp, thorough.timestamp)
        checkpoint.queues_log_offset = thorough.log_offset
        checkpoint.queues_timestamp = thorough.timestamp
        checkpoint.index_timestamp = thorough.index_timestamp
        with Attempt() as saving:
            thorough.queues.save_summary()
            checkpoint.save(self._disk, self._checkpoint_path)
        if saving.refused and self._is_noted:  # a repeated failure is not logged again every minute
            logger.warning("the checkpoint could not be written, a recovery would take longer: %s", saving.refused)
        self._is_noted = saving.refused is None

    def _sync(self, path: Path) -> None:
        try:
            handle = self._disk.open(path, read_only=True)
        except FileNotFoundError:
            return  # The index file has expired and was deleted.
        try:
            self._disk.fdatasync(handle)
        finally:
            self._disk.close(handle)

    def close(self) -> None:
        self._flushed_file.close()
