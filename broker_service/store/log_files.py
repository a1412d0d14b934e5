"""Checks at a start that the files of the log have the right size and no gap between them."""

from itertools import pairwise
from pathlib import Path

from broker_service.errors import StoreCorrupt
from broker_service.store.commit_log import CommitLog, file_name
from broker_service.store.open_files import OpenFiles


def check_files(log: CommitLog, open_files: OpenFiles, flushed: int | None) -> list[Path]:
    """Checks the files of the log, and repairs what a power loss may cause.

    Files below the flushed offset must be complete, and no file may be too large: otherwise StoreCorrupt is raised,
    before any file is changed.  Above the flushed offset, a power loss may have removed files or left them short: files
    behind a gap are deleted and returned, and short files are extended or deleted.  Recovery scans the remaining files
    as usual.
    """
    files, sizes = open_files.files, {start: open_files.files.size(log.path(start)) for start in log.starts}

    def was_being_made(start: int) -> bool:
        """Returns True if the process died after creating the file and before allocating it, so it has no data."""
        return sizes[start] < log.file_size and not any(files.read(log.path(start)))

    def may_be_short(start: int) -> bool:
        """Returns True if a power loss can have left this file short.

        A power loss cannot shorten the first file of a log, because that file's size is synced before it gets a record.
        """
        if flushed is not None and (start < flushed or start > log.min_offset):
            return start >= flushed
        return all(was_being_made(later) for later in log.starts if later >= start)

    for start, size in sizes.items():
        if size > log.file_size or (size < log.file_size and not may_be_short(start)):
            raise log.wrong_size(start, f"it has {size} bytes")
    gap = _find_gap(log, flushed)
    behind_gap = [] if gap is None else log.delete_after(gap)
    while log.starts and log.starts[-1] >= (flushed or 0) and was_being_made(log.starts[-1]):
        log.delete_after(log.starts[-1])
    for start in log.starts:
        if sizes[start] < log.file_size:
            files.preallocate(open_files.handle(log.path(start)), log.file_size)
    return behind_gap


def _find_gap(log: CommitLog, flushed: int | None) -> int | None:
    """Returns where the first file behind a gap starts, or None if there is no gap."""
    for previous, start in pairwise(log.starts):
        missing = previous + log.file_size
        if start == missing:
            continue
        if flushed is not None and start > missing >= flushed:
            return start
        raise StoreCorrupt(
            f"{log.directory}: a log file is missing between {file_name(previous)} and {file_name(start)} "
            f"(mappedFileSizeCommitLog={log.file_size}); bring it back, or copy the log from the other broker"
        )
    return None
