"""What is on disk: the flushed offset, the checkpoint, and the syncs that move them.

`flush` is the flush thread's; everything else is the event loop's.  The lock is held for a whole flush; the loop takes
it only to cut the log back, which must not happen under a sync.
"""

import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from broker_service.errors import FlushFailed, ServiceNotAvailable
from broker_service.store.checkpoint import Checkpoint
from broker_service.store.commit_log import CommitLog
from broker_service.store.files import Files
from broker_service.store.flushed_offset import Flushed, FlushedOffset
from broker_service.store.queue_table import QueueSync

_QUEUE_FILES_A_FLUSH = 64


@dataclass(frozen=True, slots=True)
class ThoroughFlush:
    """Queues and index too; afterwards recovery need not look before `log_offset`."""

    queues: QueueSync
    index_paths: list[Path]
    index_timestamp: int
    log_offset: int
    timestamp: int
    is_void: bool = False


class Durability:
    def __init__(self, files: Files, root: Path, log: CommitLog) -> None:
        self.flushed = 0
        self.last_timestamp = 0  # store time of the newest record
        self.fatal: str | None = None  # why this store never writes again
        self.lock = threading.Lock()
        self._root = root
        self._files = files
        self._log = log
        self._flushed_file = FlushedOffset(files, root / "rocketsim" / "flushed")
        self._checkpoint_path = root / "checkpoint"
        self.checkpoint = Checkpoint()
        self._requests: deque[ThoroughFlush] = deque()

    def load(self) -> Flushed | None:
        """What the last run left; None if it never said."""
        self.checkpoint = Checkpoint.load(self._files, self._checkpoint_path)
        self.last_timestamp = self.checkpoint.log_timestamp
        return self._flushed_file.load()

    def set_flushed(self, flushed: Flushed) -> None:
        """Says so at once and durably: after a recovery, before a cut, at a clean stop."""
        self.flushed = flushed.offset
        self._flushed_file.save(flushed, sync=True)

    def refuse_if_fatal(self) -> None:
        if self.fatal is not None:
            raise ServiceNotAvailable(self.fatal)

    def request(self, thorough: ThoroughFlush) -> None:
        """In pieces, one a flush: a put that waits for the disk does not wait for the files of thousands of queues.

        Only the last piece says that all is on disk.
        """
        paths = thorough.queues.paths
        while len(paths) > _QUEUE_FILES_A_FLUSH:
            piece, paths = paths[:_QUEUE_FILES_A_FLUSH], paths[_QUEUE_FILES_A_FLUSH:]
            queues = replace(thorough.queues, paths=piece)
            self._requests.append(replace(thorough, queues=queues, index_paths=[], is_void=True))
        self._requests.append(replace(thorough, queues=replace(thorough.queues, paths=paths)))

    def void_requests(self) -> None:
        """What waits to be flushed is still to be synced, but what it would say then is not true any more: a cut."""
        self._requests = deque(replace(request, is_void=True) for request in self._requests)

    @property
    def is_requested(self) -> bool:
        return bool(self._requests)

    def flush(self) -> int:
        """On return everything appended before the call is on disk; returns up to where.

        A failed sync is final: the kernel may have dropped the pages, so that a second try would lie.
        """
        with self.lock:
            self.refuse_if_fatal()
            thorough = self._requests.popleft() if self._requests else None
            timestamp = self.last_timestamp
            end = self._log.end_offset  # read behind the other two: all they speak of lies before it
            try:
                if end > self.flushed:
                    self._log.sync(self.flushed, end)
                    self._flushed_file.save(Flushed(end), sync=thorough is not None)
                    self.flushed = end
                    self.checkpoint.log_timestamp = timestamp
                if thorough is not None:
                    self._flush_thoroughly(thorough)
            except OSError as error:
                self.fatal = f"flushing {self._root} failed ({error}): what was written is in doubt, restart the broker"
                raise FlushFailed(self.fatal) from error
            return end

    def _flush_thoroughly(self, thorough: ThoroughFlush) -> None:
        thorough.queues.sync()
        for path in thorough.index_paths:
            self._sync(path)
        if thorough.is_void:
            return
        thorough.queues.save_summary()
        checkpoint = self.checkpoint
        checkpoint.queues_log_offset = thorough.log_offset
        checkpoint.queues_timestamp = thorough.timestamp
        checkpoint.index_timestamp = thorough.index_timestamp
        checkpoint.save(self._files, self._checkpoint_path)

    def _sync(self, path: Path) -> None:
        try:
            handle = self._files.open(path, read_only=True)
        except FileNotFoundError:
            return  # Expired meanwhile.
        try:
            self._files.fdatasync(handle)
        finally:
            self._files.close(handle)

    def close(self) -> None:
        self._flushed_file.close()
