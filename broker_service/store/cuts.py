"""Cuts removes the end of a log, or all of it, with the entries of the removed records in queues and index.

A cut holds the lock of `Durability`, so the flush thread does nothing meanwhile.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from broker_service.store.commit_log import CommitLog, file_name
from broker_service.store.consume_queue import QueueEnd
from broker_service.store.disk import Attempt, Disk
from broker_service.store.durability import Durability
from broker_service.store.files import Files
from broker_service.store.flushed_offset import Flushed
from broker_service.store.index import Index
from broker_service.store.queue_table import QueueTable
from broker_service.store.writer import Writer

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class KeptCut:
    """The bytes that a cut has removed from the log at `offset`, and that are kept in a file, which was written at
    `at_ms`.
    """

    offset: int
    size: int
    at_ms: int


def diverged_directory(root: Path) -> Path:
    """Returns the directory of a store in which the bytes that cuts have removed are kept."""
    return root / "rocketsim" / "diverged"


def kept_cuts(files: Files, directory: Path) -> list[KeptCut]:
    """Returns the cuts whose bytes are kept in the directory, the oldest first.

    An operator may delete the files at any time, also while this function reads the directory.
    """
    kept = []
    for name in files.names(directory):
        path = directory / name
        with suppress(FileNotFoundError):
            if name.isdecimal():
                kept.append(KeptCut(int(name), files.size(path), files.modified_ms(path)))
    return sorted(kept, key=lambda cut: (cut.at_ms, cut.offset))


class Cuts:
    def __init__(
        self, disk: Disk, log: CommitLog, queues: QueueTable, index: Index, writer: Writer, durability: Durability
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._writer = writer
        self._durability = durability

    def truncate(self, offset: int, keep_in: Path | None) -> int:
        """Cuts the log back to `offset`, the start of a record; returns the number of bytes removed.

        The removed bytes are first copied to a file in `keep_in`, unless that is None.  The new end is synced before
        bytes are zeroed, and the zeros are synced before anything is appended, so that recovery after a crash finds the
        old log, the new one, or the new one followed by a part of the removed records.
        """
        with self._durability.lock:
            self._disk.check()
            end = self._log.end_offset
            if offset >= end:
                return 0
            self._log.check_not_sent()
            if keep_in is not None:
                self._keep(max(offset, self._log.min_offset), end, keep_in)
            ends = self._queues.ends_at(max(offset, self._log.min_offset))
            self._writer.partial.clear()
            self._durability.void_requests()
            self._queues.forget_summary()
            self._durability.set_flushed(Flushed(min(offset, self._durability.flushed)))
            with self._completing_a_cut():
                self._queues.shorten(ends)
                self._log.cut(offset)
                self._queues.remove_behind_ends(ends)
                self._index.truncate(self._log.end_offset)
        self._durability.flush_thoroughly()  # the cut of the queues must be on disk, too, before anything is appended
        return end - self._log.end_offset

    @contextmanager
    def _completing_a_cut(self) -> Iterator[None]:
        """Stops the store if the cut in this context fails.

        If the store continued, new records would be appended in front of bytes of the old log, and recovery would take
        these bytes for records of the new log.  After a stop in the middle of a cut, the next start finds the old log
        or a part of it, and replication cuts it again.
        """
        try:
            yield
        except OSError as error:
            if self._disk.fatal is None:
                self._disk.stop(f"a cut of the log could not be completed ({error}): restart the broker")
                logger.critical("%s", self._disk.fatal)
            self._disk.check()

    def start_over(self, offset: int, floors: Iterable[tuple[str, int, int]]) -> None:
        """Deletes the log and the queues, and begins an empty log at `offset`, the start of a log file.

        `floors` has (topic, queue id, first queue offset) for the queues whose first messages the master no longer has;
        these queues begin at that offset.  A slave starts over if it is new, or if its log and its master's have no
        record in common.
        """
        with self._durability.lock:
            self._disk.check()
            self._log.check_not_sent()
            before = self._log.min_offset
            self._writer.partial.clear()
            self._durability.void_requests()
            self._queues.forget_summary()
            # With a flushed offset of 0, a crash during the cut leaves an empty log and not a damaged one.
            self._durability.set_flushed(Flushed(0))
            with self._completing_a_cut():
                self._queues.shorten(dict.fromkeys(self._queues.keys(), QueueEnd(0, 0)))
                self._log.cut(before)
                self._log.delete_after(before)
                self._queues.drop_all()
                self._index.start_over(offset)
                with Attempt() as beginning:
                    self._queues.begin_at(floors)
                    # The first offsets of the queues are synced before the log is made to begin at the master's
                    # minimum, because after that the master does not send these offsets again.
                    self._queues.take_unsynced(0, 0).sync()
                    self._log.begin_at(offset)
                    self._log.create_first()
                if beginning.refused:
                    # The disk is full.  The log stays empty at offset 0, so that the master makes this slave start over
                    # again.
                    self._queues.drop_all()
                    self._log.begin_at(0)
                    self._index.start_over(0)
            if beginning.refused:
                raise beginning.refused
            self._durability.set_flushed(Flushed(offset))
        self._durability.flush_thoroughly()

    def _keep(self, offset: int, end: int, directory: Path) -> None:
        """Copies log bytes to a separate file, which is named by their offset."""
        self._disk.make_directory(directory)
        path = directory / file_name(offset)
        handle = self._disk.open(path, create=True)
        try:
            at = offset
            while at < end:
                data = self._log.read(at, _CHUNK)
                self._disk.pwrite(handle, data, at - offset)
                at += len(data)
            self._disk.fdatasync(handle)
        except OSError:
            self._disk.discard(path)
            raise
        finally:
            self._disk.close(handle)
        self._disk.sync_directory(directory)
