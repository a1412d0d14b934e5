"""Retention deletes expired log files; `expired_files` decides which ones, by RocketMQ's rules.

Files are deleted oldest first, a few at a time, and never the newest.  Expired files are deleted in the hours of
`delete_hours`, and at any time if the disk is fuller than `disk_max_used_space_ratio`.  If the disk is fuller than
`disk_clean_forcibly_ratio`, files that have not expired are deleted, too.
"""

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from itertools import islice

from broker_service.errors import ServiceNotAvailable
from broker_service.store.admission import Admission
from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.disk import Disk
from broker_service.store.durability import Durability
from broker_service.store.index import Index
from broker_service.store.queue_table import QueueTable

MAX_FILES_A_ROUND = 10


def expired_files(
    newest_timestamps: Iterable[int | None],
    now_ms: int,
    disk_used_percent: float,
    config: StoreConfig,
    gone_at_master: int | None = None,
) -> int:
    """Returns how many of the oldest files to delete.

    `newest_timestamps` has, for each file except the newest, the store time of its last messages, or None if unknown.
    Each store time costs a read of the disk, so `newest_timestamps` is read only as far as needed.  `gone_at_master`
    says how many of the oldest files a slave's master has already deleted.  A slave keeps the files that its master
    still has, unless the disk is too full.
    """
    by_force = disk_used_percent > config.disk_clean_forcibly_ratio
    is_time = datetime.fromtimestamp(now_ms / 1000).hour in config.delete_hours
    if not (by_force or disk_used_percent > config.disk_max_used_space_ratio or is_time):
        return 0
    oldest_kept = now_ms - config.file_reserved_time_h * 3_600_000
    count = 0
    most = MAX_FILES_A_ROUND if gone_at_master is None or by_force else min(MAX_FILES_A_ROUND, gone_at_master)
    for timestamp in islice(newest_timestamps, most):
        if not by_force and (timestamp is None or timestamp > oldest_kept):
            break
        count += 1
    return count


class Retention:
    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        queues: QueueTable,
        index: Index,
        durability: Durability,
        admission: Admission,
        config: StoreConfig,
    ) -> None:
        self.config = config
        self.trimmed_to = 0  # the log offset before which queues and index have no entries any more
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._durability = durability
        self._admission = admission

    def expires_before(self, now_ms: int, masters_min_offset: int | None = None) -> int:
        """Returns the log offset at which the log will begin once the expired files are deleted.

        A slave keeps the files that its master still has, unless its own disk is too full.
        """
        used = self._disk.disk_usage(self.config.root).used_percent
        log = self._log
        gone = None if masters_min_offset is None else bisect_right(log.starts[1:], masters_min_offset)
        count = expired_files(map(log.timestamp_at, log.starts[1:]), now_ms, used, self.config, gone)
        # The file that becomes the log's first must have flushed bytes, because only then is its size certainly on
        # disk.
        return min(log.starts[count], self._durability.flushed - 1) if count else log.min_offset

    def delete_expired(
        self, now_ms: int, needed_from: int | None = None, masters_min_offset: int | None = None
    ) -> list[str]:
        """Deletes expired files that end at or before `needed_from`; returns one line per deleted file.

        The call also notes if the disk is above its warning level.  Raises OSError if a file cannot be deleted or a
        queue cannot be read; the next call continues from there.
        """
        used = self._disk.disk_usage(self.config.root).used_percent
        self._admission.note_disk_use(used)
        log = self._log
        deleted = []
        until = self.expires_before(now_ms, masters_min_offset)
        if needed_from is not None:
            until = min(until, needed_from)
        if until > log.min_offset and self._queues_are_on_disk(until):
            deleted = log.delete_before(until)
        if log.min_offset == self.trimmed_to:
            return []
        deleted += self._queues.trim(log.min_offset) + self._index.trim(log.min_offset)
        self.trimmed_to = log.min_offset
        self._queues.prune_floors()
        self._durability.next_thorough_ms = now_ms  # flush soon, since the queue bounds in the summary have changed
        return [f"deleted {path} (disk {used:.0f} % full, log starts at {log.min_offset} now)" for path in deleted]

    def _queues_are_on_disk(self, log_offset: int) -> bool:
        """Returns True if all queue entries of records before `log_offset` are on disk, after a sync if that is needed.

        Without its entries, a queue would not know its next offset once the log files are deleted.  The entries are
        nearly always on disk, since a thorough flush runs every minute unless the disk is full.
        """
        if self._durability.queues_on_disk < log_offset:
            with suppress(ServiceNotAvailable):  # the flush logs the error, and the next round tries again
                self._durability.flush_thoroughly()
        return self._durability.queues_on_disk >= log_offset
