"""ConsumerOffsetTable: keeps the committed offset of each group in each queue.

An entry is a pair (generation, offset).  Entries are compared as pairs, first by generation, and an entry can only
rise.  Because entries only rise, a master and its slaves can merge their tables in both directions.  An offset goes
back only if it gets a higher generation, which happens at a reset, at the deletion of a topic or group, and at a cut of
the log.

The offsets are in RocketMQ's file `config/consumerOffset.json`.  The generations are in a file of RocketSim's own, and
commits since the last write of both files are in a journal.  The progress of groups that pop is in none of the three
files, because the broker derives it from the log.  The table shows the progress of groups that pop, and writes it to
RocketMQ's file only at a clean stop, for a RocketMQ that opens the store.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from broker_service.broker.metadata.config_table import DataVersion, JsonStore
from broker_service.errors import StoreCorrupt
from broker_service.store.offset_journal import NEVER, NO_OFFSET, LogPoint, OffsetEntry, OffsetJournal
from broker_service.store.offset_merge import OffsetTable, Queues, merged_offsets

logger = logging.getLogger(__name__)

Change = tuple[str, str, Mapping[int, OffsetEntry]]  # group, topic, queues
Place = tuple[str, str, int]  # group, topic, queue id


class History(Protocol):
    """The facts about the log's history on which the generations of offsets depend."""

    def end(self) -> LogPoint:
        """Returns the end of the log, which becomes the origin of a generation that is raised now."""

    def has_passed(self, point: LogPoint) -> bool:
        """Returns True if this log contains the point, or once contained it."""


class NoHistory:
    """A history that counts every point as contained."""

    def end(self) -> LogPoint:
        return LogPoint()

    def has_passed(self, point: LogPoint) -> bool:
        return True


class ConsumerOffsetTable:
    """Keeps the offsets.  When a method that changes the table returns, the change is in the journal.  The methods do
    not wait for the disk; only `Compaction.run` does.
    """

    def __init__(
        self,
        file: JsonStore,
        generations_file: JsonStore,
        journal: OffsetJournal,
        *,
        history: History | None = None,
        noted_file: JsonStore | None = None,
    ) -> None:
        self._file = file
        self._generations_file = generations_file
        self._noted_file = noted_file
        # Offsets that `note` has written to RocketMQ's file in place of the committed ones.
        self._noted: dict[str, dict[str, list[int]]] = {}
        self._journal = journal
        self._history = history or NoHistory()
        self._table: OffsetTable = {}
        # The other fields of RocketMQ's file, which are groupTopicMap and pullOffsetTable.
        self._other: dict[str, Any] = {}
        self._version = DataVersion()
        self._logged: set[Place] = set()  # queues for which a commit below the committed offset was already reported
        self.unshared: set[Place] = set()  # queues with a commit here that the master may not have
        # Queues whose entry here comes from a reset in records that the master does not have.
        self._foreign: set[Place] = set()
        self._news = False  # True if an offset was committed since the last call of `take_news`
        # The progress of groups that pop, derived from the log.  The method `progress` returns this progress in place
        # of the committed offset.
        self.kept: dict[tuple[str, str], dict[int, int]] = {}
        self.changed: list[Callable[[Change], None]] = []
        self._load()

    # --- reading ----------------------------------------------------------------------------------------------------

    def get(self, group: str, topic: str, queue_id: int) -> OffsetEntry:
        """Returns the committed entry of a queue.  Without a commit, the entry is `NEVER` or has offset -1."""
        return self._table.get((group, topic), {}).get(queue_id, NEVER)

    def progress(self, group: str, topic: str, queue_id: int) -> OffsetEntry:
        """For a group that pops, returns the progress that the broker tracks; for any other group, returns the
        committed offset.
        """
        committed = self.get(group, topic, queue_id)
        kept = self.kept.get((group, topic), {}).get(queue_id)
        return committed if kept is None else committed.at(kept)

    def of_group(self, group: str) -> Iterator[tuple[str, int, OffsetEntry]]:
        """Yields (topic, queue id, progress) for each queue in which the group has a committed offset or progress by
        pops.
        """
        for owner, topic in self._table.keys() | self.kept.keys():
            if owner != group:
                continue
            for queue_id in self._table.get((group, topic), {}).keys() | self.kept.get((group, topic), {}).keys():
                entry = self.progress(group, topic, queue_id)
                if entry.offset >= 0:
                    yield topic, queue_id, entry

    def groups_of(self, topic: str) -> list[str]:
        return [group for group, name in self._table if name == topic]

    def groups(self) -> list[str]:
        """Returns the groups that have a committed offset or progress by pops, without deleted groups."""
        committed = {
            group for (group, _), queues in self._table.items() if any(entry.offset >= 0 for entry in queues.values())
        }
        return sorted(committed | {group for group, _ in self.kept})

    def topics_by_group(self) -> dict[str, set[str]]:
        """Returns, by group, the topics in which the group has a committed offset or progress by pops."""
        topics: dict[str, set[str]] = {}
        for (group, topic), queues in self._table.items():
            if any(entry.offset >= 0 for entry in queues.values()):
                topics.setdefault(group, set()).add(topic)
        for group, topic in self.kept:
            topics.setdefault(group, set()).add(topic)
        return topics

    def everything(self) -> Iterator[Change]:
        """Returns all entries.  The entries of deleted groups are included, because they must win over older entries of
        other brokers.
        """
        return ((group, topic, dict(queues)) for (group, topic), queues in self._table.items())

    def to_hand_back(self) -> Iterator[Change]:
        """Yields the entries with commits that the master may not have."""
        for group, topic, queue_id in sorted(self.unshared):
            yield group, topic, {queue_id: self.get(group, topic, queue_id)}

    def take_news(self) -> bool:
        """Returns True if an offset was committed since the last call."""
        news, self._news = self._news, False
        return news

    # --- changing ---------------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Commits offsets, and returns the committed offsets after that.  An offset below the committed one changes
        nothing.
        """
        queues = self._table.get((group, topic), {})
        risen: Queues = {}
        standing: dict[int, int] = {}
        for queue_id, offset in offsets.items():
            current = queues.get(queue_id, NEVER)
            if offset > current.offset:
                risen[queue_id] = current.at(offset)
                self._logged.discard((group, topic, queue_id))
            elif offset < current.offset and (group, topic, queue_id) not in self._logged:
                self._logged.add((group, topic, queue_id))
                logger.warning(
                    "group %s commits offset %d of queue %d of topic %s, but has committed %d: ignored (logged once)",
                    group,
                    offset,
                    queue_id,
                    topic,
                    current.offset,
                )
            standing[queue_id] = max(offset, current.offset)
        self._set(group, topic, risen)
        self.unshared.update((group, topic, queue_id) for queue_id in risen)
        self._news |= bool(risen)
        return standing

    def keep(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Sets how far a group that pops has settled (acknowledged or moved) its messages.

        The progress is neither written to a file nor sent to other brokers.  Each broker derives the progress from its
        own log, so that the progress is never ahead of this log.
        """
        self.kept.setdefault((group, topic), {})[queue_id] = offset

    def release(self, group: str, topic: str, queue_id: int) -> None:
        """Forgets the progress by pops in a queue."""
        queues = self.kept.get((group, topic), {})
        queues.pop(queue_id, None)
        if not queues:
            self.kept.pop((group, topic), None)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Moves offsets back or forward.  Each offset gets a new generation, whose origin is the present end of the
        log.
        """
        self._set(group, topic, self._raised(group, topic, offsets))

    def make_room_for_reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Reserves space on the disk for a reset.  The caller must call this method before it appends the records that
        reset the pops, so that a full disk refuses the whole reset.
        """
        if offsets:
            self._journal.make_room(group, topic, self._raised(group, topic, offsets))

    def _raised(self, group: str, topic: str, offsets: Mapping[int, int]) -> Queues:
        point = self._history.end()
        return {
            queue_id: OffsetEntry(self.get(group, topic, queue_id).generation + 1, offset, point)
            for queue_id, offset in offsets.items()
        }

    def delete_topic(self, topic: str) -> None:
        for group in self.groups_of(topic):
            self.reset(group, topic, dict.fromkeys(self._table[group, topic], NO_OFFSET))

    def delete_topics(self, topics: Set[str]) -> None:
        """Deletes the offsets of these topics, as `delete_topic` does, if they still have any."""
        left = {
            topic
            for (_, topic), queues in self._table.items()
            if topic in topics and any(entry.offset != NO_OFFSET for entry in queues.values())
        }
        for topic in sorted(left):
            self.delete_topic(topic)

    def delete_group(self, group: str) -> None:
        for topic in [name for owner, name in self._table if owner == group]:
            self.reset(group, topic, dict.fromkeys(self._table[group, topic], NO_OFFSET))

    def clamp(self, end_of: Callable[[str, int], int], *, new_generation: bool) -> list[str]:
        """After a cut of the log, moves back each offset that is beyond the end of its queue.

        Returns a line of text for each offset that has moved.  On a slave the generation stays the same, because only a
        master may let an offset go back.  On a master (`new_generation`) the generation rises, even for entries whose
        generation comes from records that this log does not have.  A slave that is promoted may have received the entry
        of a reset, but not all records before the reset.
        """
        lines = []
        for (group, topic), queues in self._table.items():
            beyond = {queue_id: end_of(topic, queue_id) for queue_id, entry in queues.items() if entry.offset > 0}
            beyond = {queue_id: end for queue_id, end in beyond.items() if end < queues[queue_id].offset}
            lines += [f"{group} {topic}:{queue} from {queues[queue].offset} to {end}" for queue, end in beyond.items()]
            if new_generation:
                foreign = {queue: entry.offset for queue, entry in queues.items() if not self.may_bring(entry)}
                self.reset(group, topic, foreign | beyond)
            elif beyond:
                entries = {queue: queues[queue].at(end) for queue, end in beyond.items()}
                self._set(group, topic, entries, replaces=True)
        return lines

    def merge(self, changes: Iterable[Change]) -> int:
        """Takes over each entry that is higher than the entry here.  `changes` come from another broker of this
        broker's name.  Returns the number of entries that have risen.
        """
        risen_count = 0
        for group, topic, entries in changes:
            queues = self._table.get((group, topic), {})
            risen = {queue: entry for queue, entry in entries.items() if entry > queues.get(queue, NEVER)}
            self._set(group, topic, risen)
            risen_count += len(risen)
        return risen_count

    def merge_in_new_generation(self, group: str, topic: str, entries: Mapping[int, OffsetEntry]) -> Queues:
        """Merges another broker's entries into the table, and gives each merged entry a new generation.  Returns the
        entries with the new generations.  An entry here that already has a higher generation stays.

        The caller has lowered the offsets in `entries` to the ends of the queues.  One line of the journal writes the
        lowered offsets together with the new generations.  A crash between two separate writes could leave a lowered
        offset in the old generation, in which the other broker still has the higher offset.
        """
        point = self._history.end()
        raised: Queues = {}
        for queue_id, entry in entries.items():
            standing = max(entry, self.get(group, topic, queue_id))
            if standing.generation == entry.generation:
                raised[queue_id] = OffsetEntry(entry.generation + 1, standing.offset, point)
        self._set(group, topic, raised)
        return raised

    def merge_from_master(self, changes: Iterable[Change], *, begins: bool = False, ends: bool = False) -> None:
        """Takes over each entry of the master that is higher than the entry here.  An entry need not be handed back if
        the master has it or a higher one.

        The master sends its complete table in several calls: `begins` marks the first call, and `ends` the last one.
        After the last call, every entry that is higher here is handed back, even if it once came from the master,
        because a power loss can take acknowledged commits from a master.  An entry is dropped if its generation was
        raised in records that this log has lost, because it then belongs to another history.
        """
        if begins:
            self.unshared = set(self._places())
            self._foreign = {place for place in self.unshared if not self.may_bring(self.get(*place))}
        for group, topic, entries in changes:
            foreign = {queue: entry for queue, entry in entries.items() if (group, topic, queue) in self._foreign}
            self._set(group, topic, foreign, replaces=True)
            self.merge([(group, topic, entries)])
            for queue_id, entry in entries.items():
                self._foreign.discard((group, topic, queue_id))
                if entry >= self.get(group, topic, queue_id):
                    self.unshared.discard((group, topic, queue_id))
        if ends:
            for group, topic, queue_id in sorted(self._foreign):
                self._set(group, topic, {queue_id: NEVER}, replaces=True)
            self.unshared -= self._foreign
            self._foreign.clear()

    def may_bring(self, entry: OffsetEntry) -> bool:
        """Returns True if the entry's generation belongs to the history of this log, or if the generation's origin is
        not known.
        """
        return not entry.raised_at.epoch or self._history.has_passed(entry.raised_at)

    def _set(self, group: str, topic: str, entries: Queues, *, replaces: bool = False) -> None:
        """Writes entries to the journal and into the table.  With `replaces`, offsets may go back, also when the
        journal is replayed.
        """
        if not entries:
            return
        self._journal.append(group, topic, entries, replaces=replaces)
        self._table.setdefault((group, topic), {}).update(entries)
        for listener in self.changed:
            listener((group, topic, entries))

    # --- the files --------------------------------------------------------------------------------------------------

    def compaction(self, now_ms: int) -> "Compaction | None":
        """Returns a `Compaction`, which writes both files on any thread.  Returns None if nothing has changed since the
        last `Compaction`.
        """
        if self._journal.is_empty:
            return None
        number = self._journal.rotate()
        content = self._content(now_ms)
        generations: dict[str, dict[str, list[int]]] = {}
        raised_at: dict[str, dict[str, list[int]]] = {}
        for (group, topic), queues in sorted(self._table.items()):
            key = f"{topic}@{group}"
            ordered = sorted(queues.items())
            if raised := {str(queue): [entry.generation, entry.offset] for queue, entry in ordered if entry.generation}:
                generations[key] = raised
            if points := {str(queue): list(entry.raised_at) for queue, entry in ordered if entry.raised_at.epoch}:
                raised_at[key] = points
        raised_content = {"generations": generations, "raisedAt": raised_at}
        files = self._file, content, self._generations_file, raised_content
        return Compaction(*files, self._forget_noted, self._journal, number)

    def _content(self, now_ms: int) -> dict[str, Any]:
        self._version = self._version.next(now_ms)
        offsets: dict[str, dict[str, int]] = {}
        for (group, topic), queues in sorted(self._table.items()):
            if committed := {str(queue): entry.offset for queue, entry in sorted(queues.items()) if entry.offset >= 0}:
                offsets[f"{topic}@{group}"] = committed
        other = dict(self._other)
        if "groupTopicMap" in other:
            other["groupTopicMap"] = self._group_topics(other["groupTopicMap"])
        return {**other, "dataVersion": self._version.to_json(), "offsetTable": offsets}

    def note(self, goes_on: Mapping[tuple[str, str], Mapping[int, int]], now_ms: int) -> None:
        """Writes into RocketMQ's file the offsets at which a RocketMQ would continue if it opened this store.  The
        caller must first call `close`.

        The written offsets replace the committed ones in RocketMQ's file.  The committed offsets and their replacements
        are first written to a file of this broker, so that at the next start no replacement counts as committed.
        """
        if self._noted_file is None:
            return
        content = self._content(now_ms)
        noted = {key: dict(queues) for key, queues in self._noted.items()}
        for (group, topic), offsets in sorted(goes_on.items()):
            key = f"{topic}@{group}"
            for queue_id, offset in sorted(offsets.items()):
                committed = self.get(group, topic, queue_id).offset
                if offset != committed:
                    before = self._noted.get(key, {}).get(str(queue_id), [committed])
                    noted.setdefault(key, {})[str(queue_id)] = [*before, offset]
                    content["offsetTable"].setdefault(key, {})[str(queue_id)] = offset
        if noted:
            self._noted_file.save(noted)
            self._file.save(content)

    def _forget_noted(self) -> None:
        if self._noted and self._noted_file is not None:
            self._noted_file.save({})
            self._noted = {}

    def _take_noted(self, offset_table: dict[str, dict[str, int]]) -> None:
        """Restores each committed offset that `note` has replaced, unless RocketMQ has changed the replacement
        since.
        """
        noted = (self._noted_file.load() if self._noted_file is not None else None) or {}
        for key, queues in noted.items():
            offsets = offset_table.get(key, {})
            for queue, (committed, *those) in queues.items():
                offset = offsets.get(queue, NO_OFFSET)
                if offset not in those:
                    continue
                self._noted.setdefault(key, {})[queue] = [committed, offset]
                if committed >= 0:
                    offsets[queue] = committed
                else:
                    del offsets[queue]
            if key in offset_table and not offsets:
                del offset_table[key]

    def close(self, now_ms: int) -> None:
        compaction = self.compaction(now_ms)
        if compaction:
            compaction.run()
        self._journal.close()

    def _group_topics(self, known: Mapping[str, Any]) -> dict[str, list[str]]:
        topics = {group: set(names) for group, names in known.items()}
        for group, topic in self._table:
            topics.setdefault(group, set()).add(topic)
        return {group: sorted(names) for group, names in sorted(topics.items())}

    def _load(self) -> None:
        content = dict(self._file.load() or {})
        raised = self._generations_file.load() or {}
        generations, raised_at = raised.get("generations", {}), raised.get("raisedAt", {})
        try:
            self._version = DataVersion.from_json(content.pop("dataVersion", None) or {})
            offset_table = content.pop("offsetTable", None) or {}
            self._take_noted(offset_table)
            self._table = merged_offsets(offset_table, generations, raised_at, self._journal.replay())
        except (TypeError, ValueError, AttributeError) as error:
            raise StoreCorrupt(f"{self._file}: {error}; correct it or put its .bak in its place") from error
        self._other = content
        self.unshared = set(self._places())

    def _places(self) -> Iterator[Place]:
        """Yields (group, topic, queue id) of each offset that was ever committed, even by groups that are deleted
        now.
        """
        for (group, topic), entries in self._table.items():
            yield from ((group, topic, queue) for queue, entry in entries.items() if entry > NEVER)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The table's content at one moment, which `run` writes to two files."""

    file: JsonStore
    content: dict[str, Any]
    generations_file: JsonStore
    generations: dict[str, Any]
    forget_noted: Callable[[], None]
    journal: OffsetJournal
    journal_number: int

    def run(self) -> None:
        """Writes both files and waits for the disk.  Until `run` returns, the journal still has all changes."""
        self.file.save(self.content)
        self.generations_file.save(self.generations)
        self.forget_noted()
        self.journal.drop(self.journal_number)
