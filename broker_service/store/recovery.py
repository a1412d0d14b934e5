"""Recovery at a start finds the end of the log, cuts a damaged tail, and makes the queues agree with the log.

How much of the log recovery scans depends on the state of the store:

| state of the store                          | what is scanned                                                   |
|---------------------------------------------|-------------------------------------------------------------------|
| closed cleanly by us, and the tail matches  | nothing, since the end is known                                   |
| closed cleanly by RocketMQ                  | checksums of the last file; all record heads once, for the queues |
| not closed cleanly                          | from the file of the last thorough flush on; without one, from    |
|                                             | RocketMQ's checkpoint on; without that, everything                |
| queues are missing, behind or damaged       | all record heads                                                  |

Damage below the flushed offset raises StoreCorrupt: acknowledged messages are lost, and a start would hide that.  Above
the flushed offset the log is cut at the first damaged record.  All bytes behind the cut are zeroed and synced, so that
no later scan finds stale records.

After an unclean stop, the records above the flushed offset are first written again, unchanged.  A sync of these records
may have failed, and the kernel may then have marked their pages clean, so that another sync would not write them.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from isal import isal_zlib
from rocketsim_proto.records.columnar import Records

from broker_service.errors import FlushFailed, ServiceNotAvailable, StoreCorrupt
from broker_service.store.checkpoint import Checkpoint
from broker_service.store.commit_log import CommitLog
from broker_service.store.dispatch import queue_extents
from broker_service.store.files import Buffer
from broker_service.store.flushed_offset import Flushed
from broker_service.store.log_scanner import LogScan
from broker_service.store.queue_table import QueueKey, QueueSummary, QueueTable

_CHECKPOINT_MARGIN_MS = 3000  # RocketMQ uses the same margin
TAIL_SIZE = 64 * 1024
_CHUNK = 1 << 20
# Errors give this advice because a reboot would lose the bytes that are in the page cache but not on disk.
_ANOTHER_DISK = "before a reboot copy the store to another disk, and start on the copy"


@dataclass(slots=True)
class Recovery:
    """A report of what recovery did.  `str()` gives one line for the broker's own log."""

    clean: bool
    scanned_from: int | None = None
    truncated_from: int | None = None  # the log offset behind the last nonzero byte before the cut
    truncated_to: int | None = None
    reason: str = ""
    rebuilt_queues: dict[QueueKey, str] = field(default_factory=dict)
    shortened_queues: list[QueueKey] = field(default_factory=list)
    deleted_files: list[Path] = field(default_factory=list)
    index_sure_until: int = 0  # the log offset before which all records have their index entries on disk
    index: str = ""
    newest_stored_ms: int = 0  # the store time of the last record, if the end of the log was scanned

    def __str__(self) -> str:
        parts = ["closed cleanly" if self.clean else "was not closed cleanly"]
        parts.append("nothing to scan" if self.scanned_from is None else f"log scanned from {self.scanned_from}")
        if self.truncated_to is not None and self.truncated_from is not None:
            size = self.truncated_from - self.truncated_to
            parts.append(
                f"log cut at {self.truncated_to}, {size} bytes above the flushed offset dropped ({self.reason})"
            )
        if self.deleted_files:
            parts.append(f"log files behind the end deleted: {', '.join(path.name for path in self.deleted_files)}")
        for (topic, queue_id), reason in self.rebuilt_queues.items():
            parts.append(f"queue {topic}/{queue_id} rebuilt from the log ({reason})")
        for topic, queue_id in self.shortened_queues:
            parts.append(f"queue {topic}/{queue_id} was ahead of the log and cut")
        if self.index:
            parts.append(self.index)
        return "; ".join(parts)


def recover(
    log: CommitLog,
    queues: QueueTable,
    *,
    clean: bool,
    flushed: Flushed | None,
    checkpoint: Checkpoint,
    delay_levels_ms: Sequence[int],
) -> Recovery:
    """Sets the log's end and loads the queues.

    The files of `log` must already be loaded.  After recovery, everything up to the log's end is on disk, and the
    queues agree with the log.
    """
    done = Recovery(clean)
    summary = queues.load_summary()
    if summary is not None and summary.log_offset > log.file_end:
        queues.forget_summary()
        summary = None
    done.index_sure_until = summary.index_offset if summary else 0
    known_end = _known_end(log, flushed) if clean else None
    queues_end = known_end if known_end is not None else log.file_end
    done.rebuilt_queues = queues.load(log.min_offset, queues_end, summary, clean=clean)
    rebuild = bool(done.rebuilt_queues) or summary is None
    check_from = known_end if known_end is not None else _check_from(log, clean, flushed, checkpoint, summary)
    scan_from = check_from if summary is None else min(check_from, max(summary.log_offset, log.min_offset))
    if rebuild:
        scan_from = log.min_offset
    if known_end is not None:
        log.end_offset = known_end
        if scan_from < known_end:
            done.scanned_from = scan_from
            scan = LogScan(log, scan_from, check_from=known_end, strict_from=known_end, stop_at=known_end)
            _fill(queues, scan, scan, delay_levels_ms, done)
            _expect(log, scan, known_end)
    else:
        done.scanned_from = scan_from
        flushed_to = max(flushed.offset if flushed else check_from, log.min_offset)
        scan = LogScan(log, scan_from, check_from=check_from, strict_from=flushed_to if flushed else log.file_end)
        with _in_doubt(log, scan, flushed_to):
            with _Syncs(log) as syncs:
                found = scan if clean else _written_again(log, scan, flushed_to, syncs)
                _fill(queues, scan, found, delay_levels_ms, done)
            _expect(log, scan, flushed_to)
            _cut(log, scan, flushed_to, done)
    done.shortened_queues = [key for key in queues.truncate(log.end_offset) if key not in done.rebuilt_queues]
    queues.trim(log.min_offset)
    queues.resume_offsets()
    return done


def dispatch(queues: QueueTable, records: Records, delay_levels_ms: Sequence[int]) -> Iterable[QueueKey]:
    """Writes the queue entries of these records, except those that would leave a gap; returns the queues of such
    entries.
    """
    return [
        (extent.topic, extent.queue_id) for extent in queue_extents(records, delay_levels_ms) if not queues.put(extent)
    ]


def tail_crc(log: CommitLog, end: int, size: int) -> tuple[int, int]:
    """Returns (size, CRC-32) of the last bytes before `end`: at most `size`, and only those of the last file."""
    begin = max(end - size, log.start_of(max(end - 1, 0)), log.min_offset)
    return end - begin, isal_zlib.crc32(log.peek(begin, end - begin)) if end > begin else 0


def newest_stored_ms(log: CommitLog, queues: QueueTable) -> int:
    """Returns the store time of the newest record that has a queue entry; 0 if there is none or it cannot be read."""
    try:
        newest = queues.newest_record()
        return 0 if newest is None else log.timestamp_at(newest) or 0
    except OSError:  # a bad sector
        return 0


class _Syncs:
    """Syncs parts of the log, each on its own thread, while the caller goes on.  No sync is under way after the
    context.

    The threads do not wait for each other, so that the scan of the log never waits for the disk.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def __enter__(self) -> "_Syncs":
        return self

    def __exit__(self, *_: object) -> None:
        self._join()

    def start(self, begin: int, end: int) -> None:
        """Starts to sync this part of the log.  Raises the error of an earlier sync if one has failed by now."""
        self._raise()
        thread = threading.Thread(target=self._run, name=f"recovery-sync-{begin}", args=(begin, end))
        thread.start()
        self._threads.append(thread)

    def wait(self) -> None:
        """Waits for all syncs, and raises the error of the first that failed."""
        self._join()
        self._raise()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self, begin: int, end: int) -> None:
        try:
            self._log.sync(begin, end)
        except BaseException as error:
            self._error = self._error or error


def _written_again(log: CommitLog, scan: LogScan, begin: int, syncs: _Syncs) -> Iterator[tuple[int, Records]]:
    """Yields the records of the scan, and writes those from `begin` on once more in their places.

    After a failed sync, the kernel may have marked the pages of these records clean.  Writing the pages makes them
    dirty, so that the sync of `_cut` brings them to disk.  To leave little for that sync, each file is synced on
    its own thread while later files are read.  Nothing is lost if this start fails, too: the file still has the same
    bytes, and they do not count as flushed before recovery has ended.
    """
    synced = begin
    for offset, records in scan:
        data = records.view_bytes()
        end = offset + len(data)
        if end > begin:
            if offset > begin:
                _write_range_again(log, begin, offset)
            first = max(begin, offset)
            _write_again(log, first, data[first - offset :])
            begin = end
            if (start := log.start_of(begin)) > synced:
                syncs.start(synced, start)
                synced = start
        yield offset, records
    _write_range_again(log, begin, scan.end_offset)
    syncs.wait()


def _write_again(log: CommitLog, offset: int, data: Buffer) -> None:
    """Writes bytes to the place in the file from which they were read."""
    try:
        log.write([(offset, data)])
    except OSError as error:
        start = log.start_of(offset)
        raise ServiceNotAvailable(
            f"{log.path(start)} at {offset - start} (log offset {offset}) cannot be written again after an unclean "
            f"stop: {error}; {_ANOTHER_DISK}"
        ) from error


def _write_range_again(log: CommitLog, offset: int, end: int) -> None:
    """Writes the blank records in this range again, which the scan has not read."""
    while offset < end:
        data = log.peek(offset, min(_CHUNK, end - offset))
        _write_again(log, offset, data)
        offset += len(data)


def _fill(
    queues: QueueTable,
    scan: LogScan,
    found: Iterable[tuple[int, Records]],
    delay_levels_ms: Sequence[int],
    done: Recovery,
) -> None:
    """Writes the queue entries of the records that the scan finds.

    A queue with a gap is rebuilt from the beginning of the log in a second pass.
    """
    gaps: set[QueueKey] = set()
    for _, records in found:
        gaps.update(dispatch(queues, records, delay_levels_ms))
        done.newest_stored_ms = int(records.store_timestamp[-1])
    if not gaps:
        return
    for key in gaps:
        queues.drop(key)
        done.rebuilt_queues.setdefault(key, "entries were missing")
    again = scan.from_the_beginning()
    for _, records in again:
        for extent in queue_extents(records, delay_levels_ms):
            if (extent.topic, extent.queue_id) in gaps:
                queues.put(extent)


def _known_end(log: CommitLog, flushed: Flushed | None) -> int | None:
    """Returns the end of the log that a clean stop wrote down, if the log's tail still matches; otherwise None."""
    if flushed is None or not log.min_offset <= flushed.offset <= log.file_end:
        return None
    end = flushed.offset
    if end == log.min_offset:
        return end if not log.starts or not any(log.peek(log.starts[0], 8)) else None
    if not flushed.tail_size or tail_crc(log, end, flushed.tail_size) != (flushed.tail_size, flushed.tail_crc):
        return None
    if end == log.file_end:
        return end
    return None if any(log.peek(end, 8)) else end


def _check_from(
    log: CommitLog, clean: bool, flushed: Flushed | None, checkpoint: Checkpoint, summary: QueueSummary | None
) -> int:
    """Returns the start of the first file whose checksums are verified.

    If the store has no flushed offset, everything before the returned offset counts as flushed.  After a clean stop of
    RocketMQ only the last file is verified.  After an unclean stop of RocketMQ, the verification begins with the file
    that RocketMQ's checkpoint points to.
    """
    if not log.starts:
        return log.min_offset
    if clean:
        with_data = [start for start in log.starts if any(log.peek(start, 8))]
        last = with_data[-1] if with_data else log.starts[0]
        return min(last, max(log.start_of(flushed.offset), log.min_offset)) if flushed else last
    if summary is not None:
        sure = min(summary.log_offset, checkpoint.queues_log_offset)
        if flushed:
            sure = min(sure, flushed.offset)
        return max(log.start_of(sure), log.min_offset)
    until = min(checkpoint.log_timestamp, checkpoint.queues_timestamp) - _CHECKPOINT_MARGIN_MS
    for start in reversed(log.starts):
        first = next(iter(LogScan(log, start, check_from=start, strict_from=log.file_end)), None)
        if first is not None and 0 < int(first[1].store_timestamp[0]) <= until:
            return start
    return log.starts[0]


def _expect(log: CommitLog, scan: LogScan, flushed: int) -> None:
    if scan.end_offset < flushed:
        path = log.path(log.start_of(scan.end_offset))
        raise StoreCorrupt(
            f"{path} is damaged at log offset {scan.end_offset} ({scan.reason}), below the flushed offset {flushed}: "
            "nothing was changed; restore the file or take the log of the other broker"
        )


@contextmanager
def _in_doubt(log: CommitLog, scan: LogScan, flushed: int) -> Iterator[None]:
    """A context for the syncs of recovery.  If one fails, the error names the records that may not be on disk."""
    try:
        yield
    except FlushFailed as error:
        end = scan.end_offset
        path = log.path(log.start_of(min(flushed, end)))
        raise FlushFailed(
            f"{path}: the records from log offset {min(flushed, end)} to {end} are in doubt after an unclean stop, and "
            f"could not be synced now: {error}; {_ANOTHER_DISK}"
        ) from error


def _cut(log: CommitLog, scan: LogScan, flushed: int, done: Recovery) -> None:
    """Sets the log's end, zeroes everything behind it, and syncs the log."""
    end = scan.end_offset
    behind = log.first_spare(end)
    used = [start for start in log.starts if start >= behind and any(log.peek(start, 8))]
    done.deleted_files = [log.path(start) for start in log.starts if start >= behind]
    log.hold(min(flushed, end))
    not_zero = log.cut(end, in_doubt=not done.clean)
    if used:
        not_zero = max(not_zero, used[-1] + log.file_size)
    if not_zero > end:
        done.truncated_to, done.truncated_from, done.reason = end, not_zero, scan.reason
