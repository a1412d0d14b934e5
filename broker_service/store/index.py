"""Index keeps the index files of a store.  Records are added in batches some time after they are appended.

An append never waits for the index, and the index can always be rebuilt from the log.  `position` is the log offset up
to which records are indexed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from rocketsim_proto.records.columnar import Records

from broker_service.errors import ReadFailed, StoreCorrupt
from broker_service.store.batch import Batch
from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.disk import Attempt
from broker_service.store.files import Files
from broker_service.store.index_file import CLOCK_MARGIN_MS, IndexFile, Search
from broker_service.store.index_keys import IndexKeys, index_keys, joined, key_hash
from broker_service.store.json_file import JsonFile
from broker_service.store.log_scanner import LogScan
from broker_service.store.open_files import OpenFiles

MAX_BEHIND = 16 << 20  # if the index is further behind the log, each append also does some indexing
_MAX_WAITING = 16 << 20  # bytes of appended records kept in memory; further ones are read from the log again
_FEW = 64  # records; keys of batches up to this size are extracted together with those of the next batches
_TOGETHER = 4096  # batches are joined up to this number of entries or records; a single batch may have more
_NAME = "%Y%m%d%H%M%S"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A batch that was appended at a log offset and is not indexed yet: its keys, or the whole batch if it is small."""

    offset: int
    size: int
    what: IndexKeys | Batch

    @property
    def end(self) -> int:
        return self.offset + self.size


class Index:
    """The index of a store.  With `message_index_enable=False` the index files are neither read nor written."""

    def __init__(self, files: Files, open_files: OpenFiles, log: CommitLog, config: StoreConfig) -> None:
        self.directory = config.root / "index"
        self.is_on = config.message_index_enable
        self.position = 0
        self.now_ms = 0  # the time of the store's last call; new files are named by it
        self.trouble: str | None = None  # why indexing does not advance; the next call tries again
        self._files = files
        self._open = open_files
        self._log = log
        self._slot_count = config.max_hash_slot_num
        self._entry_limit = config.max_index_num
        self._index_files: list[IndexFile] = []
        self._unsynced: set[IndexFile] = set()  # the files written since the last thorough flush
        self._sure_until = 0  # see the property `sure_until`
        self._names_file = JsonFile(config.root / "rocketsim" / "index.json", files)
        self._entries_done = 0  # how many entries of the record at `position` are in the index already
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, *, clean: bool, sure_until: int) -> str:
        """Opens the files and deletes invalid ones.  Returns a log line about the deleted files, or "" if none was
        deleted.

        Later calls of `work` build the entries that are missing.

        After an unclean stop, the entries of records from `sure_until` on are checked and written again, since they may
        be in the page cache only.  A power loss may have kept any of the writes since the last sync and lost the
        others: it may leave slots or a header without their entries, or a file although the previous file lacks its
        end.
        """
        self._sure_until = sure_until
        names = [name for name in self._files.names(self.directory) if name.isdigit()]
        expected = self._expected_names()
        if expected is not None:
            # A file that is not expected is not in use: a power loss undid its deletion, or a crash came just after its
            # creation.
            for name in set(names) - expected:
                self._files.remove(self.directory / name)
            names = [name for name in names if name in expected]
        dropped = ""
        for name in [*names] if expected is None else sorted({*names, *expected}):
            file = IndexFile(self._files, self._open, self.directory / name, self._slot_count, self._entry_limit)
            before = self._index_files[-1] if self._index_files else None
            if name not in names:
                dropped = dropped or f"index file {name} is missing"
            elif not dropped and before is not None and before.room:
                dropped = f"index file {before.path.name} is not full and index file {name} follows"
            elif not dropped:
                try:
                    wrong = file.load()
                    in_doubt = file.header.last_offset >= sure_until
                    if not wrong and not clean and (in_doubt or (file.room and file.slots_are_newer())):
                        wrong = self._repair(file, sure_until)
                except ReadFailed as error:
                    wrong = str(error)
                dropped = f"index file {name} is damaged: {wrong}" if wrong else ""
            if dropped:
                self._unsynced.discard(file)
                file.delete()
            else:
                self._index_files.append(file)
        self.position, self._entries_done = self._log.min_offset, 0
        self.truncate(self._log.end_offset)
        if not dropped and self._index_files and not self._is_record(self._index_files[-1].header.last_offset):
            dropped = "the index belongs to another log"
            self._drop_from(0)
        self._resume()
        if names != [file.path.name for file in self._index_files] or expected is None:
            self._can_save(self._index_files)
        if dropped:  # The entries that will be rebuilt are not on disk yet.
            self._sure_until = min(self._sure_until, self.position)
        behind = self._log.end_offset - self.position
        return f"{dropped}: it is rebuilt from log offset {self.position}, {behind} bytes" if dropped else ""

    def _repair(self, file: IndexFile, sure_until: int) -> str | None:
        self._unsynced.add(file)
        with Attempt() as repair:
            return file.repair(sure_until)
        if isinstance(repair.refused, ReadFailed):
            raise repair.refused
        self.trouble = f"the index does not advance: {repair.refused}"  # on a full disk, slots are written later
        return None

    def _expected_names(self) -> set[str] | None:
        try:
            stored = self._names_file.load()
        except StoreCorrupt:
            return None
        return None if stored is None else set(stored["files"])

    def _resume(self) -> None:
        """Sets `position` to the newest record that has entries.

        Some entries of the newest record can still be missing, and `_entries_done` counts those that are there.
        """
        self.position, self._entries_done = self._log.min_offset, 0
        files = [file for file in self._index_files if file.header.next_entry > 1]
        if not files or files[-1].header.last_offset < self.position:
            return
        self.position = files[-1].header.last_offset
        for file in reversed(files):
            count = file.count_at(self.position)
            self._entries_done += count
            if count < file.header.next_entry - 1:
                return  # Files older than this one cannot have entries of the record.

    def _is_record(self, offset: int) -> bool:
        if offset < self._log.min_offset:
            return True  # The record has expired, so there is nothing to compare with.
        stop = min(self._log.end_offset, self._log.start_of(offset) + self._log.file_size)
        return next(iter(self._scan(offset, stop)), None) is not None

    @property
    def sure_until(self) -> int:
        """The log offset before which all records have their entries on disk.

        Files that `take_unsynced` returned, and that the caller is going to sync, count as on disk.
        """
        return self._sure_until

    # --- building -------------------------------------------------------------------------------------------------

    @property
    def behind(self) -> int:
        """The number of log bytes that are not indexed yet."""
        return self._log.end_offset - self.position if self.is_on else 0

    def offer(self, offset: int, batch: Batch) -> None:
        """Takes records that were appended back to back, so that `work` need not read them from the log.

        The keys of a large batch are extracted now, while bytes and columns are in the CPU's caches, and its records
        are not kept.  The batch is ignored if too many bytes wait already.  If the index is far behind the log, the
        call also indexes twice as many bytes as the batch has.
        """
        if self.is_on and self._waiting_bytes + batch.size <= _MAX_WAITING:
            what = batch if len(batch) <= _FEW else index_keys(batch.columns)
            self._waiting.append(_Waiting(offset, batch.size, what))
            self._waiting_bytes += batch.size
        if self.behind > MAX_BEHIND:
            self.work(2 * batch.size)

    def work(self, max_bytes: int) -> None:
        """Indexes about `max_bytes` more of the log.

        After a disk error, `trouble` has the reason and the next call tries again.
        """
        stop = self.position + min(self.behind, max_bytes)
        try:
            while self.position < stop:
                self._step(stop)
            self.trouble = None
        except OSError as error:
            self.trouble = f"the index does not advance: {error}"

    def _step(self, stop: int) -> None:
        while self._waiting and self._waiting[0].offset < self.position:
            self._take()
        if self._waiting and self._waiting[0].offset == self.position:
            parts = self._next_parts()
            self._put(_keys_of(parts))
            for _ in parts:
                self._take()
            self.position, self._entries_done = parts[-1].end, 0
            return
        until = self._waiting[0].offset if self._waiting else self._log.end_offset
        scan = self._scan(self.position, until)
        for offset, records in scan:
            self._put(index_keys(records))
            self.position, self._entries_done = offset + int(records.sizes.sum()), 0
            if self.position >= stop:
                return
        self.position = scan.end_offset if scan.end_offset > self.position else until

    def _next_parts(self) -> "list[_Waiting]":
        """Returns the first waiting batch and, if it is small, the batches that follow it directly in the log."""
        parts: list[_Waiting] = []
        end, count = self._waiting[0].offset, 0
        for part in self._waiting:
            if part.offset != end or (parts and count + len(part.what) > _TOGETHER):
                break
            parts.append(part)
            end, count = part.end, count + len(part.what)
        return parts

    def _take(self) -> None:
        self._waiting_bytes -= self._waiting.popleft().size

    def _scan(self, offset: int, stop: int) -> LogScan:
        end = self._log.file_end
        return LogScan(self._log, offset, check_from=end, strict_from=end, stop_at=stop)

    def _put(self, keys: IndexKeys) -> None:
        keys = keys[self._entries_done :]
        while len(keys):
            file = self._index_files[-1] if self._index_files else None
            if file is None or file.room == 0:
                file = self._create()
            part = keys[: file.room]
            self._unsynced.add(file)
            file.put(part.hashes, part.offsets, part.timestamps)
            last = int(part.offsets[-1])
            done_before = self._entries_done if last == self.position else 0
            self.position, self._entries_done = last, done_before + int((part.offsets == last).sum())
            keys = keys[len(part) :]

    def _create(self) -> IndexFile:
        if self._index_files:
            self._index_files[-1].finish()
        name = datetime.fromtimestamp(self.now_ms / 1000).strftime(_NAME) + f"{self.now_ms % 1000:03d}"
        if self._index_files:
            name = max(name, str(int(self._index_files[-1].path.name) + 1))
        file = IndexFile(self._files, self._open, self.directory / name, self._slot_count, self._entry_limit)
        file.create()
        self._save_names([*self._index_files, file])  # a start deletes files that are not in the list
        self._index_files.append(file)
        return file

    def _save_names(self, files: list[IndexFile]) -> None:
        self._names_file.save({"files": [file.path.name for file in files]})

    def _can_save(self, files: list[IndexFile]) -> bool:
        """Writes the list of files; returns False if the disk refuses."""
        with Attempt() as saving:
            self._save_names(files)
        if saving.refused:
            self.trouble = f"the index's list of files cannot be written: {saving.refused}"
        return saving.refused is None

    # --- following the log ----------------------------------------------------------------------------------------

    def truncate(self, log_offset: int) -> None:
        """Removes the entries of all records at or behind `log_offset`."""
        if not self.is_on:
            return
        changed = False
        while self._index_files and self._index_files[-1].header.last_offset >= log_offset:
            file = self._index_files[-1]
            if file.header.next_entry > 1 and file.header.first_offset < log_offset:
                offsets = file.entries()["commit_log_offset"].astype(np.int64)
                last = int(offsets[np.searchsorted(offsets, log_offset) - 1])
                if last >= self._log.min_offset:  # otherwise only entries of expired records would stay
                    self._unsynced.add(file)
                    if self._cut_file(file, log_offset, self._timestamp_of(last)):
                        break
            self._drop_from(len(self._index_files) - 1)
            changed = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._resume()
        if changed:
            self._can_save(self._index_files)

    @staticmethod
    def _cut_file(file: IndexFile, log_offset: int, last_timestamp: int) -> bool:
        """Truncates the file.  Returns False if the disk refuses, so that all of the file must be rebuilt."""
        with Attempt() as cut:
            file.truncate(log_offset, last_timestamp)
        return cut.refused is None

    def _timestamp_of(self, offset: int) -> int:
        found = next(iter(self._scan(offset, self._log.start_of(offset) + self._log.file_size)), None)
        return int(found[1].store_timestamp[0]) if found else 0

    def start_over(self, log_offset: int) -> None:
        """Deletes all files, since the log is empty and begins at this offset."""
        if not self.is_on:
            return
        self._drop_from(0)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.position, self._entries_done = log_offset, 0
        self._can_save([])

    def trim(self, log_min: int) -> list[Path]:
        """Deletes files that have only records before `log_min`, except for the newest file."""
        kept = [file for file in self._index_files[:-1] if file.header.last_offset >= log_min] + self._index_files[-1:]
        deleted = []
        if len(kept) < len(self._index_files) and self._can_save(kept):
            for file in self._index_files[: -len(kept)]:
                self._unsynced.discard(file)
                file.delete()
                deleted.append(file.path)
            self._index_files = kept
        if self.position < log_min:
            self.position, self._entries_done = log_min, 0
        return deleted

    def _drop_from(self, number: int) -> None:
        for file in self._index_files[number:]:
            file.delete()
            self._unsynced.discard(file)
        del self._index_files[number:]

    # --- reading and syncing --------------------------------------------------------------------------------------

    def find(self, topic: str, key: str, search: Search, begin_ms: int) -> Iterator[tuple[int, int, int]]:
        """Yields, newest first, what `IndexFile.find` yields for the hash of the key.

        Files without entries of the searched time are skipped.  The search ends when all further files are older than
        `begin_ms`.
        """
        for file in reversed(self._index_files):
            head = file.header
            if head.next_entry == 1 or head.first_offset >= search.before:
                continue
            if head.first_timestamp - CLOCK_MARGIN_MS > search.until_ms:
                continue
            if head.last_timestamp + CLOCK_MARGIN_MS < begin_ms or search.budget <= 0:
                return
            yield from file.find(key_hash(topic, key), search)

    def take_unsynced(self) -> tuple[list[Path], int, int]:
        """Writes the slots, and returns what a thorough flush needs to know.

        The result is a tuple of the files that the flush must sync, the store time up to which full files are complete,
        and the log offset before which all entries are on disk after the sync.  If the disk refuses slots, they stay in
        memory, and the next call tries again.
        """
        paths = []
        for file in sorted(self._unsynced, key=lambda file: file.path):
            paths.append(file.path)
            try:
                if file is self._index_files[-1]:
                    file.write_slots()
                else:
                    file.finish()
            except OSError as error:
                self.trouble = f"the index does not advance: {error}"
            else:
                self._unsynced.discard(file)
        if not self._unsynced:
            self._sure_until = self.position
        full = [file.header.last_timestamp for file in self._index_files if not file.room]
        return paths, full[-1] if full else 0, self._sure_until

    def __str__(self) -> str:
        return f"index of {len(self._index_files)} files up to {self.position}, {self.behind} bytes behind"


def _keys_of(parts: list[_Waiting]) -> IndexKeys:
    found: list[IndexKeys] = []
    few: list[Batch] = []
    for part in parts:
        if isinstance(part.what, Batch):
            few.append(part.what)
        else:
            found += [*_keys_of_few(few), part.what]
            few = []
    return joined([*found, *_keys_of_few(few)])


def _keys_of_few(parts: list[Batch]) -> list[IndexKeys]:
    """Extracts the keys of small batches together, because one call takes as long for one message as for hundreds."""
    if len(parts) <= 1:
        return [index_keys(part.columns) for part in parts]
    data = b"".join([part.view_bytes() for part in parts])
    return [index_keys(Records.walk(data, sizes=np.concatenate([part.sizes for part in parts])))]
