"""Retention decides which log files are deleted, by RocketMQ's rules.  Pure.

Files are deleted oldest first, a few at a time, and never the newest.  Expired files are deleted in the hours of
`delete_when`, and at any time if the disk is fuller than `disk_max_used_space_ratio`.  Above
`disk_clean_forcibly_ratio`, files that have not expired are deleted, too.
"""

from collections.abc import Iterable
from datetime import datetime
from itertools import islice

from broker_service.store.config import StoreConfig

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
    It is an iterable because each value costs a read, and only the needed ones are read.
    `gone_at_master` is the number of oldest files that a slave's master has deleted already.  A slave keeps the other
    files unless the disk is too full.
    """
    by_force = disk_used_percent > config.disk_clean_forcibly_ratio
    if not (by_force or disk_used_percent > config.disk_max_used_space_ratio or _is_time(now_ms, config.delete_when)):
        return 0
    oldest_kept = now_ms - config.file_reserved_time_h * 3_600_000
    count = 0
    most = MAX_FILES_A_ROUND if gone_at_master is None or by_force else min(MAX_FILES_A_ROUND, gone_at_master)
    for timestamp in islice(newest_timestamps, most):
        if not by_force and (timestamp is None or timestamp > oldest_kept):
            break
        count += 1
    return count


def _is_time(now_ms: int, hours: str) -> bool:
    hour = datetime.fromtimestamp(now_ms / 1000).hour
    return hour in {int(text) for text in hours.split(";") if text.strip()}
