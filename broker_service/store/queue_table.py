"""QueueTable has all consume queues of a store, and two files about them: the summary and the floors.

The summary, `rocketsim/queues.json`, has a log offset up to which everything is on disk, and each queue's range of
offsets at that point.  A queue is damaged if it has fewer entries after a restart than the summary says.

The floors, `rocketsim/queue_offsets.json`, have the next queue offset of each queue of a deleted topic.  If a deleted
topic is created again, its queues continue at its floors, and its old records do not come back.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocketsim_proto.reserved import STATE_TOPIC

from broker_service.errors import StoreCorrupt
from broker_service.store.consume_queue import ConsumeQueue, QueueEnd
from broker_service.store.disk import Attempt
from broker_service.store.dispatch import QueueExtent
from broker_service.store.files import Files
from broker_service.store.json_file import JsonFile
from broker_service.store.open_files import OpenFiles

logger = logging.getLogger(__name__)

QueueKey = tuple[str, int]

_LONGEST_GAP = 300_000  # entries; one queue file of RocketMQ has as many


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A description of the entries that were on disk when the log ended at `log_offset`.

    `bounds` has, for each queue, the first queue offset of its files and its next queue offset.
    """

    log_offset: int
    bounds: Mapping[QueueKey, tuple[int, int]] = field(default_factory=dict)
    index_offset: int = 0  # the log offset before which all records had their index entries on disk


class QueueTable:
    def __init__(self, files: Files, open_files: OpenFiles, root: Path, file_size: int) -> None:
        self.directory = root / "consumequeue"
        self.file_size = file_size
        self._files = files
        self._open = open_files
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._floors: dict[QueueKey, int] = {}
        self._remembered: dict[QueueKey, int] = {}  # queue that is being rebuilt -> the queue offset it had reached
        self._are_floors_saved = True
        self._floors_file = JsonFile(root / "rocketsim" / "queue_offsets.json", files)
        self._summary_file = JsonFile(root / "rocketsim" / "queues.json", files)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def keys(self) -> list[QueueKey]:
        return list(self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue; None if it does not exist.

        A queue of a deleted topic has no entries and no files.  The next message in a queue of a deleted topic gets the
        offset at which the queue ended when the topic was deleted.
        """
        key = topic, queue_id
        queue = self._queues.get(key)
        return self._queue(key) if queue is None and key in self._floors else queue

    def began_at(self, topic: str, queue_id: int) -> int:
        """Returns the offset of the queue's first message ever, or of the first one since its topic was deleted."""
        return self._floors.get((topic, queue_id), 0)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        key = topic, queue_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._queue(key)
        return queue

    def _queue(self, key: QueueKey) -> ConsumeQueue:
        directory = self.directory / key[0] / str(key[1])
        assert directory.parent.parent == self.directory and key[1] >= 0, f"{key} is no queue"
        allocates = key[0] == STATE_TOPIC  # acknowledgements must work even on a full disk
        floor = self._floors.get(key, 0)
        return ConsumeQueue(self._files, self._open, directory, self.file_size, floor, allocates=allocates)

    # --- from the log ---------------------------------------------------------------------------------------------

    def put(self, extent: QueueExtent) -> bool:
        """Writes the entries that the queue lacks.  Records from before the deletion of the topic get no entries.

        Returns False, and writes nothing, if there would be a gap between the queue's entries and these.
        """
        entries, offset = extent.entries, extent.queue_offset
        skip = self._floors.get((extent.topic, extent.queue_id), 0) - offset
        if skip >= len(entries):
            return True
        if skip > 0:
            entries, offset = entries[skip:], offset + skip
        queue = self.get_or_create(extent.topic, extent.queue_id)
        empty = queue.min_offset == queue.max_offset
        joined = empty or queue.first_offset <= offset <= queue.max_offset
        if joined:
            queue.put_if_different(offset, entries)
        return joined

    def first_with_long_gap(self, extents: Iterable[QueueExtent]) -> QueueExtent | None:
        """Returns the first of these extents, in log order, that begins more than `_LONGEST_GAP` entries behind its
        queue's end.

        A master never leaves so many queue offsets unused, so the queue offset of such an extent is damaged.  Filling
        the gap with entries could take more room than the disk has.
        """
        ends: dict[QueueKey, int] = {}
        found: list[QueueExtent] = []
        for extent in extents:
            key = extent.topic, extent.queue_id
            if (end := ends.get(key)) is None:
                queue = self._queues.get(key)
                end = queue.max_offset if queue is not None and queue.min_offset < queue.max_offset else None
            if end is not None and extent.queue_offset - end > _LONGEST_GAP:
                found.append(extent)
            ends[key] = extent.queue_offset + len(extent.entries)
        return min(found, key=lambda extent: int(extent.entries["commit_log_offset"][0]), default=None)

    def append(self, queue: ConsumeQueue, extent: QueueExtent) -> None:
        """Writes the entries of records that are being appended."""
        if extent.queue_offset >= queue.max_offset:
            queue.put(extent.queue_offset, extent.entries)
        elif not self.put(extent):
            # The new entries have lower queue offsets than the queue's own.  Such entries occur only on a slave that
            # applied the deletion of the topic earlier or later in the log than its master did.
            self.drop((extent.topic, extent.queue_id))
            self.get_or_create(extent.topic, extent.queue_id).put(extent.queue_offset, extent.entries)

    def truncate(self, log_offset: int) -> list[QueueKey]:
        return [key for key, queue in self._queues.items() if queue.truncate(log_offset)]

    def newest_record(self) -> int | None:
        """Returns the log offset of the newest record that has a queue entry; None if no queue has entries.

        Raises OSError if a queue's file cannot be read.
        """
        queues = (queue for queue in self._queues.values() if queue.max_offset > queue.min_offset)
        newest = max(queues, key=lambda queue: queue.log_end, default=None)
        if newest is None:
            return None
        return int(newest.read(newest.max_offset - 1, 1)["commit_log_offset"][0])

    def ends_at(self, log_offset: int) -> dict[QueueKey, QueueEnd]:
        """Returns, for each queue that must be cut if the log ends at `log_offset`, the queue's new end."""
        ends = ((key, queue.end_at(log_offset)) for key, queue in self._queues.items())
        return {key: end for key, end in ends if end is not None}

    def shorten(self, ends: Mapping[QueueKey, QueueEnd]) -> None:
        """Moves the ends of these queues in memory only, so the caller must then call `remove_behind_ends`."""
        for key, end in ends.items():
            self._queues[key].shorten(end)

    def remove_behind_ends(self, keys: Iterable[QueueKey]) -> None:
        for key in keys:
            self._queues[key].remove_behind_end()

    def trim(self, log_min: int) -> list[Path]:
        """Trims all queues; a queue that cannot be read is skipped, and the first such OSError is raised at the end."""
        deleted: list[Path] = []
        failure: OSError | None = None
        for queue in self._queues.values():
            try:
                deleted += queue.trim(log_min)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return deleted

    def floors(self) -> list[tuple[str, int, int]]:
        """Returns (topic, queue id, first offset) for every queue whose first messages have expired."""
        return [
            (topic, queue_id, queue.min_offset) for (topic, queue_id), queue in self._queues.items() if queue.min_offset
        ]

    def begin_at(self, floors: Iterable[tuple[str, int, int]]) -> None:
        """Creates queues without entries, which begin at the queue offsets in `floors`."""
        for topic, queue_id, queue_offset in floors:
            self.get_or_create(topic, queue_id).begin_at(queue_offset)

    # --- topics ---------------------------------------------------------------------------------------------------

    def load_floors(self) -> None:
        stored = (self._floors_file.load() or {}).get("deletedTopics", {})
        self._floors = {
            (topic, int(queue)): offset for topic, queues in stored.items() for queue, offset in queues.items()
        }

    def prune_floors(self) -> None:
        """Removes the floors (lowest offsets of the queues of deleted topics) that are no longer needed.

        A floor is not needed once its queue was created again and all records from before the deletion have expired,
        because the queue's own files then say where the queue continues.
        """
        kept = {key: floor for key, floor in self._floors.items() if not self._is_past(key, floor)}
        if len(kept) == len(self._floors):
            return
        with Attempt():  # If the disk refuses the write, unneeded floors stay, which does no harm.
            self._floors_file.save({"deletedTopics": _by_topic(kept)})
            self._floors = kept

    def save_floors(self) -> None:
        """Writes the floors (lowest offsets of the queues of deleted topics) if they have changed.

        If the disk refuses the write, the next call tries again.
        """
        if self._are_floors_saved:
            return
        with Attempt() as saving:
            self._floors_file.save({"deletedTopics": _by_topic(self._floors)})
            self._are_floors_saved = True
        if saving.refused:
            logger.warning("%s could not be written: %s", self._floors_file, saving.refused)

    def forget_before(self, floors: Mapping[str, Mapping[int, int]]) -> list[QueueKey]:
        """Removes the entries of deleted topics, whose queues ended at `floors`.

        If a topic was created again since its deletion, its new entries begin at `floors` and are kept.  The floors are
        saved, so that a rebuild from the log does not bring the removed entries back.  Returns the queues that had
        entries to remove.
        """
        by_key = {(topic, queue): floor for topic, queues in floors.items() for queue, floor in queues.items()}
        raised = {
            key: floor
            for key, floor in by_key.items()
            if floor > self._floors.get(key, 0) and not self._is_past(key, floor)
        }
        if raised:
            # The floors are written before the queues are deleted, because a crash in between would otherwise bring the
            # old records back.  If the disk is full, the next start finds the floors in the topic's tombstone.
            self._floors.update(raised)
            self._are_floors_saved = False
            self.save_floors()
        old = [
            key
            for key, floor in by_key.items()
            if (queue := self._queues.get(key)) and (queue.min_offset < floor or queue.max_offset <= floor)
        ]
        for key in old:
            queue, floor = self._queues[key], by_key[key]
            kept = queue.read(floor, queue.max_offset - floor)
            self.drop(key)
            if len(kept):
                self.get_or_create(*key).put(floor, kept)
        # A slave calls this method with every change of metadata, so all queues are examined only after a deletion.
        for topic in {topic for topic, _ in old} - {topic for topic, _ in self._queues} if old else ():
            self._files.remove_tree(self.directory / topic)
        return old

    def _is_past(self, key: QueueKey, floor: int) -> bool:
        """Returns True if the queue was created again and its records from before `floor` have all expired."""
        queue = self._queues.get(key)
        return queue is not None and floor < queue.min_offset < queue.max_offset

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, log_min: int, log_end: int, summary: QueueSummary | None, *, clean: bool) -> dict[QueueKey, str]:
        """Opens the queues on disk.  Deletes damaged queues, and returns what is wrong with each of them.

        A queue counts as damaged only if its entries cannot be completed by scanning the end of the log.  After an
        unclean stop, entries behind the summary are dropped, since a power loss may have restored entries that had been
        cut.  If the log begins behind the summary's log offset, the entries of expired records are kept, because
        nothing else shows which offset a queue had reached.  Entries of expired records are certainly on disk, since
        they were synced before the log files were deleted.
        """
        damaged: dict[QueueKey, str] = {}
        for topic in self._files.names(self.directory):
            for name in self._files.names(self.directory / topic):
                if name.isdigit():
                    key = topic, int(name)
                    queue = self._queues[key] = self._queue(key)
                    sure = summary.bounds.get(key, (0, 0))[1] if summary else None
                    found = queue.load(log_min, log_end, sure_until=sure)
                    if found and not summary:
                        damaged[key] = found
                    if not clean and summary and key in summary.bounds and summary.log_offset >= log_min:
                        queue.forget_from(summary.bounds[key][1])
                    elif not clean:
                        queue.truncate(log_min)
                    if not clean:
                        queue.zero_again()
        for key, (first, end) in (summary.bounds if summary else {}).items():
            if end <= self._floors.get(key, 0):
                continue  # The topic was deleted after the summary was written.
            known = self._queues.get(key)
            if known is None:
                damaged[key] = "it is missing"
            elif known.max_offset < end:
                damaged[key] = f"it ends at {known.max_offset} instead of {end}"
            elif known.first_offset > max(first, self._floors.get(key, 0)) and not known.begins_with_expired(log_min):
                damaged[key] = f"it starts at {known.first_offset} instead of {first}"
        for key in damaged:
            known, (_, end) = self._queues.get(key), summary.bounds.get(key, (0, 0)) if summary else (0, 0)
            if known and not summary and log_min:
                # If the queue's records have expired, nothing shows how full its last file was, so the file counts as
                # full.
                end = known.named_end
            self._remembered[key] = max(end, known.named_offset if known else 0)
            self.drop(key)
        return damaged

    def resume_offsets(self) -> None:
        """Lets a rebuilt queue continue at the offset that it had reached, if all of its records have expired.

        A queue's offsets never restart at 0 while its files or the summary show which offset it had reached.
        """
        for key, offset in self._remembered.items():
            queue = self._queues.get(key)
            if offset and (queue is None or queue.min_offset == queue.max_offset < offset):
                self.drop(key)
                self.get_or_create(*key).begin_at(offset)
        self._remembered.clear()
        for (topic, _), queue in self._queues.items():
            if topic == STATE_TOPIC:
                queue.allocate()

    def drop(self, key: QueueKey) -> None:
        """Deletes a queue's files, which can be rebuilt from the log."""
        queue = self._queues.pop(key, None)
        if queue is not None:
            queue.delete()

    def drop_all(self) -> None:
        for key in self.keys():
            self.drop(key)

    def load_summary(self) -> QueueSummary | None:
        try:
            stored = self._summary_file.load()
        except StoreCorrupt:
            return None  # Everything in the summary can be rebuilt from the log.
        if stored is None:
            return None
        bounds = {
            (topic, int(queue)): tuple(pair)
            for topic, queues in stored["queues"].items()
            for queue, pair in queues.items()
        }
        # a summary of version 0.1.0 has no indexOffset
        return QueueSummary(stored["commitLogOffset"], bounds, stored.get("indexOffset", 0))

    def forget_summary(self) -> None:
        """Deletes the summary and syncs the deletion."""
        self._summary_file.remove()
        self._files.sync_directory(self._summary_file.path.parent)

    # --- the flush thread's side ----------------------------------------------------------------------------------

    def take_unsynced(self, log_offset: int, index_offset: int) -> "QueueSync":
        """Returns the sync after which all queues are on disk up to `log_offset`."""
        paths = [path for queue in self._queues.values() for path in queue.unsynced]
        for queue in self._queues.values():
            queue.unsynced = set()
        bounds = {key: (queue.first_offset, queue.max_offset) for key, queue in self._queues.items()}
        summary = QueueSummary(log_offset, bounds, index_offset)
        return QueueSync(self._files, paths, self.directory, self._summary_file, summary)


@dataclass(frozen=True, slots=True)
class QueueSync:
    """The queues' part of a thorough flush.  The flush thread runs a QueueSync, and opens its own handles."""

    files: Files
    paths: list[Path]
    directory: Path
    summary_file: JsonFile
    summary: QueueSummary

    def sync(self) -> None:
        for path in self.paths:
            try:
                handle = self.files.open(path)
            except FileNotFoundError:
                continue  # The file was deleted with its topic, or has expired.
            try:
                self.files.fdatasync(handle)
            finally:
                self.files.close(handle)
        directories = {directory for path in self.paths for directory in (path.parent, path.parent.parent)}
        for directory in sorted(directories | ({self.directory} if directories else set()), reverse=True):
            try:
                self.files.sync_directory(directory)
            except FileNotFoundError:
                continue

    def save_summary(self) -> None:
        """Writes the summary; to be called when everything that it describes is on disk."""
        queues = _by_topic(dict(self.summary.bounds))
        offsets = {"commitLogOffset": self.summary.log_offset, "indexOffset": self.summary.index_offset}
        self.summary_file.save({**offsets, "queues": queues})


def _by_topic(values: Mapping[QueueKey, Any]) -> dict[str, dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for (topic, queue_id), value in values.items():
        topics.setdefault(topic, {})[str(queue_id)] = value
    return topics
