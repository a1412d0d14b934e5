"""ConfigTable: keeps named entries in one of RocketMQ's `config/*.json` files, with a DataVersion that every change
raises.

Subclasses keep topics, subscription groups, users and policies.  Fields of an entry that this version does not know are
kept as they are.

A change is first planned from the present table, then written, and only then made in memory.  The table in memory
therefore never has a change that is not on disk.  A running broker makes its changes with `apply`, which writes them on
a thread, one after the other.  The methods `put`, `delete` and `adopt`, for slaves and starting brokers, write on the
calling thread.
"""

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from broker_service.errors import StoreCorrupt, SystemBusy
from broker_service.runtime.tasks import to_its_end
from broker_service.store.files import refusal
from broker_service.store.json_file import TextTable, entry_text

MAX_TOMBSTONES = 10_000


class JsonStore(Protocol):
    """The file of a table, which `store.json_file.JsonFile` implements."""

    def load(self) -> dict[str, Any] | None:
        """Returns the file's content, or None if there is no file."""

    def save(self, value: dict[str, Any]) -> None:
        """Writes the new content, and returns once it is on disk.  After a crash the file has either the old content or
        the new one.
        """


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a table's content.  Two brokers with equal versions have equal tables."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        return DataVersion(now_ms, self.counter + 1, self.state_version)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "DataVersion":
        return cls(int(value.get("timestamp", 0)), int(value.get("counter", 0)), int(value.get("stateVersion", 0)))


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Marks a deleted entry, with the time of the deletion.  For a topic, the tombstone also has the offsets at which
    the queues continue if the topic is created again.
    """

    at_ms: int
    queue_offsets: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        return {"timestamp": self.at_ms, "queueOffsets": {str(key): at for key, at in self.queue_offsets.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Tombstone":
        return cls(int(value["timestamp"]), {int(queue): int(at) for queue, at in value["queueOffsets"].items()})


class Named(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


@dataclass(frozen=True, slots=True)
class Planned(Generic[Entry]):
    """A change that is not on disk yet, with the new table and the names of the changed entries.

    `buried` has the tombstones that the change adds.  `writes_entries` is False if the change adds only tombstones.
    """

    entries: dict[str, Entry]
    version: DataVersion
    names: frozenset[str]
    buried: Mapping[str, Tombstone] = dataclasses.field(default_factory=dict)
    writes_entries: bool = True


class ConfigTable(Generic[Entry]):
    """A table in one file.  A subclass sets the class of the entries, and the key of the table in the file.

    A deletion writes two files: first the file of tombstones, and then the file of entries.  A crash may come between
    the two writes.  A new tombstone in the file therefore contains, as `replaces`, the entry's earlier tombstone.  As
    long as the file of entries still has the deleted entry, the earlier tombstone counts instead of the new one.
    """

    entry_class: ClassVar[type[Any]]
    table_key: ClassVar[str]

    def __init__(self, file: JsonStore, tombstones_file: JsonStore) -> None:
        self._file = file
        self._tombstones_file = tombstones_file
        self._other: dict[str, Any] = {}  # the file's other top-level fields
        # Name of an entry -> those of its fields in the file that this version does not know.
        self._unknown: dict[str, dict[str, Any]] = {}
        self._texts: dict[str, tuple[Entry, str]] = {}  # name -> entry, and its JSON text as last written
        self.entries: dict[str, Entry] = {}
        self.version = DataVersion()
        # Name of a deleted entry -> its tombstone, from which a slave that was disconnected learns of the deletion.
        self.tombstones: dict[str, Tombstone] = {}
        # Names of deleted entries whose tombstone on disk contains an earlier tombstone, as `replaces`.
        self._conditional: set[str] = set()
        # Each function is called with the name of an entry after the entry has changed.
        self.changed: list[Callable[[str], None]] = []
        self.changing: frozenset[str] = frozenset()  # names of entries whose change is being written
        self._turn = asyncio.Lock()
        self._load()

    def get(self, name: str) -> Entry | None:
        return self.entries.get(name)

    # --- changing ---------------------------------------------------------------------------------------------------

    async def apply(self, plan: Callable[[], Planned[Entry] | None], then: Callable[[], None] | None = None) -> bool:
        """Makes a change, which is written on a thread.  Returns False if `plan` returns None, because nothing has to
        change.

        `plan` is called as soon as all earlier changes have been made.  `then` is called in the same step of the event
        loop in which the table changes.  The change is completed even if the caller is cancelled.
        """
        return await to_its_end(self._apply(plan, then))

    def is_changing(self, name: str) -> bool:
        """Returns True while a change of this entry is being written and can still fail."""
        return name in self.changing

    async def settled(self) -> None:
        """Waits until all changes that were requested before are made or refused."""
        async with self._turn:
            pass

    async def until_settled(self, *names: str) -> None:
        """Waits until no change of the named entries is being written.  Until the caller awaits something else, no new
        change can begin.
        """
        while any(map(self.is_changing, names)):
            await self.settled()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Opens a context in which `apply` waits, so that changes without `apply`, such as `delete_all`, are not
        refused.
        """
        async with self._turn:
            yield

    async def _apply(self, plan: Callable[[], Planned[Entry] | None], then: Callable[[], None] | None) -> bool:
        async with self._turn:
            planned = plan()
            if planned is None:
                return False
            self.changing = planned.names
            try:
                tombstones = await asyncio.to_thread(self._write, planned)
            finally:
                self.changing = frozenset()
            self._become(planned, tombstones)
            if then is not None:
                then()
        return True

    def _apply_now(self, planned: Planned[Entry] | None) -> bool:
        if planned is None:
            return False
        if self.changing:
            raise SystemBusy(f"{self._file} is being written; try again in a moment")
        self._become(planned, self._write(planned))
        return True

    def put(self, entry: Entry, now_ms: int) -> None:
        """Creates or replaces an entry.  If the entry equals the present one, nothing changes."""
        self._apply_now(self.putting(entry, now_ms))

    def putting(self, entry: Entry, now_ms: int) -> Planned[Entry] | None:
        if self.entries.get(entry.name) == entry:
            return None
        return Planned({**self.entries, entry.name: entry}, self.version.next(now_ms), frozenset((entry.name,)))

    def delete(self, name: str, now_ms: int, queue_offsets: Mapping[int, int] | None = None) -> bool:
        """Deletes an entry.  Returns False if there is no such entry."""
        return self._apply_now(self.deleting(name, now_ms, queue_offsets))

    def deleting(self, name: str, now_ms: int, queue_offsets: Mapping[int, int] | None = None) -> Planned[Entry] | None:
        return self._without({name: queue_offsets or {}}, now_ms)

    def delete_all(self, ends: Mapping[str, Mapping[int, int]], now_ms: int) -> None:
        """Deletes several entries with one write.  `ends` has, by name of a deleted topic, the ends of its queues."""
        self._apply_now(self._without(ends, now_ms))

    def _without(self, ends: Mapping[str, Mapping[int, int]], now_ms: int) -> Planned[Entry] | None:
        gone = ends.keys() & self.entries.keys()
        if not gone:
            return None
        buried = {}
        for name in sorted(gone):
            # Queues that were not used since the earlier deletion continue at the offsets of the earlier tombstone.
            before = self.tombstones.get(name)
            buried[name] = Tombstone(now_ms, {**(before.queue_offsets if before else {}), **ends[name]})
        table = {name: entry for name, entry in self.entries.items() if name not in gone}
        return Planned(table, self.version.next(now_ms), frozenset(gone), buried)

    def adopt(
        self,
        version: DataVersion,
        entries: Iterable[Entry],
        deleted: Mapping[str, Mapping[int, int]],
        *,
        complete: bool,
    ) -> set[str]:
        """Takes over entries of the master: the whole table if `complete`, otherwise those of a change.  Returns the
        names of the entries that have changed here.

        A name in both `entries` and `deleted` belongs to an entry that was deleted and created again.  The tombstone of
        an entry that was created again is kept, as on the master.  If the master's complete table lacks an entry of
        this table, the entry is removed without a tombstone, because nobody has deleted it and the master may have lost
        its file.
        """
        mastered = {entry.name: entry for entry in entries}
        buried = {
            name: Tombstone(version.timestamp, offsets)
            for name, offsets in deleted.items()
            if name in mastered and ((known := self.tombstones.get(name)) is None or known.queue_offsets != offsets)
        }
        gone = {name for name in deleted if name in self.entries and name not in mastered}
        if complete:
            gone |= self.entries.keys() - mastered.keys()
        changed = {name for name, entry in mastered.items() if self.entries.get(name) != entry} | gone
        buried |= {name: Tombstone(version.timestamp, offsets) for name, offsets in deleted.items() if name in gone}
        differs = bool(changed) or version != self.version
        table = {name: entry for name, entry in self.entries.items() if name not in gone} | mastered
        if differs or buried:
            self._apply_now(Planned(table, version, frozenset(changed), buried, writes_entries=differs))
        return changed

    def _write(self, planned: Planned[Entry]) -> dict[str, Tombstone]:
        """Writes a change, and returns the tombstones that are then on disk.  Any thread may call this method, but only
        one at a time.
        """
        entries, tombstones = planned.entries, self.tombstones
        if planned.buried:
            tombstones = self._save_tombstones(planned.buried, deleting=planned.names - entries.keys())
        if planned.writes_entries:
            if self._conditional & (entries.keys() - self.entries.keys()):
                # Drops `replaces`: a deleted entry is created again, so its new tombstone counts.
                self._save_tombstones({})
            self._texts = {name: self._text_of(name, entry) for name, entry in entries.items()}
            table = TextTable({name: text for name, (_, text) in self._texts.items()})
            version = planned.version.to_json()
            self._save(self._file, {**self._other, "dataVersion": version, self.table_key: table})
        return tombstones

    def _text_of(self, name: str, entry: Entry) -> tuple[Entry, str]:
        written = self._texts.get(name)
        if written is not None and written[0] is entry:
            return written
        return entry, entry_text({**self._unknown.get(name, {}), **to_json(entry)})

    def _become(self, planned: Planned[Entry], tombstones: dict[str, Tombstone]) -> None:
        self.tombstones = tombstones
        if not planned.writes_entries:
            return
        self.entries, self.version = planned.entries, planned.version
        for name in planned.names - planned.entries.keys():
            self._unknown.pop(name, None)
        for listener in self.changed:
            for name in sorted(planned.names):
                listener(name)

    def _save_tombstones(self, added: Mapping[str, Tombstone], *, deleting: Iterable[str] = ()) -> dict[str, Tombstone]:
        """Writes all tombstones together with those in `added`, and returns them.

        The new tombstone of an entry in `deleting` counts only once the file of entries is written without this entry.
        """
        newest = dict(sorted({**self.tombstones, **added}.items(), key=lambda item: item[1].at_ms)[-MAX_TOMBSTONES:])
        content = {name: tombstone.to_json() for name, tombstone in newest.items()}
        conditional = added.keys() & set(deleting) & newest.keys()
        for name in conditional:
            replaced = self.tombstones.get(name)
            content[name]["replaces"] = replaced and replaced.to_json()
        self._save(self._tombstones_file, {"deleted": content})
        self._conditional = set(conditional)
        return newest

    @staticmethod
    def _save(file: JsonStore, content: dict[str, Any]) -> None:
        try:
            file.save(content)
        except OSError as error:
            raise refusal(error, f"writing {file}") from error

    def deleted(self) -> list[str]:
        """Returns the names of deleted entries that were not created again."""
        return [name for name in self.tombstones if name not in self.entries]

    def _load(self) -> None:
        tombstones = (self._tombstones_file.load() or {}).get("deleted", {})
        content = dict(self._file.load() or {})
        try:
            self.version = DataVersion.from_json(content.pop("dataVersion", None) or {})
            for name, value in (content.pop(self.table_key, None) or {}).items():
                entry = from_json(self.entry_class, value)
                if entry.name != name:
                    raise ValueError(f"{name} holds the entry of {entry.name!r}")
                self.entries[name] = entry
                known = to_json(entry)
                self._unknown[name] = {key: field for key, field in value.items() if key not in known}
            self._conditional = {name for name, value in tombstones.items() if "replaces" in value}
            for name, value in tombstones.items():
                counts = value["replaces"] if name in self._conditional and name in self.entries else value
                if counts is not None:
                    self.tombstones[name] = Tombstone.from_json(counts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreCorrupt(f"{self._file}: {error}; correct it or put its .bak in its place") from error
        self._other = content


@cache  # cached, because a file of a thousand entries has some ten thousand field names
def camel_case(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


def to_json(entry: Named) -> dict[str, Any]:
    values = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    return {camel_case(name): dict(value) if isinstance(value, dict) else value for name, value in values.items()}


def from_json(entry_class: type[Any], value: Mapping[str, Any]) -> Any:
    """Reads an entry.  RocketMQ leaves out some fields, and writes null for others.  A missing field and a null both
    mean the default.
    """
    arguments = {}
    for field in dataclasses.fields(entry_class):
        given = value.get(camel_case(field.name))
        if given is None:
            continue
        expected = {"int": int, "str": str, "bool": bool}.get(str(getattr(field.type, "__name__", field.type)), dict)
        if not isinstance(given, expected) or (expected is int and isinstance(given, bool)):
            shown = repr(given) if field.repr else f"a {type(given).__name__}"  # an error text must not show a secret
            raise ValueError(f"{camel_case(field.name)} is {shown}, not {expected.__name__}")
        arguments[field.name] = given
    return entry_class(**arguments)
